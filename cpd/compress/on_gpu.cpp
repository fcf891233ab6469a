// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/on_gpu.h"

namespace cpd {

LayerOnGpu::~LayerOnGpu() = default;
CodecOnGpu::~CodecOnGpu() = default;

std::shared_ptr<float> QueuedValues(const SharedQueue& queue, std::int64_t n) {
  const auto free = [queue](float* memory) { queue->Release(cuda::MemoryKind::queued, memory); };
  const auto bytes = n * static_cast<std::int64_t>(sizeof(float));
  return {static_cast<float*>(queue->Allocate(cuda::MemoryKind::queued, bytes)), free};
}

}  // namespace cpd
