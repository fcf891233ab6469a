// SPDX-License-Identifier: Apache-2.0
//
// The plan of a rounding: a format and its rounding options as the constants that the kernels need,
// and the fastest form of the rounding that is exact. RoundPlan is an aggregate of numbers, which
// the objects of every ISA and the GPU read.
#pragma once

#include <cstdint>
#include <limits>

#include "cpd/numeric/lanes/isa.h"
#include "cpd/spec/format.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// The grid of a format in terms of the fields of binary32 or binary64.
struct Grid {
  std::int32_t emin_field = 0;  ///< biased exponent field of 2^emin
  std::int32_t cut = 0;         ///< fraction bits that a normal number drops
};

/// The form of a plan: the properties of a format and mode for which a kernel has a separately
/// compiled, faster loop.
enum class Form : std::uint8_t {
  general,   ///< no known properties
  simple,    ///< signed, with zero, -0 and subnormals, and overflow is not NaN
  addition,  ///< simple, nearest-even or directed; a binary32 addition rounds (round.h)
  scaled,    ///< simple, stochastic A, and a power of two makes R's bits below 2^emin integers
  in_place,  ///< simple, nearest-even or stochastic A, with binary32's own exponents
  general_addition,  ///< general, with zero and subnormals; rounds as `addition` does
  integer,  ///< two's complement without the least number; rounds as `addition` or `scaled` do
};

/// The constants of a rounding into one format.
struct RoundPlan {
  Rounding mode = Rounding::nearest_even;
  Variant variant = Variant::A;
  std::int32_t random_bits = kMaxRandomBits;
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;

  Grid grid32, grid64;
  bool wide = false;  ///< the grid leaves binary32's normal range: round from binary64
  Form form = Form::simple;
  bool plain = true;         ///< signed, with -0: the sign bit is preserved
  bool complement = false;   ///< codes are two's complement
  bool is_lopsided = false;  ///< one more code lies below zero than above (int_full)
  bool flush = false;        ///< no subnormals
  bool is_signed = true;
  bool has_zero = true;
  bool has_nan = true;
  bool has_inf = true;
  bool keeps_negative_zero = true;
  bool overflow_is_nan = false;
  /// True if an overflow that is rounded to odd gives Inf, the odd neighbor of the largest value.
  bool odd_overflow_is_inf = false;
  /// For unsigned formats: true if a negative number becomes NaN, false if the least value.
  bool negative_is_nan = false;
  bool clips_negative = false;  ///< a finite negative number gives 0, not NaN

  std::int32_t man = 23;
  std::int32_t bits = 32;
  std::int32_t max_code = 0;
  std::int32_t inf_code = 0;
  std::int32_t min_normal_code = 0;
  std::int32_t overflow_code = 0;  ///< magnitude code, unless overflow_is_nan
  std::uint32_t nan_code = 0;      ///< whole code
  /// For forms that round by addition: |x| is first limited to this number, 2^(top_exponent + 2),
  /// given as a binary32 pattern. The number overflows the format, but the addition that rounds the
  /// number does not overflow binary32.
  std::int32_t beyond = 0;
  float max_value = 0;
  float unit = 0;  ///< Form::integer: the value of code 1
  /// Constants of stochastic rounding with N random bits by Form::scaled or Form::integer.
  /// scaled_below is the binary32 pattern of 2^emin. An |x| below 2^emin is multiplied by to_units
  /// = 2^(man + N - emin) before it is rounded to a code. The code is multiplied by from_units =
  /// 2^(emin - man) to get the rounded value.
  std::int32_t scaled_below = 0;
  float to_units = 0;
  float from_units = 0;
  float overflow_value = 0;
  /// The least finite value. In unsigned formats that saturate, a negative number becomes this
  /// value.
  float lowest_value = 0;
  bool scale_in_binary32 = false;     ///< x * 2^shift may be formed in binary32 first
  bool scale_up_in_binary32 = false;  ///< if shift > 0, x * 2^shift may be formed in binary32
  bool scale_down_to_odd = false;     ///< if shift < 0, x * 2^shift may be formed rounded to odd
};

/// Returns whether the plan's form rounds by an addition of binary32.
CPD_FN constexpr bool is_addition(const RoundPlan& plan) {
  return plan.form == Form::addition || plan.form == Form::general_addition ||
         (plan.form == Form::integer && plan.mode == Rounding::nearest_even);
}

