// SPDX-License-Identifier: Apache-2.0
//
// Helpers for codecs that compute a piece by calls of operations (operations.def) on the queue of
// any device: the buckets of a piece, its parts, and a note of damaged values.
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

/// Returns the range of the layer's values in the buckets that a piece touches. Returns only the
/// piece if the layer's size is not known.
CPD_API ValueRange BucketsAround(const Piece& piece, std::int64_t bucket);
/// Returns the number of buckets that a piece touches.
[[nodiscard]] inline std::int64_t BucketsOf(const Piece& piece, std::int64_t bucket) {
  return (piece.begin % bucket + piece.n + bucket - 1) / bucket;
}

/// Calls run(part, i) for consecutive parts of a piece. A part begins at value i of the piece. On
/// the CPU, a part has up to `step` values, which stay in the caches from one operation to the
/// next. This requires that the values of all buckets that the piece cuts are known. Otherwise, and
/// on other devices, the part is the whole piece.
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

/// The place in which a decoding operation notes the first damaged value. On the CPU, the note is
/// in this object; on other devices, it is a fault (faults.h).
class DamageNote {
 public:
  /// The text of the fault is "value N" followed by `what`.
  DamageNote(const Queue& queue, const char* what)
      : place_(queue.notes_faults() ? queue.NoteOf({"value ", what}) : &index_) {}
  [[nodiscard]] unsigned long long* place() { return place_; }
  /// Returns true if a damaged value was noted, on the CPU only.
  [[nodiscard]] bool is_noted() const { return index_ != kNone; }

 private:
  static constexpr unsigned long long kNone = std::numeric_limits<unsigned long long>::max();
  unsigned long long index_ = kNone;
  unsigned long long* place_;
};

}  // namespace cpd
