// SPDX-License-Identifier: Apache-2.0
//
// Selects the largest of many values. A search finds the limit of the selected magnitudes digit by
// digit, from the counts of values with each digit. Also computes the residual of a selected value.
#pragma once

#include <cstdint>
#include <limits>

#include "cpd/numeric/round/round.h"

namespace cpd {

/// A limit that selects all values whose pattern is above `pattern`, and the first `equals` values,
/// by ascending index, whose pattern equals it. A pattern is the bits of a magnitude. Patterns
/// ascend with magnitudes; NaN is above infinity.
struct LargestLimit {
  std::uint32_t pattern = 0;
  std::int64_t equals = 0;
};

/// The search for a limit finds a pattern (the bits of a magnitude) digit by digit, the highest
/// digit first. A pattern has kPatternDigits digits. digit_shift returns the position of a digit's
/// lowest bit, and last_digit the greatest value of that digit. No digit exceeds kMostDigit.
constexpr int kPatternDigits = 3;
constexpr std::uint32_t kMostDigit = 2047;
constexpr int digit_shift(int digit) { return 20 - 10 * digit; }
constexpr std::uint32_t last_digit(int digit) { return digit == 0 ? kMostDigit : 1023; }

inline namespace CPD_ISA {

CPD_FN std::uint32_t pattern_of(float x) {
  return bits_as<std::uint32_t>(x) & Pattern<float>::magnitude;
}

/// Returns a limit that selects all values that `limit` selects, and every NaN and infinity.
CPD_FN LargestLimit with_non_finite(LargestLimit limit) {
  if (limit.pattern < Pattern<float>::infinity) return limit;
  return {Pattern<float>::infinity, std::numeric_limits<std::int64_t>::max()};
}

/// Returns the error of a value v that is sent as `sent`: v - sent, rounded once. The error is v if
/// `sent` is not finite, and 0 if v is not finite.
CPD_FN float error_of(float v, float sent) {
  if (!(v - v == 0)) return 0;
  return sent - sent == 0 ? v - sent : v;
}

}  // namespace CPD_ISA
}  // namespace cpd
