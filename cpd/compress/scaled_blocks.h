// SPDX-License-Identifier: Apache-2.0
//
// A scaled format's codes and the codes of their scales: MX, NVFP4, scaled integers. A layer is a
// vector of values, blocks count from its first one, and decoded values are those of Cast
// (ops/scaled.h) of the layer.
#pragma once

#include "cpd/compress/codec.h"
#include "cpd/numeric/scaled/scaled_plan.h"
#include "cpd/spec/rounding.h"
#include "cpd/spec/scaled.h"

namespace cpd {

/// A message holds, for each 4096 values of a piece: the number of values in the first block that
/// they touch (two bytes); the second level's scale, if there is one; the scales of all blocks that
/// 4096 values can touch, 0 for unused ones; the elements. Each item begins on a byte. For mxfp8
/// these are 2 + 129 + 4096 bytes.
class CPD_API ScaledBlocks final : public Codec {
 public:
  /// Throws Error where blocks need a layer's shape (rows, R x C), elements are unsigned without a
  /// NaN, or an option is out of range. A stochastic rounding draws from the piece's stream, not
  /// from rounding.stream.
  explicit ScaledBlocks(const Scaled& scaled,
                        const RoundingOptions& rounding = {.overflow = Overflow::saturate});

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string text() const override;
  /// Values are binary32 numbers.
  [[nodiscard]] const Format& format() const override { return kFp32; }
  [[nodiscard]] bool may_hop() const override { return true; }
  [[nodiscard]] bool is_fixed() const override { return true; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override;
  [[nodiscard]] bool has_nan() const override;
  [[nodiscard]] bool has_scales() const override { return true; }
  /// Copies codes of the state's layer, whose values times 2^shift were rounded to binary32 first.
  std::int64_t EncodeOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                        std::uint8_t* to) const override;
  void DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                float divisor, float* y, std::int64_t before = 0) const override;
  void RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x, float* y,
               SegmentCounts* counts = nullptr) const override;
  /// A state that holds the layer's codes from Begin to Commit.
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
