// SPDX-License-Identifier: Apache-2.0
//
// Quotients and square roots of binary32 values in binary64, rounded to odd. Rounding such a result
// once more gives the exact result rounded once (exact.h). The remainder of a quotient or a root
// rounded to nearest is a binary64 number (Boldo and Daumas 2003), so the differences that compute
// a remainder are exact. Each value is split into an upper part of 26 bits and a lower part of at
// most 26 bits and a sign. Their products with 24 or 26 bits have at most 52 bits.
#pragma once

#include <cmath>

#include "cpd/numeric/round/exact.h"

namespace cpd {
inline namespace CPD_ISA {

/// Returns s + error rounded to odd, for scalars. s must be s + error rounded to nearest. Uses no
/// branches, because the CPU could not predict the random sign of the error.
CPD_FN double moved_to_odd(double s, double error) {
  const auto bits = bits_as<std::uint64_t>(s);
  const std::uint64_t inexact = static_cast<std::uint64_t>(error > 0) | (error < 0 ? 1 : 0);
  const std::uint64_t differ = (bits ^ bits_as<std::uint64_t>(error)) >> 63;
  return bits_as<double>(bits + (inexact & ~bits & 1) * (1 - 2 * differ));
}

/// Returns x rounded to 26 significant bits by 2 operations on its pattern. x must not be infinite.
CPD_FN double upper_part(double x) {
  constexpr std::uint64_t kLow = (std::uint64_t{1} << 27) - 1;
  return bits_as<double>((bits_as<std::uint64_t>(x) + (kLow >> 1) + 1) & ~kLow);
}

/// Returns x / y rounded to odd in 1 division, 2 multiplications and 3 subtractions, without FMA.
CPD_FN double quotient_to_odd(double x, double y) {
  const double q = x / y;
  const double upper = upper_part(q);
  const double rest = (x - upper * y) - (q - upper) * y;
  return moved_to_odd(q, y < 0 ? -rest : rest);
}

/// Returns the square root of x rounded to odd in 1 root, 4 multiplications and 4 subtractions,
/// without FMA.
CPD_FN double root_to_odd(double x) {
  const double root = std::sqrt(x);
  const double upper = upper_part(root);
  const double lower = root - upper;
  return moved_to_odd(root, ((x - upper * upper) - 2 * upper * lower) - lower * lower);
}

}  // namespace CPD_ISA
}  // namespace cpd
