// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/engine/layout.h"

#include <algorithm>

namespace cpd {

void Part::Add(const Segment& segment) {
  if (segment.count == 0) return;
  segments.push_back(segment);
  count += segment.count;
}

void Part::Add(const Part& part) {
  for (const Segment& segment : part.segments) Add(segment);
}

Part Part::Cut(std::int64_t begin, std::int64_t end) const {
  Part cut;
  std::int64_t at = 0;
  for (const Segment& segment : segments) {
    const std::int64_t from = std::clamp(begin - at, std::int64_t{0}, segment.count);
    const std::int64_t to = std::clamp(end - at, std::int64_t{0}, segment.count);
    cut.Add({segment.layer, segment.begin + from, to - from});
    at += segment.count;
  }
  return cut;
}

std::int64_t Part::Bytes(int bits) const {
  std::int64_t bytes = 0;
  for (const Segment& segment : segments) bytes += (segment.count * bits + 7) / 8;
  return bytes;
}

Layout::Layout(std::span<const std::int64_t> sizes, int slices, std::int64_t chunk,
               std::span<const std::int64_t> buckets, std::span<const std::int64_t> turns)
    : sizes_(sizes.begin(), sizes.end()),
      buckets_(buckets.begin(), buckets.end()),
      turns_(turns.begin(), turns.end()),
      cursors_(static_cast<std::size_t>(slices)),
      piece_(((chunk - 1) / slices / 256 + 1) * 256) {
  for (const std::int64_t n : sizes_) left_ += n;
}

std::vector<Part> Layout::Next() {
  std::vector<Part> parts;
  parts.reserve(cursors_.size());
  for (std::size_t s = 0; s < cursors_.size(); ++s) parts.push_back(Take(static_cast<int>(s)));
  for (const Part& part : parts) left_ -= part.count;
  return parts;
}

Part Layout::Take(int run) {
  const auto slices = static_cast<std::int64_t>(cursors_.size());
  Cursor& cursor = cursors_[static_cast<std::size_t>(run)];
  Part part;
  while (part.count < piece_ && cursor.layer < static_cast<int>(sizes_.size())) {
    const std::int64_t n = sizes_[static_cast<std::size_t>(cursor.layer)];
    const std::int64_t bucket = BucketOf(cursor.layer);
    const std::int64_t turn = turns_.empty() ? 0 : turns_[static_cast<std::size_t>(cursor.layer)];
    const std::int64_t slice = (run + slices - turn % slices) % slices;
    const std::int64_t begin = SliceBegin(n, slices, slice, bucket) + cursor.offset;
    const std::int64_t left = SliceBegin(n, slices, slice + 1, bucket) - begin;
    std::int64_t count = std::min(left, piece_ - part.count);
    if (count < left) count -= count % bucket;
    if (count == 0 && left > 0) {
      if (part.count > 0) break;
      count = std::min(left, bucket);
    }
    part.Add({cursor.layer, begin, count});
    cursor.offset += count;
    if (count == left) cursor = {cursor.layer + 1, 0};
  }
  return part;
}

}  // namespace cpd
