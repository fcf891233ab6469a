// SPDX-License-Identifier: Apache-2.0
//
// Ordered sums of many elements: a step adds one term to each sum, a pass does a few steps. If the
// plan has a fast path, a pass first takes the fast path, which ignores overflow and special
// values. Results are stored if all sums stayed within the format. Otherwise the pass is repeated
// by the general path. Number of vector operations of a sequential step, without loads and stores:
// - fast path, terms that are numbers of the format: 6, or 9 if all numbers are powers of two;
// - fast path, any terms: 10 if the CPU can round additions up or down, else 23;
// - stochastic fast path, including the random integer: 22;
// - general path: 17 to 45.
#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/fast/stochastic.h"
#include "cpd/numeric/round/exact64.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/accumulate.h"
#include "cpd/numeric/sums/fast_sum.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint64_t;

/// One pass: adds `count` terms, terms[0] … terms[count - 1], to each of n sums. Terms and sums
/// have the type T in memory. `compensation` is used only by Kahan's sums.
template <class T>
struct StepsOf {
  int64_t draw, first, n, count;
  int64_t next;  ///< how many of the terms after those, at most `count`, are prefetched
  const T* const* terms;
  int64_t begin;  ///< the first element's place in each of `terms`
  T* sum;
  T* compensation;
  GivenDraws given;  ///< from the first element on

  [[nodiscard]] CPD_FN StepsOf part(int64_t i, int64_t elements) const {
    StepsOf part = *this;
    part.first += i;
    part.n = elements;
    part.begin += i;
    part.sum += i;
    if (compensation != nullptr) part.compensation += i;
    part.given = given.from(i);
    return part;
  }
};
using Steps = StepsOf<float>;

// --- the general path ----------------------------------------------------------------------------

/// Generates random integers for one vector V of sums, one sum in each lane. The first sum belongs
/// to element steps.first; each element's integers are taken from number steps.draw on.
template <class R, class V>
class Draws {
 public:
  template <class T>
  CPD_FN Draws(const RoundPlan&, const StepsOf<T>&) {}
  CPD_FN Unsigned<V> next() { return Unsigned<V>{}; }
};
template <class R, class V>
  requires(R::mode == Rounding::stochastic)
class Draws<R, V> {
 public:
  template <class T>
  CPD_FN Draws(const RoundPlan& plan, const StepsOf<T>& steps)
      : plan_(plan),
        per_word_(static_cast<unsigned>(draws_per_word(plan.random_bits))),
        index_(static_cast<uint64_t>(steps.first)),
        t_(static_cast<uint64_t>(steps.draw)) {
    renew();
  }
  CPD_FN Unsigned<V> next() {
    if (t_ / (4 * per_word_) != block_) renew();
    const U word = words_.word[t_ / per_word_ % 4];
    const auto shift = static_cast<uint32_t>(t_ % per_word_) * (32U / per_word_);
    ++t_;
    return convert<Unsigned<V>>((word >> shift) & splat<U>((1U << plan_.random_bits) - 1));
  }

 private:
  using U = typename Narrow<V>::U32;

  CPD_FN void renew() {
    block_ = t_ / (4 * per_word_);
    const U low = splat<U>(static_cast<uint32_t>(index_)) + iota<U>();
    words_ = random_words(low, index_, block_, plan_.seed, plan_.stream);
  }

  const RoundPlan& plan_;
  unsigned per_word_;
  uint64_t index_, t_;
  uint64_t block_ = 0;
  Words<U> words_{};
};

/// Reads the random integers that the caller gives. Has the interface of Draws.
template <class V>
class Given : public TakenDraws<V> {
 public:
  template <class T>
  CPD_FN Given(const RoundPlan&, const StepsOf<T>& steps)
      : TakenDraws<V>(steps.given, steps.n, static_cast<uint64_t>(steps.draw)) {}
};

/// Adds the terms of a pass to one vector V of sums, by the general path. term(j) must return the
/// terms of step j. A term minus Kahan's compensation does not overflow V, because the compensation
/// is a number of the sum's format.
template <class R, class V, class Source, class T, class Term>
CPD_FN void fold_lanes(const FoldPlan& plan, bool starts, const StepsOf<T>& steps, T* sum,
                       T* compensation, Term term) {
  const bool kahan = plan.scheme == Scheme::kahan;
  Source draws(plan.round, steps);
  int64_t j = 0;
  V s;
  V c{};
  if (starts) {
    s = round<R>(term(j++), draws.next(), plan.round);
  } else {
    s = load_value<V>(sum);
    if (kahan) c = load_value<V>(compensation);
  }
  for (; j < steps.count; ++j) {
    if (kahan) {
      accumulate_kahan<R>(term(j), s, c, [&](int) { return draws.next(); }, plan.round);
    } else if constexpr (sizeof(T) == sizeof(double)) {
      s = rounded_sum64<R>(s, term(j), draws.next(), plan.round);
    } else {
      accumulate<R>(term(j), s, draws.next(), plan.round);
    }
  }
  store_value(sum, s);
  if (kahan) store_value(compensation, c);
}

