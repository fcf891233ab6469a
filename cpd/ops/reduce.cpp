// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpd/backend/roster.h"
#include "cpd/base/plans.h"
#include "cpd/numeric/error.h"
#include "cpd/numeric/philox.h"
#include "cpd/ops/elementwise.h"

namespace cpd {
namespace {

/// A plain sum of numbers in `terms_in` into `format`.
FoldPlan PlanOf(const Accumulator& accumulator, const Format& format, const Format& terms_in) {
  return FoldPlanOf({format, accumulator.scheme, accumulator.rounding}, terms_in);
}

Format InnerOf(const Accumulator& accumulator) {
  return accumulator.inner.value_or(accumulator.format);
}

void RefuseUnit(const Accumulator& accumulator) {
  if (accumulator.scheme != Scheme::block_fma) return;
  throw Error(
      "a sum of given terms takes scheme sequential, kahan, chunked or pairwise, got block_fma, "
      "which sums products");
}

/// Terms in `terms_in` are added two by two before either has been rounded into `format`. What
/// FoldPlan needs to know of them holds of its own grid only: a term halfway between two of the
/// format's subnormals would hide a much smaller one's side.
Format KnownOfPairs(const Format& terms_in, const Format& format) {
  const int quantum = format.emin() - format.man;
  return terms_in.min_quantum_exponent() >= quantum ? terms_in : kFp32;
}

/// Merges that `terms` terms have seen.
std::int64_t MergesOf(std::int64_t terms) {
  return terms - std::popcount(static_cast<std::uint64_t>(terms));
}

/// KernelTable::fold for either type. In binary64 a plan's short routes are not taken, and what it
/// says of the terms does not matter.
void Fold(const FoldPlan& plan, bool starts, std::int64_t draw, std::int64_t first, std::int64_t n,
          std::int64_t count, const float* const* terms, float* sum, float* compensation,
          GivenDraws given) {
  Kernels().fold(plan, starts, draw, first, n, count, terms, sum, compensation, given);
}
void Fold(const FoldPlan& plan, bool starts, std::int64_t draw, std::int64_t first, std::int64_t n,
          std::int64_t count, const double* const* terms, double* sum, double* compensation,
          GivenDraws given) {
  Kernels().fold_f64(plan, starts, draw, first, n, count, terms, sum, compensation, given);
}

/// Pairwise: one open tree for each bit of the number of terms so far, the largest in plane 0.
template <class T>
class Trees {
 public:
  Trees(const Accumulator& accumulator, const Format& terms_in, std::int64_t terms,
        std::int64_t first, std::int64_t n, FoldStateOf<T> state)
      : accumulator_(accumulator),
        terms_in_(KnownOfPairs(terms_in, accumulator.format)),
        first_(first),
        n_(n),
        state_(state),
        draw_(MergesOf(terms)),
        open_(std::popcount(static_cast<std::uint64_t>(terms))) {}

  void Push(const T* tree) {
    std::copy_n(tree, n_, Plane(open_));
    ++open_;
  }
  /// Adds `tree` to the smallest open one; `of_terms`: one of the two may be a term.
  void Merge(const T* tree, bool of_terms) {
    const Format& in = of_terms ? terms_in_ : accumulator_.format;
    Fold(PlanOf(accumulator_, accumulator_.format, in), false, draw_++, first_, n_, 1, &tree,
         Plane(open_ - 1), nullptr, state_.given);
  }
  /// Takes the smallest open tree away.
  const T* Pop() { return Plane(--open_); }
  [[nodiscard]] int open() const { return open_; }

 private:
  [[nodiscard]] T* Plane(int q) const { return state_.planes + q * state_.stride; }

