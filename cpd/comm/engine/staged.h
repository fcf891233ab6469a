// SPDX-License-Identifier: Apache-2.0
//
// Copies a device's tensors to the host and back, for codecs that have no kernels on the device.
// Counts the copied bytes for reports.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cpd/backend/queue.h"

namespace cpd {

/// Copies tensors between the queue's device and the host, and counts the bytes for each tensor. On
/// a CPU's queue nothing is copied.
class HostCopies {
 public:
  explicit HostCopies(SharedQueue queue) : queue_(std::move(queue)) {}

  /// Returns a copy of a tensor's n values in pinned memory; on a CPU's queue returns `values`
  /// itself.
  [[nodiscard]] std::shared_ptr<float> Fetch(std::size_t tensor, const float* values,
                                             std::int64_t n);
  /// Allocates pinned memory for n values.
  [[nodiscard]] std::shared_ptr<float> Allocate(std::int64_t n) const;
  /// Copies a tensor's n values between the host and the device, and waits.
  void Copy(std::size_t tensor, void* to, const void* from, std::int64_t n);
  /// Returns the number of bytes copied for a tensor, in both directions together.
  [[nodiscard]] std::int64_t bytes(std::size_t tensor) const {
    return tensor < bytes_.size() ? bytes_[tensor] : 0;
  }

 private:
  SharedQueue queue_;
  std::vector<std::int64_t> bytes_;
};

}  // namespace cpd
