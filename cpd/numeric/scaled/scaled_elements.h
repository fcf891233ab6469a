// SPDX-License-Identifier: Apache-2.0
//
// Divides elements by their scales before the elements are rounded (round.h), and computes the
// values of rounded elements. scale_rules.h computes the scales.
#pragma once

#include "cpd/numeric/scaled/scale_rules.h"

namespace cpd {
inline namespace CPD_ISA {

/// The scales of one element. `factor` is the number by which the element is multiplied
/// (ElementRoute::multiply) or divided. For uniform_codes, `factor` is 1 / (scale * outer). The
/// route `wide` (division in binary64) does not use `factor` in exact arithmetic.
template <class V>
struct ElementScale {
  V factor, scale, outer;
};

/// Returns the scales `at` with `factor` set to 1 / (scale * outer), as uniform_codes requires.
template <class V>
CPD_FN ElementScale<V> with_inverse(ElementScale<V> at) {
  return {splat<V>(1) / (at.scale * at.outer), at.scale, at.outer};
}

/// Returns x divided by its scales. Rounding the result into the element's format gives the same
/// number as rounding the exact quotient. V must be binary64 lanes for ElementRoute::wide.
template <ElementRoute kRoute, class V>
CPD_FN V scaled_down(V x, ElementScale<V> at, const ScaledPlan& plan) {
  if constexpr (kRoute == ElementRoute::multiply) {
    return x * at.factor;
  } else if constexpr (kRoute == ElementRoute::divide) {
    return divide_to_odd(x, at.factor);
  } else {
    if (plan.arithmetic != Arithmetic::exact) return to_binary32(x * at.factor);
    const V both = at.scale * at.outer;
    const V zero = bits_as<V>(bits_as<Unsigned<V>>(x) & splat<Unsigned<V>>(Pattern<V>::sign));
    return select((both == V{}) & (x == x), zero, divide_to_odd(x, both));
  }
}

/// Returns whether uniform_codes, for exact arithmetic and stochastic rounding (variant A), can
/// round a plan's elements. Their format must be signed and saturate, and its numbers must have
/// equal distances.
CPD_FN bool has_uniform_codes(const ScaledPlan& plan) {
  const RoundPlan& element = plan.element;
  return plan.arithmetic == Arithmetic::exact && element.mode == Rounding::stochastic &&
         element.variant == Variant::A && element.is_signed && element.has_zero && !element.flush &&
         element.overflow_code == element.max_code && !element.overflow_is_nan &&
         element.max_code < 2 << element.man;
}

/// Stores the codes of x / (at.scale * at.outer); `at` must be the result of with_inverse. Each
/// quotient is first truncated to a multiple of 2^-N spacings, exactly: an estimate of the multiple
/// errs by less than 2^-10. The estimate plus 2^-10 is truncated to an integer, which is
/// decremented if the remainder is negative. Returns false, and stores nothing, if a quotient is
/// NaN or above 2^40 of these multiples.
template <class R, class V>
CPD_FN bool uniform_codes(V x, ElementScale<V> at, Unsigned<V> random, const RoundPlan& plan,
                          Unsigned<V>* codes) {
  using U = Unsigned<V>;
  static_assert(Lanes<V>::mantissa == 52);
  const int places = plan.man + plan.random_bits - (plan.grid64.emin_field - 1023);
  const V unit = at.scale * at.outer * splat<V>(exact_power(-places));
  const V a = bits_as<V>(bits_as<U>(x) & splat<U>(Pattern<V>::magnitude));
  const V estimate = a * (at.factor * splat<V>(exact_power(places)));
  if (!all_at_most(estimate, 0x1p40)) return false;
  const V above = truncate(estimate + splat<V>(0x1p-10));
  const V count = above - select(negative_fma(above, unit, a) < V{}, splat<V>(1), V{});
  const V magic = splat<V>(0x1p52);
  const U units = bits_as<U>(count + magic) - bits_as<U>(magic);
  const auto most = splat<Signed<V>>(plan.max_code);
  const auto code = min((Signed<V>)shift_right(units + random, plan.random_bits),
                        largest_of<R>(x, most, most + splat<Signed<V>>(1), plan));
  if (has_complements<R>(plan)) {
    *codes = complement_of(code, x, plan);
    return true;
  }
  const U sign = shift_left(bits_as<U>(x) >> 63, plan.bits - 1);
  *codes = with_sign<R>((U)code, sign, code == Signed<V>{}, U{}, plan);
  return true;
}

/// Returns the value of an element q of the format: q * scale * outer, rounded once to binary32.
/// Binary32 lanes require that q * scale is exact or outer = 1.
template <class V>
CPD_FN auto scaled_value(V q, ElementScale<V> at) {
  using Result = typename Narrow<V>::F32;
  Result y;
  if constexpr (Lanes<V>::mantissa == 52) {
    y = convert<Result>(q * (at.scale * at.outer));
  } else {
    y = q * at.scale * at.outer;
  }
  const Result nan = bits_as<Result>(splat<typename Narrow<V>::U32>(0x7FC00000U));
  return select(y == y, y, nan);
}

/// Returns the number by which binary32 lanes multiply (ElementRoute::multiply) or else divide a
/// block's elements: ElementScale::factor. If the scale is 0, this number makes every element 0.
template <class W>
CPD_FN W element_by(ElementRoute route, BlockScale<W> block) {
  if (route == ElementRoute::multiply) return block.factor;
  return select(block.scale == W{}, splat<W>(0x1p100), block.scale);
}

/// Returns whether a scale in exact arithmetic is outside the range in which the division in
/// binary32 is exact (route_of). Returns false for 0 and NaN.
template <class W>
CPD_FN auto is_outside(ElementRoute route, W scale) {
  const bool divides = route == ElementRoute::divide;
  const W low = splat<W>(divides ? 0x1p-70 : 0x1p-127);
  const W high = splat<W>(divides ? 0x1p100 : 0x1p127);
  return (scale != W{}) & ((scale < low) | (scale > high));
}

}  // namespace CPD_ISA
}  // namespace cpd
