// SPDX-License-Identifier: Apache-2.0
//
// One step of an ordered sum, every operation rounded into the accumulator's format. GEMM folds
// over k and all-reduce over ranks with the same step.
//
// Two routes, chosen by FoldPlan: binary32 addition followed by the rounding, where that equals one
// exact rounding (fold_plan.h), and otherwise the exact sum in binary64, rounded to odd.
#pragma once

#include "cpd/numeric/round/exact.h"
#include "cpd/numeric/round/kahan.h"
#include "cpd/numeric/round/round_plan.h"

namespace cpd {
inline namespace CPD_ISA {

/// a + b rounded once. V is float lanes for the binary32 route, double lanes for the exact one.
template <class R, class V>
CPD_FN constexpr V rounded_sum(V a, V b, Unsigned<V> random, const RoundPlan& plan) {
  if constexpr (Lanes<V>::mantissa == 23) {
    return round<R>(a + b, random, plan);
  } else {
    return round<R>(exact_sum(a, b, R::is_down(plan)), random, plan);
  }
}

/// a * b rounded once. V is double lanes, which hold a product of binary32 values exactly, or float
/// lanes where fits_binary32 says so (gemm_plan.h).
template <class R, class V>
CPD_FN constexpr V rounded_product(V a, V b, Unsigned<V> random, const RoundPlan& plan) {
  return round<R>(a * b, random, plan);
}

/// s = round(s + x).
template <class R, class V>
CPD_FN constexpr void accumulate(V x, V& sum, Unsigned<V> random, const RoundPlan& plan) {
  sum = rounded_sum<R>(sum, x, random, plan);
}

/// Calls rounded_sum; `draw(i)` gives the random integers of call i.
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

/// kahan_step with each sum rounded into the plan's format.
template <class R, class V, class Draw>
CPD_FN constexpr void accumulate_kahan(V x, V& sum, V& compensation, Draw draw,
                                       const RoundPlan& plan) {
  kahan_step(x, sum, compensation, RoundedSums<R, Draw>{draw, plan});
}

}  // namespace CPD_ISA
}  // namespace cpd
