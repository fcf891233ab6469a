// SPDX-License-Identifier: Apache-2.0
//
// Exact operations on binary32 values, delivered in binary32 rounded to odd, where its 24 bits are
// enough (rounds_from_odd): as exact.h does in binary64, in half the lanes' width and without its
// conversions. What binary32 cannot tell is noted (Doubt), and the caller takes exact.h there.
#pragma once

#include "cpd/numeric/round/exact.h"
#include "cpd/spec/operation.h"

namespace cpd {

/// Returns whether the plan's rounding of a binary32 number rounded to odd is that of the exact
/// number: to nearest, where the significand's last place and half of it are two bits above the odd
/// one (Boldo and Melquiond 2008); stochastic A, which cuts after N bits below the last place.
constexpr bool rounds_from_odd(const RoundPlan& plan) {
  if (plan.wide) return false;
  if (plan.mode == Rounding::nearest_even) return plan.man <= 21;
  return plan.mode == Rounding::stochastic && plan.variant == Variant::A &&
         plan.man + plan.random_bits <= 22;
}

/// Returns whether the plan's rounding tells numbers below 2^-101 from zero: products there lose
/// bits.
constexpr bool sees_small(const RoundPlan& plan) {
  const int looked_at = plan.mode == Rounding::stochastic ? plan.random_bits : 1;
  return plan.grid32.emin_field - 127 - plan.man - looked_at < -100;
}

inline namespace CPD_ISA {

/// Calls run.operator()<Rule<…>>() with the rule of a plan that rounds_from_odd: one of the shorter
/// forms, or the general.
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

/// Calls run.operator()<op>(); with kAny, for the operations that binary64 operands have.
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

/// Causes of an uncertain result of operation_to_odd: an infinity or a NaN, a product that is no
/// binary32 number, a number so small that an error may be none, or so large that the exact one may
/// be beyond binary32's.
template <class V>
class Doubt {
 public:
  /// Sees a result or its error.
  CPD_FN void see(V x) { nan_ = fma(x, V{}, nan_); }
  /// Sees the error of a product, which is to be zero.
  CPD_FN void see_error(V error) { inexact_ |= bits_as<U>(error); }
  /// Sees a product, or what is divided: an exact zero, or a number whose error, 2^-47 of it, is a
  /// multiple of binary32's least number.
  template <class Mask>
  CPD_FN void see_size(V x, Mask is_zero) {
    const V size = bits_as<V>(bits_as<U>(x) & splat<U>(Pattern<V>::magnitude));
    small_ |= select(is_zero, I{}, (I)(size < splat<V>(0x1p-102F)));
  }

  /// The lanes in doubt, as a mask.
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

/// x op y (op z) rounded to odd; any result where it leaves a doubt. kSmall: products below 2^-101,
/// too, are to be told from zero (sees_small). Operations besides those that see: 10 for a product,
/// 14 for a sum, 16 for both, with directed rounding 4 for a sum and for both; 12 for a quotient,
/// 10 for a root.
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
  } else if constexpr (op == Operation::sqrt) {  // in no doubt of NaN and Inf
    V rest;
    doubt.see_size(x, x == V{});
    return root_to_odd(x, &rest);
  } else if constexpr (kHasDirectedRounding<V>) {
    const V sum = op == Operation::add ? fma_to_odd(x, splat<V>(1.0F), y) : fma_to_odd(x, y, z);
    doubt.see(sum + sum);  // one beyond the greatest number is that number here, which is odd
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
