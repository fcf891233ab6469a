// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/reduce.h"

#include <optional>
#include <string>

#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/cpu/spans.h"
#include "cpd/backend/roster.h"
#include "cpd/base/plans.h"
#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/sums/order.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

void RefuseUnit(const Accumulator& accumulator) {
  if (accumulator.scheme == Scheme::fixed) {
    throw Error(
        "a reduction term by term takes scheme sequential, kahan, chunked or pairwise, got fixed, "
        "which is for matrix products and sums of tensors");
  }
  if (accumulator.scheme != Scheme::block_fma) return;
  throw Error(
      "a sum of given terms takes scheme sequential, kahan, chunked or pairwise, got block_fma, "
      "which sums products");
}

/// The plans of an ordered sum: terms() is the plan for adding terms, and sums() is the plan for
/// adding the sums of chunks or of trees. Each plan is made when it is first needed.
class PlansOfSteps {
 public:
  PlansOfSteps(const Accumulator& accumulator, const Format& terms_in, const RandomKey& key)
      : accumulator_(accumulator), terms_in_(terms_in), key_(key) {}
  const FoldPlan& terms() {
    if (!terms_) terms_ = TermsPlanOf(accumulator_, terms_in_, key_);
    return *terms_;
  }
  const FoldPlan& sums() {
    if (!sums_) sums_ = SumsPlanOf(accumulator_, key_);
    return *sums_;
  }

 private:
  const Accumulator& accumulator_;
  const Format& terms_in_;
  const RandomKey& key_;
  std::optional<FoldPlan> terms_, sums_;
};

void CheckSum(const Accumulator& accumulator, const Format& terms_in) {
  Check(accumulator);
  Check(terms_in);
  RefuseUnit(accumulator);
}

template <class T>
void Steps(const Accumulator& accumulator, const Format& terms_in, std::int64_t k,
           std::int64_t count, std::int64_t first, std::int64_t n, const T* const* terms,
           FoldStateOf<T> state, const RandomKey& key) {
  CheckSum(accumulator, terms_in);
  if (count <= 0 || n <= 0) return;
  PlansOfSteps plans(accumulator, terms_in, key);
  FoldSpans spans(plans, first, n, terms, state);
  SumWalk(sum_order(accumulator), k).take(spans, count);
}

template <class T>
void End(const Accumulator& accumulator, const Format& terms_in, std::int64_t terms,
         std::int64_t first, std::int64_t n, FoldStateOf<T> state, const RandomKey& key) {
  CheckSum(accumulator, terms_in);
  PlansOfSteps plans(accumulator, terms_in, key);
  FoldSpans<T, PlansOfSteps> spans(plans, first, n, nullptr, state);
  SumWalk(sum_order(accumulator), terms).end(spans);
}

}  // namespace

int FoldPlanes(const Accumulator& accumulator, std::int64_t terms) {
  return planes_of_sum(accumulator.scheme, terms);
}

std::int64_t DrawsOfSum(const Accumulator& accumulator, std::int64_t terms) {
  Check(accumulator);
  if (accumulator.scheme == Scheme::fixed) return 0;
  RefuseUnit(accumulator);
  if (accumulator.rounding.mode != Rounding::stochastic) return 0;
  return draws_of_sum(sum_order(accumulator), terms);
}

void CheckFold(const Accumulator& accumulator, std::int64_t terms) {
  Check(accumulator);
  RefuseUnit(accumulator);
  if (accumulator.rounding.mode != Rounding::stochastic) return;
  const std::int64_t draws =
      (std::int64_t{4} << 24) * draws_per_word(accumulator.rounding.random_bits);
  const std::int64_t most = most_terms(sum_order(accumulator), draws);
  if (terms > most) {
    throw Error("a stochastic sum takes at most " + std::to_string(most) +
                " terms with these options, got " + std::to_string(terms));
  }
}

void FoldStep(const Accumulator& accumulator, const Format& terms_in, std::int64_t k,
              std::int64_t first, std::int64_t n, const float* terms, FoldState state,
              const RandomKey& key) {
  Steps(accumulator, terms_in, k, 1, first, n, &terms, state, key);
}

void FoldSteps(const Accumulator& accumulator, const Format& terms_in, std::int64_t k,
               std::int64_t count, std::int64_t first, std::int64_t n, const float* const* terms,
               FoldState state, const RandomKey& key) {
  Steps(accumulator, terms_in, k, count, first, n, terms, state, key);
}

void FoldSteps(const Accumulator& accumulator, std::int64_t k, std::int64_t count,
               std::int64_t first, std::int64_t n, const double* const* terms, FoldState64 state,
               const RandomKey& key) {
  Steps(accumulator, kFp32, k, count, first, n, terms, state, key);
}

void FoldEnd(const Accumulator& accumulator, const Format& terms_in, std::int64_t terms,
             std::int64_t first, std::int64_t n, FoldState state, const RandomKey& key) {
  End(accumulator, terms_in, terms, first, n, state, key);
}

void FoldEnd(const Accumulator& accumulator, std::int64_t terms, std::int64_t first, std::int64_t n,
             FoldState64 state, const RandomKey& key) {
  End(accumulator, kFp32, terms, first, n, state, key);
}

void CastScaled(const Format& format, const RoundingOptions& options, int shift, std::int64_t first,
                std::int64_t n, const float* x, float* y, const RandomKey& key) {
  Check(options);
  Check(key, false);
  CastSpan(PlanOf(format, options, key), shift, first, n, x, y);
}

std::int64_t EncodeScaled(const Format& format, const RoundingOptions& options, int shift,
                          std::int64_t first, std::int64_t n, const float* x, std::uint8_t* packed,
                          const RandomKey& key) {
  Check(options);
  Check(key, false);
  const RoundPlan plan = PlanOf(format, options, key);
  unsigned long long nan = ~0ULL;
  WithIntegers(plan, first, n,
               [&](std::int64_t i, std::int64_t count, const std::uint32_t* random) {
                 Kernels().encode({.n = count,
                                   .first = first + i,
                                   .x = Contiguous(x + i),
                                   .random = Contiguous(random),
                                   .plan = &plan,
                                   .shift = BoundedShift(shift),
                                   .streaming = n >= kStreamingFrom,
                                   .packed = packed + i * plan.bits / 8,
                                   .first_nan = &nan});
               });
  return nan == ~0ULL ? -1 : static_cast<std::int64_t>(nan) - first;
}

void DecodeScaled(const Format& format, int shift, float divisor, std::int64_t n,
                  const std::uint8_t* packed, float* y) {
  const RoundPlan plan = PlanOf(format);
  Kernels().decode({.n = n,
                    .plan = &plan,
                    .packed = packed,
                    .out = Contiguous(y),
                    .shift = BoundedShift(shift),
                    .divisor = divisor,
                    .streaming = n >= kStreamingFrom});
}

std::uint32_t Crc32c(std::uint32_t crc, std::int64_t n, const void* data) {
  return Kernels().crc32c(crc, n, static_cast<const std::uint8_t*>(data));
}

}  // namespace cpd
