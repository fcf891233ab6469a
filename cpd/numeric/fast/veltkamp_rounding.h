// SPDX-License-Identifier: Apache-2.0
//
// Rounds to p = man + 1 bits in few operations, without any treatment of overflow, Inf or NaN. The
// caller ensures that nothing overflows (FastPlan), that operands are finite, and that no sum is
// -0. A product -0 becomes +0, which changes only sums that would be -0.
//
// Veltkamp's splitting (Dekker 1971; Boldo 2006) uses K = 2^k with k = 23 - man. To round t, let u
// = K t - t, rounded to nearest even in binary32. The last place of u is the place of the last of
// t's p bits. So K t - u is t rounded, in 1 multiplication and 1 fused multiply-add.
//
// Ties: if t is a tie, t has p + 1 bits and K t is an even multiple of the last place of u. Hence
// an even u gives an even result.
//
// Binades: K t - t may fall into the binade below K t, where the last place of u is half as large.
// This happens only if t is within 2^-k of a power of two. Both places then round t to that power
// of two, because k >= man + 2 (p <= 11).
//
// In lanes of 16 bits (kernels/cuda/halves.h), the same holds with the number of their fraction
// bits in place of 23, for p <= 4 in fp16 and p <= 3 in bf16.
//
// A number below 2^emin is rounded at the format's least spacing instead: u = M - t, where the
// magnet M is at least 1.5 * 2^23 spacings. Sums of two numbers of the format need no such magnet,
// because they are multiples of the format's least spacing.
#pragma once

#include "cpd/numeric/fast/steps.h"
#include "cpd/numeric/round/exact.h"

