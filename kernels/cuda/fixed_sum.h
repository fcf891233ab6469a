// SPDX-License-Identifier: Apache-2.0
//
// Sums in integers of a fixed width on a GPU (numeric/sums/fixed_number.h), with one sum in each
// thread, term by term. FixedSum sums the products of a matrix product; sum_fixed_elements sums a
// tensor over a dimension. Compiles for host and device.
#pragma once

#include "cpd/numeric/sums/fixed_number.h"
#include "kernels/cuda/gemm_general.h"
#include "kernels/cuda/strided.h"

namespace cpd::cuda {

/// Adds terms to an integer: take() adds a term, and end() returns the sum. The sum is NaN if a
/// term was not finite.
class FixedTerms {
 public:
  CPD_FN explicit FixedTerms(const FixedPlan& plan) : sum_(plan) {}

  template <class V>
  CPD_FN void take(const FixedPlan& plan, V x) {
    const FixedTerm term = fixed_term(x, plan.point.fraction, plan.point.rounding);
    is_finite_ &= term.finite;
    if (term.finite) sum_.add(term, plan.saturates);
  }
  /// Returns the sum, rounded into the accumulator's format.
  template <Rounding mode>
  CPD_FN double end(const FixedPlan& plan) const {
    const double value =
        is_finite_ ? sum_.value(plan.point.fraction) : bits_as<double>(Pattern<double>::quiet_nan);
    return round<mode>(value, std::uint64_t{0}, plan.end);
  }

 private:
  FixedNumber sum_;
  bool is_finite_ = true;
};

/// Computes one sum of a matrix product in a thread of gemm_general.h. `mode` is the rounding of
/// the result.
template <Rounding mode>
class FixedSum {
 public:
  CPD_FN void begin(const GemmCall& call, std::uint64_t, float c, const SumSpan&) {
    terms_ = FixedTerms(call.plan.fixed);
    terms_.take(call.plan.fixed, c);
  }
  template <class Scales>
  CPD_FN void add(const GemmCall& call, const float* a, const float* b, std::int64_t, int count,
                  const TileRange*, const Scales&) {
    const TileOperands<double> x{a, b};
    CPD_ROLLED for (int k = 0; k < count; ++k) terms_.take(call.plan.fixed, x.a(k) * x.b(k));
  }
  CPD_FN float end(const GemmCall& call) const {
    return result_of(static_cast<float>(terms_.template end<mode>(call.plan.fixed)));
  }

 private:
  FixedTerms terms_{FixedPlan{}};
};

/// Sums a tensor over a dimension: thread number `thread` computes every `threads`-th result. T is
/// float, or double for binary64 terms.
template <Rounding mode, class T>
CPD_FN void sum_fixed_elements(const FixedSumCall& call, std::int64_t thread,
                               std::int64_t threads) {
  CPD_ROLLED for (std::int64_t i = thread; i < call.n; i += threads) {
    FixedTerms terms(call.plan);
    std::int64_t at = offset_of(call.x, i);
    CPD_ROLLED for (std::int64_t k = 0; k < call.terms; ++k, at += call.step) {
      terms.take(call.plan, load_at<T>(call.x, at));
    }
    store_element(call.out, i, terms.template end<mode>(call.plan));
  }
}

}  // namespace cpd::cuda