  const Accumulator& accumulator_;
  Format terms_in_;
  std::int64_t first_, n_;
  FoldStateOf<T> state_;
  std::int64_t draw_;
  int open_;
};

template <class T>
void StepPairwise(Trees<T> trees, std::int64_t k, const T* terms) {
  if (k % 2 == 0) return trees.Push(terms);
  trees.Merge(terms, true);
  for (std::int64_t rest = k >> 1; rest % 2 != 0; rest >>= 1) {
    const T* tree = trees.Pop();
    trees.Merge(tree, false);
  }
}

template <class T>
void EndPairwise(Trees<T> trees, bool odd) {
  while (trees.open() > 1) {
    const T* tree = trees.Pop();
    trees.Merge(tree, odd);
    odd = false;
  }
}

/// Chunk number q ends: its sum, in plane 1, is the next term of the outer one.
template <class T>
void EndChunk(const Accumulator& accumulator, std::int64_t q, std::int64_t draw, std::int64_t first,
              std::int64_t n, FoldStateOf<T> state) {
  const T* inner = state.planes + state.stride;
  Fold(PlanOf(accumulator, accumulator.format, InnerOf(accumulator)), q == 0, draw, first, n, 1,
       &inner, state.planes, nullptr, state.given);
}

template <class T>
void StepChunked(const Accumulator& accumulator, const Format& terms_in, std::int64_t k,
                 std::int64_t count, std::int64_t first, std::int64_t n, const T* const* terms,
                 FoldStateOf<T> state) {
  const FoldPlan plan = PlanOf(accumulator, InnerOf(accumulator), terms_in);
  while (count > 0) {
    const std::int64_t q = k / accumulator.chunk;
    const std::int64_t in_chunk = k % accumulator.chunk;
    const std::int64_t run = std::min(count, accumulator.chunk - in_chunk);
    Fold(plan, in_chunk == 0, k + q, first, n, run, terms, state.planes + state.stride, nullptr,
         state.given);
    k += run;
    terms += run;
    count -= run;
    if (in_chunk + run == accumulator.chunk) EndChunk(accumulator, q, k + q, first, n, state);
  }
}

template <class T>
void Steps(const Accumulator& accumulator, const Format& terms_in, std::int64_t k,
           std::int64_t count, std::int64_t first, std::int64_t n, const T* const* terms,
           FoldStateOf<T> state) {
  Check(accumulator);
  Check(terms_in);
  RefuseUnit(accumulator);
  if (count <= 0 || n <= 0) return;
  if (accumulator.scheme == Scheme::chunked) {
    return StepChunked(accumulator, terms_in, k, count, first, n, terms, state);
  }
  if (accumulator.scheme == Scheme::pairwise) {
    for (std::int64_t j = 0; j < count; ++j) {
      StepPairwise<T>({accumulator, terms_in, k + j, first, n, state}, k + j, terms[j]);
    }
    return;
  }
  const bool kahan = accumulator.scheme == Scheme::kahan;
  const std::int64_t draw = kahan && k > 0 ? 4 * k - 3 : k;
  Fold(FoldPlanOf(accumulator, terms_in), k == 0, draw, first, n, count, terms, state.planes,
       kahan ? state.planes + state.stride : nullptr, state.given);
}

template <class T>
void End(const Accumulator& accumulator, const Format& terms_in, std::int64_t terms,
         std::int64_t first, std::int64_t n, FoldStateOf<T> state) {
  Check(accumulator);
  Check(terms_in);
  RefuseUnit(accumulator);
  if (accumulator.scheme == Scheme::chunked && terms % accumulator.chunk != 0) {
    const std::int64_t q = terms / accumulator.chunk;
    EndChunk(accumulator, q, terms + q, first, n, state);
  }
  if (accumulator.scheme != Scheme::pairwise) return;
  if (terms > 1) {
    return EndPairwise<T>({accumulator, terms_in, terms, first, n, state}, terms % 2 != 0);
  }
  const T* term = state.planes;
  Fold(PlanOf(accumulator, accumulator.format, terms_in), true, 0, first, n, 1, &term, state.planes,
       nullptr, state.given);
}

/// Terms whose sum takes at most `draws` draws.
std::int64_t MostTerms(const Accumulator& accumulator, std::int64_t draws) {
  switch (accumulator.scheme) {
    case Scheme::kahan:
      return (draws + 3) / 4;
    case Scheme::chunked: {
      const std::int64_t chunk = std::min(accumulator.chunk, draws);
      return draws / (chunk + 1) * chunk + std::max<std::int64_t>(0, draws % (chunk + 1) - 1);
    }
    case Scheme::pairwise:
      return draws + 1;
    default:
      return draws;
  }
}

/// x * 2^shift for a shift beyond these rounds as it does at them: far below every grid, or beyond
/// every format.
int Bounded(int shift) { return std::clamp(shift, -600, 600); }

/// Calls run(i, count, random) over [0, n): at once with null, or, where elements' random integers
/// do not begin with a block, in steps with those.
template <class Run>
void WithRandom(const RoundPlan& plan, std::int64_t first, std::int64_t n, Run run) {
  const std::int64_t skip = first % kBlock;
  if (plan.mode != Rounding::stochastic || skip == 0) return run(0, n, nullptr);
  constexpr std::int64_t kStep = 4 * kBlock;
  std::uint32_t random[kStep + kBlock];
  for (std::int64_t i = 0; i < n; i += kStep) {
    const std::int64_t count = std::min(kStep, n - i);
    Kernels().random_integers(plan.random_bits, plan.seed, plan.stream, first - skip + i,
                              skip + count, random);
    run(i, count, random + skip);
  }
}

}  // namespace

int FoldPlanes(const Accumulator& accumulator, std::int64_t terms) {
  switch (accumulator.scheme) {
    case Scheme::kahan:
    case Scheme::chunked:
      return 2;
    case Scheme::pairwise:
      return std::max(1, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(terms))));
    default:
      return 1;
  }
}

