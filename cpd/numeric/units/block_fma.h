// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a matrix unit (cpd/spec/block_fma.h), for one block of products.
//
// The exponent e(x) of an operand is floor(log2 |x|), but at least its format's emin. A product
// that is not zero has the exponent e(a) + e(b), an addend that is not zero e(s). E is the greatest
// of a block's exponents, and at least min_exponent; zeros, and the terms that a short last block
// lacks, have none. Each term is cut toward zero to a multiple of 2^(E - F), called a unit: an
// integer below 2^(F + 2) for a product and 2^(F + 1) for the addend, so that the sum of 65 terms
// is below 2^39.
//
// Why this is exact:
//
// - In binary64 lanes a product of binary32 values is exact (48 bits), so is its product with a
//   power of two (all exponents are within -298 … 257, F in 1 … 30), and so are sums of integers.
//   The sum in units is a binary64 value, which `round` rounds once. An addend that is not aligned
//   is added to odd, so that sum and rounding are one exact rounding (exact.h).
// - Binary32 lanes form the same integers as int32, where block_fits_binary32 says so.
// - A unit with scales uses binary64 lanes. A scaled product has at most 53 bits, and a block's sum
//   in units is below 2^53 (CheckScales in spec/block_fma.cpp); exponents are within -596 … 511.
//
// Inf and NaN arise as in IEEE 754's sum of the products and the addend. A zero result is +0, also
// where a negative sum was cut or rounded to zero. A sum that, in a format without an upper bound,
// rounds beyond its format is Inf where the format has that, also toward zero; else it overflows as
// its rounding says. Units with another adder than `aligned` are in block_adders.h.
#pragma once

#include <cstdint>
#include <limits>

#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/accumulate.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/spec/accumulator.h"

namespace cpd {

/// A matrix unit as constants for its kernels.
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
  double beyond = 0;  ///< the least sum that is infinite; NaN where the format has no Inf
  /// Products may be formed and aligned in binary32 and summed in int32 where the operands are
  /// finite and, of those that are not zero, the exponents' sums are least_exponent …
  /// greatest_exponent.
  bool in_binary32 = false;
  std::int32_t least_exponent = 0, greatest_exponent = 0;
  /// True if ShortBlocks (exponent_pairs.h) says which blocks: products have at most 23 bits.
  bool has_short_blocks = false;
  /// True if a block may also end in binary32 (end_block32); `dropped` are the bits of a binary32
  /// number that the sum's format does not have.
  bool ends_in_binary32 = false;
  std::uint32_t dropped = 0;
  Adder adder = Adder::aligned;
  std::int32_t group = 0, stride = 4, take = 2;  ///< the order of k (place_in_order)
};

/// The place in the unit's order of k of value k of a sum, in the same group; group > 0.
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

  // Exact products: at most 24 bits, the last no lower than 2^-149, below 2^128. 2^(F - E), for E
  // no less than a product's exponent, is a binary32 value. `block` products sum below 2^31.
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

/// The exponent of a zero, so that of a product with a zero is below every min_exponent.
constexpr std::int32_t kNoExponent = -4096;

/// e(x) lane by lane: at least emin; kNoExponent where x is zero; 128 (in binary64 1024) for Inf
/// and NaN.
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

/// Returns whether a block may use binary32 lanes whose operands' exponents, zeros left out, are in
/// least_a … greatest_a and least_b … greatest_b. Inf and NaN have the exponent 128 and may not.
CPD_FN constexpr bool block_fits_binary32(const BlockFmaPlan& plan, int least_a, int greatest_a,
                                          int least_b, int greatest_b) {
  return plan.in_binary32 && greatest_a < 128 && greatest_b < 128 &&
         greatest_a + greatest_b <= plan.greatest_exponent &&
         least_a + least_b >= plan.least_exponent;
}

/// 2^(F - E), the factor from terms to units. Binary32 lanes: where F - E exceeds 127, every
/// product is zero, so that any factor will do; an infinite sum's E = 128 gives 0 for F = 1, which
/// cuts all other terms to 0 as it must.
template <class V>
CPD_FN constexpr V alignment(Signed<V> e, const BlockFmaPlan& plan) {
  using I = Signed<V>;
  const I exponent = splat<I>(plan.fraction_bits) - e;
  if constexpr (Lanes<V>::mantissa == 23) return power_of_two<V>(min(exponent, splat<I>(127)));
  return power_of_two<V>(exponent);
}

