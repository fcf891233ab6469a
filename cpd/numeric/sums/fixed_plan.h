// SPDX-License-Identifier: Apache-2.0
//
// Sums in integers of a fixed width (FixedPoint in accumulator.h): what their kernels are told.
// fixed_number.h has the arithmetic.
#pragma once

#include <cstdint>

#include "cpd/numeric/round/round_plan.h"
#include "cpd/spec/accumulator.h"

namespace cpd {

/// As the kernels take it: plain data.
struct FixedPlan {
  FixedPoint point;
  bool saturates = false;  ///< beyond the range: its nearest end, after each term; else it wraps
  int words = 1;           ///< of 32 bits, that hold the integer
  int planes = 2;  ///< of state for each sum: its words; then 0, or 1 where a term was not finite
  RoundPlan end;   ///< of the sum into Accumulator::format
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
