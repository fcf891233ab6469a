// SPDX-License-Identifier: Apache-2.0
//
// Copies of a device's tensors in the host's memory, for codecs that the device has no kernels of.
// Reports have the bytes copied.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cpd/backend/queue.h"

namespace cpd {

/// Copies between the queue's device and the host, and their bytes by tensor. On a CPU's queue
/// nothing is copied.
class HostCopies {
 public:
  explicit HostCopies(SharedQueue queue) : queue_(std::move(queue)) {}

  /// A tensor's n values in pinned memory; on a CPU's queue these values themselves.
  [[nodiscard]] std::shared_ptr<float> Fetch(std::size_t tensor, const float* values,
                                             std::int64_t n);
  /// Pinned memory for n values.
  [[nodiscard]] std::shared_ptr<float> Allocate(std::int64_t n) const;
  /// Copies a tensor's n values between the host and the device, and waits.
  void Copy(std::size_t tensor, void* to, const void* from, std::int64_t n);
  /// The bytes that were copied for a tensor, in both directions.
  [[nodiscard]] std::int64_t bytes(std::size_t tensor) const {
    return tensor < bytes_.size() ? bytes_[tensor] : 0;
  }

 private:
  SharedQueue queue_;
  std::vector<std::int64_t> bytes_;
};

}  // namespace cpd
