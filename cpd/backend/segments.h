// SPDX-License-Identifier: Apache-2.0
//
// Makes the segments (ranges of layers' values) of a ReduceCall and sets them in the call. Kernels
// divide segments into tiles; each segment's tiles are numbered after the tiles of the segments
// before it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpd/backend/message_calls.h"

namespace cpd {

/// Returns one segment (a range of a layer's values) for each whole layer. The layers' numbers in
/// random streams are 0, 1, …
inline std::vector<ReduceSegment> WholeLayers(std::span<const std::int64_t> sizes) {
  std::vector<ReduceSegment> segments;
  std::int64_t tiles = 0;
  for (std::size_t l = 0; l < sizes.size(); ++l) {
    ReduceSegment segment;
    segment.layer = static_cast<std::int64_t>(l);
    segment.size = segment.count = sizes[l];
    segment.tile = tiles;
    tiles += tiles_of(sizes[l]);
    segments.push_back(segment);
  }
  return segments;
}

/// Sets the segments (ranges of layers' values) that a call works on. They must live as long as the
/// call.
inline void Walk(ReduceCall& call, const std::vector<ReduceSegment>& segments) {
  call.segments = segments.data();
  call.segment_count = static_cast<std::int32_t>(segments.size());
  call.tiles = segments.empty() ? 0 : segments.back().tile + tiles_of(segments.back().count);
}

}  // namespace cpd