namespace cpd {
inline namespace CPD_ISA {

/// The constants with which numbers are rounded into one format, in all lanes.
template <class V>
struct SplitFormat {
  V factor;             ///< K
  V less_factor;        ///< 1 - K
  V least;              ///< 1.5 * 2^23 spacings
  V least_normal;       ///< 1.5 * 2^emin
  V sign;               ///< -0 if the format has -0, else +0
  std::int32_t magnet;  ///< added to two fixed_logs, gives roughly the pattern of K |a * b|

  CPD_FN SplitFormat(int man, double quantum, bool has_negative_zero) {
    using S = Scalar<V>;
    const double k = exact_power(Lanes<V>::mantissa - man);
    factor = splat<V>(static_cast<S>(k));
    less_factor = splat<V>(static_cast<S>(1 - k));
    least_normal = splat<V>(static_cast<S>(1.5 * quantum * exact_power(man)));
    least = least_normal * factor;
    magnet = (127 + 23 - man) * (1 << 23);
    sign = splat<V>(has_negative_zero ? static_cast<S>(-0.0) : S{0});
  }
};

/// Returns t rounded by Veltkamp's splitting in 2 operations. t must be zero or a multiple of the
/// least spacing. In binary32, t may itself be a rounded sum of two numbers of p <= 11 bits
/// (Figueroa 1995).
template <class V>
CPD_FN V split(V t, const SplitFormat<V>& format) {
  return fma(t, format.factor, t * format.less_factor);
}

/// Returns t rounded, in 2 fused multiply-adds and larger_magnitude. t must have at most
/// Lanes<V>::mantissa significant bits. A subnormal t may have any bits if the format's least
/// spacing is at least twice the lanes' least normal number. A zero result is +0. The magnet M (a
/// large number whose addition rounds) is positive for either sign of t. If t < 0, u = M - t may
/// reach the binade above M. M = K |t| is still a multiple of twice its last place. t is then
/// within 2^-k of a power of two, to which the spacings of both binades round t.
template <class V>
CPD_FN V split_short(V t, const SplitFormat<V>& format) {
  const V m = larger_magnitude(t, format.least_normal);
  return fma(m, format.factor, negative_fma(m, format.factor, t));
}

/// Returns a * b rounded once, for any finite operands. factor_b is b * K, where K = 2^k is the
/// factor of Veltkamp's splitting. M = a * b * K is a number whose last place is the last
/// place of the rounded product, so the fused multiply-add M - a * b rounds a * b to that place.
/// The rounding of M itself matters only if it reaches a power of two; then a * b is rounded up to
/// a power of two, too. Takes 1 multiplication, 1 lower limit (at_least), 1 fused multiply-add and
/// 1 subtraction.
template <class V>
CPD_FN V split_product(V a, V b, V factor_b, const SplitFormat<V>& format) {
  const V m = at_least(a * factor_b, format.least);
  const V u = negative_fma(a, b, m);
  return m - u;
}

/// Returns log2|x| * 2^23 as an even integer, with an error of at most 2^-15.9 * 2^23; -64 * 2^23
/// if x is zero. x must be finite. log2(1 + f) is approximated by f + f (1 - f) c(f) with a cubic c
/// that minimizes the largest error.
template <class V>
CPD_FN Signed<V> fixed_log(V x) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using P = Pattern<V>;
  constexpr int kSmall = 32;
  const U magnitude = bits_as<U>(x) & splat<U>(P::magnitude);
  const auto subnormal = (I)magnitude < splat<I>(P::implicit);
  const V scaled = bits_as<V>(magnitude) * splat<V>(0x1p32F);
  const U pattern = select(subnormal, bits_as<U>(scaled), magnitude);
  const U one = splat<U>(127U << P::mantissa);
  const V f = bits_as<V>((pattern & splat<U>(P::fraction)) | one) - splat<V>(1.0F);
  const V cubic =
      splat<V>(0.441916613F) +
      f * (splat<V>(-0.267176376F) + f * (splat<V>(0.148420765F) + f * splat<V>(-0.0451457190F)));
  const V beyond = f * (splat<V>(1.0F) - f) * cubic * splat<V>(0x1p23F);
  const I log = (I)(pattern - one) + convert<I>(beyond) -
                select(subnormal, splat<I>(kSmall << P::mantissa), I{});
  return select(magnitude == U{}, splat<I>(-(1 << 29)), log & splat<I>(-2));
}

/// Returns a * b rounded once, in binary32. The binade of the magnet M follows from logarithms
/// instead of a product: log_a must be fixed_log(a), and log_b must be fixed_log(b) +
/// format.magnet. Takes 2 integer operations, 1 fused multiply-add and 1 subtraction. The pattern
/// of M is even, so M is a multiple of twice its last place. M - a * b is therefore rounded at the
/// right place for either sign of a * b. Two things can go wrong near a power of two: the sum of
/// the logarithms (correct to within 2^-14.9) may miss the binade, and M - a * b may leave the
/// binade of M. In both cases a * b is within a factor 1 ± 2^-12 of the power of two. The spacings
/// of both binades then round a * b to that power, because man <= 10.
template <class V>
CPD_FN V split_product(V a, V b, Signed<V> log_a, Signed<V> log_b, const SplitFormat<V>& format) {
  const V m = bits_as<V>(max(log_a + log_b, bits_as<Signed<V>>(format.least)));
  return m - negative_fma(a, b, m);
}

/// Returns M / K, where M is the number whose addition rounds t, and K = 2^k: |t| with its last bit
/// cleared, but at least 1.5 * 2^emin. Takes AND and max of integers.
template <class V>
CPD_FN V even_magnet(V t, const SplitFormat<V>& format) {
  using I = Signed<V>;
  const I even = bits_as<I>(t) & splat<I>(Pattern<V>::magnitude - 1);
  return bits_as<V>(max(even, bits_as<I>(format.least_normal)));
}

/// Returns t rounded, for any t that has 24 bits or was rounded to odd. A zero result keeps t's
/// sign if the format has -0. The magnet M is K t if kHasSignedMaximum, so M - t stays in the
/// binade of M. Else M is K |t| with its last bit cleared, because M - t may reach the binade above
/// M (split_short). Takes 2 fused multiply-adds, at_least and with_sign_of. Without
/// kHasSignedMaximum, AND and max of integers replace at_least.
template <class V>
CPD_FN V split_any(V t, const SplitFormat<V>& format) {
  if constexpr (kHasSignedMaximum<V>) {
    const V m = at_least(t, format.least_normal);
    const V u = fma(m, format.factor, -t);
    return with_sign_of(fma(m, format.factor, -u), t, format.sign);
  } else {
    const V m = even_magnet(t, format);
    const V u = negative_fma(m, format.factor, t);
    return with_sign_of(fma(m, format.factor, u), t, format.sign);
  }
}

/// Returns t rounded to nearest into a format of powers of two (man = 0). t is zero, which keeps
/// its sign, or at least the least power of the format. A tie, 1.5 * 2^j, goes to the even code: up
/// if 2^j has an odd code. The least power has code 1, which is odd. `flip` is 1 if the exponent
/// field of the least power is even, else 0. Takes a shift, XOR, AND, 2 additions and AND of
/// integers.
template <class V>
CPD_FN V split_power(V t, Unsigned<V> flip) {
  using U = Unsigned<V>;
  using P = Pattern<V>;
  constexpr auto kHalf = P::implicit >> 1;
  const U bits = bits_as<U>(t);
  const U odd = ((bits >> P::mantissa) ^ flip) & splat<U>(1);
  return bits_as<V>((bits + splat<U>(kHalf - 1) + odd) & splat<U>(P::sign | P::infinity));
}

/// Returns 1 if the exponent field of `quantum`, the format's least power of two, is even, else 0.
/// split_power takes this number as `flip`, to know which powers have even codes.
template <class V>
CPD_FN Unsigned<V> flip_of(double quantum) {
  return splat<Unsigned<V>>(1 ^ (bits_as<std::uint32_t>(static_cast<float>(quantum)) >> 23 & 1));
}

/// Returns s + a * b rounded once. With kFits, the caller ensures that the exact sum is a binary32
/// number. Without kFits, the sum is first rounded to odd.
template <bool kFits, class V>
CPD_FN V split_fma(V a, V b, V s, const SplitFormat<V>& format) {
  if constexpr (kFits) {
    return split_any(fma(a, b, s), format);
  } else {
    return split_any(fma_to_odd(a, b, s), format);
  }
}

/// Returns s + a * b rounded once. s must be a number of the format. For the products,
/// adds_in_parts (bounds.h) must return true, and |s| must be at most the result of parts_limit
/// (bounds.h).
///
/// M is a large number whose last place is the spacing g of the rounded sum. `part` is M - s
/// rounded, and `lost` is the error of `part`: s = M - part + lost exactly. The fused multiply-add
/// adds `lost` to the product, and the subtraction from `part` rounds to g. `lost` is 0 unless s
/// has bits below g. Then |a * b| is at least about g / 2, and |lost| is at most g. So a * b + lost
/// is below 4 |a * b|, and so a binary32 number.
///
/// s exceeds M only if the sum is 0 up to the bits that cancellation leaves; then M - s is exact.
/// Takes 2 fused multiply-adds, the magnet's 3 operations, 5 subtractions and with_sign_of.
template <class V>
CPD_FN V split_fma_in_parts(V a, V b, V s, const SplitFormat<V>& format) {
  const V t = fma(a, b, s);
  const V magnet = even_magnet(t, format) * format.factor;
  const V part = magnet - s;
  const V lost = s - (magnet - part);
  const V u = part - fma(a, b, lost);
  return with_sign_of(magnet - u, t, format.sign);
}

/// Adds x[i] to Kahan sum i (a step of accumulate_kahan) for each of kSums independent, finite
/// sums. The loops interleave the sums to hide latency. Each sum takes 4 additions and 4 roundings;
/// the last 3 are Dekker's FastTwoSum. round(t) returns t rounded.
template <int kSums, class V, class Round>
CPD_FN void split_kahan(const V* x, V* sum, V* compensation, Round round) {
  V y[kSums];
  for (int i = 0; i < kSums; ++i) y[i] = round(x[i] - compensation[i]);
  for (int i = 0; i < kSums; ++i) {
    const V t = round(sum[i] + y[i]);
    compensation[i] = t - sum[i];
    sum[i] = t;
  }
  for (int i = 0; i < kSums; ++i) compensation[i] = round(compensation[i]);
  for (int i = 0; i < kSums; ++i) compensation[i] = round(compensation[i] - y[i]);
}
template <class V>
CPD_FN void split_kahan(V x, V& sum, V& compensation, const SplitFormat<V>& format) {
  split_kahan<1>(&x, &sum, &compensation, [&](V t) { return split(t, format); });
}

// --- guarded -------------------------------------------------------------------------------------

/// The constants of guarded roundings (roundings with a check for overflow). Guarded roundings also
/// support formats without mantissa bits (man = 0). A guarded rounding stores the largest result so
/// far, and the caller checks afterwards whether that result exceeds the format's largest value.
/// With kSaturates, the rounding limits its result to the largest value instead. A rounding takes 2
/// additions, (t + M) - M, where M is 1.5 * 2^23 spacings of t's binade. If man = 0, the last bit
/// of M is the parity of the number of t's binade. A sum with an even pattern then stands for an
/// even code.
template <class V>
struct GuardedFormat {
  using I = Signed<V>;
  I least;                  ///< the least magnet's pattern, without the parity
  I magnet;                 ///< added to t's exponent field, gives the magnet's pattern
  I middle;                 ///< the magnet's fraction (the fraction of 1.5), without the parity
  std::int32_t log_magnet;  ///< added to two fixed_logs, gives the magnet's pattern
  I parity;                 ///< 1 for man = 0, else 0
  V sign;                   ///< -0 if the format has -0, else +0
  V most;                   ///< the largest result with kSaturates

