// SPDX-License-Identifier: Apache-2.0
//
// Casts values into bf16, rounded to a scaled format, without a multiplication. Every block must
// have a scale that is a power of two. The last digit of a scaled element is then worth a power of
// two, too. So one addition of binary32 rounds a value to that digit (GridSum in round.h), and bf16
// holds the result.
#pragma once

#include <cstdint>

#include "cpd/numeric/round/round.h"
#include "cpd/numeric/scaled/scaled_plan.h"

namespace cpd {

/// The constants of a format that power_value can cast into. The integers are binary32 patterns.
struct PowerBlocks {
  float multiplier = 1;    ///< the scale is formed from the largest |x| times this number
  std::int32_t round = 0;  ///< added to that product, so that its exponent is rounded
  std::int32_t less = 0;   ///< the exponent of the product minus the exponent of the scale, << 23
  std::int32_t least = 0;  ///< emin << 23, for scale 1: the binade of subnormal elements
  /// A value is rounded by adding and subtracting a power of two. This is that power's exponent
  /// minus the value's exponent, << 23.
  std::int32_t cut = 0;
  std::int32_t max = 0;    ///< M (the element format's max), for scale 1
  std::int32_t low = 0;    ///< blocks are supported if their largest |x| is 0 or in low … high
  std::int32_t high = -1;  ///< below `low` if no block is supported
  constexpr bool has_any() const { return low <= high; }
};

/// The number of elements of a block along a row.
constexpr std::int64_t kPowerBlock = 32;

/// The values to cast. If `along` is set, they are one row of `n` values, and every kPowerBlock
/// successive values are a block. Else they are `rows` rows of `n` values, `stride` elements apart,
/// and each column is a block.
struct PowerRun {
  bool along = true;    ///< blocks lie along the row
  bool is_bf16 = true;  ///< x is bf16, else binary32
  std::int64_t rows = 1, stride = 0, n = 0;
  const void* x = nullptr;
  std::uint16_t* y = nullptr;
};

/// Returns the constants with which power_value casts into a plan's format. If power_value does not
/// support the plan's scales or elements, has_any() of the result is false.
constexpr PowerBlocks make_power_blocks(const ScaledPlan& plan) {
  const RoundPlan& element = plan.element;
  const bool rounds = element.mode == Rounding::nearest_even && element.form == Form::addition &&
                      element.overflow_code == element.max_code && plan.man >= 1 && plan.man < 8;
  const bool to_inverse = plan.rule == ScaleRule::rceil && plan.arithmetic != Arithmetic::exact;
  const bool has_rule = plan.rule == ScaleRule::floor || plan.rule == ScaleRule::ceil ||
                        plan.rule == ScaleRule::even || plan.rule == ScaleRule::rceil;
  const bool has_steps = plan.arithmetic == Arithmetic::exact ||
                         plan.arithmetic == Arithmetic::te ||
                         plan.arithmetic == Arithmetic::torchao;
  PowerBlocks blocks;
  if (!rounds || !has_rule || !has_steps || !plan.of_powers || plan.two_levels || plan.chooses ||
      plan.margin != 1) {
    return blocks;
  }
  constexpr std::int32_t kFraction = (1 << 23) - 1;
  if (to_inverse) {
    blocks.multiplier = static_cast<float>(plan.inverse_max);
    blocks.round = kFraction;
  } else {
    if (plan.rule == ScaleRule::ceil) blocks.round = kFraction;
    if (plan.rule == ScaleRule::even) blocks.round = 1 << (22 - plan.man);
    if (plan.rule == ScaleRule::rceil) {
      blocks.round = kFraction - static_cast<std::int32_t>(plan.max_fraction >> 29);
    }
    blocks.less = plan.emax * (1 << 23);
  }
  const int emin = element.grid32.emin_field - 127;
  blocks.least = emin * (1 << 23);
  blocks.cut = element.grid32.cut << 23;
  blocks.max = std::bit_cast<std::int32_t>(element.max_value);
  // Let e be the exponent of a block's largest |x|, and plan.emax the exponent of the element
  // format's max. The scale is at most two binades from 2^(e - plan.emax). `low` and `high` limit e
  // so that the scale and |x| * multiplier are normal numbers, the scale is a number of the scales'
  // format, and bf16 holds subnormal elements. The additions in power_value do not overflow: e is
  // at most 90, and the added power of two at most 2^22 times larger.
  int low = -80;
  for (const int least : {plan.emax - 124, plan.least + plan.emax + 2, plan.emax - emin - 124,
                          plan.emax - emin + plan.man - 131}) {
    if (low < least) low = least;
  }
  const int high = plan.most + plan.emax < 93 ? plan.most + plan.emax - 3 : 90;
  if (low >= high) return blocks;
  blocks.low = (low + 127) << 23;
  blocks.high = (high + 127) << 23;
  return blocks;
}

inline namespace CPD_ISA {

/// Two limits of a block as binary32 patterns. `least` is 2^emin and `most` is the largest value of
/// the element's format, both multiplied by the block's scale.
template <class V>
struct PowerScale {
  Signed<V> least, most;
};

/// Returns whether power_value supports a block, given the pattern of its largest |x|. Returns
/// false for NaN and infinity, whose patterns are above `high`.
template <class V>
CPD_FN auto is_usual(Signed<V> largest, const PowerBlocks& blocks) {
  using I = Signed<V>;
  const auto near = (largest >= splat<I>(blocks.low)) & (largest <= splat<I>(blocks.high));
  return near | (largest == I{});
}

template <class V>
CPD_FN PowerScale<V> power_scale_of(Signed<V> largest, const PowerBlocks& blocks) {
  using I = Signed<V>;
  const V a = bits_as<V>(max(largest, splat<I>(blocks.low)));
  const I z = bits_as<I>(a * splat<V>(blocks.multiplier)) + splat<I>(blocks.round);
  const I scale = (z & splat<I>(Pattern<V>::infinity)) - splat<I>(blocks.less + (127 << 23));
  return {scale + splat<I>(blocks.least + (127 << 23)), scale + splat<I>(blocks.max)};
}

/// Returns x, a value of a block, divided by the block's scale, rounded into the element's format,
/// and multiplied by the scale.
template <class V>
CPD_FN Unsigned<V> power_value(Unsigned<V> x, PowerScale<V> at, const PowerBlocks& blocks) {
  using I = Signed<V>;
  using U = Unsigned<V>;
  const U sign = x & splat<U>(Pattern<V>::sign);
  const V a = bits_as<V>(x & splat<U>(Pattern<V>::magnitude));
  const I place = max((I)(x & splat<U>(Pattern<V>::infinity)), at.least);
  const V unit = bits_as<V>(place + splat<I>(blocks.cut));
  const I rounded = bits_as<I>((a + unit) - unit);
  return (U)min(rounded, at.most) | sign;
}

}  // namespace CPD_ISA
}  // namespace cpd
