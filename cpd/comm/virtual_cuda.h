// SPDX-License-Identifier: Apache-2.0
//
// The sums of virtual ranks (VirtualReduce) whose layers are on a GPU: contributions are cast and
// folded there, one rank after the other. The host waits only for what it reads: largest
// magnitudes, and counts at the end.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpd/backend/cuda.h"
#include "cpd/comm/reduction.h"

namespace cpd {

class VirtualSumsOnGpu {
 public:
  /// Throws Error for a spec with a codec.
  VirtualSumsOnGpu(const Reduction& reduction, const std::vector<std::int64_t>& sizes, int device);
  ~VirtualSumsOnGpu();
  VirtualSumsOnGpu(const VirtualSumsOnGpu&) = delete;
  VirtualSumsOnGpu& operator=(const VirtualSumsOnGpu&) = delete;

  [[nodiscard]] int device() const { return queue_->device(); }
  /// The largest finite |x| of a rank's layer as it enters the reduction.
  [[nodiscard]] float Largest(const TensorView& x) const;
  /// Where a contribution goes: as a member of its unit, which is visited.
  struct Turn {
    std::int64_t rank = 0, member = 0, unit = 0, visit = 0;
    bool counts = false;  ///< its losses; each rank's once
  };
  void Contribute(int layer, const TensorView& x, int shift, const Turn& turn);
  /// Adds the sums of the turn's group to those across groups.
  void EndGroup(const Turn& turn);
  /// Writes a layer's result; returns how many of its values are NaN or infinite.
  std::int64_t Result(int layer, int shift, const TensorView& out);
  [[nodiscard]] Losses losses(int layer) const;

 private:
  struct Layer;

  [[nodiscard]] cuda::VirtualCall CallOf(const Layer& layer, const Level& level,
                                         float* planes) const;
  void TakeAcross(int layer, std::int64_t visit, float* terms);
  [[nodiscard]] std::shared_ptr<float> Floats(std::int64_t n) const;

  const Reduction& reduction_;
  std::shared_ptr<const cuda::Queue> queue_;
  std::vector<Layer> layers_;
};

}  // namespace cpd
