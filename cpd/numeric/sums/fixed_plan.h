// SPDX-License-Identifier: Apache-2.0
//
// The plan of a sum in integers of a fixed width (cpd/spec/fixed_point.h), as constants for the
// kernels. fixed_number.h has the arithmetic.
#pragma once

#include <cstdint>

#include "cpd/numeric/round/round_plan.h"
#include "cpd/spec/accumulator.h"

namespace cpd {

/// The constants of a sum in integers of a fixed width.
struct FixedPlan {
  FixedPoint point;
  /// True: sums saturate after each term. False: a sum that leaves the range wraps.
  bool saturates = false;
  int words = 1;  ///< words of 32 bits that hold the integer
  /// The number of floats of state of a sum: the sum's words, and a word that is 1 after a term
  /// that is not finite, else 0.
  int planes = 2;
  RoundPlan end;  ///< the rounding of the sum into Accumulator::format
};

constexpr FixedPlan make_fixed_plan(const Accumulator& accumulator) {
  FixedPlan plan;
  plan.point = accumulator.fixed.value_or(FixedPoint{});
  plan.saturates = accumulator.rounding.overflow == Overflow::saturate;
  plan.words = (plan.point.width + 31) / 32;
  plan.planes = plan.words + 1;
  plan.end = make_plan(accumulator.format, accumulator.rounding);
  return plan;
}

}  // namespace cpd