template <class R, class V, class Source = Draws<R, V>, class T>
CPD_FN void fold_span(FoldPlan plan, bool starts, StepsOf<T> steps) {
  const bool kahan = plan.scheme == Scheme::kahan;
  for_lanes<V>(
      steps.n,
      [&](int64_t i) {
        const StepsOf<T> part = steps.part(i, Lanes<V>::count);
        fold_lanes<R, V, Source>(plan, starts, part, part.sum, part.compensation, [&](int64_t j) {
          return load_value<V>(part.terms[j] + part.begin);
        });
      },
      [&](int64_t i, int64_t rest) {
        const StepsOf<T> part = steps.part(i, rest);
        T s[Lanes<V>::count] = {};
        T c[Lanes<V>::count] = {};
        copy(s, part.sum, rest);
        if (kahan) copy(c, part.compensation, rest);
        fold_lanes<R, V, Source>(plan, starts, part, s, c, [&](int64_t j) {
          T x[Lanes<V>::count] = {};
          copy(x, part.terms[j] + part.begin, rest);
          return load_value<V>(x);
        });
        copy(part.sum, s, rest);
        if (kahan) copy(part.compensation, c, rest);
      });
}

CPD_BODY void fold_any(const FoldPlan* shared, bool starts, const Steps* given) {
  const FoldPlan plan = *shared;
  const Steps steps = *given;
  if (plan.round.mode == Rounding::stochastic && steps.given.random != nullptr) {
    return fold_span<Rule<Rounding::stochastic>, D, Given<D>>(plan, starts, steps);
  }
  if (plan.in_binary32) {
    return with_rule<F>(plan.round, [&]<class R>() {
      if constexpr (R::mode != Rounding::stochastic) fold_span<R, F>(plan, starts, steps);
    });
  }
  with_rule<D>(plan.round, [&]<class R>() { fold_span<R, D>(plan, starts, steps); });
}

CPD_FN void fold_steps64(const FoldPlan& shared, bool starts, const StepsOf<double>& given) {
  const FoldPlan plan = shared;
  const StepsOf<double> steps = given;
  if (plan.round.mode == Rounding::stochastic && steps.given.random != nullptr) {
    return fold_span<Rule<Rounding::stochastic>, D, Given<D>>(plan, starts, steps);
  }
  with_rule<D>(plan.round, [&]<class R>() { fold_span<R, D>(plan, starts, steps); });
}

// --- by a fast path ------------------------------------------------------------------------------

/// The number of vectors of sums that are computed together, so that independent operations hide
/// latency. Fast paths that round to powers of two by integer operations have short latency: four
/// vectors suffice.
template <class Path>
constexpr int kSideBySide = !Path::kTakesProducts && Lanes<F>::count > 8 ? 4 : 8;

/// Adds the terms of a pass to kVectors vectors of sums, starting at sum i, by a fast path. Returns
/// false and stores nothing if a sum, before its rounding, exceeded the largest magnitude for which
/// the fast path is correct.
template <class Path, bool kKahan, int kVectors>
CPD_FN bool fold_group(FastSums<Path, F> rounding, const Steps& steps, int64_t i) {
  F sums[kVectors];
  F lost[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    sums[v] = load<F>(steps.sum + i + v * Lanes<F>::count);
    if constexpr (kKahan) lost[v] = load<F>(steps.compensation + i + v * Lanes<F>::count);
  }
  for (int64_t j = 0; j < steps.count; ++j) {
    const float* terms = steps.terms[j] + steps.begin + i;
    for (int v = 0; v < kVectors; ++v) {
      const F x = load<F>(terms + v * Lanes<F>::count);
      if (j < steps.next) {
        const float* next = steps.terms[steps.count + j] + steps.begin + i;
        __builtin_prefetch(next + v * Lanes<F>::count, 0, 2);
      }
      if constexpr (kKahan) {
        rounding.add(x, sums[v], lost[v]);
      } else {
        rounding.add(x, sums[v]);
      }
    }
    if (j == 0 && !rounding.is_good()) return false;  // as after an overflow at any later step
  }
  if (!rounding.is_good()) return false;
  for (int v = 0; v < kVectors; ++v) {
    store(steps.sum + i + v * Lanes<F>::count, sums[v]);
    if constexpr (kKahan) store(steps.compensation + i + v * Lanes<F>::count, lost[v]);
  }
  return true;
}

