// SPDX-License-Identifier: Apache-2.0
//
// Encodes values that are mostly zeros, without loss. The codec sends the sums of values that top_k
// selected.
#pragma once

#include "cpd/compress/codec.h"
#include "cpd/compress/packed.h"

namespace cpd {

class CodecWords;

/// The first byte of a message selects one of two forms. One form has the indices of all values
/// that are not +0 (places.h), and the packed codes of these values. If that is not shorter, the
/// other form has the codes of all values. -0 does not count as +0.
class CPD_API Sparse final : public Codec {
 public:
  /// Makes a codec that sends values in `format`. Values that are not numbers of `format` are
  /// rounded to nearest-even. Throws Error unless the format has a zero.
  explicit Sparse(const Format& format = kFp32);

  /// `sparse [FORMAT]`.
  static SharedCodec Make(CodecWords& words, const RoundingOptions& rounding);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string text() const override { return name(); }
  [[nodiscard]] const Format& format() const override { return values_.format(); }
  [[nodiscard]] bool is_fixed() const override { return false; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override;
  [[nodiscard]] std::int64_t block() const override { return std::int64_t{1} << 16; }
  [[nodiscard]] bool has_nan() const override { return values_.has_nan(); }
  [[nodiscard]] KernelSupport kernels() const override { return KernelSupport::round; }

  std::int64_t EncodeOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                        std::uint8_t* to) const override;
  void DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                float divisor, float* y, std::int64_t before = 0) const override;
  void RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x, float* y,
               SegmentCounts* counts = nullptr) const override;

 private:
  Packed values_;
};

}  // namespace cpd
