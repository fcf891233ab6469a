// SPDX-License-Identifier: Apache-2.0
//
// The memory of messages, and how the host reads and writes that memory.
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

  /// Creates memory that work on `queue` can read and write: on the host (MemoryKind::pinned) or on
  /// the device.
  MessageMemory(SharedQueue queue, MemoryKind kind);

  [[nodiscard]] std::uint8_t* Allocate(std::int64_t bytes) const {
    return static_cast<std::uint8_t*>(queue_->Allocate(kind_, bytes));
  }
  void Free(std::uint8_t* memory) const noexcept { queue_->Release(kind_, memory); }
  /// Returns whether the memory is on the host.
  [[nodiscard]] bool is_on_host() const { return kind_ == MemoryKind::pinned; }
  /// Waits until the queued work on messages is done.
  void Settle() const { queue_->Wait(); }
  /// Write copies bytes from the host to a message, and Read from a message to the host. Call
  /// Settle before if queued work may still use the message.
  void Write(std::uint8_t* to, const void* from, std::int64_t bytes) const {
    reader_->Copy(to, from, bytes);
  }
  void Read(void* to, const std::uint8_t* from, std::int64_t bytes) const {
    reader_->Copy(to, from, bytes);
  }
  /// Returns the CRC-32C of each range of bytes.
  [[nodiscard]] std::vector<std::uint32_t> Checksums(std::span<const ByteRange> bytes) const {
    return reader_->Checksums(bytes);
  }

 private:
  SharedQueue queue_;
  SharedQueue reader_;  ///< the CPU's for memory on the host
  MemoryKind kind_;
};

using SharedMemory = std::shared_ptr<const MessageMemory>;

/// Returns memory for messages in the CPU's memory.
CPD_API SharedMemory HostMemory();

}  // namespace cpd
