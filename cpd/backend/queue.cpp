// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/queue.h"

#include "cpd/base/fast_paths.h"

namespace cpd {

Scratch::Scratch(const TensorView& like, std::int64_t bytes)
    : backend_(BackendOf(like.device)), launch_{like.device_index, like.stream} {
  if (!like.on_host()) RaiseFaults(backend_, launch_.device);
  CheckStatus(backend_, backend_.allocate(launch_, MemoryKind::queued, bytes, &data_));
}
Scratch::~Scratch() { static_cast<void>(backend_.release(launch_, MemoryKind::queued, data_)); }
void Scratch::Upload(const void* from, std::int64_t bytes) const {
  CheckStatus(backend_, backend_.copy(launch_, data_, from, bytes));
}

Queue::Queue(Device kind, int device)
    : kind_(kind),
      backend_(BackendOf(kind)),
      launch_{device, nullptr, EnabledFastPaths()},
      owns_(true) {
  Check(backend_.open_stream(device, &launch_.stream));
}
Queue::Queue(const TensorView& like)
    : kind_(like.device),
      backend_(BackendOf(like.device)),
      launch_{like.device_index, like.stream, EnabledFastPaths()},
      owns_(false) {}
Queue::~Queue() {
  if (owns_) static_cast<void>(backend_.close_stream(launch_.device, launch_.stream));
}

void Queue::Follow(void* stream) const {
  if (stream != launch_.stream) Check(backend_.order({launch_.device, stream}, launch_.stream));
}
void Queue::Precede(void* stream) const noexcept {
  if (stream != launch_.stream) static_cast<void>(backend_.order(launch_, stream));
}
void Queue::Wait() const { Check(backend_.wait(launch_)); }

void* Queue::Allocate(MemoryKind kind, std::int64_t bytes) const {
  void* memory = nullptr;
  Check(backend_.allocate(launch_, kind, bytes, &memory));
  return memory;
}
void Queue::Release(MemoryKind kind, void* memory) const noexcept {
  static_cast<void>(backend_.release(launch_, kind, memory));
}
void Queue::Clear(void* memory, std::int64_t bytes) const {
  Check(backend_.clear(launch_, memory, bytes));
}
void Queue::Copy(void* to, const void* from, std::int64_t bytes) const {
  Check(backend_.copy(launch_, to, from, bytes));
}
unsigned long long* Queue::NoteOf(const Fault& fault) const {
  return cpd::NoteOf(backend_, launch_, fault);
}
void Queue::EndChecked() const { cpd::EndChecked(backend_, launch_); }
void Queue::Check(int status) const { CheckStatus(backend_, status); }

std::vector<SegmentCounts> Queue::Count(const ReduceCall& call, bool casts) const {
  std::vector<SegmentCounts> counts(static_cast<std::size_t>(call.segment_count));
  count({call, casts, counts.data()});
  return counts;
}
std::vector<std::uint32_t> Queue::Checksums(std::span<const ByteRange> bytes) const {
  std::vector<std::uint32_t> crcs(bytes.size());
  checksums({static_cast<int>(bytes.size()), bytes.data(), crcs.data()});
  return crcs;
}

const SharedQueue& HostQueue() {
  static const SharedQueue queue = std::make_shared<const Queue>(Device::cpu, 0);
  return queue;
}

void ReleaseUnusedMemory(Device kind, int device) {
  const Backend& backend = BackendOf(kind);
  CheckStatus(backend, backend.release_unused(device));
}

void CheckDevice(Device kind, int device) { RaiseFaults(BackendOf(kind), device); }

}  // namespace cpd
