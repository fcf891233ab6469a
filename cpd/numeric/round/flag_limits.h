// SPDX-License-Identifier: Apache-2.0
//
// Determines the exceptions of a rounding by comparisons with limits.
//
// The limits on the magnitude depend on format, mode and sign. An inexact rounding underflows below
// one limit and overflows from another limit on. In stochastic modes, each limit moves with the
// random integer between a least and a greatest magnitude. Between the two, and for infinities and
// NaN, soft_float.h determines the exceptions.
#pragma once

#include "cpd/numeric/lanes/isa.h"
#include "cpd/spec/operation.h"

namespace cpd {

/// Limits on the magnitude of inexact numbers of one sign. Numbers below tiny_below underflow, and
/// numbers from normal_from on do not. Numbers from over_from on overflow, and numbers below
/// fits_below do not.
template <class T>
struct SignLimits {
  T tiny_below = 0, normal_from = 0, fits_below = 0, over_from = 0;
};
template <class T>
struct FlagLimits {
  SignLimits<T> positive, negative;
};

/// The value that is returned in place of exceptions if comparisons with the limits do not
/// determine them.
constexpr int kOpen = 128;

/// Returns the exceptions that a rounding of x with the result y raises, or kOpen if the limits do
/// not determine the exceptions.
template <class T>
CPD_FN constexpr int flags_of(const FlagLimits<T>& limits, T x, T y) {
  constexpr T kLargest = sizeof(T) == 4 ? T(0x1.fffffep127) : T(0x1.fffffffffffffp1023);
  const auto [up, down] = limits;
  const bool is_tiny = (x < up.tiny_below) & (x > -down.tiny_below);
  const bool overflows = (x >= up.over_from) | (x <= -down.over_from);
  const bool may_be_tiny = (x < up.normal_from) & (x > -down.normal_from) & !is_tiny;
  const bool may_overflow = ((x >= up.fits_below) | (x <= -down.fits_below)) & !overflows;
  const bool is_finite = (x <= kLargest) & (x >= -kLargest);
  // Computes all conditions without branches, so that compilers vectorize the caller's loop.
  const int flags = soft::kInexact | is_tiny * soft::kUnderflow | overflows * soft::kOverflow |
                    (may_be_tiny | may_overflow) * kOpen;
  return (x != y) * flags | !is_finite * kOpen;
}

}  // namespace cpd
