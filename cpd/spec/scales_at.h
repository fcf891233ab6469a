// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace cpd {

/// The step of a matrix product at which the scales of the operands are applied.
enum class ScalesAt : std::uint8_t {
  operand,   ///< scales are applied to each operand's values, before the sums
  block,     ///< scales are applied to the sum over each block of k that shares them
  epilogue,  ///< scales are applied to the whole sum, along which they must be constant
};

}  // namespace cpd