/// Returns whether a binary32 addition can round in this mode. The addition itself rounds to
/// nearest-even; in a directed mode, the sum may have to be corrected by one unit in its last
/// place.
constexpr bool rounds_by_addition(Rounding mode) {
  return mode == Rounding::nearest_even || mode == Rounding::toward_zero || mode == Rounding::up ||
         mode == Rounding::down;
}

constexpr bool is_nearest(Rounding mode) {
  return mode == Rounding::nearest_even || mode == Rounding::nearest_away;
}

/// Returns whether a finite overflow that is rounded to odd gives Inf. This holds in P3109's signed
/// extended formats: their largest value has an even code, and Inf has the odd code above it.
constexpr bool odd_overflow_is_inf(const Format& format, Rounding mode) {
  return mode == Rounding::to_odd && format.encoding == Encoding::p3109 && format.is_signed;
}

/// Returns whether a finite negative number gives 0 instead of NaN. This holds in P3109's unsigned
/// formats in the modes toward zero and up.
constexpr bool clips_negative(const Format& format, Rounding mode) {
  return format.is_p3109() && !format.is_signed &&
         (mode == Rounding::toward_zero || mode == Rounding::up);
}

/// Returns the exponent of the binade of the largest value. If the largest value is zero (e1m0),
/// returns emin - 1, because 2^emin is then the first number that overflows. For every format,
/// 2^(result + 2) overflows.
constexpr int top_exponent(const Format& format) {
  return format.max() > 0 ? format.emax() : format.emin() - 1;
}

/// The reason why no form faster than `simple` or `general` is exact for a rounding; has_one if
/// there is a faster form.
enum class NoForm : std::uint8_t {
  has_one,
  wide,            ///< the format leaves binary32's normal range
  mode,            ///< the rounding mode
  variant,         ///< variant B or C of stochastic rounding
  special_values,  ///< zero, subnormals, -0 or overflow are not as in IEEE 754's formats
  exponents,       ///< the format has binary32's exponents, but this mode or special values
  random_bits,     ///< more random bits than an int32 has beside the mantissa
  range,           ///< the largest value or the mantissa does not fit a binary32 addition
};
struct FormChoice {
  Form form = Form::general;
  NoForm why = NoForm::has_one;
};

/// Returns the fastest form (Form) in which a plan's roundings are exact. For the forms `simple`
/// and `general`, `why` is the reason why no faster form is exact. All other fields of the plan
/// must be set.
constexpr FormChoice choose_form(const RoundPlan& plan, const Format& format) {
  const bool has_all = plan.has_zero && !plan.flush;
  const bool simple = plan.plain && has_all && !plan.overflow_is_nan;
  const bool integer = plan.complement && plan.is_signed && !plan.is_lopsided && has_all;
  const auto any = [&](NoForm why) {
    return FormChoice{simple ? Form::simple : Form::general, why};
  };
  const bool own_exponents = plan.grid32.emin_field == 1;
  if (plan.wide) return any(NoForm::wide);
  if (plan.mode == Rounding::stochastic) {
    if (plan.variant != Variant::A) return any(NoForm::variant);
    if (!(simple || integer)) return any(NoForm::special_values);
    if (own_exponents) return simple ? FormChoice{Form::in_place} : any(NoForm::exponents);
    // Form::scaled converts |x| < 2^emin to an integer number of units (2^-N of the least spacing).
    // These integers must fit int32, and the factor to_units must be a normal binary32 number.
    const int looked_at = format.man + plan.random_bits;
    if (looked_at > 30 || looked_at - format.emin() > 127) return any(NoForm::random_bits);
    return {integer ? Form::integer : Form::scaled};
  }
  if (!rounds_by_addition(plan.mode)) return any(NoForm::mode);
  if (!has_all) return any(NoForm::special_values);
  const bool even = plan.mode == Rounding::nearest_even;
  if (own_exponents) return simple && even ? FormChoice{Form::in_place} : any(NoForm::exponents);
  // Rounding by addition adds at most 2^(top_exponent + 2 + grid32.cut), which must be a binary32
  // number. Binary32 must hold the leading bit of the sum and the man + 1 bits of the result.
  if (top_exponent(format) + 2 + plan.grid32.cut > 127 || format.man > 22) {
    return any(NoForm::range);
  }
  if (integer) return even ? FormChoice{Form::integer} : any(NoForm::mode);
  return {simple ? Form::addition : Form::general_addition};
}

