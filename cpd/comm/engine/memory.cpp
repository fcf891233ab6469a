// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/engine/memory.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "cpd/ops/reduce.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

class OnHost : public MessageMemory {
 public:
  [[nodiscard]] std::uint8_t* Allocate(std::int64_t bytes) const override {
    const std::int64_t whole = (bytes + kAlign - 1) / kAlign * kAlign;
    void* memory = std::aligned_alloc(kAlign, static_cast<std::size_t>(whole));
    if (memory == nullptr) throw NoMemory(static_cast<std::uint64_t>(whole), "a message");
    return static_cast<std::uint8_t*>(memory);
  }
  void Free(std::uint8_t* memory) const noexcept override { std::free(memory); }
  void Settle() const override {}
  void Write(std::uint8_t* to, const void* from, std::int64_t bytes) const override {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void Read(void* to, const std::uint8_t* from, std::int64_t bytes) const override {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  [[nodiscard]] std::vector<std::uint32_t> Checksums(
      std::span<const ByteRange> bytes) const override {
    std::vector<std::uint32_t> crcs;
    crcs.reserve(bytes.size());
    for (const ByteRange& one : bytes) crcs.push_back(Crc32c(0, one.count, one.data));
    return crcs;
  }
};

class Pinned final : public OnHost {
 public:
  explicit Pinned(SharedQueue queue) : queue_(std::move(queue)) {}
  [[nodiscard]] std::uint8_t* Allocate(std::int64_t bytes) const override {
    return static_cast<std::uint8_t*>(queue_->Allocate(MemoryKind::pinned, bytes));
  }
  void Free(std::uint8_t* memory) const noexcept override {
    queue_->Release(MemoryKind::pinned, memory);
  }
  void Settle() const override { queue_->Wait(); }

 private:
  SharedQueue queue_;
};

class OnDevice final : public MessageMemory {
 public:
  explicit OnDevice(SharedQueue queue) : queue_(std::move(queue)) {}
  [[nodiscard]] std::uint8_t* Allocate(std::int64_t bytes) const override {
    return static_cast<std::uint8_t*>(queue_->Allocate(MemoryKind::device, bytes));
  }
  void Free(std::uint8_t* memory) const noexcept override {
    queue_->Release(MemoryKind::device, memory);
  }
  [[nodiscard]] bool is_on_host() const override { return false; }
  void Settle() const override { queue_->Wait(); }
  void Write(std::uint8_t* to, const void* from, std::int64_t bytes) const override {
    queue_->Copy(to, from, bytes);
  }
  void Read(void* to, const std::uint8_t* from, std::int64_t bytes) const override {
    queue_->Copy(to, from, bytes);
  }
  [[nodiscard]] std::vector<std::uint32_t> Checksums(
      std::span<const ByteRange> bytes) const override {
    return queue_->Checksums(bytes);
  }

 private:
  SharedQueue queue_;
};

}  // namespace

MessageMemory::~MessageMemory() = default;

SharedMemory HostMemory() {
  static const SharedMemory memory = std::make_shared<OnHost>();
  return memory;
}
SharedMemory PinnedMemory(SharedQueue queue) { return std::make_shared<Pinned>(std::move(queue)); }
SharedMemory DeviceMemory(SharedQueue queue) {
  return std::make_shared<OnDevice>(std::move(queue));
}

}  // namespace cpd
