// SPDX-License-Identifier: Apache-2.0
//
// 1-bit SGD (Seide et al. 2014, as in CNTK). Each value is sent as one bit, and each bucket as two
// means: the mean of its values >= 0 and the mean of its other values. The error of a value is
// added to that value in the next call.
#pragma once

#include <optional>

#include "cpd/compress/pieces.h"
#include "cpd/spec/rounding.h"

namespace cpd {

class CodecWords;

/// Encodes v = x * 2^shift + residual, in binary32. -0 counts as a value >= 0. A mean is the sum in
/// binary64, by ascending index, divided by the number of values and rounded once to binary32. The
/// mean of no values is 0. The next residual is v - decoded; an owner's results have a separate
/// residual. A NaN or Inf makes both means of its bucket NaN, and leaves that bucket's residual
/// unchanged.
///
/// For each block() of a piece (a range of a layer's values), a message holds the two means of each
/// bucket that the block touches, then one bit for each value. The bit is 1 for v >= 0, and the bit
/// of the first value is the lowest in its byte. If buckets are columns, the bits of each column
/// fill whole 32-bit words. For columns of M values, a message is then smaller than binary32 by a
/// factor of 32 M / (32 ceil(M / 32) + 64). The bits of other buckets are packed without gaps.
class CPD_API OneBit final : public Codec {
 public:
  /// The rule 1bitSGD*: buckets are `bucket` consecutive values of a layer whose columns along
  /// `axis` are contiguous. Without `axis`, the layer is used as it is. Throws Error unless
  /// `bucket` is 1…kMostBucket.
  explicit OneBit(std::int64_t bucket, std::optional<int> axis = {});
  /// The rule 1bitSGD: each bucket is a column of the layer. Columns are contiguous, and ForRows
  /// receives their length. Longer columns are cut every kMostBucket values. `axis` is the
  /// dimension of a tensor along which its columns run. Before a caller encodes the tensor, it
  /// moves this dimension behind the others, as LayoutOf says. Without `axis`, columns run as in
  /// ColumnLayout (buckets.h).
  static SharedCodec Columns(std::optional<int> axis = {});
  /// `[bucket=N] [whole=N] [axis=N]`.
  static SharedCodec Make(CodecWords& words, const RoundingOptions& rounding);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string text() const override;
  [[nodiscard]] const Format& format() const override { return kFp32; }
  [[nodiscard]] bool is_fixed() const override { return true; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override;
  /// Returns the number of values in a block: the larger of 8 * bucket() and BlockOfBucket's
  /// result, because eight buckets are summed at the same time. If 8 * bucket() is above
  /// kMostBucket, returns BlockOfBucket's result.
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
  /// Returns a Residual, which stores two binary32 errors for each value: one from the last call
  /// and one for the next.
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
  /// Splits a piece (a range of a layer's values) into parts and calls run(call, i) for each. A
  /// part begins at value i of the piece. `call` holds the means of the part's buckets.
  template <class Run>
  void ForMeasured(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                   Run run) const;

  bool columns_;
  std::optional<int> axis_;
  std::int64_t row_;  ///< the length of rows; 0: not known
  std::int64_t bucket_, block_;
};

}  // namespace cpd
