// SPDX-License-Identifier: Apache-2.0
//
// Helpers for codecs that encode a piece (a range of a layer's values) by operations
// (operations.def) on any device. They find the buckets of a piece, split a piece into parts, and
// record damaged values.
#pragma once

#include <algorithm>
#include <limits>

#include "cpd/backend/queue.h"
#include "cpd/compress/codec.h"

namespace cpd {

/// Throws DamagedBytes unless a message of n values has the codec's fixed size.
void CheckFixedSize(const Codec& codec, std::span<const std::uint8_t> bytes, std::int64_t n,
                    std::int64_t before);

/// The range of values begin … end - 1 of a layer.
struct ValueRange {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

/// Returns the range of all values in the buckets that have values in `piece` (a range of a layer's
/// values). If the layer's size is not known, returns only the range of the piece.
CPD_API ValueRange BucketsAround(const Piece& piece, std::int64_t bucket);
/// Returns the number of buckets that have values in a piece (a range of a layer's values).
[[nodiscard]] inline std::int64_t BucketsOf(const Piece& piece, std::int64_t bucket) {
  return (piece.begin % bucket + piece.n + bucket - 1) / bucket;
}

/// Splits a piece (a range of a layer's values) into parts and calls run(part, i) for each. A part
/// begins at value i of the piece. On the CPU, a part has up to `step` values, which stay in the
/// caches from one operation to the next. There is only one part, the whole piece, on other
/// devices, and if the piece may cut a bucket whose other values are not known.
template <class Run>
void ForParts(const Queue& queue, const Piece& piece, std::int64_t bucket, std::int64_t step,
              Run run) {
  const bool is_whole = piece.size > 0 || piece.begin % bucket == 0;
  if (!queue.on_host() || !is_whole) step = std::max<std::int64_t>(1, piece.n);
  for (std::int64_t i = 0; i < piece.n; i += step) {
    Piece part = piece;
    part.begin += i;
    part.n = std::min(step, piece.n - i);
    if (part.random != nullptr) part.random += i;
    run(part, i);
  }
}

/// Records the index of the first damaged value that a decoding operation finds. On the CPU, the
/// index is stored in this object. On other devices, it is recorded as a fault (faults.h).
class DamageNote {
 public:
  /// The text of the error for a damaged value is "value N", where N is its index, followed by
  /// `what`.
  DamageNote(const Queue& queue, const char* what)
      : place_(queue.notes_faults() ? queue.NoteOf({"value ", what}) : &index_) {}
  [[nodiscard]] unsigned long long* place() { return place_; }
  /// Returns true if the CPU has recorded a damaged value. On other devices, always returns false.
  [[nodiscard]] bool is_noted() const { return index_ != kNone; }

 private:
  static constexpr unsigned long long kNone = std::numeric_limits<unsigned long long>::max();
  unsigned long long index_ = kNone;
  unsigned long long* place_;
};

}  // namespace cpd
