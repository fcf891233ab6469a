// SPDX-License-Identifier: Apache-2.0
//
// Sends the codes of a scaled format and the codes of its scales: MX, NVFP4, scaled integers. A
// layer is a vector of values, and blocks count from its first value. Decoding gives the values of
// Cast (ops/scaled.h) of the layer.
#pragma once

#include "cpd/compress/codec.h"
#include "cpd/numeric/scaled/scaled_plan.h"
#include "cpd/spec/rounding.h"
#include "cpd/spec/scaled.h"

namespace cpd {

/// A message holds these items for each 4096 values of a piece (a range of a layer's values): the
/// number of values in the first block that they touch (two bytes); the outer scale, if there is
/// one; the scales of all blocks that 4096 values can touch, 0 for unused ones; and the elements.
/// Each item begins on a byte. For mxfp8, the items have 2 + 129 + 4096 bytes.
class CPD_API ScaledBlocks final : public Codec {
 public:
  /// Throws Error if blocks need a layer's shape (rows, R x C), if elements are unsigned and have
  /// no NaN, or if an option is out of range. A stochastic rounding takes its random integers from
  /// the stream of each Piece (range of a layer), not from rounding.stream.
  explicit ScaledBlocks(const Scaled& scaled,
                        const RoundingOptions& rounding = {.overflow = Overflow::saturate});

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string text() const override;
  /// Returns binary32, the format of decoded values.
  [[nodiscard]] const Format& format() const override { return kFp32; }
  [[nodiscard]] bool may_hop() const override { return true; }
  [[nodiscard]] bool is_fixed() const override { return true; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override;
  [[nodiscard]] bool has_nan() const override;
  [[nodiscard]] bool has_scales() const override { return true; }
  /// Copies the codes of a piece (a range of a layer's values) from the layer's state, which holds
  /// them since Begin. The codes encode x * 2^shift, rounded to binary32.
  std::int64_t EncodeOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                        std::uint8_t* to) const override;
  void DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                float divisor, float* y, std::int64_t before = 0) const override;
  void RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x, float* y,
               SegmentCounts* counts = nullptr) const override;
  /// Returns a state that holds the layer's codes from Begin to Commit.
  [[nodiscard]] std::unique_ptr<CodecState> MakeState(std::int64_t size) const override;

 private:
  struct Coded;
  struct Run;
  [[nodiscard]] Run RunOf(std::int64_t n) const;
  void DecodeRun(const std::uint8_t* bytes, const Run& run, float* y) const;

  Scaled scaled_;
  RoundingOptions rounding_;
  ScaledPlan plan_;
};

}  // namespace cpd
