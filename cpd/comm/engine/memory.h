// SPDX-License-Identifier: Apache-2.0
//
// The memory of messages, and how the host reads and writes it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpd/backend/queue.h"

namespace cpd {

class CPD_API MessageMemory {
 public:
  static constexpr std::int64_t kAlign = 64;  ///< sizes are multiples of it

  /// Memory that the queue's work can read and write: on the host (MemoryKind::pinned), or the
  /// device's.
  MessageMemory(SharedQueue queue, MemoryKind kind);

  [[nodiscard]] std::uint8_t* Allocate(std::int64_t bytes) const {
    return static_cast<std::uint8_t*>(queue_->Allocate(kind_, bytes));
  }
  void Free(std::uint8_t* memory) const noexcept { queue_->Release(kind_, memory); }
  /// Returns whether the host reads and writes it as its own.
  [[nodiscard]] bool is_on_host() const { return kind_ == MemoryKind::pinned; }
  /// Waits until the queued work on messages is done.
  void Settle() const { queue_->Wait(); }
  /// Copies from and to the host; the messages must be settled.
  void Write(std::uint8_t* to, const void* from, std::int64_t bytes) const {
    reader_->Copy(to, from, bytes);
  }
  void Read(void* to, const std::uint8_t* from, std::int64_t bytes) const {
    reader_->Copy(to, from, bytes);
  }
  /// The CRC-32C of each range of bytes.
  [[nodiscard]] std::vector<std::uint32_t> Checksums(std::span<const ByteRange> bytes) const {
    return reader_->Checksums(bytes);
  }

 private:
  SharedQueue queue_;
  SharedQueue reader_;  ///< the CPU's for memory on the host
  MemoryKind kind_;
};

using SharedMemory = std::shared_ptr<const MessageMemory>;

/// The CPU's memory for messages.
CPD_API SharedMemory HostMemory();

}  // namespace cpd
