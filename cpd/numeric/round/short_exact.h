// SPDX-License-Identifier: Apache-2.0
//
// Exact operations on binary32 values, whose results are binary32 numbers rounded to odd. The
// operations apply if 24 bits are enough (rounds_from_odd). exact.h does the same in binary64; here
// lanes are half as wide and need no conversions. A `Doubt` records the lanes whose result binary32
// cannot determine, and the caller uses exact.h for these lanes.
#pragma once

#include "cpd/numeric/round/exact.h"
#include "cpd/spec/operation.h"

namespace cpd {

/// Returns whether the plan rounds a binary32 number that was rounded to odd as it rounds the exact
/// number. All bits that the rounding reads must be above the last bit, which holds the oddness
/// (Boldo and Melquiond 2008). Rounding to nearest reads the bits down to half of the significand's
/// last place. Stochastic variant A reads N bits below the last place.
constexpr bool rounds_from_odd(const RoundPlan& plan) {
  if (plan.wide) return false;
  if (plan.mode == Rounding::nearest_even) return plan.man <= 21;
  return plan.mode == Rounding::stochastic && plan.variant == Variant::A &&
         plan.man + plan.random_bits <= 22;
}

/// Returns whether the plan's rounding distinguishes numbers below 2^-101 from zero. Products in
/// that range lose bits.
constexpr bool sees_small(const RoundPlan& plan) {
  const int looked_at = plan.mode == Rounding::stochastic ? plan.random_bits : 1;
  return plan.grid32.emin_field - 127 - plan.man - looked_at < -100;
}

inline namespace CPD_ISA {

/// Passes the plan's rounding rule to `run` as a template argument, run.operator()<Rule<…>>(): a
/// rule of a faster form if there is one, else the general rule. rounds_from_odd must hold for the
/// plan.
template <class Run>
CPD_FN constexpr void with_short_rule(const RoundPlan& plan, Run run) {
  using enum Rounding;
  const auto form = plan.form;
  if (plan.mode == stochastic) {
    if (form == Form::scaled) return run.template operator()<Rule<stochastic, Form::scaled>>();
    if (form == Form::in_place) return run.template operator()<Rule<stochastic, Form::in_place>>();
    return run.template operator()<Rule<stochastic, Form::general>>();
  }
  if (form == Form::addition) return run.template operator()<Rule<nearest_even, Form::addition>>();
  if (form == Form::in_place) return run.template operator()<Rule<nearest_even, Form::in_place>>();
  if (form == Form::general_addition) {
    return run.template operator()<Rule<nearest_even, Form::general_addition>>();
  }
  run.template operator()<Rule<nearest_even, Form::general>>();
}

/// Passes an operation to `run` as a template argument: run.operator()<op>(). kAny: operands are
/// binary64 values, so the operation must be add, mul or fma.
template <bool kAny = false, class Run>
CPD_FN constexpr void with_operation(soft::Operation op, Run run) {
  using soft::Operation;
  if (op == Operation::add) return run.template operator()<Operation::add>();
  if (op == Operation::mul) return run.template operator()<Operation::mul>();
  if constexpr (!kAny) {
    if (op == Operation::div) return run.template operator()<Operation::div>();
    if (op == Operation::sqrt) return run.template operator()<Operation::sqrt>();
  }
  run.template operator()<Operation::fma>();
}

/// The causes of an uncertain result of operation_to_odd: an infinity or a NaN; a product that is
/// not a binary32 number; a number so small that its error may be lost; a number so large that the
/// exact result may be beyond binary32's range.
template <class V>
class Doubt {
 public:
  /// Takes an intermediate result of an operation, or its error. Marks the result of each lane with
  /// an infinity or a NaN as uncertain.
  CPD_FN void see(V x) { nan_ = fma(x, V{}, nan_); }
  /// Takes the error of the product in a fused multiply-add. Marks the result of each lane with an
  /// error other than zero as uncertain.
  CPD_FN void see_error(V error) { inexact_ |= bits_as<U>(error); }
  /// Takes a product or a dividend x. Marks the result of a lane as uncertain unless x is an exact
  /// zero, or so large that its error, about 2^-47 of x, is a multiple of binary32's least number.
  template <class Mask>
  CPD_FN void see_size(V x, Mask is_zero) {
    const V size = bits_as<V>(bits_as<U>(x) & splat<U>(Pattern<V>::magnitude));
    small_ |= select(is_zero, I{}, (I)(size < splat<V>(0x1p-102F)));
  }

  /// Returns a mask of the lanes whose result is uncertain.
  [[nodiscard]] CPD_FN auto lanes() const {
    return (nan_ != nan_) | ((inexact_ | (U)small_) != U{});
  }
  [[nodiscard]] CPD_FN bool any() const { return cpd::any(lanes()); }

 private:
  using U = Unsigned<V>;
  using I = Signed<V>;

  V nan_{};
  U inexact_{};
  I small_{};
};

/// Returns x op y (op z) rounded to odd, or any number in lanes whose result `doubt` records as
/// uncertain. kSmall: products below 2^-101 must be distinguished from zero too (sees_small).
/// Without the operations that record doubts, a product takes 10 operations, a sum 14, a fused
/// multiply-add 16, a quotient 12 and a root 10. With directed rounding, a sum and a fused
/// multiply-add take 4.
template <soft::Operation op, bool kSmall, class V>
CPD_FN V operation_to_odd(V x, V y, V z, Doubt<V>& doubt) {
  using soft::Operation;
  if constexpr (op == Operation::mul) {
    const V product = x * y;
    const V error = fma(x, y, -product);
    doubt.see(error);
    if constexpr (kSmall) doubt.see_size(product, (x == V{}) | (y == V{}));
    return toward_odd(product, error);
  } else if constexpr (op == Operation::div) {
    V rest;
    const V quotient = quotient_to_odd(x, y, &rest);
    doubt.see(rest);
    doubt.see_size(x, x == V{});
    return quotient;
  } else if constexpr (op == Operation::sqrt) {  // NaN and Inf leave no doubt
    V rest;
    doubt.see_size(x, x == V{});
    return root_to_odd(x, &rest);
  } else if constexpr (kHasDirectedRounding<V>) {
    const V sum = op == Operation::add ? fma_to_odd(x, splat<V>(1.0F), y) : fma_to_odd(x, y, z);
    doubt.see(sum + sum);  // beyond the range, sum is the greatest number, and sum + sum is Inf
    return sum;
  } else {
    V first = x;
    V second = y;
    if constexpr (op == Operation::fma) {
      first = x * y;
      second = z;
      doubt.see_error(fma(x, y, -first));
      doubt.see_size(first, (x == V{}) | (y == V{}));
    }
    const V sum = first + second;
    const V error = error_of_sum(first, second, sum);
    doubt.see(error);
    return toward_odd(sum, error);
  }
}

}  // namespace CPD_ISA
}  // namespace cpd
