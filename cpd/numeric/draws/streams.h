// SPDX-License-Identifier: Apache-2.0
//
// Computes the number of the random stream of each rounding. Element i of a layer or a tensor is
// counter i of its stream (philox.h). The number of a stream in a collective and the number of a
// stream in a layer of a model are:
//   collective: purpose << 60 | step << 36 | layer << 20 | position
//   model:      stream XOR purpose << 60 XOR layer << 20
// In a model, `stream` is the stream that the caller passes. Purpose 0 is left to the caller. A
// stream of a collective and a stream of a model never coincide while the callers' streams are
// below 2^60, because their purposes differ.
#pragma once

#include <cstdint>
#include <string>

#include "cpd/spec/error.h"
#include "cpd/spec/purpose.h"

namespace cpd {

constexpr std::int64_t kMostLayers = 1 << 16;
constexpr std::int64_t kAcross = 0xFFFFF;  ///< the sum across groups, or the only sum
/// The position in a layer (StreamOf) for purpose `result` if the rank that owns the result of a
/// reduction encodes the result again. The codec's roundings then use the stream with this
/// position.
constexpr std::int64_t kEncoded = 0xFFFFE;

/// Returns the number of the stream of `layer` and `position`. `first` is the number for layer 0
/// and position 0.
constexpr std::uint64_t StreamFrom(std::uint64_t first, std::int64_t layer, std::int64_t position) {
  return first | static_cast<std::uint64_t>(layer) << 20 | static_cast<std::uint64_t>(position);
}

/// Returns the number of the random stream of a rounding in a collective operation. Throws Error if
/// step >= 2^24, layer >= 2^16 or position >= 2^20.
inline std::uint64_t StreamOf(Purpose purpose, std::uint64_t step, std::int64_t layer,
                              std::int64_t position) {
  if (step >= (1U << 24)) {
    throw Error("step must be below 2^24, got " + std::to_string(step));
  }
  if (layer >= kMostLayers) {
    throw Error("a reduction takes at most 2^16 tensors, got " + std::to_string(layer + 1));
  }
  if (position > kAcross) {
    throw Error("a reduction takes at most 2^20 ranks, got " + std::to_string(position + 1));
  }
  return StreamFrom(static_cast<std::uint64_t>(purpose) << 60 | step << 36, layer, position);
}

/// Returns the tag of a layer of a model: the number to XOR into the number of the caller's stream.
/// Throws Error if the layer is not in 0…2^16 - 1.
inline std::uint64_t StreamTag(Purpose purpose, std::int64_t layer) {
  if (layer < 0 || layer >= kMostLayers) {
    throw Error("layer must be 0…2^16 - 1, got " + std::to_string(layer));
  }
  return StreamFrom(static_cast<std::uint64_t>(purpose) << 60, layer, 0);
}

}  // namespace cpd
