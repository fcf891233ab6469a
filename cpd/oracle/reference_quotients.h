// SPDX-License-Identifier: Apache-2.0
//
// Results of operations for the oracle: quotients and square roots by long division of integers: to
// within 2^-60 of the result, with one more bit that is set where digits follow. A rounding of
// reference.h uses 24 bits of a format and 25 below them, so that it decides as for the exact
// result.
#pragma once

#include <cstdint>

#include "cpd/oracle/reference.h"
#include "cpd/spec/operation.h"

namespace cpd::reference {

/// digits * 2^exponent, and half of 2^exponent more where other digits follow (`rest`).
template <class Integer = Natural>
Number<Integer> with_rest(bool negative, Digits digits, int exponent, bool rest) {
  return exact_finite<Integer>(negative, digits << 1 | Digits{rest}, exponent - 1);
}

/// x / y for values of formats up to binary32. 0 / 0 and Inf / Inf are NaN, x / 0 is Inf.
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

/// The square root of a value of a format up to binary32; NaN below 0, -0 for -0.
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

/// The result of an operation before its rounding, of as many operands as it takes; that of a cast
/// is x.
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
