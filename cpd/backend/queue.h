// SPDX-License-Identifier: Apache-2.0
//
// Queue and Scratch, a stream on a device and memory there. Both throw MachineError where the
// backend is missing or reports an error, and a CPU's operations throw what is wrong.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpd/backend/device_memory.h"
#include "cpd/backend/faults.h"
#include "cpd/backend/registry.h"

namespace cpd {

/// Device memory, allocated and released in the order of work on a tensor's stream.
class Scratch {
 public:
  /// Throws Error for a fault of an earlier call on the device.
  Scratch(const TensorView& like, std::int64_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] void* data() const { return data_; }
  /// Copies from the host, and waits.
  void Upload(const void* from, std::int64_t bytes) const;

 private:
  const Backend& backend_;
  Launch launch_;
  void* data_ = nullptr;
};

/// A stream on one device, the operations that are queued on it, and their memory.
class CPD_API Queue {
 public:
  /// A stream of its own, on one device of a kind.
  Queue(Device kind, int device);
  /// A tensor's stream, which must live as long.
  explicit Queue(const TensorView& like);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  [[nodiscard]] const Backend& backend() const { return backend_; }
  [[nodiscard]] int device() const { return launch_.device; }
  [[nodiscard]] Device kind() const { return kind_; }
  [[nodiscard]] bool is_on(Device kind, int device) const {
    return kind == kind_ && device == launch_.device;
  }
  /// Returns whether the CPU computes, so that queued work is already done.
  [[nodiscard]] bool on_host() const { return kind_ == Device::cpu; }
  /// Returns whether faults that only values show are recorded (faults.h); else the call throws.
  [[nodiscard]] bool notes_faults() const { return !on_host(); }
  [[nodiscard]] void* stream() const { return launch_.stream; }
  /// Makes later work here wait for what is queued on `stream`.
  void Follow(void* stream) const;
  /// Makes later work on `stream` wait for the work queued here. No effect if the backend refuses;
  /// the next call on the device reports that.
  void Precede(void* stream) const noexcept;
  /// Waits until all that is queued here is done.
  void Wait() const;

  /// Returns the number of n bytes or values, passed between kernels, for which the caller must
  /// provide memory: none on the CPU, whose operations compute at once.
  [[nodiscard]] std::int64_t ForKernels(std::int64_t n) const { return on_host() ? 0 : n; }
  [[nodiscard]] void* Allocate(MemoryKind kind, std::int64_t bytes) const;
  void Release(MemoryKind kind, void* memory) const noexcept;
  /// Makes bytes in device memory zero.
  void Clear(void* memory, std::int64_t bytes) const;
  /// Copies between host and device, in either direction, and waits until it is done.
  void Copy(void* to, const void* from, std::int64_t bytes) const;
  /// The memory in which a kernel notes this fault (faults.h).
  [[nodiscard]] unsigned long long* NoteOf(const Fault& fault) const;
  /// After a call that may note a fault (EndChecked in faults.h).
  void EndChecked() const;

#define CPD_OP(name, Call) \
  void name(const Call& call) const { Check(backend_.name(launch_, call)); }
#include "cpd/backend/operations.def"

  /// The counts of each segment; waits for them.
  [[nodiscard]] std::vector<SegmentCounts> Count(const ReduceCall& call, bool casts) const;
  [[nodiscard]] std::vector<std::uint32_t> Checksums(std::span<const ByteRange> bytes) const;

 private:
  void Check(int status) const;

  Device kind_;
  const Backend& backend_;
  Launch launch_;
  bool owns_;
};

using SharedQueue = std::shared_ptr<const Queue>;

/// The CPU's queue.
CPD_API const SharedQueue& HostQueue();

/// Memory of a queue's device for n elements, for what is queued while this lives.
template <class T>
class QueuedArray {
 public:
  QueuedArray(const Queue& queue, std::int64_t n)
      : queue_(queue),
        data_(static_cast<T*>(
            queue.Allocate(MemoryKind::queued, n * static_cast<std::int64_t>(sizeof(T))))) {}
  ~QueuedArray() { queue_.Release(MemoryKind::queued, data_); }
  QueuedArray(const QueuedArray&) = delete;
  QueuedArray& operator=(const QueuedArray&) = delete;
  [[nodiscard]] T* data() const { return data_; }

 private:
  const Queue& queue_;
  T* data_;
};

/// Memory of the queue's device for n values. It is released after the work queued by then.
template <class T = float>
std::shared_ptr<T> QueuedValues(const SharedQueue& queue, std::int64_t n) {
  const auto free = [queue](T* memory) { queue->Release(MemoryKind::queued, memory); };
  const auto bytes = n * static_cast<std::int64_t>(sizeof(T));
  return {static_cast<T*>(queue->Allocate(MemoryKind::queued, bytes)), free};
}

}  // namespace cpd
