// SPDX-License-Identifier: Apache-2.0
//
// 1-bit SGD (Seide et al. 2014, as in CNTK): a bit for each value, and for each bucket two means,
// of its values >= 0 and of the others. A value's error is added to that value in the next call.
#pragma once

#include <optional>

#include "cpd/compress/pieces.h"
#include "cpd/spec/rounding.h"

namespace cpd {

class CodecWords;

/// Encodes v = x * 2^shift + residual, in binary32. -0 counts as positive. A mean is the sum in
/// binary64, index ascending, divided by the number of values and rounded once to binary32; the
/// mean of no values is 0. The next residual is v - decoded; an owner's results have a separate
/// residual. A NaN or Inf makes both means of its bucket NaN and leaves that bucket's residual
/// unchanged.
///
/// A message holds, for each block() of a piece, two means of each bucket that it touches; then a
/// bit of each value, 1 for v >= 0, the first value's bit lowest in its byte. The bits of each
/// column fill whole 32-bit words (binary32 takes 32 M / (32 ceil(M / 32) + 64) times the size for
/// columns of M values). The bits of other buckets are packed.
class CPD_API OneBit final : public Codec {
 public:
  /// 1bitSGD*: buckets of `bucket` consecutive values of a layer whose columns along `axis` are
  /// contiguous; without `axis`, of the layer as it is. Throws Error unless `bucket` is
  /// 1…kMostBucket.
  explicit OneBit(std::int64_t bucket, std::optional<int> axis = {});
  /// 1bitSGD: a bucket is a column of the layer. Columns are contiguous and have the length that is
  /// passed to ForRows; longer columns are cut every kMostBucket values. `axis`: the axis of a
  /// tensor along which its columns run, for callers that reorder it; none: as ColumnLayout
  /// (buckets.h).
  static SharedCodec Columns(std::optional<int> axis = {});
  /// `[bucket=N] [whole=N] [axis=N]`.
  static SharedCodec Make(CodecWords& words, const RoundingOptions& rounding);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string text() const override;
  [[nodiscard]] const Format& format() const override { return kFp32; }
  [[nodiscard]] bool is_fixed() const override { return true; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override;
  /// Eight buckets, which are summed together, where these are at most kMostBucket values.
  [[nodiscard]] std::int64_t block() const override { return block_; }
  [[nodiscard]] std::int64_t bucket() const override { return bucket_; }
  [[nodiscard]] bool has_scales() const override { return true; }
  [[nodiscard]] KernelSupport kernels() const override { return KernelSupport::all; }
  std::int64_t EncodeOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                        std::uint8_t* to) const override;
  void DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                float divisor, float* y, std::int64_t before = 0) const override;
  void RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x, float* y,
               SegmentCounts* counts = nullptr) const override;
  /// A Residual: two binary32 numbers per value.
  [[nodiscard]] std::unique_ptr<CodecState> MakeState(std::int64_t size) const override;
  [[nodiscard]] bool by_rows() const override { return (columns_ || axis_) && row_ == 0; }
  [[nodiscard]] RowLayout LayoutOf(std::span<const std::int64_t> shape) const override;
  [[nodiscard]] SharedCodec ForRows(std::int64_t row) const override;
  [[nodiscard]] SharedCodec ForResults(const Format& format, int world) const override;

  [[nodiscard]] std::optional<int> axis() const { return axis_; }

 private:
  OneBit(bool columns, std::optional<int> axis, std::int64_t row, std::int64_t bucket);
  [[nodiscard]] std::int64_t Buckets(std::int64_t n, std::int64_t before) const;
  [[nodiscard]] std::int64_t BitBytes(std::int64_t n, std::int64_t before) const;
  [[nodiscard]] std::int64_t BlockBytes(std::int64_t n, std::int64_t before) const;
  [[nodiscard]] OneBitCall CallOf(std::int64_t n, std::int64_t before) const;
  /// Calls run(call, i) for parts of a piece, from its value number i on. Their means are known.
  template <class Run>
  void ForMeasured(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                   Run run) const;

  bool columns_;
  std::optional<int> axis_;
  std::int64_t row_;  ///< 0: not known
  std::int64_t bucket_, block_;
};

}  // namespace cpd
