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

/// A residual in a GPU's memory: two binary32 numbers per value, and a queue of their own, as they
/// outlive those of calls.
struct ResidualMemory {
  SharedQueue queue;
  std::shared_ptr<float> kept, next;
};

/// What a call's queue may use of a residual in a GPU's memory, from value number i on, as long as
/// this lives; later calls wait for what is queued there by then.
class CPD_API ResidualOnGpu {
 public:
  ResidualOnGpu(const ResidualMemory& memory, SharedQueue call, std::int64_t i);
  ResidualOnGpu(const ResidualOnGpu&) = delete;
  ResidualOnGpu& operator=(const ResidualOnGpu&) = delete;
  ~ResidualOnGpu();
  [[nodiscard]] const float* kept() const { return memory_.kept.get() + begin_; }
  [[nodiscard]] float* next() const { return memory_.next.get() + begin_; }

 private:
  ResidualMemory memory_;
  SharedQueue call_;
  std::int64_t begin_;
};

/// The errors of a layer's values, times 2^shift as these were sent: `kept` after the last call
/// that succeeded, and `next` of the current call. A codec writes `next` for the pieces that it
/// encodes, the same each time, and nothing else. They are in the memory of the CPU or the GPU that
/// the last call computed on, and move to that of the next.
class CPD_API Residual : public CodecState {
 public:
  explicit Residual(std::int64_t size) : size_(size) {}

  void Begin(const Piece& layer, const float* x) override;
  void Commit() override;
  [[nodiscard]] std::vector<float> Kept() const override;
  void Restore(std::span<const float> kept) override;

  [[nodiscard]] std::int64_t size() const { return size_; }
  /// The errors of the layer's values from i on, after Begin.
  [[nodiscard]] const float* kept(std::int64_t i) const { return kept_.get() + (i - begin_); }
  [[nodiscard]] float* next(std::int64_t i) { return next_.get() + (i - begin_); }
  /// The errors of the slice's values from number i on, in place of Begin, for a call on a GPU.
  [[nodiscard]] std::unique_ptr<const ResidualOnGpu> OnGpu(const SharedQueue& call, std::int64_t i);

 private:
  struct Free {
    void operator()(float* values) const { std::free(values); }
  };
  using Values = std::unique_ptr<float[], Free>;  ///< aligned to a cache line
  static Values Zeros(std::int64_t size);
  void ToHost();
  void ToGpu(const Queue& call);
  void ReadGpu(float* kept) const;

  // Before the first call, which finds zeros, there is no memory.
  std::int64_t size_, begin_ = 0;
  Values kept_, next_;    // null while the errors are on a GPU
  ResidualMemory there_;  // null while they are on the CPU
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
