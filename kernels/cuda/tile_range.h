// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpd/numeric/lanes/lanes.h"

namespace cpd::cuda {

/// Bounds of the operands of a thread block's tile, as bit patterns.
struct TileRange {
  std::uint32_t largest;   ///< the largest |x|; Inf and NaN are the largest
  std::uint32_t smallest;  ///< the least |x| that is not zero
  std::uint32_t fraction;  ///< fraction bits, or-ed

  CPD_FN static TileRange none() { return {0, ~0U, 0}; }

  CPD_FN void take(float x) {
    const std::uint32_t a = bits_as<std::uint32_t>(x) & Pattern<float>::magnitude;
    largest = a > largest ? a : largest;
    smallest = a != 0 && a < smallest ? a : smallest;
    fraction |= a & Pattern<float>::fraction;
  }
};

}  // namespace cpd::cuda
