// SPDX-License-Identifier: Apache-2.0
//
// The layout of values in messages. Each layer of a call is cut into slices, and the slices of all
// layers are merged into sequences of values. Sequence s has one slice of each layer: slice s, or,
// for layers whose slices are rotated by `turns`, slice s - turns[l]. The first n mod W slices of a
// layer of n values are one value longer. A chunk takes the next range of every sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "cpd/export.h"
#include "cpd/numeric/sums/rounds.h"

namespace cpd {

/// Values begin … begin + count - 1 of a layer.
struct Segment {
  int layer = 0;
  std::int64_t begin = 0, count = 0;
};

/// A list of segments (ranges of layers). The position of a value is its index in the concatenation
/// of all segments.
struct CPD_API Part {
  std::vector<Segment> segments;
  std::int64_t count = 0;

  void Add(const Segment& segment);
  void Add(const Part& part);
  /// Returns the values at positions begin … end - 1 as a new list of segments.
  [[nodiscard]] Part Cut(std::int64_t begin, std::int64_t end) const;
  /// Returns the number of bytes of packed codes of `bits` bits for all values. The codes of each
  /// segment begin at a full byte.
  [[nodiscard]] std::int64_t Bytes(int bits) const;
};

/// Returns the first index of slice s of n values, which are divided into `slices` slices. Slices
/// begin at multiples of `bucket`.
constexpr std::int64_t SliceBegin(std::int64_t n, std::int64_t slices, std::int64_t s,
                                  std::int64_t bucket) {
  return std::min(n, SliceBegin((n + bucket - 1) / bucket, slices, s) * bucket);
}

/// Cuts layers into chunks.
class CPD_API Layout {
 public:
  /// `chunk`, `slices`: at least 1. A chunk takes up to ceil(chunk / slices) values of each slice,
  /// rounded up to a multiple of 256. Layer l is cut only at multiples of buckets[l]. A bucket that
  /// is longer than that limit is taken whole. If `buckets` is empty, layers are cut anywhere. From
  /// layer l, sequence number s takes slice s - turns[l] (mod `slices`), or slice s if `turns` is
  /// empty.
  Layout(std::span<const std::int64_t> sizes, int slices, std::int64_t chunk,
         std::span<const std::int64_t> buckets = {}, std::span<const std::int64_t> turns = {});

  [[nodiscard]] bool done() const { return left_ == 0; }
  /// Returns the next chunk: for each sequence s (one slice of each layer), a Part (list of ranges
  /// of layers), which may be empty.
  std::vector<Part> Next();

 private:
  struct Cursor {
    int layer = 0;
    std::int64_t offset = 0;  ///< in the layer's slice
  };
  Part Take(int run);

  [[nodiscard]] std::int64_t BucketOf(int layer) const {
    return buckets_.empty() ? 1 : buckets_[static_cast<std::size_t>(layer)];
  }

  std::vector<std::int64_t> sizes_, buckets_, turns_;
  std::vector<Cursor> cursors_;
  std::int64_t piece_;
  std::int64_t left_ = 0;  // values
};

}  // namespace cpd
