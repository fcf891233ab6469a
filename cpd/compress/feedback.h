// SPDX-License-Identifier: Apache-2.0
//
// Adds error feedback to a codec without error feedback. The error of a value in one call is added
// to that value in the next call.
#pragma once

#include "cpd/compress/pieces.h"
#include "cpd/spec/rounding.h"

namespace cpd {

class CodecWords;

/// Encodes v = x * 2^shift + residual, in binary32, with `inner`. The message consists of inner's
/// bytes. The next residual is v - decoded, rounded once to binary32, or 0 if that difference is
/// not finite. If inner encodes an owner's results again, the results have a separate residual.
class CPD_API Feedback final : public Codec {
 public:
  /// Throws Error if inner itself feeds errors back, or uses a scale that ranks share: ranks agree
  /// on that scale before a layer's residual is known.
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
  /// Returns true, so APS does not choose shifts. A layer's residuals are multiplied by 2^shift,
  /// and are right only for calls with the same shift.
  [[nodiscard]] bool has_scales() const override { return true; }
  [[nodiscard]] bool Freezes(std::int64_t n) const override { return inner_->Freezes(n); }
  [[nodiscard]] bool needs_gradient() const override { return inner_->needs_gradient(); }
  [[nodiscard]] Measured measured() const override { return inner_->measured(); }
  /// Returns the kernel support of `inner`.
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
  /// Returns a state with two binary32 errors for each value: one of the last call and one of this
  /// call. If inner has a state, the result also holds inner's state and each value plus its error.
  [[nodiscard]] std::unique_ptr<CodecState> MakeState(std::int64_t size) const override;
  [[nodiscard]] bool by_rows() const override { return inner_->by_rows(); }
  [[nodiscard]] RowLayout LayoutOf(std::span<const std::int64_t> shape) const override {
    return inner_->LayoutOf(shape);
  }
  [[nodiscard]] SharedCodec ForRows(std::int64_t row) const override;
  [[nodiscard]] SharedCodec ForSums(const Format& format) const override;
  /// Returns null if inner's ForResults returns null.
  [[nodiscard]] SharedCodec ForResults(const Format& format, int world) const override;

  [[nodiscard]] const SharedCodec& inner() const { return inner_; }

 private:
  /// Returns a copy of `piece` with shift 0, for values that are already multiplied by 2^shift.
  static Piece Unshifted(Piece piece);
  struct State;
  class Compensated;

  SharedCodec inner_;
};

}  // namespace cpd
