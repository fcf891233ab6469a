// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a matrix unit (cpd/spec/block_fma.h) for one block of products.
//
// The exponent e(x) of an operand is floor(log2 |x|), but at least the emin of the operand's
// format. A nonzero product has the exponent e(a) + e(b), and a nonzero addend s has e(s). Zeros
// have no exponent; the last block may have fewer products than the others. E is the greatest
// exponent of a block, and at least min_exponent. Each term is cut toward zero to a multiple of
// 2^(E - F), called a unit. In units, a product is an integer below 2^(F + 2) and the addend an
// integer below 2^(F + 1). So the sum of 65 terms is below 2^39.
//
// Why this is exact:
//
// - Binary64 lanes: a product of binary32 values is exact (48 bits). Its product with a power of
//   two is exact too, as all exponents are within -298 … 257 and F is in 1 … 30. Sums of integers
//   are exact. The sum in units is a binary64 value, which `round` rounds once. An addend that is
//   not aligned is added with rounding to odd, so that sum and rounding are one exact rounding
//   (exact.h).
// - Binary32 lanes form the same integers as int32, if block_fits_binary32 returns true.
// - A matrix unit with scales uses binary64 lanes. A scaled product has at most 53 bits, and a
//   block's sum in units is below 2^53 (CheckScales in spec/block_fma.cpp). Exponents are within
//   -596 … 511.
//
// If terms are Inf or NaN, the result is the sum that IEEE 754 defines. A zero result is +0, even
// if a negative sum was cut or rounded to zero. Consider a sum that would round beyond the format's
// largest number if the format had no upper bound. The result is Inf if the format has Inf, also
// when rounding toward zero (two published models do this; no published result shows it); else the
// sum overflows by its rounding options. Units with an adder other than `aligned` are in
// block_adders.h.
#pragma once

#include <cstdint>
#include <limits>

#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/accumulate.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/spec/accumulator.h"

