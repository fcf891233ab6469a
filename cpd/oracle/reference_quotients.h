// SPDX-License-Identifier: Apache-2.0
//
// The oracle's results of operations before rounding. Quotients and square roots are computed by
// long division of integers, to within 2^-60 of the exact result. If nonzero digits follow, one
// more bit below the result is set. A rounding of reference.h depends on the result's first 24
// bits, on the 25 bits after them, and on whether any later bit is set. So the rounding is the same
// as for the exact result.
#pragma once

#include <cstdint>

#include "cpd/oracle/reference.h"
#include "cpd/spec/operation.h"

namespace cpd::reference {

/// Returns digits * 2^exponent, plus half of 2^exponent if `rest` is set (nonzero digits follow).
template <class Integer = Natural>
Number<Integer> with_rest(bool negative, Digits digits, int exponent, bool rest) {
  return exact_finite<Integer>(negative, digits << 1 | Digits{rest}, exponent - 1);
}

/// Returns x / y. x and y are values of formats no wider than binary32. 0 / 0 and Inf / Inf are
/// NaN; x / 0 is an infinity if x is not zero.
template <class Integer>
Number<Integer> divide(const Number<Integer>& x, const Number<Integer>& y) {
  if (x.is_nan() || y.is_nan()) return exact_nan<Integer>();
  const bool negative = x.negative != y.negative;
  if (x.is_infinite())
    return y.is_infinite() ? exact_nan<Integer>() : exact_infinity<Integer>(negative);
  if (y.is_infinite()) return exact_finite<Integer>(negative, 0, 0);
  if (y.is_zero()) return x.is_zero() ? exact_nan<Integer>() : exact_infinity<Integer>(negative);
  if (x.is_zero()) return exact_finite<Integer>(negative, 0, 0);
  constexpr int kPlaces = 100;
  const Digits dividend = Digits{x.significand.bits_from(0)} << kPlaces;
  const Digits divisor = y.significand.bits_from(0);
  const Digits quotient = dividend / divisor;
  return with_rest<Integer>(negative, quotient, x.exponent - y.exponent - kPlaces,
                            quotient * divisor != dividend);
}

/// Returns the square root of x, a value of a format no wider than binary32. The root is NaN for x
/// < 0 and -0 for -0.
template <class Integer>
Number<Integer> square_root(const Number<Integer>& x) {
  if (x.is_nan() || x.is_zero()) return x;
  if (x.negative) return exact_nan<Integer>();
  if (x.is_infinite()) return x;
  const int odd = x.exponent & 1;
  constexpr int kPlaces = 94;  // even; the radicand stays below 2^127
  const Digits radicand = Digits{x.significand.bits_from(0)} << (kPlaces + odd);
  Digits root = 0;
  for (Digits bit = Digits{1} << 63; bit != 0; bit >>= 1) {
    if ((root | bit) * (root | bit) <= radicand) root |= bit;
  }
  return with_rest<Integer>(false, root, (x.exponent - odd - kPlaces) / 2, root * root != radicand);
}

/// Returns the result of an operation before its rounding. Operands that the operation does not
/// take are ignored. The result of a cast is x.
template <class Integer>
Number<Integer> result_of(soft::Operation operation, const Number<Integer>& x,
                          const Number<Integer>& y, const Number<Integer>& z) {
  switch (operation) {
    case soft::Operation::cast:
      return x;
    case soft::Operation::add:
      return add(x, y);
    case soft::Operation::mul:
      return multiply(x, y);
    case soft::Operation::fma:
      return add(multiply(x, y), z);
    case soft::Operation::div:
      return divide(x, y);
    case soft::Operation::sqrt:
      return square_root(x);
  }
  return exact_nan<Integer>();
}

}  // namespace cpd::reference
