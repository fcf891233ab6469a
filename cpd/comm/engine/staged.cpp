// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/engine/staged.h"

#include <algorithm>

namespace cpd {

std::shared_ptr<float> HostCopies::Fetch(std::size_t tensor, const float* values, std::int64_t n) {
  if (queue_->on_host()) return {std::shared_ptr<void>(), const_cast<float*>(values)};
  std::shared_ptr<float> copy = Allocate(n);
  Copy(tensor, copy.get(), values, n);
  return copy;
}

std::shared_ptr<float> HostCopies::Allocate(std::int64_t n) const {
  const auto free = [queue = queue_](float* memory) { queue->Release(MemoryKind::pinned, memory); };
  const auto bytes = n * static_cast<std::int64_t>(sizeof(float));
  return {static_cast<float*>(queue_->Allocate(MemoryKind::pinned, bytes)), free};
}

void HostCopies::Copy(std::size_t tensor, void* to, const void* from, std::int64_t n) {
  if (n == 0 || to == from) return;
  const auto bytes = n * static_cast<std::int64_t>(sizeof(float));
  queue_->Copy(to, from, bytes);
  bytes_.resize(std::max(bytes_.size(), tensor + 1));
  bytes_[tensor] += bytes;
}

}  // namespace cpd
