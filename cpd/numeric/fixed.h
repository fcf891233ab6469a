// SPDX-License-Identifier: Apache-2.0
//
// Sums in integers of a fixed width (FixedPoint in accumulator.h).
#pragma once

#include "cpd/numeric/accumulator.h"

namespace cpd {

/// As the kernels take it: plain data.
struct FixedPlan {
  FixedPoint point;
  int words = 1;  ///< of 32 bits
};

}  // namespace cpd