  CPD_FN GuardedFormat(int man, double quantum, bool has_negative_zero, float saturates_at) {
    using S = Scalar<V>;
    constexpr int kMantissa = Lanes<V>::mantissa;
    const S least_magnet = static_cast<S>(1.5 * quantum * exact_power(kMantissa));
    const std::int32_t pattern = bits_as<std::int32_t>(least_magnet);
    const std::int32_t odd = man == 0 ? pattern >> kMantissa & 1 : 0;  // of the least magnet
    least = splat<I>(pattern | odd);
    middle = splat<I>(1 << (kMantissa - 1) | odd);
    magnet = splat<I>((kMantissa - man) << kMantissa | 1 << (kMantissa - 1) | odd);
    log_magnet = (127 + kMantissa - man) << kMantissa;
    parity = splat<I>(man == 0 ? 1 : 0);
    sign = splat<V>(has_negative_zero ? static_cast<S>(-0.0) : S{0});
    most = splat<V>(saturates_at);
  }

  /// Returns M, the number whose addition rounds, from its bit pattern. If man = 0, flips the last
  /// bit of M if M's exponent field is odd.
  CPD_FN V operator()(I pattern) const {
    return bits_as<V>(pattern ^ ((pattern >> Lanes<V>::mantissa) & parity));
  }
  template <bool kSaturates>
  CPD_FN V guard(V rounded, V& largest) const {
    if constexpr (kSaturates) return clamped(rounded, most);
    largest = larger_magnitude(largest, rounded);
    return rounded;
  }
};

template <class V>
CPD_FN Signed<V> exponent_pattern(V t) {
  return bits_as<Signed<V>>(t) & splat<Signed<V>>(Pattern<V>::infinity);
}

/// Returns t rounded to nearest into the format. t must be zero or a multiple of the format's least
/// spacing. Checks for overflow: `largest` becomes the largest result so far, or, with kSaturates,
/// the result is limited to the format's largest value.
template <bool kSaturates, class V>
CPD_FN V guarded(V t, const GuardedFormat<V>& format, V& largest) {
  const V m = format(exponent_pattern(t) + format.magnet);
  return format.template guard<kSaturates>((t + m) - m, largest);
}

/// Returns a * b rounded once into the format. Checks for overflow: `largest` becomes the largest
/// result so far, or, with kSaturates, the result is limited to the format's largest value. log_a
/// must be fixed_log(a), and log_b fixed_log(b) + format.log_magnet. The logarithms determine only
/// the binade of M, the number whose addition rounds. M is 1.5 * 2^j, so that M - a * b stays in
/// the binade of M. M - a * b must stay there if the last bit of M is 1, which occurs only for man
/// = 0.
template <bool kSaturates, class V>
CPD_FN V guarded_product(V a, V b, Signed<V> log_a, Signed<V> log_b, const GuardedFormat<V>& format,
                         V& largest) {
  using U = Unsigned<V>;
  const U binade = merge_bits((U)(log_a + log_b), splat<U>(Pattern<V>::sign | Pattern<V>::infinity),
                              (U)format.middle);
  const V m = format(max((Signed<V>)binade, format.least));
  return format.template guard<kSaturates>(m - negative_fma(a, b, m), largest);
}

/// Returns t rounded to nearest, for any t that has 24 bits or was rounded to odd. Adds the magnet
/// M (the number whose addition rounds) to t and subtracts M again, without a check for overflow. A
/// zero result keeps t's sign if the format has -0.
template <class V>
CPD_FN V with_magnet(V t, const GuardedFormat<V>& format) {
  using U = Unsigned<V>;
  const U pattern = (U)exponent_pattern(t) + (U)format.magnet;  // wraps for t beyond the limits
  const V m = format(max((Signed<V>)pattern, format.least));
  return with_sign_of((t + m) - m, t, format.sign);
}
/// Returns s + a * b rounded once into the format. Checks for overflow: `largest` becomes the
/// largest result so far, or, with kSaturates, the result is limited to the format's largest value.
template <bool kSaturates, class V>
CPD_FN V guarded_fma(V a, V b, V s, const GuardedFormat<V>& format, V& largest) {
  return format.template guard<kSaturates>(with_magnet(fma_to_odd(a, b, s), format), largest);
}

}  // namespace CPD_ISA
}  // namespace cpd