namespace cpd {

/// The constants of a matrix unit for the kernels.
struct BlockFmaPlan {
  RoundPlan sum;       ///< rounds into BlockFma::sum
  RoundPlan promoted;  ///< rounds promotions and the result into Accumulator::format
  std::int32_t block = 16;
  std::int32_t fraction_bits = 25;
  std::int32_t min_exponent = -133;
  std::int32_t emin_a = -126, emin_b = -126, emin_sum = -126;
  bool aligns_addend = true;
  std::int64_t promote = 0;
  int planes = 1;                ///< floats of state for each sum (GemmBlock): 2 with promotion
  std::uint64_t first_draw = 0;  ///< the draw of the first promotion, or of the result (philox.h)
  bool takes_scales = false;
  std::int32_t emin_scale = -126;
  std::int32_t scale_block = 32, dot = 1;
  double beyond = 0;  ///< the least sum that becomes infinite; NaN if the format has no Inf
  /// Products may be formed and aligned in binary32 and summed in int32 if two conditions hold. The
  /// operands are finite. For all nonzero operands, the sums of two exponents are in least_exponent
  /// … greatest_exponent.
  bool in_binary32 = false;
  std::int32_t least_exponent = 0, greatest_exponent = 0;
  /// True if products have at most 23 bits, so that ShortBlocks (exponent_pairs.h) determines the
  /// blocks that may use binary32.
  bool has_short_blocks = false;
  /// True if binary32 lanes may also add the addend and round the sum after a block (end_block32).
  /// `dropped` masks the bits of a binary32 number that the sum's format does not have.
  bool ends_in_binary32 = false;
  std::uint32_t dropped = 0;
  Adder adder = Adder::aligned;
  std::int32_t group = 0, stride = 4, take = 2;  ///< the order of k (place_in_order)
};

/// Returns the position of product k in the order in which a matrix unit adds products. The order
/// permutes products within each group of plan.group products. Zeros fill an incomplete last group.
/// plan.group must be above 0.
template <class Index>
constexpr Index place_in_order(const BlockFmaPlan& plan, Index k) {
  const Index at = k % plan.group;
  const Index share = plan.group / plan.stride * plan.take;  // values of a group in a row
  return k - at + at % plan.stride / plan.take * share + at / plan.stride * plan.take +
         at % plan.take;
}

constexpr BlockFmaPlan make_block_fma_plan(const Accumulator& accumulator,
                                           const RandomKey& key = {}) {
  const BlockFma unit = accumulator.unit.value_or(BlockFma{});
  BlockFmaPlan plan;
  RoundingOptions into_sum;
  into_sum.mode = unit.rounding;
  plan.sum = make_plan(unit.sum, into_sum);
  plan.promoted = make_plan(accumulator.format, accumulator.rounding, key);
  plan.block = unit.block;
  plan.fraction_bits = unit.fraction_bits;
  plan.min_exponent = unit.min_exponent;
  plan.emin_a = unit.a.emin();
  plan.emin_b = unit.b.emin();
  plan.emin_sum = unit.sum.emin();
  plan.aligns_addend = unit.aligns_addend;
  plan.promote = unit.promote;
  plan.planes = unit.promote > 0 ? 2 : 1;
  plan.first_draw = first_draw(accumulator.rounding);
  plan.beyond = unit.sum.has_inf()
                    ? unit.sum.max() + Format::power_of_two(unit.sum.emax() - unit.sum.man)
                    : std::numeric_limits<double>::quiet_NaN();
  plan.adder = unit.adder;
  plan.group = unit.group;
  plan.stride = unit.stride;
  plan.take = unit.take;
  if (unit.scale) {
    plan.takes_scales = true;
    plan.emin_scale = unit.scale->emin();
    plan.scale_block = unit.scale_block;
    plan.dot = unit.dot;
    return plan;
  }

  // Binary32 lanes are exact under three conditions. Products have at most 24 bits, are below 2^128
  // and are multiples of 2^-149. 2^(F - E), for the block's greatest exponent E, is a binary32
  // number. The sum of `block` products, in units of 2^(E - F), is below 2^31.
  const int precision = unit.a.precision() + unit.b.precision();
  plan.in_binary32 =
      precision <= 24 && (std::int64_t{unit.block} << (unit.fraction_bits + 2)) <= (1LL << 31);
  plan.has_short_blocks = plan.in_binary32 && precision <= 23 && unit.adder == Adder::aligned;
  const int exact = precision - 2 - 149;
  const int scaled = unit.fraction_bits - 127;
  plan.least_exponent = exact > scaled ? exact : scaled;
  plan.greatest_exponent = 126;
  plan.dropped = (1U << (23 - unit.sum.man)) - 1;
  const Format wide{.exp = 8, .man = unit.sum.man};
  plan.ends_in_binary32 = plan.in_binary32 && unit.aligns_addend && unit.sum == wide &&
                          unit.rounding == Rounding::toward_zero;
  return plan;
}

inline namespace CPD_ISA {

/// The exponent of a zero. It makes the exponent of a product with a zero lower than every
/// min_exponent.
constexpr std::int32_t kNoExponent = -4096;

/// Returns floor(log2 |x|) in each lane, but at least emin. Returns kNoExponent if x is zero, and
/// 128 (in binary64: 1024) if x is Inf or NaN.
template <class V>
CPD_FN constexpr Signed<V> exponent_from(V x, int emin) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using P = Pattern<V>;
  constexpr int kBias = static_cast<int>(P::infinity >> (P::mantissa + 1));
  const U a = bits_as<U>(x) & splat<U>(P::magnitude);
  const I exponent = (I)(a >> P::mantissa) - splat<I>(kBias);
  return select(a == U{}, splat<I>(kNoExponent), max(exponent, splat<I>(emin)));
}

template <class V>
CPD_FN constexpr V absolute(V x) {
  return bits_as<V>(bits_as<Unsigned<V>>(x) & splat<Unsigned<V>>(Pattern<V>::magnitude));
}

/// Returns whether a block may use binary32 lanes. The exponents of its nonzero operands must be in
/// least_a … greatest_a and least_b … greatest_b. Inf and NaN have the exponent 128 and are not
/// allowed.
CPD_FN constexpr bool block_fits_binary32(const BlockFmaPlan& plan, int least_a, int greatest_a,
                                          int least_b, int greatest_b) {
  return plan.in_binary32 && greatest_a < 128 && greatest_b < 128 &&
         greatest_a + greatest_b <= plan.greatest_exponent &&
         least_a + least_b >= plan.least_exponent;
}

/// Returns 2^(F - e), the factor that converts terms to units of 2^(e - F). `e` is the block's
/// greatest exponent, and F is plan.fraction_bits. In binary32 lanes, F - e is limited to 127: if
/// it exceeds 127, every product is zero, and the factor has no effect. An infinite sum has e =
/// 128. If F is 1, the factor is then 0 and cuts all finite terms to 0, which is correct beside an
/// infinity.
template <class V>
CPD_FN constexpr V alignment(Signed<V> e, const BlockFmaPlan& plan) {
  using I = Signed<V>;
  const I exponent = splat<I>(plan.fraction_bits) - e;
  if constexpr (Lanes<V>::mantissa == 23) return power_of_two<V>(min(exponent, splat<I>(127)));
  return power_of_two<V>(exponent);
}

/// The number type in which the aligned terms of a block are summed: int32 for binary32 lanes, else
/// V. Aligned terms are integers.
template <class V, int kMantissa = Lanes<V>::mantissa>
struct UnitsOf {
  using type = V;
};
template <class V>
struct UnitsOf<V, 23> {
  using type = Signed<V>;
};
template <class V>
using Units = typename UnitsOf<V>::type;

/// Returns a * b in units of 2^(E - F), cut toward zero to an integer. `scale` is 2^(F - E), the
/// result of alignment(). If a * b * scale underflows in binary32, the result is 0, as is the exact
/// result.
template <class V>
CPD_FN constexpr Units<V> aligned_product(V a, V b, V scale) {
  if constexpr (Lanes<V>::mantissa == 23) {
    return convert<Units<V>>((a * b) * scale);
  } else {
    return truncate((a * b) * scale);
  }
}

/// Returns the unrounded sum of a block's products and of `sum`, the running sum before the block,
/// in binary64 lanes. `units` is the sum of the aligned products, and `e` the block's greatest
/// exponent.
template <class R, class V>
CPD_FN constexpr V block_total(V units, V sum, Signed<V> e, const BlockFmaPlan& plan) {
  using I = Signed<V>;
  const V unit = power_of_two<V>(e - splat<I>(plan.fraction_bits));
  if (!plan.aligns_addend) return exact_sum(units * unit, sum, false);
  return (units + truncate(sum * alignment<V>(e, plan))) * unit;
}

/// Returns a block's total, rounded into the format of the matrix unit's running sum.
template <class R, class V>
CPD_FN constexpr V round_total(V total, const BlockFmaPlan& plan) {
  using U = Unsigned<V>;
  const V rounded = round<R>(total, U{}, plan.sum) + V{};  // -0 becomes +0
  if constexpr (R::mode == Rounding::nearest_even) return rounded;
  const V infinite =
      bits_as<V>((bits_as<U>(total) & splat<U>(Pattern<V>::sign)) | splat<U>(Pattern<V>::infinity));
  return select(absolute(total) >= splat<V>(plan.beyond), infinite, rounded);
}

/// Returns the running sum of a matrix unit after a block, in binary64 lanes.
template <class R, class V>
CPD_FN constexpr V end_block(V units, V sum, Signed<V> e, const BlockFmaPlan& plan) {
  return round_total<R>(block_total<R>(units, sum, e, plan), plan);
}

/// The largest E (a block's greatest exponent) that end_in_range32 supports. least_end32 returns
/// the least such E. Within these limits, the sum after the block is zero or a normal number: it is
/// below 2^(E + 9), and if not zero at least 2^(E - F).
constexpr std::int32_t kMostEnd32 = 118;
CPD_FN constexpr std::int32_t least_end32(const BlockFmaPlan& plan) {
  return plan.fraction_bits - 126;
}

/// Returns the running sum after a block, in binary32 lanes. `units` is the sum of the aligned
/// products, and `sum` the running sum before the block. Requires plan.ends_in_binary32 and `e`
/// (the block's greatest exponent) in least_end32 … kMostEnd32. If `sum` and `units` are 0, any `e`
/// in this range gives the same result.
///
/// `addend` is `sum` in the units of the products. The sum of `units` and `addend` fits 33 bits. If
/// `units` and `addend` have the same sign, so has their sum. Else the sum has the sign of the sum
/// mod 2^32. Let m be the sum's magnitude, which must be truncated to 24 bits. m >> 24 has its
/// leading bit right below these 24 bits. With that bit of m cleared, the conversion to binary32,
/// which rounds to nearest, truncates.
template <class V>
CPD_FN constexpr V end_in_range32(Signed<V> units, V sum, Signed<V> e, const BlockFmaPlan& plan) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  const I addend = convert<I>(sum * alignment<V>(e, plan));
  const U total = (U)units + (U)addend;
  const U sign = (U)((units & addend) | ((units | addend) & (I)total)) >> 31;
  const U magnitude = (total ^ (U{} - sign)) + sign;
  const V leading = convert<V>(magnitude & ~(magnitude >> 24));
  const V exact = leading * power_of_two<V>(e - splat<I>(plan.fraction_bits));
  return bits_as<V>((bits_as<U>(exact) & splat<U>(~plan.dropped)) | (sign << 31));
}