/// Adds the terms of a pass to the sums that fill whole groups of kVectors vectors. Takes the fast
/// path, or the general path for a group with a sum for which the fast path may be wrong. Returns
/// the number of sums in whole groups; the remaining sums do not change.
template <class Path, bool kKahan, int kVectors>
CPD_FN int64_t fold_groups(const FoldPlan& plan, const Steps& steps) {
  constexpr int64_t kGroup = kVectors * Lanes<F>::count;
  const FastSums<Path, F> rounding(plan);
  int64_t i = 0;
  for (; i + kGroup <= steps.n; i += kGroup) {
    if (fold_group<Path, kKahan, kVectors>(rounding, steps, i)) continue;
    const Steps part = steps.part(i, kGroup);
    fold_any(&plan, false, &part);
  }
  return i;
}

template <class Path, bool kKahan>
CPD_FN void fold_fast(const FoldPlan& plan, const Steps& steps) {
  int64_t i = fold_groups<Path, kKahan, kSideBySide<Path>>(plan, steps);
  i += fold_groups<Path, kKahan, 1>(plan, steps.part(i, steps.n - i));
  if (i == steps.n) return;
  const Steps rest = steps.part(i, steps.n - i);
  fold_any(&plan, false, &rest);
}

template <class Path>
CPD_FN void fold_fast(const FoldPlan& plan, const Steps& steps) {
  if (plan.scheme == Scheme::kahan) {
    fold_fast<Path, true>(plan, steps);
  } else {
    fold_fast<Path, false>(plan, steps);
  }
}

// --- the fast path of stochastic rounding --------------------------------------------------------

/// The most steps of a pass with stochastic rounding: one block of random words yields at most this
/// number of random integers for each sum.
constexpr int64_t kStochasticSteps = 16;
constexpr int64_t kGroup = 4 * Lanes<F>::count;  ///< sums whose random integers are in cache

/// Generates the random integers of a pass for kGroup sums. to[j * kGroup + i] is the random
/// integer with which step j rounds sum i.
CPD_FN void make_draws(const RoundPlan& plan, const Steps& steps, uint32_t* to) {
  using U = Unsigned<F>;
  const uint32_t log = log_of_draws(plan.random_bits);
  const int64_t in_block = int64_t{4} << log;
  const U mask = splat<U>((1U << plan.random_bits) - 1);
  constexpr int kSets = kWordSets<U>;
  for (int64_t i = 0; i < kGroup; i += kSets * Lanes<F>::count) {
    const auto index = static_cast<uint64_t>(steps.first + i);
    for (int64_t j = 0; j < steps.count;) {
      const auto block = static_cast<uint64_t>((steps.draw + j) / in_block);
      const WordSets<U, kSets> words = fold_words<U, kSets>(index, block, plan.seed, plan.stream);
      for (int64_t q = (steps.draw + j) % in_block; q < in_block && j < steps.count; ++q, ++j) {
        const auto shift = static_cast<int>((q & ((1 << log) - 1)) << (5 - log));
        for (int s = 0; s < kSets; ++s) {
          const U word = words.set[s].word[q >> log];
          store(to + j * kGroup + i + s * Lanes<F>::count, shift_right(word, shift) & mask);
        }
      }
    }
  }
}

