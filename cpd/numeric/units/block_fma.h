// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a matrix unit (BlockFma in accumulator.h), for one block of products.
//
// Let e(x) be an operand's exponent: floor(log2 |x|), but at least its format's emin. A product
// that is not zero has the exponent e(a) + e(b), an addend that is not zero e(s). E is the greatest
// of a block's, and at least min_exponent. Zeros, and the terms that a short last block lacks,
// count for nothing. In units of 2^(E - F) each term is cut to an integer toward zero, below 2^(F +
// 2) for a product and 2^(F + 1) for the addend, so that the sum of 65 terms stays below 2^39.
//
// - binary64 lanes: a product of binary32 values is exact (48 bits), so is its multiple by a power
// of
//   two (all exponents lie within -298 … 257, F in 1 … 30), and so are sums of integers. The sum in
//   units is a binary64 value, and `round` rounds that once. An addend that is not aligned is added
//   to odd, which is one exact rounding in all (exact.h).
// - binary32 lanes form the same integers as int32, where fits_binary32 says so.
//
// A unit with scales takes binary64 lanes. A scaled product has at most 53 bits, and a block's sum
// in units is below 2^53 (CheckScales in spec/block_fma.cpp); exponents lie within -596 … 511.
//
// Inf and NaN arise as in IEEE 754's sum of the products and the addend. A zero result is +0, also
// where a negative sum was cut or rounded to nothing. A sum that rounds beyond its format, were
// that unbounded, is Inf where the format has that, also toward zero; else it overflows as its
// rounding says. Units with another adder than `aligned` are in block_adders.h.
#pragma once

#include <cstdint>
#include <limits>

#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/accumulate.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/spec/accumulator.h"

