// SPDX-License-Identifier: Apache-2.0
//
// Error feedback: the errors of a layer's values in one call are added to them in the next.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpd/compress/pieces.h"

namespace cpd {

/// The errors of a layer's values, times 2^shift as the values were sent: `kept` after the last
/// call that succeeded, and `next` of the current call. A codec writes `next` for the pieces that
/// it encodes, the same each time, and nothing else. Errors live on the last call's device and are
/// copied if the next call uses another. Their memory outlives the queues of calls and so has its
/// own queue: BeginOn makes the call wait for that queue. Free, Commit or the next BeginOn makes
/// that queue wait for the call, whose queue is not used from then on.
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
  /// The errors of the layer's values from i on, after Begin, in the memory of its device.
  [[nodiscard]] const float* kept(std::int64_t i) const { return kept_.get() + (i - begin_); }
  [[nodiscard]] float* next(std::int64_t i) { return next_.get() + (i - begin_); }

 private:
  void MoveTo(Device kind, int device);
  void Leave() noexcept;

  // There is no memory before the first call, which finds zeros.
  std::int64_t size_, begin_ = 0;
  SharedQueue own_;
  std::shared_ptr<float> kept_, next_;
  SharedQueue call_;  // of the call that has begun
};

}  // namespace cpd