/// Returns the matrix unit's sum after a block, in binary32 lanes, for blocks with any greatest
/// exponent E. Sets the mask `wide` in lanes whose result is invalid, including all lanes with an
/// infinite sum or NaN.
template <class V, class Mask>
CPD_FN constexpr V end_block32(Signed<V> units, V sum, Signed<V> e, const BlockFmaPlan& plan,
                               Mask& wide) {
  using I = Signed<V>;
  const I least = splat<I>(least_end32(plan));
  const auto zero = (units == I{}) & (sum == V{});
  wide = ((e < least) | (e > splat<I>(kMostEnd32))) & !zero;
  return end_in_range32(units, select(wide, V{}, sum), max(e, least), plan);
}

/// Returns the greatest exponent of a block of `count` products and of the addend `sum`, if it is
/// aligned. The result is at least min_exponent, and 128 or more if an operand or the addend is Inf
/// or NaN. `x` has a(k) and b(k) in binary32.
template <class Operands>
CPD_FN constexpr std::int32_t greatest_exponent(const BlockFmaPlan& plan, const Operands& x,
                                                int count, float sum) {
  std::int32_t e = plan.min_exponent;
  if (plan.aligns_addend) e = max(e, exponent_from(sum, plan.emin_sum));
  for (int k = 0; k < count; ++k) {
    e = max(e, exponent_from(x.a(k), plan.emin_a) + exponent_from(x.b(k), plan.emin_b));
  }
  return e;
}