/// Adds the terms of a pass to kGroup sums with stochastic rounding, computed in lanes V. The
/// floating-point environment must round toward zero. Returns false and stores nothing if a term is
/// infinite or NaN.
template <class V>
CPD_BODY bool stochastic_group(const FoldPlan* plan, const Steps* steps, const uint32_t* draws) {
  constexpr int64_t kLanes = Lanes<V>::count;
  constexpr int64_t kAll = kGroup / kLanes;
  using I = Signed<F>;
  const SplitStochastic<V> format(plan->stochastic, plan->round.random_bits);
  V sums[kAll];
  for (int64_t v = 0; v < kAll; ++v) sums[v] = load_f32<V>(steps->sum + v * kLanes);
  I largest{};
  for (int64_t j = 0; j < steps->count; ++j, draws += kGroup) {
    const float* terms = steps->terms[j] + steps->begin;
    for (int64_t i = 0; i < kGroup; i += Lanes<F>::count) {
      const auto size = load<Unsigned<F>>(terms + i) & splat<Unsigned<F>>(Pattern<F>::magnitude);
      largest = max(largest, (I)size);
    }
    for (int64_t v = 0; v < kAll; ++v) {
      const V t = add_toward_zero(sums[v], load_f32<V>(terms + v * kLanes));
      sums[v] = round_any<true>(t, load_u32<V>(draws + v * kLanes), format);
    }
  }
  if (any(largest >= splat<I>(Pattern<F>::infinity))) return false;
  const V nan = bits_as<V>(splat<Unsigned<V>>(Pattern<V>::quiet_nan));
  for (int64_t v = 0; v < kAll; ++v) {
    store_f32(steps->sum + v * kLanes, select(sums[v] == sums[v], sums[v], nan));
  }
  return true;
}

[[maybe_unused]] CPD_FN void fold_stochastic(const FoldPlan& plan, const Steps& steps) {
  alignas(64) uint32_t draws[kStochasticSteps * kGroup];
  int64_t i = 0;
  for (; i + kGroup <= steps.n; i += kGroup) {
    const Steps part = steps.part(i, kGroup);
    make_draws(plan.round, part, draws);
    bool done = false;
    {
      const Environment environment(Environment::TowardZero{});
      done = plan.stochastic_in_binary32 ? stochastic_group<F>(&plan, &part, draws)
                                         : stochastic_group<D>(&plan, &part, draws);
    }
    if (!done) fold_any(&plan, false, &part);
  }
  if (i == steps.n) return;
  const Steps rest = steps.part(i, steps.n - i);
  fold_any(&plan, false, &rest);
}

/// Returns the fast path for all steps of a sum but the first. `given`: the caller passes the
/// random integers, which excludes the fast path of stochastic rounding.
CPD_FN FastPath path_of(const FoldPlan& plan, bool given) {
  if (Lanes<F>::count == 1) return FastPath::none;  // fma of one lane may be a library function
  const bool draws = plan.round.mode == Rounding::stochastic;
  return draws && given ? FastPath::none : plan.path;
}

CPD_FN void fold_some(const FoldPlan& plan, bool starts, const Steps& steps) {
  bool taken = false;
  if constexpr (Lanes<F>::count > 1) {
    if (!starts) {
      taken = with_path(path_of(plan, steps.given.random != nullptr), [&]<class Path>() {
        if constexpr (Path::kStochastic) {
          fold_stochastic(plan, steps);
        } else {
          fold_fast<Path>(plan, steps);
        }
      });
    }
  }
  if (!taken) fold_any(&plan, starts, &steps);
}

/// Returns the largest number of steps of the next pass. (A step adds one term to each sum.) Each
/// step reads one array of terms, and hardware prefetching can follow four arrays. With stochastic
/// rounding, a pass ends before a new block of random words begins.
CPD_FN int64_t together(const FoldPlan& plan, int64_t draw) {
  if (plan.round.mode != Rounding::stochastic) return 4;
  return kStochasticSteps - draw % kStochasticSteps;
}

CPD_FN void fold_steps(const FoldPlan& plan, bool starts, Steps steps) {
  int64_t left = steps.count;
  while (left > 0) {
    steps.count =
        starts && plan.path != FastPath::none ? 1 : least(left, together(plan, steps.draw));
    steps.next = least(left - steps.count, steps.count);
    fold_some(plan, starts, steps);
    const int64_t draws = plan.scheme == Scheme::kahan ? 4 * steps.count : steps.count;
    steps.draw += draws - (starts && plan.scheme == Scheme::kahan ? 3 : 0);
    steps.terms += steps.count;
    left -= steps.count;
    starts = false;
  }
}

template <class T>
CPD_FN StepsOf<T> steps_of(const FoldCall& call) {
  return {call.draw,
          call.first,
          call.n,
          call.count,
          0,
          static_cast<const T* const*>(call.terms),
          0,
          static_cast<T*>(call.sum),
          static_cast<T*>(call.compensation),
          call.given};
}

}  // namespace

void fold(const FoldCall& call) {
  if (call.dtype == DType::f64)
    return fold_steps64(*call.plan, call.starts, steps_of<double>(call));
  fold_steps(*call.plan, call.starts, steps_of<float>(call));
}

FastPath fold_path(const FoldPlan& plan, bool given) { return path_of(plan, given); }

}  // namespace CPD_ISA
}  // namespace cpd
