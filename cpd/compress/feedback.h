// SPDX-License-Identifier: Apache-2.0
//
// Error feedback for a codec that has none: a value's error is added to that value in the next
// call.
#pragma once

#include "cpd/compress/pieces.h"
#include "cpd/spec/rounding.h"

namespace cpd {

class CodecWords;

/// Encodes v = x * 2^shift + residual, in binary32, with `inner`; the bytes are inner's. The next
/// residual is v - decoded, rounded once to binary32; 0 if that is not finite. If inner encodes an
/// owner's results again, the results have a separate residual.
class CPD_API Feedback final : public Codec {
 public:
  /// Throws Error where inner feeds errors back itself, or uses a scale that ranks share: they
  /// agree on it before a layer's residual is known.
  explicit Feedback(SharedCodec inner);
  /// `CODEC…`.
  static SharedCodec Make(CodecWords& words, const RoundingOptions& rounding);

  [[nodiscard]] std::string name() const override { return "feedback " + inner_->name(); }
  [[nodiscard]] std::string text() const override { return "feedback " + inner_->text(); }
  [[nodiscard]] const Format& format() const override { return inner_->format(); }
  [[nodiscard]] bool is_fixed() const override { return inner_->is_fixed(); }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before = 0) const override {
    return inner_->MostBytes(n, before);
  }
  [[nodiscard]] std::int64_t block() const override { return inner_->block(); }
  [[nodiscard]] std::int64_t bucket() const override { return inner_->bucket(); }
  [[nodiscard]] bool has_nan() const override { return inner_->has_nan(); }
  /// True: a layer's residuals are for one shift, which APS must not change.
  [[nodiscard]] bool has_scales() const override { return true; }
  [[nodiscard]] bool Freezes(std::int64_t n) const override { return inner_->Freezes(n); }
  [[nodiscard]] bool needs_gradient() const override { return inner_->needs_gradient(); }
  [[nodiscard]] Measured measured() const override { return inner_->measured(); }
  /// Returns the kernels of `inner`, on every device.
  [[nodiscard]] KernelSupport kernels() const override { return inner_->kernels(); }
  [[nodiscard]] bool counts_bytes() const override { return inner_->counts_bytes(); }
  [[nodiscard]] float MeasureOn(const Queue& queue, const Piece& layer, CodecState* state,
                                const float* x) const override;
  std::int64_t EncodeOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                        std::uint8_t* to) const override;
  void DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                float divisor, float* y, std::int64_t before = 0) const override;
  void RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x, float* y,
               SegmentCounts* counts = nullptr) const override;
  [[nodiscard]] std::function<std::int64_t()> BytesOn(const SharedQueue& queue, const Piece& layer,
                                                      CodecState* state,
                                                      const float* x) const override;
  /// A state of two binary32 numbers per value; where inner has a state, of three and that state.
  [[nodiscard]] std::unique_ptr<CodecState> MakeState(std::int64_t size) const override;
  [[nodiscard]] bool by_rows() const override { return inner_->by_rows(); }
  [[nodiscard]] RowLayout LayoutOf(std::span<const std::int64_t> shape) const override {
    return inner_->LayoutOf(shape);
  }
  [[nodiscard]] SharedCodec ForRows(std::int64_t row) const override;
  [[nodiscard]] SharedCodec ForSums(const Format& format) const override;
  /// Null where inner's ForResults is null.
  [[nodiscard]] SharedCodec ForResults(const Format& format, int world) const override;

  [[nodiscard]] const SharedCodec& inner() const { return inner_; }

 private:
  /// Returns the piece with shift 0, for values that are already multiplied by 2^shift.
  static Piece Unshifted(Piece piece);
  struct State;
  class Compensated;

  SharedCodec inner_;
};

}  // namespace cpd