/// Returns the sum of a block's aligned products, in units of 2^(e - F), where `e` is the block's
/// greatest exponent. V is binary64, or binary32 if block_fits_binary32 returns true.
template <class V, class Operands>
CPD_FN constexpr Units<V> sum_of_units(const BlockFmaPlan& plan, const Operands& x, int count,
                                       std::int32_t e) {
  const V scale = alignment<V>(Signed<V>{e}, plan);
  Units<V> units{};
  for (int k = 0; k < count; ++k) {
    units = units + aligned_product(V{x.a(k)}, V{x.b(k)}, scale);
  }
  return units;
}

constexpr int kMostTerms = 64;  ///< the largest number of terms of a block

/// Returns the exponent of a binary32 value in binary64 lanes, as exponent_from does. But Inf and
/// NaN give 128, as in binary32 lanes.
template <class V>
CPD_FN constexpr Signed<V> scaled_exponent(V x, int emin) {
  return min(exponent_from(x, emin), splat<Signed<V>>(128));
}

/// Returns the running sum after one block of `count` products, for a matrix unit with scales. `x`
/// has a(k), b(k), a_scale(k) and b_scale(k) as binary64 lanes; k counts from the first product of
/// the block.
template <class R, class V, class Operands>
CPD_FN constexpr V add_scaled_block(const BlockFmaPlan& plan, const Operands& x, int count, V sum) {
  using I = Signed<V>;
  V terms[kMostTerms];
  I greatest = splat<I>(plan.min_exponent);
  if (plan.aligns_addend) greatest = max(greatest, scaled_exponent(sum, plan.emin_sum));
  int n = 0;
  for (int k = 0; k < count; k += plan.dot) {
    const V a_scale = absolute(x.a_scale(k));
    const V b_scale = absolute(x.b_scale(k));
    I e = scaled_exponent(a_scale, plan.emin_scale) + scaled_exponent(b_scale, plan.emin_scale);
    if (plan.dot == 1) {
      e = e + scaled_exponent(x.a(k), plan.emin_a) + scaled_exponent(x.b(k), plan.emin_b);
    }
    V products{};
    for (int i = k; i < k + plan.dot && i < count; ++i) products = products + x.a(i) * x.b(i);
    const V term = products * (a_scale * b_scale);
    greatest = max(greatest, select(term == V{}, splat<I>(kNoExponent), e));
    terms[n++] = term;
  }
  V units{};
  for (int i = 0; i < n; ++i) {
    units = units + truncate(terms[i] * alignment<V>(greatest, plan));
  }
  return end_block<R>(units, sum, greatest, plan);
}

/// Selects the rule that rounds the matrix unit's running sum in binary64, and passes it to `run`
/// as a template argument: run.operator()<Rule<mode, form>>().
template <class Run>
CPD_FN constexpr void with_sum_rule(const BlockFmaPlan& plan, Run run) {
  const bool general = !is_simple(plan.sum.form);
  if (plan.sum.mode == Rounding::toward_zero) {
    if (general) return run.template operator()<Rule<Rounding::toward_zero, Form::general>>();
    return run.template operator()<Rule<Rounding::toward_zero, Form::simple>>();
  }
  if (general) return run.template operator()<Rule<Rounding::nearest_even, Form::general>>();
  run.template operator()<Rule<Rounding::nearest_even, Form::simple>>();
}

}  // namespace CPD_ISA
}  // namespace cpd
