// SPDX-License-Identifier: Apache-2.0
//
// Helpers of the codecs that compute a piece by calls of operations (operations.def) on any
// device's queue: the piece's buckets, its parts, and where damage is noted.
#pragma once

#include <algorithm>
#include <limits>

#include "cpd/backend/queue.h"
#include "cpd/compress/codec.h"

namespace cpd {

/// Throws DamagedBytes unless a message of n values has the codec's fixed size.
void CheckFixedSize(const Codec& codec, std::span<const std::uint8_t> bytes, std::int64_t n,
                    std::int64_t before);

/// Values begin … end - 1 of a layer.
struct ValueRange {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

/// The values of the layer in the buckets that a piece touches; the piece alone where the layer's
/// size is not known.
CPD_API ValueRange BucketsAround(const Piece& piece, std::int64_t bucket);
/// The number of buckets that a piece touches.
[[nodiscard]] inline std::int64_t BucketsOf(const Piece& piece, std::int64_t bucket) {
  return (piece.begin % bucket + piece.n + bucket - 1) / bucket;
}

/// Calls run(part, i) for parts of a piece, from its value number i on. If the buckets that it cuts
/// are known whole, a part on the CPU has up to `step` values, which stay in the caches from one
/// operation to the next. On other devices the part is the piece.
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

/// Where a decoding notes the first damaged value: on the CPU here, elsewhere as a fault
/// (faults.h).
class DamageNote {
 public:
  /// The fault's text is "value N`what`".
  DamageNote(const Queue& queue, const char* what)
      : place_(queue.notes_faults() ? queue.NoteOf({"value ", what}) : &index_) {}
  [[nodiscard]] unsigned long long* place() { return place_; }
  /// True on the CPU for a value that was noted.
  [[nodiscard]] bool is_noted() const { return index_ != kNone; }

 private:
  static constexpr unsigned long long kNone = std::numeric_limits<unsigned long long>::max();
  unsigned long long index_ = kNone;
  unsigned long long* place_;
};

}  // namespace cpd
