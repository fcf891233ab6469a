// SPDX-License-Identifier: Apache-2.0
//
// The largest values of a layer and nothing else, what is left out fed back into the next call
// (QSGD, arXiv 1610.02132, section 3.3; Aji and Heafield, arXiv 1704.05021; Stich et al., arXiv
// 1809.07599).
#pragma once

#include "cpd/compress/codec.h"
#include "cpd/spec/rounding.h"

namespace cpd {

class CodecWords;

/// Of v = x * 2^shift + residual, each of the two rounded once to binary32, it keeps the
/// ceil(fraction * n) values of largest magnitude, of equal ones those of lower index, and every
/// NaN and infinity, even where that is more. Kept values in order are a layer of the inner codec,
/// by whose elements its random bits count (integers that are given belong to elements of the
/// outer one); all others are +0. The residual becomes v less the decoded value, rounded once: v
/// where nothing is sent or what is sent decodes to NaN, 0 where v is none itself. It is of values
/// times 2^shift.
///
/// A piece holds the places of its kept values (places.h), where the inner codec has buckets how
/// many values of the first one lie ahead, and the inner codec's bytes.
class CPD_API TopK final : public Codec {
 public:
  /// fraction: above 0 up to 1, at most 9 decimals. inner: one without rows or a residual. Throws
  /// Error.
  TopK(double fraction, bool feeds_back, SharedCodec inner);

  /// `top_k FRACTION [feedback=on|off] [CODEC …]`.
  static SharedCodec Make(CodecWords& words, const RoundingOptions& rounding);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string text() const override;
  [[nodiscard]] const Format& format() const override { return kFp32; }
  [[nodiscard]] bool is_fixed() const override { return false; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override;
  [[nodiscard]] std::int64_t block() const override { return std::int64_t{1} << 16; }
  [[nodiscard]] bool has_nan() const override { return inner_->has_nan(); }
  [[nodiscard]] bool has_scales() const override { return true; }
  [[nodiscard]] Measured measured() const override { return inner_->measured(); }
  /// The inner codec's, of kept values.
  [[nodiscard]] float Measure(const Piece& layer, CodecState* state, const float* x) const override;

  std::int64_t Encode(const Piece& piece, CodecState* state, const float* x,
                      std::uint8_t* to) const override;
  void Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift, float divisor,
              float* y, std::int64_t before = 0) const override;
  void Round(const Piece& piece, CodecState* state, const float* x, float* y) const override;

  /// Keeps the residual, and from Begin to Commit what is sent.
  [[nodiscard]] std::unique_ptr<CodecState> MakeState(std::int64_t size) const override;
  /// Sums are sparse.
  [[nodiscard]] SharedCodec ForResults(const Format& format, int world) const override;

  /// ceil(fraction * n).
  [[nodiscard]] std::int64_t Count(std::int64_t n) const;

 private:
  struct Sending;
  struct Run;

  [[nodiscard]] std::string Head() const;

  std::int64_t billionths_ = 0;  ///< the fraction's
  bool feeds_back_ = true;
  SharedCodec inner_;
};

}  // namespace cpd
