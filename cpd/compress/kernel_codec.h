// SPDX-License-Identifier: Apache-2.0
//
// KernelCodec, a codec whose steps are operations of a backend (operations.def): it builds each call
// once and gives it to a queue, of the CPU or of another device.
#pragma once

#include <algorithm>
#include <limits>
#include <string>

#include "cpd/backend/queue.h"
#include "cpd/compress/codec.h"

namespace cpd {

/// Implements the host's functions by those of a queue, which derived classes implement.
class CPD_API KernelCodec : public Codec {
 public:
  [[nodiscard]] KernelSupport kernels() const override { return KernelSupport::all; }
  [[nodiscard]] float Measure(const Piece& layer, CodecState* state, const float* x) const override;
  std::int64_t Encode(const Piece& piece, CodecState* state, const float* x,
                      std::uint8_t* to) const override;
  void Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift, float divisor,
              float* y, std::int64_t before = 0) const override;
  void Round(const Piece& piece, CodecState* state, const float* x, float* y) const override;

  [[nodiscard]] float MeasureOn(const Queue& queue, const Piece& layer, CodecState* state,
                                const float* x) const override;
  std::int64_t EncodeOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                        std::uint8_t* to) const override = 0;
  void DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                float divisor, float* y, std::int64_t before = 0) const override = 0;
  void RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x, float* y,
               SegmentCounts* counts = nullptr) const override = 0;
};

/// Throws std::logic_error unless the queue is the CPU's: for a codec without kernels.
void CheckOnHost(const Queue& queue);
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

/// Calls run(part, i) for parts of a piece, from its value number i on. On the CPU a part has up to
/// `step` values, which then stay in the caches from one operation to the next, where the buckets
/// that it cuts are known whole; on other devices it is the piece.
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
  /// The error's text is "value N`what`".
  DamageNote(const Queue& queue, const char* what)
      : what_(what), place_(queue.on_host() ? &index_ : queue.PlaceOf({"value ", what})) {}
  [[nodiscard]] unsigned long long* place() { return place_; }
  /// Throws DamagedBytes on the CPU for a value that was noted.
  void Check() const {
    if (index_ != kNone) throw DamagedBytes("value " + std::to_string(index_) + what_);
  }

 private:
  static constexpr unsigned long long kNone = std::numeric_limits<unsigned long long>::max();
  const char* what_;
  unsigned long long index_ = kNone;
  unsigned long long* place_;
};

}  // namespace cpd
