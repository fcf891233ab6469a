// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/residual.h"

#include <algorithm>
#include <string>

#include "cpd/base/huge_pages.h"
#include "cpd/base/parallel.h"
#include "cpd/spec/error.h"

namespace cpd {

namespace {

constexpr std::int64_t kGrain = std::int64_t{1} << 12;

}  // namespace

/// Both errors in a GPU's memory, with a queue of their own, as they outlive those of calls.
struct Residual::Device {
  Device(int device, const float* errors, std::int64_t size)
      : queue(std::make_shared<const cuda::Queue>(device)),
        bytes(size * static_cast<std::int64_t>(sizeof(float))),
        kept(Allocate()),
        next(Allocate()) {
    if (bytes > 0) queue->Copy(kept.get(), errors, bytes);
  }

  ResidualOnGpu For(const SharedQueue& call, std::int64_t i) {
    call->Follow(queue->stream());
    user = call;
    return {kept.get() + i, next.get() + i};
  }
  void Commit() {
    if (user != nullptr) queue->Follow(user->stream());
    user = nullptr;
    kept.swap(next);
  }
  /// Waits.
  void Read(std::span<float> to) const {
    if (user != nullptr) queue->Follow(user->stream());
    if (bytes > 0) queue->Copy(to.data(), kept.get(), bytes);
  }

  SharedQueue queue;
  std::int64_t bytes;
  std::shared_ptr<float> kept, next;
  SharedQueue user;  ///< of the call that may still work on them

 private:
  [[nodiscard]] std::shared_ptr<float> Allocate() const {
    const auto free = [queue = queue](float* memory) {
      queue->Release(cuda::MemoryKind::device, memory);
    };
    return {static_cast<float*>(queue->Allocate(cuda::MemoryKind::device, bytes)), free};
  }
};

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

Residual::Residual(std::int64_t size) : size_(size), kept_(Zeros(size)), next_(Zeros(size)) {}

Residual::~Residual() = default;

void Residual::Begin(const Piece& layer, const float* /*x*/) {
  ToHost();
  begin_ = layer.begin;
}

void Residual::Commit() {
  kept_.swap(next_);
  if (device_ != nullptr) device_->Commit();
}

std::vector<float> Residual::Kept() const {
  std::vector<float> kept(static_cast<std::size_t>(size_));
  if (device_ != nullptr) {
    device_->Read(kept);
  } else {
    std::copy_n(kept_.get(), size_, kept.data());
  }
  return kept;
}

void Residual::ToHost() {
  if (device_ == nullptr) return;
  Values kept = Zeros(size_);
  Values next = Zeros(size_);
  device_->Read({kept.get(), static_cast<std::size_t>(size_)});
  kept_ = std::move(kept);
  next_ = std::move(next);
  device_ = nullptr;
}

ResidualOnGpu Residual::OnGpu(const SharedQueue& queue, std::int64_t i) {
  if (device_ != nullptr && device_->queue->device() != queue->device()) ToHost();
  if (device_ == nullptr) {
    device_ = std::make_unique<Device>(queue->device(), kept_.get(), size_);
    kept_ = nullptr;
    next_ = nullptr;
  }
  return device_->For(queue, i);
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
