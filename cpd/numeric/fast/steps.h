// SPDX-License-Identifier: Apache-2.0
//
// The steps of a fast path, which its file specializes for the class that paths.def names. Kernels
// run them in their tiles and folds; V is one number or the lanes of an instruction set.
#pragma once

#include <cstdint>

#include "cpd/numeric/fast/asked.h"
#include "cpd/numeric/fast/bounds.h"
#include "cpd/numeric/lanes/lanes.h"

namespace cpd {

/// The format of an ordered sum of terms, as a path's steps take it.
struct RoundedInto {
  int man = 0;
  double quantum = 0;  ///< least spacing
  bool keeps_negative_zero = false;
};

inline namespace CPD_ISA {

/// The operands of a step, with fixed_log(a) and fixed_log(b) + magnet where the plan takes_logs.
template <class V>
struct LogOperands {
  V a, b;
  Signed<V> log_a, log_b;
};
/// The operands of a step, with b times the format's factor.
template <class V>
struct FactorOperands {
  V a, b, factor_b;
};

/// The largest magnitudes that guarded steps have rounded to.
template <class V>
struct Seen {
  V product{}, sum{};
};

/// Steps of a sum of products within the bounds of a FastPlan, from which they are constructed:
///   add_product<how, products>(x, s, seen): s + a * b, the product rounded unless it is exact;
///   add_kahan<how, products>(x, sum, lost, seen): the same in some independent sums of Kahan's;
///   product<how, products>(x, seen), sum<how>(t, seen): the roundings of a pairwise sum.
/// Paths with kAddsExact have the first alone. x is LogOperands or FactorOperands.
template <class Path, class V>
class ProductSteps;

/// Steps of an ordered sum of terms: rounded(t) is the sum t of two numbers of the format rounded;
/// with kAnyTerms, rounded_odd(t) a sum with any term that was rounded to odd.
template <class Path, class V>
class TermSteps;

}  // namespace CPD_ISA
}  // namespace cpd
