// SPDX-License-Identifier: Apache-2.0
//
// A codec of whole layers, of each 4096 values by themselves: so an owner, who has a slice of the
// sums, can encode these again.
#pragma once

#include "cpd/compress/codec.h"
#include "cpd/spec/rounding.h"

namespace cpd {

class CodecWords;

/// Each 4096 values are to `inner` a layer of their own, with its scale or range; the random
/// integers are those of the values' places in the whole layer. Sums are encoded in the same way.
///
/// A message holds for each of them, or for what a piece has of one: where inner's sizes vary, the
/// number of bytes (u32, little-endian); where inner has no code for NaN, a byte that is 1 where a
/// value is NaN or infinite, and then all 4096 decode to NaN; inner's bytes.
class CPD_API Blockwise final : public Codec {
 public:
  static constexpr std::int64_t kBucket = 4096;

  /// `random`: seed and random_bits. Throws Error unless inner goes by a whole layer, keeps nothing
  /// from call to call and lets sums travel without loss.
  Blockwise(SharedCodec inner, const RoundingOptions& random);
  /// `CODEC…`.
  static SharedCodec Make(CodecWords& words, const RoundingOptions& rounding);

  [[nodiscard]] std::string name() const override { return "blockwise " + inner_->name(); }
  [[nodiscard]] std::string text() const override;
  [[nodiscard]] const Format& format() const override { return kFp32; }
  [[nodiscard]] bool is_fixed() const override { return inner_->is_fixed(); }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override;
  [[nodiscard]] std::int64_t block() const override { return kBucket; }
  [[nodiscard]] std::int64_t bucket() const override { return kBucket; }
  [[nodiscard]] bool has_scales() const override { return true; }
  std::int64_t Encode(const Piece& piece, CodecState* state, const float* x,
                      std::uint8_t* to) const override;
  void Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift, float divisor,
              float* y, std::int64_t before = 0) const override;
  /// Itself.
  [[nodiscard]] SharedCodec ForResults(const Format& format, int world) const override;

 private:
  struct Values;
  [[nodiscard]] std::int64_t HeadBytes() const;
  std::int64_t EncodeInner(const Piece& part, const Values& values, std::uint8_t* to) const;
  std::int64_t EncodePart(const Piece& part, const Values& values, std::uint8_t* to) const;
  /// Returns the part's bytes, the first of `bytes`.
  std::int64_t DecodePart(std::span<const std::uint8_t> bytes, std::int64_t n, float* y) const;

  SharedCodec inner_;
  RoundingOptions random_;
};

}  // namespace cpd
