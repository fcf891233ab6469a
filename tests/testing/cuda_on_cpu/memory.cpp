// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/cuda_on_cpu/memory.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/testing/cuda_on_cpu/block.h"

namespace cuda_on_cpu {
namespace {

constexpr std::size_t kAddresses = std::size_t{1} << 36;
constexpr std::size_t kDeviceBytes = std::size_t{4} << 30;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kZone = 256;  ///< also what a piece is aligned to
constexpr std::uint8_t kNew = 0xA5;
constexpr std::uint8_t kBehind = 0x5A;
constexpr std::uint8_t kFreed = 0xDD;

std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

Memory& Memory::Get() {
  static auto& memory = *new Memory;
  return memory;
}

Memory::Memory()
    : base_(static_cast<std::uint8_t*>(mmap(nullptr, kAddresses, PROT_NONE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
  if (base_ == MAP_FAILED) fail("no addresses for the device's memory");
}

void Memory::Protect(int how) const {
  if (used_ != 0 && mprotect(base_, used_, how) != 0) fail("the device's memory cannot be opened");
}

/// Where a piece of so many bytes goes; null where there is no place.
std::uint8_t* Memory::Place(std::size_t whole) {
  if (const auto found = free_.find(whole); found != free_.end()) {
    std::uint8_t* place = found->second;
    free_.erase(found);
    return place;
  }
  if (whole > kDeviceBytes - used_) return nullptr;
  std::uint8_t* place = base_ + used_;
  used_ += rounded_up(whole, kPage);
  ASAN_POISON_MEMORY_REGION(place, rounded_up(whole, kPage));
  return place;
}

void* Memory::Allocate(std::size_t bytes) {
  if (bytes > kDeviceBytes) return nullptr;
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  const std::size_t whole = rounded_up(bytes, kZone) + kZone;
  std::uint8_t* place = Place(whole);
  if (place == nullptr) return nullptr;
  taken_[place] = {bytes, whole};
  Protect(PROT_READ | PROT_WRITE);
  ASAN_UNPOISON_MEMORY_REGION(place, whole);
  std::memset(place, kNew, bytes);
  std::memset(place + bytes, kBehind, whole - bytes);
  ASAN_POISON_MEMORY_REGION(place + bytes, whole - bytes);
  if (open_ == 0) Protect(PROT_NONE);
  return place;
}

void Memory::Free(void* memory) {
  if (memory == nullptr) return;
  const Access access;
  auto* place = static_cast<std::uint8_t*>(memory);
  const auto found = taken_.find(place);
  if (found == taken_.end()) fail("memory is freed that is not allocated");
  const auto [bytes, whole] = found->second;
  ASAN_UNPOISON_MEMORY_REGION(place, whole);
  const auto changed =
      std::find_if(place + bytes, place + whole, [](auto b) { return b != kBehind; });
  if (changed != place + whole) {
    fail("a kernel wrote " +
         std::to_string(changed - place - static_cast<std::ptrdiff_t>(bytes) + 1) +
         " bytes beyond a piece of " + std::to_string(bytes));
  }
  std::memset(place, kFreed, bytes);
  ASAN_POISON_MEMORY_REGION(place, whole);
  free_.emplace(whole, place);
  taken_.erase(found);
}

std::int64_t Memory::pieces() {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  return static_cast<std::int64_t>(taken_.size());
}

void* Memory::AllocatePinned(std::size_t bytes) {
  if (bytes > kDeviceBytes) return nullptr;
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  auto* memory = static_cast<std::uint8_t*>(std::aligned_alloc(kZone, rounded_up(bytes, kZone)));
  if (memory == nullptr) return nullptr;
  std::memset(memory, kNew, bytes);
  pinned_[memory] = bytes;
  return memory;
}

void Memory::FreePinned(void* memory) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (pinned_.erase(static_cast<std::uint8_t*>(memory)) == 0) {
    fail("pinned memory is freed that is not allocated");
  }
  std::free(memory);
}

bool Memory::IsKnown(const void* memory) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  const auto* place = static_cast<const std::uint8_t*>(memory);
  if (place >= base_ && place < base_ + kAddresses) return true;
  auto next = pinned_.upper_bound(place);
  return next != pinned_.begin() && place < std::prev(next)->first + std::prev(next)->second;
}

Memory::Access::Access() : lock_(Get().mutex_) {
  if (Get().open_++ == 0) Get().Protect(PROT_READ | PROT_WRITE);
}

Memory::Access::~Access() {
  if (--Get().open_ == 0) Get().Protect(PROT_NONE);
}

}  // namespace cuda_on_cpu
