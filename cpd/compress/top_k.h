// SPDX-License-Identifier: Apache-2.0
//
// Sends only the values of a layer that have the largest magnitudes. The other values are fed back
// into the next call (QSGD, arXiv 1610.02132, section 3.3; Aji and Heafield, arXiv 1704.05021;
// Stich et al., arXiv 1809.07599).
#pragma once

#include "cpd/compress/codec.h"
#include "cpd/spec/rounding.h"

namespace cpd {

class CodecWords;

/// Sends the values of largest magnitude of v = x + residual, rounded once to binary32.
///
/// Selects ceil(fraction * n) values; among equal magnitudes, the lower index is selected. Also
/// selects every NaN and infinity, even if more values are then selected. The inner codec encodes
/// the selected values times 2^shift, in order, as a separate inner layer. Random integers from
/// Piece::key are indexed by the position in that inner layer, but Piece::random has an integer for
/// each element of the outer layer. All other values become +0.
///
/// The new residual is v minus the decoded value times 2^-shift, rounded once each. The residual is
/// v if the value is not sent or does not decode to a finite number, and 0 if v itself is not
/// finite. The residual does not depend on the shift, so APS may choose another shift in each call.
///
/// A message encodes a piece (a range of a layer's values). It holds the indices of the piece's
/// selected values (places.h), then the inner codec's bytes for these values. If the inner codec
/// has buckets, a number stands between them: how many values of the first bucket come before the
/// piece.
class CPD_API TopK final : public Codec {
 public:
  /// Throws Error unless the fraction is above 0 and at most 1, with at most 9 decimals. Throws
  /// Error if `inner` works on rows or has a residual.
  TopK(double fraction, bool feeds_back, SharedCodec inner);

  /// The text is `top_k FRACTION [feedback=on|off] [CODEC …]`.
  static SharedCodec Make(CodecWords& words, const RoundingOptions& rounding);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::string text() const override;
  /// Returns the inner codec's format if the inner codec sends packed codes of a format that has a
  /// zero. Otherwise returns kFp32.
  [[nodiscard]] const Format& format() const override { return format_; }
  [[nodiscard]] bool is_fixed() const override { return false; }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override;
  [[nodiscard]] std::int64_t block() const override { return std::int64_t{1} << 16; }
  [[nodiscard]] bool has_nan() const override { return inner_->has_nan(); }
  /// Returns whether the codec computes scales itself: false only if the inner codec is a packed
  /// format.
  [[nodiscard]] bool has_scales() const override { return has_scales_; }
  [[nodiscard]] bool Freezes(std::int64_t n) const override { return inner_->Freezes(Count(n)); }
  [[nodiscard]] bool needs_gradient() const override { return inner_->needs_gradient(); }
  [[nodiscard]] Measured measured() const override { return inner_->measured(); }
  /// Returns KernelSupport::round if the inner codec has NaN, and is a packed format or a codec of
  /// fixed size that has kernels. Otherwise returns KernelSupport::none.
  [[nodiscard]] KernelSupport kernels() const override;
  [[nodiscard]] bool counts_bytes() const override { return kernels() != KernelSupport::none; }
  std::int64_t EncodeOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                        std::uint8_t* to) const override;
  void DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                float divisor, float* y, std::int64_t before = 0) const override;

  /// Returns the result of the inner codec's MeasureOn for the selected values.
  [[nodiscard]] float MeasureOn(const Queue& queue, const Piece& layer, CodecState* state,
                                const float* x) const override;
  [[nodiscard]] std::optional<float> LargestOn(const Queue& queue,
                                               const CodecState& state) const override;
  void RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x, float* y,
               SegmentCounts* counts = nullptr) const override;
  [[nodiscard]] std::function<std::int64_t()> BytesOn(const SharedQueue& queue, const Piece& layer,
                                                      CodecState* state,
                                                      const float* x) const override;

  /// Returns a state that stores the residual and, from Begin to Commit, the values that are sent.
  [[nodiscard]] std::unique_ptr<CodecState> MakeState(std::int64_t size) const override;
  /// Returns a codec for sparse layers, because sums of selected values are sparse too. Returns
  /// null if the format has no zero.
  [[nodiscard]] SharedCodec ForResults(const Format& format, int world) const override;

  /// ceil(fraction * n).
  [[nodiscard]] std::int64_t Count(std::int64_t n) const;

 private:
  struct Sending;
  struct Run;

  [[nodiscard]] std::string Head() const;
  /// Returns the Piece that describes all selected values of a layer to the inner codec.
  [[nodiscard]] static Piece InnerOf(const Piece& layer, std::int64_t kept);

  std::int64_t billionths_ = 0;  ///< the fraction times 10^9
  bool feeds_back_ = true;
  SharedCodec inner_;
  bool has_scales_ = true;
  Format format_ = kFp32;
};

}  // namespace cpd