/// The number type that a block's units are summed in.
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

/// a * b in units, cut toward zero to an integer; `scale` is alignment(). A binary32 product that
/// underflows when scaled is below one unit either way.
template <class V>
CPD_FN constexpr Units<V> aligned_product(V a, V b, V scale) {
  if constexpr (Lanes<V>::mantissa == 23) {
    return convert<Units<V>>((a * b) * scale);
  } else {
    return truncate((a * b) * scale);
  }
}

/// The number that is rounded after a block, in binary64 lanes: `units` is the sum of its aligned
/// products, e its E.
template <class R, class V>
CPD_FN constexpr V block_total(V units, V sum, Signed<V> e, const BlockFmaPlan& plan) {
  using I = Signed<V>;
  const V unit = power_of_two<V>(e - splat<I>(plan.fraction_bits));
  if (!plan.aligns_addend) return exact_sum(units * unit, sum, false);
  return (units + truncate(sum * alignment<V>(e, plan))) * unit;
}

/// A block's total rounded into the unit's sum.
template <class R, class V>
CPD_FN constexpr V round_total(V total, const BlockFmaPlan& plan) {
  using U = Unsigned<V>;
  const V rounded = round<R>(total, U{}, plan.sum) + V{};  // -0 becomes +0
  if constexpr (R::mode == Rounding::nearest_even) return rounded;
  const V infinite =
      bits_as<V>((bits_as<U>(total) & splat<U>(Pattern<V>::sign)) | splat<U>(Pattern<V>::infinity));
  return select(absolute(total) >= splat<V>(plan.beyond), infinite, rounded);
}

/// The unit's sum after a block, in binary64 lanes.
template <class R, class V>
CPD_FN constexpr V end_block(V units, V sum, Signed<V> e, const BlockFmaPlan& plan) {
  return round_total<R>(block_total<R>(units, sum, e, plan), plan);
}

/// Binary32 ends a block (end_in_range32) whose E is from least_end32 to kMostEnd32: the sum, below
/// 2^(E + 9) and if not zero at least 2^(E - F), does not leave the normal range.
constexpr std::int32_t kMostEnd32 = 118;
CPD_FN constexpr std::int32_t least_end32(const BlockFmaPlan& plan) {
  return plan.fraction_bits - 126;
}

/// The unit's sum after a block, in binary32 lanes, where plan.ends_in_binary32 and E is
/// least_end32 … kMostEnd32; with a sum and units of 0, E may be any number of these.
///
/// The sum of units and the addend fits 33 bits; its sign is that of units and addend where they
/// agree, else that of their sum mod 2^32. With the bit below the 24 leading ones of the magnitude
/// m cleared, which is where m >> 24 has its leading bit, the conversion to binary32, to nearest,
/// truncates.
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

/// end_in_range32 of blocks with any E. Sets `wide` in the lanes whose result is invalid, as those
/// of every infinite sum and NaN.
template <class V, class Mask>
CPD_FN constexpr V end_block32(Signed<V> units, V sum, Signed<V> e, const BlockFmaPlan& plan,
                               Mask& wide) {
  using I = Signed<V>;
  const I least = splat<I>(least_end32(plan));
  const auto zero = (units == I{}) & (sum == V{});
  wide = ((e < least) | (e > splat<I>(kMostEnd32))) & !zero;
  return end_in_range32(units, select(wide, V{}, sum), max(e, least), plan);
}

/// E of a block of `count` products, one element at a time: `x` has a(k) and b(k) in binary32. 128
/// and more where one is Inf or NaN, or the addend is.
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

/// The sum of a block's aligned products in units, in V's numbers: binary64, or binary32 where
/// block_fits_binary32 says so.
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

constexpr int kMostTerms = 64;  ///< the most terms of a block

/// e(x) of binary32 values in binary64 lanes: 128 for Inf and NaN.
template <class V>
CPD_FN constexpr Signed<V> scaled_exponent(V x, int emin) {
  return min(exponent_from(x, emin), splat<Signed<V>>(128));
}

/// The sum after one block of `count` products of a unit with scales. `x` has a(k), b(k),
/// a_scale(k) and b_scale(k) as binary64 lanes, k counted from the block's first.
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

/// Calls run.operator()<Rule<mode, form>>() with the rule that rounds the unit's sum in binary64.
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
