// SPDX-License-Identifier: Apache-2.0
//
// Error feedback: the errors of a layer's values in one call are added to them in the next.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "cpd/compress/codec.h"
#include "cpd/compress/on_gpu.h"

namespace cpd {

/// A residual in a GPU's memory: the errors of the values from a place on.
struct ResidualOnGpu {
  const float* kept = nullptr;
  float* next = nullptr;
};

/// The errors of a layer's values, times 2^shift as these were sent: `kept` after the last call
/// that succeeded, and `next` of the current call. A codec writes `next` for the pieces that it
/// encodes, the same each time, and nothing else. They are where the last call computed, on the CPU
/// or a GPU, and follow to where the next one does.
class CPD_API Residual : public CodecState {
 public:
  explicit Residual(std::int64_t size);
  ~Residual() override;

  void Begin(const Piece& layer, const float* x) override;
  void Commit() override;
  [[nodiscard]] std::vector<float> Kept() const override;
  void Restore(std::span<const float> kept) override;

  [[nodiscard]] std::int64_t size() const { return size_; }
  /// The errors of the layer's values from i on.
  [[nodiscard]] const float* kept(std::int64_t i) const { return kept_.get() + (i - begin_); }
  [[nodiscard]] float* next(std::int64_t i) { return next_.get() + (i - begin_); }
  /// The errors of values from number i of the slice on, for a call that works on this queue, until
  /// Commit or the next call of Begin, Kept or Restore.
  [[nodiscard]] ResidualOnGpu OnGpu(const SharedQueue& queue, std::int64_t i);

 private:
  struct Free {
    void operator()(float* values) const { std::free(values); }
  };
  using Values = std::unique_ptr<float[], Free>;  ///< aligned to a cache line
  struct Device;
  static Values Zeros(std::int64_t size);
  void ToHost();

  std::int64_t size_, begin_ = 0;
  Values kept_, next_;              // null while the errors are on a GPU
  std::unique_ptr<Device> device_;  // null while they are on the CPU
};

/// Values begin … end - 1 of a layer.
struct ValueRange {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

/// The values of the layer in the buckets that a piece touches; the piece alone where the layer's
/// size is not known.
CPD_API ValueRange BucketsAround(const Piece& piece, std::int64_t bucket);

}  // namespace cpd
