// SPDX-License-Identifier: Apache-2.0
//
// Queue and Scratch: a stream on a device, and memory for work on a stream. Both throw MachineError
// if the backend is missing or reports an error. Operations on a CPU throw their own errors.
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
  /// Allocates `bytes` bytes on the device and stream of `like`. Throws Error if an earlier call on
  /// the device had a fault (faults.h).
  Scratch(const TensorView& like, std::int64_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] void* data() const { return data_; }
  /// Copies bytes from the host to the start of this memory, and waits until the copy is done.
  void Upload(const void* from, std::int64_t bytes) const;

 private:
  const Backend& backend_;
  Launch launch_;
  void* data_ = nullptr;
};

/// A stream on one device, with the operations that can be queued on it and with memory for them.
class CPD_API Queue {
 public:
  /// Opens a new stream on device number `device` of the kind of device `kind`.
  Queue(Device kind, int device);
  /// Uses the stream of a tensor. The stream must outlive this object.
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
  /// Returns whether the CPU computes. Queued work is then already done.
  [[nodiscard]] bool on_host() const { return kind_ == Device::cpu; }
  /// Returns whether kernels record faults (errors in values, faults.h) and a later call throws
  /// them. If false, the call itself throws.
  [[nodiscard]] bool notes_faults() const { return !on_host(); }
  [[nodiscard]] void* stream() const { return launch_.stream; }
  /// Makes work that is queued here from now on wait for the work already queued on `stream`.
  void Follow(void* stream) const;
  /// Makes work that is queued on `stream` from now on wait for the work already queued here. Does
  /// nothing if the backend refuses; the next call on the device then reports the error.
  void Precede(void* stream) const noexcept;
  /// Waits until all work queued here is done.
  void Wait() const;

  /// Returns the size of the memory that the caller must allocate for n bytes or values that one
  /// kernel writes and another reads. This is n on a device, and 0 on the CPU, whose operations
  /// compute at once.
  [[nodiscard]] std::int64_t ForKernels(std::int64_t n) const { return on_host() ? 0 : n; }
  [[nodiscard]] void* Allocate(MemoryKind kind, std::int64_t bytes) const;
  void Release(MemoryKind kind, void* memory) const noexcept;
  /// Sets bytes in device memory to zero.
  void Clear(void* memory, std::int64_t bytes) const;
  /// Copies between host and device, in either direction, and waits until it is done.
  void Copy(void* to, const void* from, std::int64_t bytes) const;
  /// Returns the address at which kernels record the index of an element with `fault` (faults.h).
  [[nodiscard]] unsigned long long* NoteOf(const Fault& fault) const;
  /// Must follow the work of a call that may have recorded a fault (faults.h). If CPD_CHECK=sync is
  /// set, waits and throws the fault's error.
  void EndChecked() const;

#define CPD_OP(name, Call) \
  void name(const Call& call) const { Check(backend_.name(launch_, call)); }
#include "cpd/backend/operations.def"

  /// Returns the counts of each segment (a range of a layer's values). Waits for them.
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

/// Memory on a queue's device for n elements. Work that uses the memory must be queued while this
/// object exists.
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

/// Allocates memory on the queue's device for n values. When the last reference is gone, the
/// memory is released as soon as the work queued so far is done.
template <class T = float>
std::shared_ptr<T> QueuedValues(const SharedQueue& queue, std::int64_t n) {
  const auto free = [queue](T* memory) { queue->Release(MemoryKind::queued, memory); };
  const auto bytes = n * static_cast<std::int64_t>(sizeof(T));
  return {static_cast<T*>(queue->Allocate(MemoryKind::queued, bytes)), free};
}

}  // namespace cpd
