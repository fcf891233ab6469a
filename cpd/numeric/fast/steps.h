// SPDX-License-Identifier: Apache-2.0
//
// The interface of a fast path's steps. Each path's file specializes these templates for the class
// that paths.def names. Kernels call the steps in their loops over tiles and ordered sums. V is one
// number or the lanes of an instruction set.
#pragma once

#include <cstdint>

#include "cpd/numeric/fast/asked.h"
#include "cpd/numeric/fast/bounds.h"
#include "cpd/numeric/lanes/lanes.h"

namespace cpd {

/// The format into which a fast path rounds the ordered sum of terms.
struct RoundedInto {
  int man = 0;
  double quantum = 0;  ///< least spacing
  bool keeps_negative_zero = false;
};

inline namespace CPD_ISA {

/// The operands a and b of a step. If the plan takes_logs, log_a is fixed_log(a), and log_b is
/// fixed_log(b) plus a constant (log_magnet).
template <class V>
struct LogOperands {
  V a, b;
  Signed<V> log_a, log_b;
};
/// The operands a and b of a step; factor_b is b * K, where K is the factor of Veltkamp's splitting
/// (veltkamp_rounding.h).
template <class V>
struct FactorOperands {
  V a, b, factor_b;
};

/// The largest magnitudes among the products and sums that guarded steps (steps with a check for
/// overflow) have returned. The caller compares them with the limits afterwards.
template <class V>
struct Seen {
  V product{}, sum{};
};

/// The steps by which a fast path adds products. The constructor takes the FastPlan. `how` is a
/// How, `products` is a ProductKind, and `seen` records the largest results (Seen).
/// - add_product<how, products>(x, s, seen) returns s + a * b, with the product rounded unless it
///   is exact;
/// - add_kahan<how, products>(x, sum, lost, seen) adds one product to each of several independent
///   Kahan sums;
/// - product<how, products>(x, seen) returns a * b rounded, and sum<how>(t, seen) returns t
///   rounded; pairwise sums use both.
/// A path with kAddsExact has only add_product. x holds a and b (LogOperands or FactorOperands).
template <class Path, class V>
class ProductSteps;

/// Steps of an ordered sum of terms. rounded(t) returns t rounded; t is the sum of two numbers of
/// the format. If kAnyTerms, the path also has rounded_odd(t), which returns t rounded for a sum t
/// that was already rounded to odd. A term of such a sum need not be a number of the format.
template <class Path, class V>
class TermSteps;

}  // namespace CPD_ISA
}  // namespace cpd