namespace cpd {

/// A matrix unit, as its kernels need it: plain data.
struct BlockFmaPlan {
  RoundPlan sum;       ///< into BlockFma::sum
  RoundPlan promoted;  ///< into Accumulator::format: promotions and the result
  std::int32_t block = 16;
  std::int32_t fraction_bits = 25;
  std::int32_t min_exponent = -133;
  std::int32_t emin_a = -126, emin_b = -126, emin_sum = -126;
  bool aligns_addend = true;
  std::int64_t promote = 0;
  int planes = 1;                ///< floats of state for each sum (GemmBlock): 2 with promotion
  std::uint64_t first_draw = 0;  ///< of the first promotion, or of the result (philox.h)
  bool takes_scales = false;
  std::int32_t emin_scale = -126;
  std::int32_t scale_block = 32, dot = 1;
  double beyond = 0;  ///< a sum from here on is infinite; NaN where the format has no Inf
  /// Products may be formed and aligned in binary32 and summed in int32 where the operands are
  /// finite and, of those that are not zero, the exponents' sums are least_exponent …
  /// greatest_exponent.
  bool in_binary32 = false;
  std::int32_t least_exponent = 0, greatest_exponent = 0;
  /// And a block may end in binary32 (end_block32); `dropped` are the sum's bits that are never
  /// set.
  bool ends_in_binary32 = false;
  std::uint32_t dropped = 0;
  Adder adder = Adder::aligned;
  std::int32_t group = 0, stride = 4, take = 2;  ///< the order of k (place_in_order)
};

/// Where the unit takes value k of a sum: with an order (group > 0), another place in its group.
constexpr std::int64_t place_in_order(const BlockFmaPlan& plan, std::int64_t k) {
  const std::int64_t at = k % plan.group;
  const std::int64_t share = plan.group / plan.stride * plan.take;  // of a group, taken in a row
  return k - at + at % plan.stride / plan.take * share + at / plan.stride * plan.take +
         at % plan.take;
}

constexpr BlockFmaPlan make_block_fma_plan(const Accumulator& accumulator) {
  const BlockFma unit = accumulator.unit.value_or(BlockFma{});
  BlockFmaPlan plan;
  RoundingOptions into_sum;
  into_sum.mode = unit.rounding;
  plan.sum = make_plan(unit.sum, into_sum);
  plan.promoted = make_plan(accumulator.format, accumulator.rounding);
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

/// The exponent of a zero: a sum with another one stays below every min_exponent.
constexpr std::int32_t kNoExponent = -4096;

/// e(x) of each lane: at least emin, kNoExponent where x is zero, 128 (binary64: 1024) for Inf and
/// NaN.
template <class V>
CPD_FN constexpr Signed<V> exponent_of(V x, int emin) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using P = Pattern<V>;
  constexpr int kBias = static_cast<int>(P::infinity >> (P::mantissa + 1));
  const U a = bits_as<U>(x) & splat<U>(P::magnitude);
  const I exponent = (I)(a >> P::mantissa) - splat<I>(kBias);
  return select(a == U{}, splat<I>(kNoExponent), max(exponent, splat<I>(emin)));
}

template <class V>
CPD_FN constexpr V magnitude_of(V x) {
  return bits_as<V>(bits_as<Unsigned<V>>(x) & splat<Unsigned<V>>(Pattern<V>::magnitude));
}

/// 2^exponent; the exponent is V's own range of normal numbers.
template <class V>
CPD_FN constexpr V power_of_two(Signed<V> exponent) {
  using P = Pattern<V>;
  using I = Signed<V>;
  constexpr int kBias = static_cast<int>(P::infinity >> (P::mantissa + 1));
  return bits_as<V>((Unsigned<V>)(exponent + splat<I>(kBias)) << P::mantissa);
}

/// Whether a block whose operands' exponents lie in the given ranges (zeros left out) may take
/// binary32 lanes. An Inf or NaN has the exponent 128 and may not.
CPD_FN constexpr bool fits_binary32(const BlockFmaPlan& plan, int least_a, int greatest_a,
                                    int least_b, int greatest_b) {
  return plan.in_binary32 && greatest_a < 128 && greatest_b < 128 &&
         greatest_a + greatest_b <= plan.greatest_exponent &&
         least_a + least_b >= plan.least_exponent;
}

/// 2^(F - E), by which terms become units. Binary32 lanes: where F - E exceeds 127, every product
/// is zero, and any factor does; an infinite sum's E = 128 gives 0 for F = 1, and all else is cut
/// to 0 as it should.
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

/// A product in whole units, cut toward zero; `scale` is alignment(). A binary32 product that
/// underflows on scaling is below one unit either way.
template <class V>
CPD_FN constexpr Units<V> aligned_product(V a, V b, V scale) {
  if constexpr (Lanes<V>::mantissa == 23) {
    return convert<Units<V>>((a * b) * scale);
  } else {
    return truncate((a * b) * scale);
  }
}

/// What is rounded after a block: `units` is the sum of its aligned products, e its E. Binary64.
template <class R, class V>
CPD_FN constexpr V block_total(V units, V sum, Signed<V> e, const BlockFmaPlan& plan) {
  using I = Signed<V>;
  const V unit = power_of_two<V>(e - splat<I>(plan.fraction_bits));
  if (!plan.aligns_addend) return exact_sum(units * unit, sum, false);
  return (units + truncate(sum * alignment<V>(e, plan))) * unit;
}

/// A block's total, rounded into the unit's sum.
template <class R, class V>
CPD_FN constexpr V round_total(V total, const BlockFmaPlan& plan) {
  using U = Unsigned<V>;
  const V rounded = round<R>(total, U{}, plan.sum) + V{};  // -0 becomes +0
  if constexpr (R::mode == Rounding::nearest_even) return rounded;
  const V infinite =
      bits_as<V>((bits_as<U>(total) & splat<U>(Pattern<V>::sign)) | splat<U>(Pattern<V>::infinity));
  return select(magnitude_of(total) >= splat<V>(plan.beyond), infinite, rounded);
}

/// The unit's sum after a block.
template <class R, class V>
CPD_FN constexpr V end_block(V units, V sum, Signed<V> e, const BlockFmaPlan& plan) {
  return round_total<R>(block_total<R>(units, sum, e, plan), plan);
}

/// The same in binary32 lanes, where plan.ends_in_binary32. Lanes in which it does not hold are set
/// in `wide`: those whose sum, below 2^(e + 9) and if not zero at least 2^(e - F), might leave the
/// normal range, and so every infinite sum and NaN.
///
/// The sum of units and the addend fits 33 bits; its sign is the majority of the signs of the two
/// and of their sum mod 2^32. Of its magnitude m the bit below the 24 leading ones is m >> 24's
/// leading one: without it the conversion to binary32, to nearest, drops what follows.
template <class V, class Mask>
CPD_FN constexpr V end_block32(Signed<V> units, V sum, Signed<V> e, const BlockFmaPlan& plan,
                               Mask& wide) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  const I least = splat<I>(plan.fraction_bits - 126);
  const auto zero = (units == I{}) & (sum == V{});
  wide = ((e < least) | (e > splat<I>(118))) & !zero;
  const I addend = convert<I>(select(wide, V{}, sum) * alignment<V>(e, plan));
  const U total = (U)units + (U)addend;
  const U sign = (U)((units & addend) | ((units | addend) & (I)total)) >> 31;
  const U magnitude = (total ^ (U{} - sign)) + sign;
  const V leading = convert<V>(magnitude & ~(magnitude >> 24));
  const V exact = leading * power_of_two<V>(max(e - least, I{}) - splat<I>(126));
  return bits_as<V>((bits_as<U>(exact) & splat<U>(~plan.dropped)) | (sign << 31));
}

constexpr int kMostTerms = 64;  ///< of a block

/// e(x) in binary64 lanes, of binary32 values: 128 for Inf and NaN.
template <class V>
CPD_FN constexpr Signed<V> scaled_exponent(V x, int emin) {
  return min(exponent_of(x, emin), splat<Signed<V>>(128));
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
    const V a_scale = magnitude_of(x.a_scale(k));
    const V b_scale = magnitude_of(x.b_scale(k));
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

/// Calls run.operator()<Rule<mode, form>>() for the rounding of the unit's sum in binary64.
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
