// SPDX-License-Identifier: Apache-2.0
//
// Which random stream a rounding inside a collective draws from: the one table. A stream is
//   purpose << 60 | step << 36 | layer << 20 | position
// and element i of a layer is counter i of it (philox.h). Purpose 0 is left to callers' own
// numbers.
#pragma once

#include <cstdint>
#include <string>

#include "cpd/numeric/error.h"

namespace cpd {

enum class Purpose : std::uint8_t {
  wire = 1,    ///< a contribution's cast; position = rank
  sum = 2,     ///< the steps of a fold; position = group, or kAcross
  result = 3,  ///< a fold's sum to the result's format; position as for sum
};

constexpr std::int64_t kAcross = 0xFFFFF;  ///< the fold across groups, or the only fold

/// The stream of another layer and position, from one of layer 0 and position 0; a place that is 0
/// here stays.
constexpr std::uint64_t StreamFrom(std::uint64_t first, std::int64_t layer, std::int64_t position) {
  return first | static_cast<std::uint64_t>(layer) << 20 | static_cast<std::uint64_t>(position);
}

/// Throws Error where step >= 2^24, layer >= 2^16 or position >= 2^20.
inline std::uint64_t StreamOf(Purpose purpose, std::uint64_t step, std::int64_t layer,
                              std::int64_t position) {
  if (step >= (1U << 24)) {
    throw Error("step must be below 2^24, got " + std::to_string(step));
  }
  if (layer >= (1 << 16)) {
    throw Error("a reduction takes at most 2^16 layers, got " + std::to_string(layer + 1));
  }
  if (position > kAcross) {
    throw Error("a reduction takes at most 2^20 ranks, got " + std::to_string(position + 1));
  }
  return StreamFrom(static_cast<std::uint64_t>(purpose) << 60 | step << 36, layer, position);
}

}  // namespace cpd
