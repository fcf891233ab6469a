// SPDX-License-Identifier: Apache-2.0
//
// Error feedback: what earlier calls lost of a layer is added to what the next one sends.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "cpd/compress/codec.h"

namespace cpd {

/// The errors of a layer's values, times 2^shift as they were sent: those of the calls that have
/// succeeded, and beside them those of the call that is under way. A codec writes the latter for
/// the pieces that it encodes, the same each time, and nothing else.
class CPD_API Residual : public CodecState {
 public:
  explicit Residual(std::int64_t size);

  void Begin(const Piece& layer, const float* x) override;
  void Commit() override;
  [[nodiscard]] std::vector<float> Kept() const override;
  void Restore(std::span<const float> kept) override;

  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Of the layer's values from i on.
  [[nodiscard]] const float* kept(std::int64_t i) const { return kept_.get() + (i - begin_); }
  [[nodiscard]] float* next(std::int64_t i) { return next_.get() + (i - begin_); }

 private:
  struct Free {
    void operator()(float* values) const { std::free(values); }
  };
  using Values = std::unique_ptr<float[], Free>;  ///< on a cache line's begin
  static Values Zeros(std::int64_t size);

  std::int64_t size_, begin_ = 0;
  Values kept_, next_;
};

/// Values begin … end - 1 of a layer.
struct ValueRange {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

/// The buckets that a piece touches, as much of them as is there: all of the layer's, or where its
/// size is not known the piece alone.
CPD_API ValueRange BucketsAround(const Piece& piece, std::int64_t bucket);

}  // namespace cpd
