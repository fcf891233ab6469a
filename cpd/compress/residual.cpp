// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/residual.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cpd/base/huge_pages.h"
#include "cpd/base/parallel.h"
#include "cpd/spec/error.h"

namespace cpd {

namespace {

constexpr std::int64_t kGrain = std::int64_t{1} << 12;
constexpr std::int64_t kSize = sizeof(float);

}  // namespace

ResidualOnGpu::ResidualOnGpu(const ResidualMemory& memory, SharedQueue call, std::int64_t i)
    : memory_(memory), call_(std::move(call)), begin_(i) {
  call_->Follow(memory_.queue->stream());
}
ResidualOnGpu::~ResidualOnGpu() { call_->Precede(memory_.queue->stream()); }

Residual::Values Residual::Zeros(std::int64_t size) {
  constexpr std::size_t kLine = 64;
  const std::size_t bytes = (static_cast<std::size_t>(size) * sizeof(float) / kLine + 1) * kLine;
  Values values(static_cast<float*>(std::aligned_alloc(kLine, bytes)));
  if (values == nullptr) throw NoMemory(bytes, "a residual");
  AdviseHugePages(values.get(), bytes);
  // Written first by the threads that encode, so that the pages are near them.
  parallel_for(size, kGrain, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    std::fill(values.get() + begin, values.get() + end, 0.0F);
  });
  return values;
}

void Residual::Begin(const Piece& layer, const float* /*x*/) {
  ToHost();
  begin_ = layer.begin;
}

void Residual::Commit() {
  kept_.swap(next_);
  there_.kept.swap(there_.next);
}

std::vector<float> Residual::Kept() const {
  std::vector<float> kept(static_cast<std::size_t>(size_));
  if (kept_ != nullptr) std::copy_n(kept_.get(), size_, kept.data());
  if (there_.queue != nullptr) ReadGpu(kept.data());
  return kept;
}

void Residual::ReadGpu(float* kept) const {
  if (size_ > 0) there_.queue->Copy(kept, there_.kept.get(), size_ * kSize);
}

void Residual::ToHost() {
  if (kept_ != nullptr) return;
  Values kept = Zeros(size_);
  if (there_.queue != nullptr) ReadGpu(kept.get());
  there_ = {};
  next_ = Zeros(size_);
  kept_ = std::move(kept);
}

void Residual::ToGpu(const Queue& call) {
  if (there_.queue != nullptr && !there_.queue->is_on(call.kind(), call.device())) ToHost();
  if (there_.queue != nullptr) return;
  const SharedQueue queue = std::make_shared<const Queue>(call.kind(), call.device());
  ResidualMemory memory{queue, QueuedValues(queue, size_), QueuedValues(queue, size_)};
  if (kept_ == nullptr) {
    queue->Clear(memory.kept.get(), size_ * kSize);
    queue->Wait();  // so that no CUDA graph captures the call: replays would find no new errors
  } else if (size_ > 0) {
    queue->Copy(memory.kept.get(), kept_.get(), size_ * kSize);
  }
  there_ = std::move(memory);
  kept_ = nullptr;
  next_ = nullptr;
}

std::unique_ptr<const ResidualOnGpu> Residual::OnGpu(const SharedQueue& call, std::int64_t i) {
  ToGpu(*call);
  return std::make_unique<const ResidualOnGpu>(there_, call, i);
}

void Residual::Restore(std::span<const float> kept) {
  if (static_cast<std::int64_t>(kept.size()) != size_) {
    throw Error("a residual of " + std::to_string(size_) + " values cannot be one of " +
                std::to_string(kept.size()));
  }
  ToHost();
  std::ranges::copy(kept, kept_.get());
}

ValueRange BucketsAround(const Piece& piece, std::int64_t bucket) {
  const std::int64_t end = piece.begin + piece.n;
  if (piece.size == 0) return {piece.begin, end};
  const std::int64_t whole = (end + bucket - 1) / bucket * bucket;
  return {piece.begin / bucket * bucket, std::min(piece.size, whole)};
}

}  // namespace cpd