std::int64_t DrawsOfSum(const Accumulator& accumulator, std::int64_t terms) {
  Check(accumulator, true);  // wherever the sum runs
  RefuseUnit(accumulator);
  if (accumulator.rounding.mode != Rounding::stochastic || terms <= 0) return 0;
  switch (accumulator.scheme) {
    case Scheme::kahan:
      return 4 * terms - 3;
    case Scheme::chunked:
      return terms + (terms - 1) / accumulator.chunk + 1;
    case Scheme::pairwise:
      return std::max<std::int64_t>(1, terms - 1);
    default:
      return terms;
  }
}

void CheckFold(const Accumulator& accumulator, std::int64_t terms) {
  Check(accumulator);
  RefuseUnit(accumulator);
  if (accumulator.rounding.mode != Rounding::stochastic) return;
  const std::int64_t draws =
      (std::int64_t{4} << 24) * draws_per_word(accumulator.rounding.random_bits);
  const std::int64_t most = MostTerms(accumulator, draws);
  if (terms > most) {
    throw Error("a stochastic sum takes at most " + std::to_string(most) +
                " terms with these options, got " + std::to_string(terms));
  }
}

void FoldStep(const Accumulator& accumulator, const Format& terms_in, std::int64_t k,
              std::int64_t first, std::int64_t n, const float* terms, FoldState state) {
  Steps(accumulator, terms_in, k, 1, first, n, &terms, state);
}

void FoldStep(const Accumulator& accumulator, std::int64_t k, std::int64_t first, std::int64_t n,
              const double* terms, FoldState64 state) {
  Steps(accumulator, kFp32, k, 1, first, n, &terms, state);
}

void FoldSteps(const Accumulator& accumulator, const Format& terms_in, std::int64_t k,
               std::int64_t count, std::int64_t first, std::int64_t n, const float* const* terms,
               FoldState state) {
  Steps(accumulator, terms_in, k, count, first, n, terms, state);
}

void FoldEnd(const Accumulator& accumulator, const Format& terms_in, std::int64_t terms,
             std::int64_t first, std::int64_t n, FoldState state) {
  End(accumulator, terms_in, terms, first, n, state);
}

void FoldEnd(const Accumulator& accumulator, std::int64_t terms, std::int64_t first, std::int64_t n,
             FoldState64 state) {
  End(accumulator, kFp32, terms, first, n, state);
}

void CastScaled(const Format& format, const RoundingOptions& options, int shift, std::int64_t first,
                std::int64_t n, const float* x, float* y) {
  Check(options);
  const RoundPlan plan = PlanOf(format, options);
  WithRandom(plan, first, n, [&](std::int64_t i, std::int64_t count, const std::uint32_t* random) {
    Kernels().round_scaled(plan, Bounded(shift), first + i, count, x + i, random, y + i);
  });
}

std::int64_t EncodeScaled(const Format& format, const RoundingOptions& options, int shift,
                          std::int64_t first, std::int64_t n, const float* x,
                          std::uint8_t* packed) {
  Check(options);
  const RoundPlan plan = PlanOf(format, options);
  std::int64_t nan = -1;
  WithRandom(plan, first, n, [&](std::int64_t i, std::int64_t count, const std::uint32_t* random) {
    const std::int64_t found =
        Kernels().encode_f32(plan, Bounded(shift), first + i, count, x + i, random,
                             packed + i * plan.bits / 8, n >= kStreamingFrom);
    if (found >= 0 && nan < 0) nan = i + found;
  });
  return nan;
}

void DecodeScaled(const Format& format, int shift, float divisor, std::int64_t n,
                  const std::uint8_t* packed, float* y) {
  Kernels().decode_scaled(PlanOf(format), Bounded(shift), divisor, n, packed, y,
                          n >= kStreamingFrom);
}

std::uint32_t Crc32c(std::uint32_t crc, std::int64_t n, const void* data) {
  return Kernels().crc32c(crc, n, static_cast<const std::uint8_t*>(data));
}

}  // namespace cpd
