// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/on_gpu.h"

#include <stdexcept>

namespace cpd {

LayerOnGpu::~LayerOnGpu() = default;
CodecOnGpu::~CodecOnGpu() = default;

void LayerOnGpu::Encode(const Piece& /*piece*/, std::uint8_t* /*to*/) const {
  throw std::logic_error("the codec has no kernels that encode");
}
std::function<std::int64_t()> LayerOnGpu::CountBytes(const Piece& /*layer*/) const {
  throw std::logic_error("the codec has no kernels that count bytes");
}
void CodecOnGpu::Decode(const Queue& /*queue*/, const std::uint8_t* /*bytes*/, std::int64_t /*n*/,
                        int /*shift*/, float /*divisor*/, float* /*y*/,
                        std::int64_t /*before*/) const {
  throw std::logic_error("the codec has no kernels that decode");
}

std::shared_ptr<float> QueuedValues(const SharedQueue& queue, std::int64_t n) {
  const auto free = [queue](float* memory) { queue->Release(MemoryKind::queued, memory); };
  const auto bytes = n * static_cast<std::int64_t>(sizeof(float));
  return {static_cast<float*>(queue->Allocate(MemoryKind::queued, bytes)), free};
}

}  // namespace cpd
