// SPDX-License-Identifier: Apache-2.0
//
// TernGrad (Wen, Xu, Yan, Wu, Wang, Chen, Li, NeurIPS 2017). The values of a tensor become -1, 0 or
// 1 times the tensor's scaler, without bias.
#pragma once

#include <cstdint>

#include "cpd/compress/codec.h"
#include "cpd/compress/level_blocks.h"
#include "cpd/spec/rounding.h"

namespace cpd {

class CodecWords;

struct TernGradOptions {
  /// Values are first clipped to `clip` standard deviations of the tensor (equation 21). 0: no
  /// clipping.
  double clip = 2.5;
  /// True: all ranks use the largest of their scalers, so that sums are integers.
  bool share = true;
  std::int64_t bucket = 0;  ///< the number of values that share a scaler; 0: all of a layer
  /// Only for ranks that share a scaler. True: each rank first clips its values by its own standard
  /// deviation, as in section 3.3. False: the rank's deviation only enters the shared scaler, and
  /// all values are clipped by that scaler, as in the authors' code (wenwei202/terngrad).
  bool clips_own = false;
  bool trits = false;  ///< five values in a byte; no value is then NaN
};

/// Encodes values in units of a scaler, which is the largest magnitude after clipping. Values are
/// rounded as in numeric/scaled/levels.h with one step, and stored as in level_blocks.h. A value
/// takes two bits (0 is zero, 1 is plus one, 3 is minus one, 2 is NaN), or five values take a byte.
/// Each NaN and each infinity becomes NaN, and does not count for the scaler and the standard
/// deviation. Integer sums are sent as IntegerSums, other sums without loss.
class CPD_API TernGrad final : public Codec {
 public:
  /// Throws Error for an option out of range, for `share` with buckets, and for `clips_own` without
  /// `share` or without clipping. Uses only random_bits of `rounding`.
  explicit TernGrad(const TernGradOptions& options = {}, const RoundingOptions& rounding = {});

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string text() const override;
  [[nodiscard]] const Format& format() const override { return kFp32; }
  [[nodiscard]] bool is_fixed() const override { return true; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override;
  [[nodiscard]] std::int64_t block() const override { return blocks_.block(); }
  [[nodiscard]] std::int64_t bucket() const override;
  /// Returns KernelSupport::none if ranks clip their own values, else the kernel support of
  /// LevelBlocks.
  [[nodiscard]] KernelSupport kernels() const override {
    return options_.clips_own ? KernelSupport::none : blocks_.kernels();
  }
  [[nodiscard]] bool has_nan() const override { return !options_.trits; }
  [[nodiscard]] bool has_scales() const override { return true; }
  /// Returns true if a scaler has only one value and values are clipped: the standard deviation of
  /// one value is 0, so that value is always sent as zero.
  [[nodiscard]] bool Freezes(std::int64_t n) const override;
  [[nodiscard]] Measured measured() const override;
  [[nodiscard]] float MeasureOn(const Queue& queue, const Piece& layer, CodecState* state,
                                const float* x) const override;
  std::int64_t EncodeOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                        std::uint8_t* to) const override;
  void DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                float divisor, float* y, std::int64_t before = 0) const override;
  void RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x, float* y,
               SegmentCounts* counts = nullptr) const override;
  /// If ranks clip their own values, returns a state that stores the limit of the rank's values;
  /// else null.
  [[nodiscard]] std::unique_ptr<CodecState> MakeState(std::int64_t size) const override;
  [[nodiscard]] SharedCodec ForResults(const Format& format, int world) const override;

 private:
  struct Limit;
  /// Calls run(piece, x), where x points to the piece's values (a range of a layer). If ranks clip
  /// their own values, x points to values that are clipped to this rank's limit.
  template <class Run>
  void WithClipped(Piece piece, const CodecState* state, const float* x, Run run) const;

  TernGradOptions options_;
  RoundingOptions rounding_;
  LevelBlocks blocks_;
};

/// Encodes sums of W values -1, 0 or 1, and NaN, as integers modulo 2^b, where b is the bit length
/// of 2 W. The code 2^(b - 1) is NaN.
class CPD_API IntegerSums final : public Codec {
 public:
  /// Throws Error unless 1 <= world <= 65536.
  explicit IntegerSums(int world);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string text() const override { return name(); }
  [[nodiscard]] const Format& format() const override { return kFp32; }
  [[nodiscard]] bool is_fixed() const override { return true; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override;
  [[nodiscard]] bool has_scales() const override { return true; }
  [[nodiscard]] KernelSupport kernels() const override { return blocks_.kernels(); }
  /// EncodeOn and RoundOn accept integers from -W to W, and NaN, where W is the number of ranks. On
  /// the CPU, they throw Error for a value of larger magnitude.
  std::int64_t EncodeOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                        std::uint8_t* to) const override;
  void RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x, float* y,
               SegmentCounts* counts = nullptr) const override;
  void DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                float divisor, float* y, std::int64_t before = 0) const override;

 private:
  void CheckSums(const Queue& queue, const Piece& piece, const float* x) const;

  int world_;
  LevelBlocks blocks_;
};

/// The text is `terngrad clip=2.5|none share=on|off bucket=tensor|N whole=N clip_at=scaler|workers
/// coding=fixed|trits`.
SharedCodec MakeTernGrad(CodecWords& words, const RoundingOptions& rounding);

}  // namespace cpd
