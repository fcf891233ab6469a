// SPDX-License-Identifier: Apache-2.0
//
// Exact operations on binary32 values, whose results are binary64 numbers rounded to odd. Such a
// result has many more bits than any format. So rounding the result once more gives what rounding
// the exact value once would give.
//
// Rounding to odd in 53 bits, followed by any rounding that reads at most 51 bits, is exact (Boldo
// and Melquiond 2008, theorem 1 requires two spare bits). The kernel that rounds into formats reads
// 24 + N + 2 <= 50 bits. With binary32 operands, every intermediate is within 2^-298 … 2^257, far
// from binary64's own limits.
#pragma once

#include "cpd/numeric/round/round.h"

namespace cpd {
inline namespace CPD_ISA {

/// Returns 2^exponent, which must be a normal number of V.
template <class V>
CPD_FN constexpr V power_of_two(Signed<V> exponent) {
  using P = Pattern<V>;
  using I = Signed<V>;
  constexpr int kBias = static_cast<int>(P::infinity >> (P::mantissa + 1));
  return bits_as<V>((Unsigned<V>)(exponent + splat<I>(kBias)) << P::mantissa);
}

/// Returns a + b - s exactly, where s is a + b rounded to nearest. This is Knuth's TwoSum (TAOCP
/// 4.2.2, theorem B), for any order of magnitudes. Takes 5 additions, or 6 with the addition for s.
template <class V>
CPD_FN constexpr V error_of_sum(V a, V b, V s) {
  const V b_part = s - a;
  return (a - (s - b_part)) + (b - b_part);
}

/// Returns s + error rounded to odd. s must be s + error rounded to nearest. If `error` is not
/// zero, the sum is truncated and its last bit is set. A NaN `error`, which occurs if s is
/// infinite, counts as zero. Takes 8 operations on bits and comparisons.
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

/// Returns a + b in V, rounded to odd. Gives Inf and NaN where an addition in V does. Takes 6
/// additions and the 8 operations of toward_odd.
template <class V>
CPD_FN constexpr V add_to_odd(V a, V b) {
  const V s = a + b;
  return toward_odd(s, error_of_sum(a, b, s));
}

/// Returns a + b rounded to odd, with IEEE 754's sign of an exact zero sum (6.3). If `down` (the
/// sum will be rounded down), an exact zero sum is -0 unless both operands are +0.
template <class V>
CPD_FN constexpr V exact_sum(V a, V b, bool down) {
  const V s = add_to_odd(a, b);
  if (!down) return s;
  using U = Unsigned<V>;
  const U sign = (bits_as<U>(a) | bits_as<U>(b)) & splat<U>(Pattern<V>::sign);
  return select(s == V{}, bits_as<V>(sign), s);
}

/// Returns a * b + c in V, rounded to odd; the exact result must not be NaN. An inexact sum,
/// rounded once down and once up, gives one odd and one even number, and the odd number is the
/// result. Beyond V's range the greatest number results. Takes 2 fused multiply-adds and a
/// selection.
///
/// Lanes without directed rounding need a * b to be exact in V, and give infinity beyond V's range.
/// Such lanes take 1 multiplication and add_to_odd.
template <class V>
CPD_FN V fma_to_odd(V a, V b, V c) {
  if constexpr (kHasDirectedRounding<V>) {
    return odd_one(fma_toward<Toward::down>(a, b, c), fma_toward<Toward::up>(a, b, c));
  } else {
    return add_to_odd(a * b, c);
  }
}

/// quotient_to_odd returns x / y and root_to_odd the square root of x, rounded to odd. The
/// remainders must be numbers of V. Remainders of quotients and roots rounded to nearest are
/// numbers of V (Boldo and Daumas 2003), unless they have bits below the least number of V. Sets
/// *rest to the remainder, or to NaN if the result is infinite or NaN.
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

/// Returns a * b for binary32 values in binary64. The product is exact, as it has at most 48 bits.
/// Takes 1 multiplication.
template <class V>
CPD_FN constexpr V exact_product(V a, V b) {
  static_assert(Lanes<V>::mantissa == 52);
  return a * b;
}

}  // namespace CPD_ISA
}  // namespace cpd