constexpr RoundPlan make_plan(const Format& format, const RoundingOptions& options,
                              const RandomKey& key = {}) {
  RoundPlan plan;
  plan.mode = options.mode;
  plan.variant = options.variant;
  plan.random_bits = options.random_bits;
  plan.seed = key.seed;
  plan.stream = key.stream;

  const int emin = format.emin();
  plan.grid32 = {emin + 127, 23 - format.man};
  plan.grid64 = {emin + 1023, 52 - format.man};
  const int least_field = format.subnormals && format.has_zero() ? 1 : 2;
  plan.wide = plan.grid32.emin_field < least_field || plan.grid32.emin_field > 253;
  plan.flush = !format.subnormals || !format.has_zero();
  plan.is_signed = format.is_signed;
  plan.has_zero = format.has_zero();
  plan.has_nan = format.has_nan();
  plan.has_inf = format.has_inf();
  plan.keeps_negative_zero = format.has_negative_zero();
  plan.plain = plan.keeps_negative_zero;
  plan.complement = format.is_integer();
  plan.is_lopsided = format.lowest_code() != format.max_code();

  plan.man = format.man;
  plan.bits = format.bits();
  plan.max_code = static_cast<std::int32_t>(format.max_code());
  plan.min_normal_code = static_cast<std::int32_t>(format.min_normal_code());
  plan.inf_code = plan.has_inf ? static_cast<std::int32_t>(format.inf_code()) : -1;
  plan.nan_code = plan.has_nan ? format.nan_code() : 0;
  plan.max_value = static_cast<float>(format.max());
  plan.lowest_value = static_cast<float>(format.lowest());

  const bool saturate = options.overflow == Overflow::saturate;
  const bool to_inf = !saturate && format.has_inf();
  plan.overflow_is_nan = !saturate && format.overflows_to_nan();
  plan.overflow_code = to_inf ? plan.inf_code : plan.max_code;
  plan.overflow_value = to_inf ? std::numeric_limits<float>::infinity() : plan.max_value;
  plan.odd_overflow_is_inf = odd_overflow_is_inf(format, options.mode);
  plan.negative_is_nan = !format.is_signed && !saturate && format.has_nan();
  plan.clips_negative = clips_negative(format, options.mode);
  plan.form = choose_form(plan, format).form;
  plan.unit = static_cast<float>(Format::power_of_two(format.min_quantum_exponent()));
  if (plan.form == Form::scaled || plan.form == Form::integer) {
    plan.scaled_below = plan.grid32.emin_field << 23;
    plan.to_units = static_cast<float>(Format::power_of_two(format.man + plan.random_bits - emin));
    plan.from_units = static_cast<float>(Format::power_of_two(emin - format.man));
  }
  if (is_addition(plan)) plan.beyond = (top_exponent(format) + 2 + 127) << 23;
  // Determines whether x * 2^shift may be formed in binary32 before it is rounded. A product below
  // 2^-126 loses bits, but is so far below the spacing that rounding to nearest gives zero, and
  // stochastic rounding (which reads at most 25 bits of the fraction) never rounds up. A product
  // that overflows is beyond every format whose max is below 2^127.
  plan.scale_in_binary32 = !plan.wide &&
                           (is_nearest(plan.mode) || plan.mode == Rounding::stochastic) &&
                           format.min_quantum_exponent() > -96 && format.max() < 0x1p127;
  // For shift > 0, x * 2^shift is exact, or at least 2^128 and so beyond every format's max.
  plan.scale_up_in_binary32 =
      !plan.wide && (is_nearest(plan.mode) || plan.mode == Rounding::stochastic);
  // For shift < 0, x * 2^shift is rounded to odd. Rounding to nearest then needs only the two bits
  // below the format's last place.
  plan.scale_down_to_odd =
      !plan.wide && is_nearest(plan.mode) && format.min_quantum_exponent() >= -147;
  return plan;
}

}  // namespace cpd
