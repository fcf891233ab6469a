// SPDX-License-Identifier: Apache-2.0
//
// Exact operations on binary32 values, delivered in binary64 rounded to odd: the result holds so
// many more bits than any format that rounding it once more equals rounding the exact value once.
//
// Round-to-odd in 53 bits followed by any rounding that looks at no more than 51 bits is exact
// (Boldo and Melquiond 2008, theorem 1 asks for two spare bits). The formats' kernel looks at
// 24 + N + 2 <= 50 bits. Binary32 operands keep every intermediate within 2^-298 … 2^257, far from
// binary64's own limits.
#pragma once

#include "cpd/numeric/round/round.h"

namespace cpd {
inline namespace CPD_ISA {

/// 2^exponent, which must be a normal number of V.
template <class V>
CPD_FN constexpr V power_of_two(Signed<V> exponent) {
  using P = Pattern<V>;
  using I = Signed<V>;
  constexpr int kBias = static_cast<int>(P::infinity >> (P::mantissa + 1));
  return bits_as<V>((Unsigned<V>)(exponent + splat<I>(kBias)) << P::mantissa);
}

/// a + b - s, exactly, where s is the sum rounded to nearest: Knuth's TwoSum (TAOCP 4.2.2, theorem
/// B), for any order of magnitudes. 5 additions; with that of s, 6.
template <class V>
CPD_FN constexpr V error_of_sum(V a, V b, V s) {
  const V b_part = s - a;
  return (a - (s - b_part)) + (b - b_part);
}

/// s + error rounded to odd, where s is that sum rounded to nearest: cut, and its last bit set,
/// where the error is not zero. A NaN `error`, which an infinite s has, counts as zero. 8
/// operations on bits and comparisons.
template <class V>
CPD_FN constexpr V toward_odd(V s, V error) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  const U one = splat<U>(1);
  const U bits = bits_as<U>(s);
  const auto inexact = (error > V{}) | (error < V{});
  const auto is_beyond = (I)(bits ^ bits_as<U>(error)) < I{};
  const U cut = less_one(bits, inexact & is_beyond);
  return bits_as<V>(cut | select(inexact, one, U{}));
}

/// a + b in V, rounded to odd; Inf and NaN as addition in V gives them. 6 additions and toward_odd.
template <class V>
CPD_FN constexpr V add_to_odd(V a, V b) {
  const V s = a + b;
  return toward_odd(s, error_of_sum(a, b, s));
}

/// a + b rounded to odd, with IEEE 754's sign of an exact zero sum (6.3): where the sum will be
/// rounded `down`, -0 unless both are +0.
template <class V>
CPD_FN constexpr V exact_sum(V a, V b, bool down) {
  const V s = add_to_odd(a, b);
  if (!down) return s;
  using U = Unsigned<V>;
  const U sign = (bits_as<U>(a) | bits_as<U>(b)) & splat<U>(Pattern<V>::sign);
  return select(s == V{}, bits_as<V>(sign), s);
}

/// a * b + c in V, rounded to odd, where it is not NaN. Rounded down and up, an inexact sum gives
/// one odd and one even number, beyond V's numbers the greatest one: 2 fused operations and a
/// selection. Lanes without directed rounding need a * b to be exact in V, and give infinity beyond
/// its numbers: 1 multiplication and add_to_odd.
template <class V>
CPD_FN V fma_to_odd(V a, V b, V c) {
  if constexpr (kHasDirectedRounding<V>) {
    return odd_one(fma_toward<Toward::down>(a, b, c), fma_toward<Toward::up>(a, b, c));
  } else {
    return add_to_odd(a * b, c);
  }
}

/// x / y, and the root of x, rounded to odd, where their remainders are numbers of V: those of
/// quotients and roots rounded to nearest are (Boldo and Daumas 2003), unless they end below the
/// least number of V. *rest is set to the remainder, NaN where the result is infinite or NaN.
template <class V>
CPD_FN V quotient_to_odd(V x, V y, V* rest) {
  using U = Unsigned<V>;
  const V quotient = x / y;
  *rest = negative_fma(quotient, y, x);
  const U sign = bits_as<U>(y) & splat<U>(Pattern<V>::sign);
  return toward_odd(quotient, bits_as<V>(bits_as<U>(*rest) ^ sign));
}
template <class V>
CPD_FN V root_to_odd(V x, V* rest) {
  const V root = square_root(x);
  *rest = negative_fma(root, root, x);
  return toward_odd(root, *rest);
}

/// a * b for binary32 values in binary64: exact, 48 bits at most. 1 multiplication.
template <class V>
CPD_FN constexpr V exact_product(V a, V b) {
  static_assert(Lanes<V>::mantissa == 52);
  return a * b;
}

}  // namespace CPD_ISA
}  // namespace cpd
