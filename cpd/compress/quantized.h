// SPDX-License-Identifier: Apache-2.0
//
// Sends the codes of a scaled format for contributions and for results. The codes of a piece (a
// range of a layer's values) depend only on the buckets that have values in the piece. Each bucket
// is a block with one scale; a block consists of neighboring values, or is a row. Covers int8 with
// one scale for each row, int4 in blocks (ZeRO++'s qgZ, LoCo), torchft's FP8 rows, and any format
// with one level of scales.
#pragma once

#include "cpd/compress/pieces.h"
#include "cpd/numeric/scaled/scaled_plan.h"
#include "cpd/spec/rounding.h"
#include "cpd/spec/scaled.h"

namespace cpd {

class CodecWords;

/// For each block() values of a piece (a range of a layer's values), a message holds the scales of
/// the buckets that the values touch, then the elements. Scales and elements each begin on a byte.
/// Decoding gives the values of Cast (ops/scaled.h) of the layer, but +0 if a scale is 0.
///
/// FP8 rows are torchft's (torchft/quantization.py at commit 001d404). Their multiplier is s = 448
/// / max, rounded once to binary32 (in torchft, within 2 ulp: Triton's fp32 division). s is 1 if
/// that quotient is infinite, as for rows of zeros and for rows whose max is below 448 / binary32's
/// max. An element is x * s, rounded once to binary32 and then into e4m3fn. The message holds s,
/// and a value is element / s, rounded once. The maximum ignores NaN, and a NaN remains NaN. An
/// infinity makes s = 0 and all values of its row NaN.
class CPD_API Quantized final : public Codec {
 public:
  enum class Name : std::uint8_t { quantized, int8_rows, int4, fp8_rows };

  /// Makes the codec of the scaled format `scaled`. Its blocks must be 1 x N with N at most
  /// kMostBucket, or rows. For rows, ForRows returns a codec that knows the rows' length. A codec
  /// that does not know it cuts a layer every kMostBucket values. Throws Error for other blocks, an
  /// outer scale, a choice between scales, a transform, or a format in which NaN has no code.
  Quantized(Name name, const Scaled& scaled, const RoundingOptions& rounding);

  /// `quantized SCALED [stochastic]`.
  static SharedCodec MakeScaled(CodecWords& words, const RoundingOptions& rounding);
  /// `int8_rows [row=N] [stochastic]`.
  static SharedCodec MakeInt8Rows(CodecWords& words, const RoundingOptions& rounding);
  /// Makes the codec of the text `int4 [bucket=32] [stochastic]`. If `int4` is followed by other
  /// words, the text is the name of a scaled format, and ScaledBlocks is made for that format.
  static SharedCodec MakeInt4(CodecWords& words, const RoundingOptions& rounding);
  /// `fp8_rows [row=N]`.
  static SharedCodec MakeFp8Rows(CodecWords& words, const RoundingOptions& rounding);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string text() const override;
  [[nodiscard]] const Format& format() const override { return kFp32; }
  [[nodiscard]] bool is_fixed() const override { return true; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override;
  [[nodiscard]] std::int64_t block() const override { return block_; }
  [[nodiscard]] std::int64_t bucket() const override { return bucket_; }
  [[nodiscard]] bool has_scales() const override { return true; }
  /// Returns KernelSupport::all if values are rounded to nearest-even or stochastically, else
  /// KernelSupport::none.
  [[nodiscard]] KernelSupport kernels() const override;

  std::int64_t EncodeOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                        std::uint8_t* to) const override;
  void DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                float divisor, float* y, std::int64_t before = 0) const override;
  void RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x, float* y,
               SegmentCounts* counts = nullptr) const override;

  [[nodiscard]] bool by_rows() const override;
  [[nodiscard]] SharedCodec ForRows(std::int64_t row) const override;
  /// Returns an equal codec: the results of a reduction are quantized in the same way as
  /// contributions.
  [[nodiscard]] SharedCodec ForResults(const Format& format, int world) const override;

 private:
  static SharedCodec Make(Name name, Scaled scaled, CodecWords& words,
                          const RoundingOptions& rounding);
  /// Returns the number of bytes of an encoded block of n <= block() values. `before` is the number
  /// of values of the block's first bucket that come before the block.
  [[nodiscard]] std::int64_t BlockBytes(std::int64_t n, std::int64_t before) const;
  [[nodiscard]] QuantizedCall CallOf(std::int64_t n, std::int64_t before) const;
  /// Splits a piece (a range of a layer's values) into parts and calls run(call, i) for each. A
  /// part begins at value i of the piece. `call` holds the scales of the part's buckets.
  template <class Run>
  void ForMeasured(const Queue& queue, const Piece& piece, const float* x, Run run) const;

  Name name_;
  Scaled scaled_;
  RoundingOptions rounding_;
  ScaledPlan plan_;
  std::int64_t bucket_ = 0, block_ = 0;
};

}  // namespace cpd
