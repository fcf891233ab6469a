// SPDX-License-Identifier: Apache-2.0
//
// Sends the packed codes of a format. n values always have the same size.
#pragma once

#include "cpd/compress/codec.h"
#include "cpd/spec/rounding.h"

namespace cpd {

class CPD_API Packed final : public Codec {
 public:
  /// Throws Error for a format or an option out of range. A stochastic rounding takes its random
  /// integers from the stream of each Piece (range of a layer), not from rounding.stream.
  explicit Packed(const Format& format, const RoundingOptions& rounding = {});

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string text() const override;
  [[nodiscard]] const Format& format() const override { return format_; }
  [[nodiscard]] const RoundingOptions& rounding() const { return rounding_; }
  [[nodiscard]] bool may_hop() const override { return true; }
  [[nodiscard]] bool is_fixed() const override { return true; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override;
  [[nodiscard]] bool has_nan() const override { return format_.has_nan(); }
  std::int64_t EncodeOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                        std::uint8_t* to) const override;
  void DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                float divisor, float* y, std::int64_t before = 0) const override;
  void RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x, float* y,
               SegmentCounts* counts = nullptr) const override;

 private:
  Format format_;
  RoundingOptions rounding_;
};

}  // namespace cpd
