// SPDX-License-Identifier: Apache-2.0
//
// The fast path `stochastic`: stochastic rounding, variant A with N random bits. Variant A adds the
// random integer R < 2^N to the first N bits below the format's last place, and then drops all bits
// below the last place. Bits after these N bits have no effect. So a number may first be truncated
// to p + N bits or more, where p is the number of the format's significant bits, or to multiples of
// 2^-N spacings.
//
// Sums and products are truncated: on a CPU, the environment must round toward zero
// (environment.h); a CUDA thread uses instructions that round toward zero. The path handles
// overflow and its consequences (Inf, NaN). The caller ensures that operands are finite.
#pragma once

#include "cpd/numeric/fast/asked.h"
#include "cpd/numeric/fast/bounds.h"
#include "cpd/numeric/fast/stochastic_format.h"
#include "cpd/numeric/round/round.h"

namespace cpd {

/// Returns the number of low bits of the random integer R that never change the rounded result, if
/// binary32 can round by the other bits of R alone; else 0. Consider a format that spans at most 22
/// bits from its largest value to its least spacing. A sum in this format has at most 22 bits, and
/// its first p bits are the result's. So only the first 22 - p of the N bits of R have an effect.
/// The same holds for a product of up to 22 bits that binary32 holds exactly.
constexpr int stochastic_spare_bits(const Format& format, int random_bits) {
  const int met = 22 - format.precision();
  const bool all = 2 * format.max() <=
                   Format::power_of_two(format.min_quantum_exponent() + format.precision() + met);
  return all && met > 0 && met < random_bits && stochastic_fits_binary32(format, met)
             ? random_bits - met
             : 0;
}

struct TruncatedStochastic {
  static constexpr bool kTakesProducts = true;
  static constexpr bool kAnyValues = false;
  static constexpr bool kAddsExact = false;
  static constexpr bool kStochastic = true;  ///< the kernels' loops also generate random integers

