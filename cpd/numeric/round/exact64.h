// SPDX-License-Identifier: Apache-2.0
//
// Operations on any binary64 values. Their results round into every format, in every mode and
// variant, exactly as the exact results do.
//
// If the exact result is within 2^-900 … 2^1023, an operation returns it rounded to odd. The
// returned number has 53 bits; a rounding reads its first 24 + 24 + 2 bits (exact.h).
//
// Outside that range, binary64 may underflow or overflow. Nonzero results below 2^-900 lie below
// every bit that a rounding reads: 2^-149 is the least spacing, and 2^-174 the last bit that a
// random integer meets. Finite results above 2^1000 are beyond every format (2^128). So all results
// of one sign in one of these two ranges round alike, and an operation may return any of them.
#pragma once

#include "cpd/numeric/round/exact.h"
#include "cpd/numeric/round/round_plan.h"

namespace cpd {
inline namespace CPD_ISA {

constexpr double kLeastSeen = 0x1p-900;
constexpr double kGreatest = 0x1.fffffffffffffp1023;

/// |x|.
template <class V>
CPD_FN constexpr V magnitude(V x) {
  using U = Unsigned<V>;
  return bits_as<V>(bits_as<U>(x) & splat<U>(Pattern<V>::magnitude));
}
/// Returns the number `size` > 0 with the sign of x.
template <class V>
CPD_FN constexpr V sized(double size, V x) {
  using U = Unsigned<V>;
  const U sign = bits_as<U>(x) & splat<U>(Pattern<V>::sign);
  return bits_as<V>(bits_as<U>(splat<V>(size)) | sign);
}
/// Returns whether x is neither infinite nor NaN.
template <class V>
CPD_FN constexpr auto is_finite(V x) {
  return magnitude(x) <= splat<V>(kGreatest);
}

template <class V>
CPD_FN constexpr auto are_finite(V a, V b) {
  const auto first = is_finite(a);
  const auto second = is_finite(b);
  return first & second;
}

/// Returns a number that rounds as a + b does. `down`: the number will be rounded down. TwoSum does
/// not underflow. A step of TwoSum can overflow although the sum does not. The sum is then near
/// 2^1024, and its last bit has no effect on the rounding.
template <class V>
CPD_FN constexpr V sum_as_seen(V a, V b, bool down) {
  const V s = exact_sum(a, b, down);
  const auto finite = are_finite(a, b);
  const auto overflowed = (magnitude(s) > splat<V>(kGreatest)) & finite;
  return select(overflowed, sized(kGreatest, s), s);
}

/// Returns a number that rounds as a * b does, by TwoProd: 1 multiplication and 1 fused
/// multiply-add. If the product is at least 2^-900, its error is a multiple of 2^-1006. The error
/// is then a binary64 number, and the fused multiply-add returns it (Boldo and Daumas 2003).
template <class V>
CPD_FN V product_as_seen(V a, V b) {
  const V p = a * b;
  const V seen = toward_odd(p, fma(a, b, -p));
  const auto hidden = (magnitude(p) < splat<V>(kLeastSeen)) & !((a == V{}) | (b == V{}));
  const auto finite = are_finite(a, b);
  const auto overflowed = (magnitude(p) > splat<V>(kGreatest)) & finite;
  return select(hidden, sized(kLeastSeen, p), select(overflowed, sized(kGreatest, p), seen));
}

/// Returns p + e + z rounded to odd, where p + e is a product and its error. The algorithm is
/// figure 4 of Boldo and Melquiond 2008, except that the last rounding is also to odd. If the
/// rounding of the last addend was inexact, that addend is odd and at most a few ulp of p + z. So
/// no binary64 number lies between the addend and its exact value. Takes 24 additions: two TwoSums
/// and two sums to odd.
template <class V>
CPD_FN constexpr V fused_sum(V p, V e, V z) {
  const V low = e + z;
  const V high = p + low;
  return add_to_odd(high, add_to_odd(error_of_sum(e, z, low), error_of_sum(p, low, high)));
}

/// Returns a number that rounds as a * b + z does. `down`: the number will be rounded down.
///
/// TwoProd needs |a * b| >= 2^-900. If |a * b| is smaller and |z| >= 2^-700, only the product's
/// sign affects the rounding. If both are smaller, a * b and z are multiplied by 2^600. If a * b is
/// then still below 2^-600, only its sign affects the sum, because a nonzero z is then at least
/// 2^-474. Of this scaled sum, only the sign affects the rounding.
///
/// A product or z above 2^1000 is scaled down by 2^1100, exactly if product and z may cancel. A
/// nonzero sum then stays above 2^890, and only its sign affects the rounding.
template <class V>
CPD_FN V fma_as_seen(V a, V b, V z, bool down) {
  using U = Unsigned<V>;
  const V whole = a * b;
  const V one = splat<V>(1.0);
  const auto tiny = (magnitude(whole) < splat<V>(kLeastSeen)) & !((a == V{}) | (b == V{}));
  const auto huge_z = magnitude(z) > splat<V>(0x1p1000);
  const auto huge = ((magnitude(whole) > splat<V>(0x1p1000)) | huge_z) & !tiny;
  const auto beside = tiny & (magnitude(z) >= splat<V>(0x1p-700));
  const V scale = select(tiny, splat<V>(0x1p300), select(huge, splat<V>(0x1p-550), one));
  const V scale_z = select(beside, one, scale);

  const V scaled = a * scale;
  const V p = scaled * (b * scale);
  const V e = fma(scaled, b * scale, -p);
  const auto hidden = beside | (tiny & (magnitude(p) < splat<V>(0x1p-600)));
  const V s = fused_sum(select(hidden, sized(kLeastSeen, whole), p), select(hidden, V{}, e),
                        z * scale_z * scale_z);

  const V seen = select(tiny & !beside, sized(kLeastSeen, s), select(huge, sized(kGreatest, s), s));
  // The sign of an exact zero sum (IEEE 754, 6.3) is the common sign of the terms. If the signs
  // differ, the zero is -0 when rounding down, else +0.
  const U signs_of[2] = {bits_as<U>(whole), bits_as<U>(z)};
  const U sign = down ? signs_of[0] | signs_of[1] : signs_of[0] & signs_of[1];
  const V zero = bits_as<V>(sign & splat<U>(Pattern<V>::sign));
  const auto factors = are_finite(a, b);
  const auto finite = is_finite(z) & factors;
  return select(finite, select(s == V{}, zero, seen), fma(a, b, z));
}

/// Returns a + b of any binary64 values, rounded once into the plan's format.
template <class R, class V>
CPD_FN constexpr V rounded_sum64(V a, V b, Unsigned<V> random, const RoundPlan& plan) {
  return round<R>(sum_as_seen(a, b, R::is_down(plan)), random, plan);
}

}  // namespace CPD_ISA
}  // namespace cpd
