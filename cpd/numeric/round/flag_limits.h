// SPDX-License-Identifier: Apache-2.0
//
// The exceptions of a rounding as comparisons.
//
// Of an inexact rounding only the number's magnitude decides whether it underflows, and whether it
// overflows: it does so below one magnitude, or from one on, which depend on format, mode and sign.
// A random integer moves them: between the least and the greatest of these magnitudes, and for
// infinities and NaN, soft_float.h tells.
#pragma once

#include "cpd/numeric/lanes/isa.h"
#include "cpd/spec/operation.h"

namespace cpd {

/// Inexact numbers of one sign, by magnitude: below tiny_below they underflow, from normal_from on
/// they do not; from over_from on they overflow, below fits_below they do not.
template <class T>
struct SignLimits {
  T tiny_below = 0, normal_from = 0, fits_below = 0, over_from = 0;
};
template <class T>
struct FlagLimits {
  SignLimits<T> positive, negative;
};

/// In place of exceptions: the limits leave them open.
constexpr int kOpen = 128;

/// The exceptions of rounding x to y, or kOpen.
template <class T>
CPD_FN constexpr int flags_of(const FlagLimits<T>& limits, T x, T y) {
  constexpr T kLargest = sizeof(T) == 4 ? T(0x1.fffffep127) : T(0x1.fffffffffffffp1023);
  const auto [up, down] = limits;
  const bool is_tiny = (x < up.tiny_below) & (x > -down.tiny_below);
  const bool overflows = (x >= up.over_from) | (x <= -down.over_from);
  const bool may_be_tiny = (x < up.normal_from) & (x > -down.normal_from) & !is_tiny;
  const bool may_overflow = ((x >= up.fits_below) | (x <= -down.fits_below)) & !overflows;
  const bool is_finite = (x <= kLargest) & (x >= -kLargest);
  // Without a choice compilers make vectors of it.
  const int flags = soft::kInexact | is_tiny * soft::kUnderflow | overflows * soft::kOverflow |
                    (may_be_tiny | may_overflow) * kOpen;
  return (x != y) * flags | !is_finite * kOpen;
}

}  // namespace cpd