  static constexpr NoPath applies(const ProductsAsked& asked) {
    if (asked.options.mode != Rounding::stochastic) return NoPath::other;
    if (asked.options.variant != Variant::A) return NoPath::variant;
    const bool splits =
        splits_stochastic(asked.sum) && (asked.exact_products || splits_stochastic(asked.product));
    return splits ? NoPath::has_one : NoPath::special_values;
  }
  static constexpr NoPath applies(const TermsAsked& asked) {
    const bool fits = asked.round.mode == Rounding::stochastic && asked.round.variant == Variant::A;
    const bool splits = asked.scheme == Scheme::sequential && splits_stochastic(asked.format);
    return fits && splits ? NoPath::has_one : NoPath::other;
  }
  static constexpr void bound(FastPlan& fast, const ProductsAsked& asked) {
    const auto& [scheme, product, exact_products, sum, options, product_plan, sum_plan] = asked;
    StochasticPlan& plan = fast.stochastic;
    plan.product = stochastic_format(product, product_plan);
    plan.sum = stochastic_format(sum, sum_plan);
    const bool same_grid = product.min_quantum_exponent() >= sum.min_quantum_exponent();
    plan.on_grid = sum.man > 0 && (exact_products || same_grid);
    // A pairwise sum of exact products stores the first product of each pair unrounded. Binary32
    // cannot hold such a product, so the sum is computed in binary64.
    const bool alone = exact_products && scheme == Scheme::pairwise;
    const double most = Format::power_of_two(100);
    const int bits = sum_plan.random_bits;
    plan.fits_binary32 = !alone && stochastic_fits_binary32(sum, bits) &&
                         (exact_products || stochastic_fits_binary32(product, bits));
    plan.in_binary32 =
        plan.fits_binary32 && sum.max() < most && (exact_products || product.max() < most);
    if (!exact_products && product == sum && plan.on_grid) {
      plan.spare_bits = stochastic_spare_bits(sum, bits);
    }
    // After a step, |sum| (and in Kahan's sum |compensation|) is at most (1 + 8 * 2^-man) times the
    // total of |product|, the old |sum| and the old |compensation|.
    const double largest = exact_products || sum.max() < product.max() ? sum.max() : product.max();
    plan.steady = plan.on_grid && scheme != Scheme::pairwise && sum.man >= 7 &&
                  (exact_products || product.man >= 7);
    plan.limit = static_cast<float>(!plan.fits_binary32 || largest < most ? largest : most);
  }
  static constexpr float limit_of_terms(const TermsAsked& asked) { return limit_of(asked); }
};

inline namespace CPD_ISA {

/// The constants with which numbers are rounded stochastically into one format, in all lanes.
template <class V>
struct SplitStochastic {
  using U = Unsigned<V>;
  int shift;     ///< shifts R to the first N bits that a number on the grid drops
  U kept;        ///< masks the bits of such a number that are not dropped
  V factor;      ///< 2^(mantissa - man - N)
  V least;       ///< 1.5 * 2^mantissa spacings * 2^-N
  U kept_units;  ///< masks the bits that a multiple of 2^-N spacings does not drop
  V max;
  V overflow;  ///< replaces larger numbers
  U sign;      ///< -0 if the format has -0, else +0

  CPD_FN SplitStochastic(const StochasticFormat& format, int random_bits) {
    using S = Scalar<V>;
    using E = typename ElementOf<U>::type;
    const int dropped = Lanes<V>::mantissa - format.man;
    const double units = format.quantum * exact_power(-random_bits);
    shift = dropped - random_bits;
    kept = splat<U>(static_cast<E>(~E{0} << dropped));
    factor = splat<V>(static_cast<S>(exact_power(shift)));
    least = splat<V>(static_cast<S>(1.5 * units * exact_power(Lanes<V>::mantissa)));
    kept_units = splat<U>(static_cast<E>(~E{0} << random_bits));
    max = splat<V>(static_cast<S>(format.max));
    overflow = splat<V>(static_cast<S>(format.overflow));
    sign = splat<U>(format.has_negative_zero ? Pattern<V>::sign : E{0});
  }
};

/// Returns x; a NaN in x gets bits to which an integer below 2^22 can be added without a carry into
/// the sign. A CPU's NaN, 7FC00000, already has such bits; a GPU's NaN is 7FFFFFFF.
template <class V>
CPD_FN V with_low_nan(V x) {
#if defined(__CUDA_ARCH__)
  constexpr std::int32_t kNan = 0x7FC00000;
  return bits_as<V>(min(bits_as<std::int32_t>(x), kNan));
#else
  return x;
#endif
}

/// Returns t rounded by a shift, an addition and a mask of integers. t is a multiple of the least
/// spacing that was truncated to p + N bits or more, or Inf, or (if man > 0) NaN.
template <bool kMayOverflow, class V>
CPD_FN V round_on_grid(V t, Unsigned<V> random, const SplitStochastic<V>& format) {
  using U = Unsigned<V>;
  const U carried = bits_as<U>(with_low_nan(t)) + shift_left(random, format.shift);
  const V y = bits_as<V>(carried & format.kept);
  return kMayOverflow ? at_most(y, format.max, format.overflow) : y;
}

/// Returns t rounded, in 3 floating-point operations, for any t that was truncated to p + N bits or
/// more. The function adds m = 1.5 * 2^j with t's sign. The last place of m is 2^-N times the
/// format's spacing at t. m + t stays in the binade of m. In binary32, m may be too large for a
/// finite number, but only for a t beyond both 2^100 and the format's max. Inf and NaN are added to
/// `least`, and remain Inf and NaN. kMayBeNan: t may be NaN, as a sum may; a product of finite
/// operands is never NaN.
template <bool kMayOverflow, bool kMayBeNan = true, class V>
CPD_FN V round_any(V t, Unsigned<V> random, const SplitStochastic<V>& format) {
  using U = Unsigned<V>;
  using P = Pattern<V>;
  const U binade = merge_bits(bits_as<U>(mul_toward_zero(t, format.factor)),
                              splat<U>(P::sign | P::infinity), splat<U>(P::implicit >> 1));
  const V m = at_least(bits_as<V>(binade), format.least);
  const V placed = add_toward_zero(t, m);
  const U carried = bits_as<U>(kMayBeNan ? with_low_nan(placed) : placed) + random;
  const V rounded = bits_as<V>(carried & format.kept_units) - m;
  const V y = bits_as<V>(merge_bits(bits_as<U>(t), format.sign, bits_as<U>(rounded)));
  return kMayOverflow ? at_most(y, format.max, format.overflow) : y;
}

/// Does a step of a sequential sum, s + a * b. draw(i) returns random integer i of the step. The
/// first integer rounds the product, unless products are exact. The last integer rounds the sum.
/// Rounded products must be multiples of the sum's least spacing. With kProductsFit, no product may
/// exceed the products' format.
template <bool kExactProducts, bool kProductsFit, class V, class Draw>
CPD_FN V stochastic_step(V a, V b, V s, Draw draw, const SplitStochastic<V>& product,
                         const SplitStochastic<V>& sum) {
  if constexpr (kExactProducts) {
    return round_any<true>(fma_toward_zero(a, b, s), draw(0), sum);
  } else {
    const V x = round_any<!kProductsFit, false>(mul_toward_zero(a, b), draw(0), product);
    return round_on_grid<true>(add_toward_zero(s, x), draw(1), sum);
  }
}

}  // namespace CPD_ISA
}  // namespace cpd
