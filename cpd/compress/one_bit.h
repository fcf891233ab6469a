// SPDX-License-Identifier: Apache-2.0
//
// 1-bit SGD (Seide et al. 2014, as in CNTK): a bit for each value, and for each bucket the means of
// its values >= 0 and of the others; what a value loses is added to the next call's.
#pragma once

#include <optional>

#include "cpd/compress/codec.h"
#include "cpd/spec/rounding.h"

namespace cpd {

class CodecWords;

/// Values are v = x * 2^shift + residual, in binary32. -0 counts as positive. A mean is the sum in
/// binary64, index ascending, divided by the number of values and rounded once to binary32; that of
/// no values is 0. The residual is v - decoded; that of an owner's results is another. A NaN or Inf
/// makes both means of its bucket NaN and leaves the residual of this bucket as it was.
///
/// For each block() of a piece: two means of each bucket that it touches; then a bit of each value,
/// 1 for v >= 0, the first value's lowest in its byte. Bits of columns fill whole 32-bit words each
/// (32 M / (32 ceil(M / 32) + 64) of binary32's size for columns of M), those of other buckets lie
/// side by side.
class CPD_API OneBit final : public Codec {
 public:
  /// 1bitSGD*: buckets of so many consecutive values, 1…kMostBucket. Throws Error.
  explicit OneBit(std::int64_t bucket);
  /// 1bitSGD: a layer's columns, which ForRows is told the length of and which lie side by side;
  /// kMostBucket values of them together where they are longer. `axis`: of a tensor, along which
  /// its columns lie, for those who bring it into that order; none: 0 for two dimensions, else the
  /// last.
  static SharedCodec Columns(std::optional<int> axis = {});
  /// `[bucket=N | axis=N]`.
  static SharedCodec Make(CodecWords& words, const RoundingOptions& rounding);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string text() const override;
  [[nodiscard]] const Format& format() const override { return kFp32; }
  [[nodiscard]] bool is_fixed() const override { return true; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override;
  /// Eight buckets, whose sums are made together, where kMostBucket values hold as many.
  [[nodiscard]] std::int64_t block() const override;
  [[nodiscard]] std::int64_t bucket() const override { return bucket_; }
  [[nodiscard]] bool has_scales() const override { return true; }
  std::int64_t Encode(const Piece& piece, CodecState* state, const float* x,
                      std::uint8_t* to) const override;
  void Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift, float divisor,
              float* y, std::int64_t before = 0) const override;
  /// Two binary32 numbers a value.
  [[nodiscard]] std::unique_ptr<CodecState> MakeState(std::int64_t size) const override;
  [[nodiscard]] bool by_rows() const override { return columns_ && row_ == 0; }
  /// Columns are the values along `axis`: by default along the first of two dimensions, of outputs
  /// × inputs, and along the last of more, as kernels of convolutions have them; a vector is one.
  [[nodiscard]] RowLayout LayoutOf(std::span<const std::int64_t> shape) const override;
  [[nodiscard]] SharedCodec ForRows(std::int64_t row) const override;
  [[nodiscard]] SharedCodec ForResults(const Format& format, int world) const override;

  [[nodiscard]] std::optional<int> axis() const { return axis_; }

 private:
  OneBit(bool columns, std::optional<int> axis, std::int64_t row, std::int64_t bucket);
  [[nodiscard]] std::int64_t Buckets(std::int64_t n, std::int64_t before) const;
  [[nodiscard]] std::int64_t BitBytes(std::int64_t n, std::int64_t before) const;
  [[nodiscard]] std::int64_t BlockBytes(std::int64_t n, std::int64_t before) const;

  bool columns_;
  std::optional<int> axis_;
  std::int64_t row_;  ///< 0: not known
  std::int64_t bucket_;
};

}  // namespace cpd
