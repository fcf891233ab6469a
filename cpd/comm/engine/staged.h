// SPDX-License-Identifier: Apache-2.0
//
// Layers of a GPU in the host's memory, where codecs compute: what they are is copied before a
// call's work, and the results after it. The copies are counted, and reports have their bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpd/base/tensor.h"
#include "cpd/comm/engine/memory.h"

namespace cpd {

/// Pinned memory for n values.
std::shared_ptr<float> PinnedValues(const SharedQueue& queue, std::int64_t n);

class StagedLayers {
 public:
  /// Copies x; memory for the results is not set. All are contiguous fp32 on the queue's GPU.
  StagedLayers(SharedQueue queue, std::span<const TensorView> x, std::span<const TensorView> out);

  [[nodiscard]] std::span<const TensorView> x() const { return x_; }
  [[nodiscard]] std::span<const TensorView> out() const { return out_; }
  /// Copies the results to the layers on the GPU, and waits.
  void Return() const;
  /// The bytes that are copied for layer l, its results with it.
  [[nodiscard]] std::int64_t BytesOf(std::size_t l) const;

 private:
  /// A tensor of as many values in pinned memory.
  TensorView OnHost(const TensorView& layer);

  SharedQueue queue_;
  std::vector<std::shared_ptr<float>> memory_;
  std::vector<TensorView> x_, out_, on_gpu_;
};

}  // namespace cpd
