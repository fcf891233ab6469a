// SPDX-License-Identifier: Apache-2.0
//
// QSGD (Alistarh, Grubic, Li, Tomioka, Vojnovic, NeurIPS 2017, section 3). The values of a bucket
// are rounded without bias to equally spaced fractions of the bucket's norm.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "cpd/compress/codec.h"
#include "cpd/compress/level_blocks.h"
#include "cpd/spec/rounding.h"

namespace cpd {

struct QsgdOptions {
  int bits = 4;  ///< bits of a code: 2 … 16, and 1 for intervals
  /// s, the number of levels above zero, 1 … 32767. A code then has the fewest bits that hold 2 s +
  /// 1 levels. 0: `bits` determines the levels. Must be 0 if `intervals` is set. The example of
  /// QSGD's section 4 has s = 16: for 512 values and the 2-norm, the variance is at most
  /// sqrt(512) / 16 = 1.41 times the square of the norm.
  int steps = 0;
  std::int64_t bucket = 512;  ///< number of values that share a norm; 0: all of a layer
  /// The axis along which the layer's columns run, for callers that reorder the layer. Consecutive
  /// values of a column then form buckets. None: buckets are formed from the layer as it is. An
  /// axis is not supported if a bucket is the whole layer.
  std::optional<int> axis{};
  bool euclidean = false;  ///< the norm is the 2-norm, else the largest magnitude
  /// True: levels are the ends of 2^bits - 1 equal intervals over [-norm, norm]. With one bit, the
  /// levels are -norm and norm. False: a level is a sign and one of the levels above zero. Their
  /// number is `steps`; if `steps` is 0, their number is 2^(bits - 1) - 1.
  bool intervals = false;
  LevelCoding coding = LevelCoding::fixed;  ///< intervals: fixed only
  /// True: levels are placed so that the layer's variance is least (spacing.h). This requires
  /// signed levels, at most 127 above zero. The results of a reduction are then encoded again with
  /// equal spacing.
  bool spaced = false;
};

/// Encodes the levels of values, by the rounding of numeric/scaled/levels.h and the byte layout of
/// level_blocks.h. A bucket with NaN or infinities becomes NaN, as does a bucket whose 2-norm is
/// beyond binary32. If a layer has buckets, the results of a reduction are encoded again with loss;
/// else they are sent without loss.
class CPD_API Qsgd final : public Codec {
 public:
  /// Throws Error for an option out of range. Uses only random_bits of `rounding`.
  explicit Qsgd(const QsgdOptions& options = {}, const RoundingOptions& rounding = {});

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string text() const override;
  [[nodiscard]] const Format& format() const override { return kFp32; }
  [[nodiscard]] bool is_fixed() const override { return blocks_.is_fixed(); }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override;
  [[nodiscard]] std::int64_t block() const override { return blocks_.block(); }
  [[nodiscard]] KernelSupport kernels() const override { return blocks_.kernels(); }
  [[nodiscard]] std::int64_t bucket() const override;
  [[nodiscard]] bool has_scales() const override { return true; }
  std::int64_t EncodeOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                        std::uint8_t* to) const override;
  void DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                float divisor, float* y, std::int64_t before = 0) const override;
  void RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x, float* y,
               SegmentCounts* counts = nullptr) const override;
  /// Returns a state that holds the layer's norm, if there are no buckets, and the positions of the
  /// levels, if the distances of levels vary.
  [[nodiscard]] std::unique_ptr<CodecState> MakeState(std::int64_t size) const override;
  [[nodiscard]] bool by_rows() const override { return options_.axis.has_value() && row_ == 0; }
  [[nodiscard]] RowLayout LayoutOf(std::span<const std::int64_t> shape) const override;
  /// Returns the codec for a layer whose columns, of `row` values, are contiguous. A bucket may
  /// hold values of two columns, or of several short columns. This is how Grubic et al. reshape
  /// matrices.
  [[nodiscard]] SharedCodec ForRows(std::int64_t row) const override;
  [[nodiscard]] SharedCodec ForResults(const Format& format, int world) const override;

 private:
  Qsgd(const QsgdOptions& options, const RoundingOptions& rounding, std::int64_t row);
  struct Layer;
  [[nodiscard]] const LayerLevels& LevelsOf(const CodecState* state) const;
  QsgdOptions options_;
  RoundingOptions rounding_;
  LevelBlocks blocks_;
  std::int64_t row_ = 0;  ///< the length of columns; 0: not known
};

class CodecWords;
/// The text is `qsgd bits=4|s=N bucket=512|tensor whole=N axis=N norm=max|2 levels=signed|intervals
/// coding=fixed|elias-dense|elias-sparse|smallest spacing=uniform|optimal`.
SharedCodec MakeQsgd(CodecWords& words, const RoundingOptions& rounding);

}  // namespace cpd
