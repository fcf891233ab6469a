// SPDX-License-Identifier: Apache-2.0
//
// Error feedback: the errors of a layer's values in one call are added to the values in the next
// call.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpd/compress/pieces.h"

namespace cpd {

/// The errors of a layer's values, multiplied by 2^shift like the values that are sent. `kept` has
/// the errors after the last call that succeeded, and `next` has the errors of the current call. A
/// codec writes `next` only for the values that it encodes. If it encodes a value again, it writes
/// the same number.
///
/// Errors are stored on the last call's device (8 bytes for each value), and are copied if the next
/// call uses another device. The memory of the errors outlives the queues of calls, so it has its
/// own queue. BeginOn makes the call wait for that queue. Free, Commit or the next BeginOn makes
/// that queue wait for the call, and the call's queue is not used afterwards.
class CPD_API Residual : public CodecState {
 public:
  explicit Residual(std::int64_t size) : size_(size) {}
  ~Residual() override { Leave(); }

  void BeginOn(const SharedQueue& queue, const Piece& layer, const float* x) override;
  void Free() override { Leave(); }
  void Commit() override;
  [[nodiscard]] std::vector<float> Kept() const override;
  void Restore(std::span<const float> kept) override;

  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Returns the errors of the layer's values from value i on, in the memory of the layer's device.
  /// Call Begin first.
  [[nodiscard]] const float* kept(std::int64_t i) const { return kept_.get() + (i - begin_); }
  [[nodiscard]] float* next(std::int64_t i) { return next_.get() + (i - begin_); }

 private:
  void MoveTo(Device kind, int device);
  void Leave() noexcept;

  // No memory is allocated before the first call, which finds residuals of zero.
  std::int64_t size_, begin_ = 0;
  SharedQueue own_;
  std::shared_ptr<float> kept_, next_;
  SharedQueue call_;  // of the call that has begun
};

}  // namespace cpd
