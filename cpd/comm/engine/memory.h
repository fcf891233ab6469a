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
  static constexpr std::int64_t kAlign = 64;  ///< alignment of what Allocate returns

  MessageMemory() = default;
  MessageMemory(const MessageMemory&) = delete;
  MessageMemory& operator=(const MessageMemory&) = delete;
  virtual ~MessageMemory();

  [[nodiscard]] virtual std::uint8_t* Allocate(std::int64_t bytes) const = 0;
  virtual void Free(std::uint8_t* memory) const noexcept = 0;
  /// Whether the host reads and writes it as its own.
  [[nodiscard]] virtual bool is_on_host() const { return true; }
  /// Waits until the queued work on messages is done.
  virtual void Settle() const = 0;
  /// Copies from and to the host; the messages must be settled.
  virtual void Write(std::uint8_t* to, const void* from, std::int64_t bytes) const = 0;
  virtual void Read(void* to, const std::uint8_t* from, std::int64_t bytes) const = 0;
  /// The CRC-32C of each range of bytes.
  [[nodiscard]] virtual std::vector<std::uint32_t> Checksums(
      std::span<const ByteRange> bytes) const = 0;
};

using SharedMemory = std::shared_ptr<const MessageMemory>;

CPD_API SharedMemory HostMemory();
/// Host memory that the queue's kernels can read and write.
SharedMemory PinnedMemory(SharedQueue queue);
SharedMemory DeviceMemory(SharedQueue queue);

}  // namespace cpd
