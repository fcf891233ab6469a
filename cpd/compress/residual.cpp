// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/residual.h"

#include <string>
#include <utility>

#include "cpd/spec/error.h"

namespace cpd {

void Residual::BeginOn(const SharedQueue& queue, const Piece& layer, const float* /*x*/) {
  begin_ = layer.begin;
  Leave();
  if (size_ == 0) return;
  MoveTo(queue->kind(), queue->device());
  queue->Follow(own_->stream());
  call_ = queue;
}

void Residual::Leave() noexcept {
  if (call_ != nullptr) call_->Precede(own_->stream());
  call_ = nullptr;
}

void Residual::Commit() {
  kept_.swap(next_);
  Leave();
}

std::vector<float> Residual::Kept() const {
  std::vector<float> kept(static_cast<std::size_t>(size_));
  if (own_ != nullptr) own_->Copy(kept.data(), kept_.get(), size_ * std::int64_t{sizeof(float)});
  return kept;
}

void Residual::MoveTo(Device kind, int device) {
  if (own_ != nullptr && own_->is_on(kind, device)) return;
  const SharedQueue queue = std::make_shared<const Queue>(kind, device);
  std::shared_ptr<float> kept = QueuedValues(queue, size_);
  std::shared_ptr<float> next = QueuedValues(queue, size_);
  const std::int64_t bytes = size_ * std::int64_t{sizeof(float)};
  queue->Clear(next.get(), bytes);
  if (own_ == nullptr) {
    queue->Clear(kept.get(), bytes);
  } else {
    queue->Copy(kept.get(), Kept().data(), bytes);
  }
  queue->Wait();  // so that no CUDA graph captures the call: replays would find no new errors
  kept_ = std::move(kept);
  next_ = std::move(next);
  own_ = queue;
}

void Residual::Restore(std::span<const float> kept) {
  if (static_cast<std::int64_t>(kept.size()) != size_) {
    throw Error("a residual of " + std::to_string(size_) + " values cannot be one of " +
                std::to_string(kept.size()));
  }
  if (size_ == 0) return;
  if (own_ == nullptr) MoveTo(Device::cpu, 0);
  own_->Copy(kept_.get(), kept.data(), size_ * std::int64_t{sizeof(float)});
}

}  // namespace cpd
