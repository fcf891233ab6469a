// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/engine/staged.h"

#include <utility>

namespace cpd {
namespace {

std::int64_t BytesOf(const TensorView& layer) {
  return layer.size() * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace

std::shared_ptr<float> PinnedValues(const SharedQueue& queue, std::int64_t n) {
  const auto free = [queue](float* memory) { queue->Release(MemoryKind::pinned, memory); };
  const auto bytes = n * static_cast<std::int64_t>(sizeof(float));
  return {static_cast<float*>(queue->Allocate(MemoryKind::pinned, bytes)), free};
}

StagedLayers::StagedLayers(SharedQueue queue, std::span<const TensorView> x,
                           std::span<const TensorView> out)
    : queue_(std::move(queue)), on_device_(out.begin(), out.end()) {
  for (const TensorView& layer : x) {
    x_.push_back(OnHost(layer));
    if (layer.size() > 0) queue_->Copy(x_.back().data, layer.data, cpd::BytesOf(layer));
  }
  for (const TensorView& layer : out) out_.push_back(OnHost(layer));
}

TensorView StagedLayers::OnHost(const TensorView& layer) {
  memory_.push_back(PinnedValues(queue_, layer.size()));
  TensorView view = layer;
  view.data = memory_.back().get();
  view.device = Device::cpu;
  view.stream = nullptr;
  return view;
}

void StagedLayers::Return() const {
  for (std::size_t l = 0; l < out_.size(); ++l) {
    if (out_[l].size() == 0) continue;
    queue_->Copy(on_device_[l].data, out_[l].data, cpd::BytesOf(out_[l]));
  }
}

std::int64_t StagedLayers::BytesOf(std::size_t l) const {
  return cpd::BytesOf(x_[l]) + (out_.empty() ? 0 : cpd::BytesOf(out_[l]));
}

}  // namespace cpd
