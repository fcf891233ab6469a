// SPDX-License-Identifier: Apache-2.0
//
// One step of an ordered sum. Every operation is rounded into the accumulator's format. GEMM (over
// k) and all-reduce (over ranks) use the same step.
//
// FoldPlan chooses one of two methods. If a binary32 addition followed by the rounding equals one
// exact rounding (fold_plan.h), the step adds in binary32 and then rounds. Otherwise the step forms
// the sum in binary64, rounded to odd, and then rounds the sum into the format.
#pragma once

#include "cpd/numeric/round/exact.h"
#include "cpd/numeric/round/kahan.h"
#include "cpd/numeric/round/round_plan.h"

namespace cpd {
inline namespace CPD_ISA {

/// Returns a + b rounded once. V is float lanes if FoldPlan allows binary32 additions, and double
/// lanes if the sum must be formed in binary64.
template <class R, class V>
CPD_FN constexpr V rounded_sum(V a, V b, Unsigned<V> random, const RoundPlan& plan) {
  if constexpr (Lanes<V>::mantissa == 23) {
    return round<R>(a + b, random, plan);
  } else {
    return round<R>(exact_sum(a, b, R::is_down(plan)), random, plan);
  }
}

/// Returns a * b rounded once. V is double lanes, which hold a product of binary32 values exactly,
/// or float lanes if fits_binary32 holds (gemm_plan.h).
template <class R, class V>
CPD_FN constexpr V rounded_product(V a, V b, Unsigned<V> random, const RoundPlan& plan) {
  return round<R>(a * b, random, plan);
}

/// Does a step of a sequential sum: s = round(s + x).
template <class R, class V>
CPD_FN constexpr void accumulate(V x, V& sum, Unsigned<V> random, const RoundPlan& plan) {
  sum = rounded_sum<R>(sum, x, random, plan);
}

/// Adds two numbers by rounded_sum, for a step that consists of several additions. draw(i) must
/// return the random integers for the step's addition i, counted from 0.
template <class R, class Draw>
struct RoundedSums {
  Draw draw;
  const RoundPlan& plan;
  int calls = 0;

  template <class V>
  CPD_FN constexpr V operator()(V a, V b) {
    return rounded_sum<R>(a, b, draw(calls++), plan);
  }
};

/// Does a step of Kahan's sum (kahan_step), with each of its four additions rounded into the plan's
/// format.
template <class R, class V, class Draw>
CPD_FN constexpr void accumulate_kahan(V x, V& sum, V& compensation, Draw draw,
                                       const RoundPlan& plan) {
  kahan_step(x, sum, compensation, RoundedSums<R, Draw>{draw, plan});
}

}  // namespace CPD_ISA
}  // namespace cpd
