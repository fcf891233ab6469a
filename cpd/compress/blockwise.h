// SPDX-License-Identifier: Apache-2.0
//
// Encodes each bucket of a layer separately (4096 values by default), by a codec that otherwise
// encodes whole layers. A rank that owns a slice of the sums can therefore encode the buckets of
// this slice again.
#pragma once

#include "cpd/compress/codec.h"
#include "cpd/spec/rounding.h"

namespace cpd {

class CodecWords;

/// Encodes each bucket of 4096 values (or of `bucket` values) with the codec `inner` as a separate
/// layer, with its own scale or range. Stochastic rounding uses the random integer of a value's
/// index in the whole layer. The results of a reduction are encoded again by an equal codec.
///
/// A message holds up to three items for each bucket, or for the part of a bucket that is in the
/// piece (a range of a layer's values):
/// - the number of bytes (u32, little-endian), if the size of inner's messages varies;
/// - a byte that is 1 if a value of the bucket is NaN or infinite, if inner has no code for NaN.
///   The whole bucket then decodes to NaN;
/// - inner's bytes.
class CPD_API Blockwise final : public Codec {
 public:
  static constexpr std::int64_t kBucket = 4096;

  /// Makes a codec for buckets of `bucket` values, a multiple of 4096 up to kMostBucket. Uses only
  /// random_bits of `random`. Throws Error unless `inner` encodes a layer as a whole with scales of
  /// each rank, stores nothing between calls, needs no gradient, and sends sums without loss.
  Blockwise(SharedCodec inner, const RoundingOptions& random, std::int64_t bucket = kBucket);
  /// `CODEC…`.
  static SharedCodec Make(CodecWords& words, const RoundingOptions& rounding);

  [[nodiscard]] std::string name() const override { return "blockwise " + inner_->name(); }
  [[nodiscard]] std::string text() const override;
  [[nodiscard]] const Format& format() const override { return kFp32; }
  [[nodiscard]] bool is_fixed() const override { return inner_->is_fixed(); }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override;
  [[nodiscard]] std::int64_t block() const override { return bucket_; }
  [[nodiscard]] std::int64_t bucket() const override { return bucket_; }
  [[nodiscard]] bool has_scales() const override { return true; }
  [[nodiscard]] bool Freezes(std::int64_t n) const override { return inner_->Freezes(n % bucket_); }
  std::int64_t EncodeOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                        std::uint8_t* to) const override;
  void DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                float divisor, float* y, std::int64_t before = 0) const override;
  /// An equal codec.
  [[nodiscard]] SharedCodec ForResults(const Format& format, int world) const override;

 private:
  struct Values;
  [[nodiscard]] std::int64_t HeadBytes() const;
  std::int64_t EncodeInner(const Piece& part, const Values& values, std::uint8_t* to) const;
  std::int64_t EncodePart(const Piece& part, const Values& values, std::uint8_t* to) const;
  /// Decodes the n values of one bucket, or of a part of a bucket, from the front of `bytes`.
  /// Returns the number of bytes that the values take.
  std::int64_t DecodePart(std::span<const std::uint8_t> bytes, std::int64_t n, float* y) const;

  SharedCodec inner_;
  RoundingOptions random_;
  std::int64_t bucket_;
};

}  // namespace cpd
