// SPDX-License-Identifier: Apache-2.0
//
// Copies of a device's layers in the host's memory, where codecs without kernels compute. The
// layers are copied before a call's work, the results after it. Reports have the bytes copied.
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
  /// Copies x; memory for the results is not set. All are contiguous fp32 on the queue's device.
  StagedLayers(SharedQueue queue, std::span<const TensorView> x, std::span<const TensorView> out);

  [[nodiscard]] std::span<const TensorView> x() const { return x_; }
  [[nodiscard]] std::span<const TensorView> out() const { return out_; }
  /// Copies the results to the layers on the device, and waits.
  void Return() const;
  /// The bytes that are copied for layer l, its results with it.
  [[nodiscard]] std::int64_t BytesOf(std::size_t l) const;

 private:
  /// A tensor of as many values in pinned memory.
  TensorView OnHost(const TensorView& layer);

  SharedQueue queue_;
  std::vector<std::shared_ptr<float>> memory_;
  std::vector<TensorView> x_, out_, on_device_;
};

}  // namespace cpd
