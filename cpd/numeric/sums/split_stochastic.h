// SPDX-License-Identifier: Apache-2.0
//
// Short stochastic roundings, variant A with N bits: the first N bits below the format's last place
// are added to the random integer R < 2^N, and what is then below the last place is dropped. So a
// number may first be truncated to p + N bits or more, and to multiples of 2^-N spacings.
//
// Sums and products are truncated: a CPU's environment must round toward zero (environment.h), a
// CUDA thread's instructions do. Overflow and its consequences (Inf, NaN) are handled; the caller
// ensures that operands are finite.
#pragma once

#include "cpd/numeric/round/round.h"
#include "cpd/numeric/sums/gemm_plan.h"

namespace cpd {
inline namespace CPD_ISA {

/// The constants of one format in all lanes.
template <class V>
struct SplitStochastic {
  using U = Unsigned<V>;
  int shift;     ///< by which R meets the first N bits that a number on the grid drops
  U kept;        ///< mask of the bits of such a number that are not dropped
  V factor;      ///< 2^(mantissa - man - N)
  V least;       ///< 1.5 * 2^mantissa spacings * 2^-N
  U kept_units;  ///< mask of the bits that are not dropped of a multiple of 2^-N spacings
  V max;
  V overflow;  ///< what takes the place of larger numbers
  U sign;      ///< -0 where the format has it, else +0

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

/// x, a NaN among which has bits to which an integer below 2^22 can be added without a carry into
/// the sign. A CPU's NaN has, 7FC00000; a GPU's is 7FFFFFFF.
template <class V>
CPD_FN V with_low_nan(V x) {
#if defined(__CUDA_ARCH__)
  constexpr std::int32_t kNan = 0x7FC00000;
  return bits_as<V>(min(bits_as<std::int32_t>(x), kNan));
#else
  return x;
#endif
}

/// t rounded by a shift, an addition and a mask of integers; t is a multiple of the least spacing,
/// truncated to p + N bits or more, Inf, or (man > 0) NaN.
template <bool kMayOverflow, class V>
CPD_FN V round_on_grid(V t, Unsigned<V> random, const SplitStochastic<V>& format) {
  using U = Unsigned<V>;
  const U carried = bits_as<U>(with_low_nan(t)) + shift_left(random, format.shift);
  const V y = bits_as<V>(carried & format.kept);
  return kMayOverflow ? at_most(y, format.max, format.overflow) : y;
}

/// t rounded, for any t truncated to p + N bits or more, by 3 floating-point operations: 1.5 * 2^j
/// of t's sign, j so that its last place is 2^-N of t's, stays in its binade when t is added. In
/// binary32, where 2^j may not be finite, t is then beyond 2^100 and max. Inf and NaN are added to
/// `least`, and stay. kMayBeNan: of a sum; a product of finite operands is no NaN.
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

/// A step of a sequential sum: s + a * b, the product rounded by the first draw, unless it is
/// exact, and the sum by the last. Rounded products are multiples of the sum's least spacing;
/// kProductsFit: they are at most the format's max.
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
