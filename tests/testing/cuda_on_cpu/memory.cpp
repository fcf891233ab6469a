// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/cuda_on_cpu/memory.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/testing/cuda_on_cpu/block.h"

namespace cuda_on_cpu {
namespace {

constexpr std::size_t kAddresses = std::size_t{1} << 36;
constexpr std::size_t kDeviceBytes = std::size_t{4} << 30;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kZone = 256;  ///< also the alignment of a piece
constexpr std::uint8_t kNew = 0xA5;
constexpr std::uint8_t kBehind = 0x5A;
constexpr std::uint8_t kFreed = 0xDD;

std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

/// Returns the addresses reserved for all devices. The ranges of the devices follow one another.
std::uint8_t* all_addresses() {
  static auto* const base =
      static_cast<std::uint8_t*>(mmap(nullptr, kAddresses * kDevices, PROT_NONE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (base == MAP_FAILED) fail("no addresses for the devices' memory");
  return base;
}

Memory::Devices g_open = 0;
std::map<const std::uint8_t*, std::size_t>& pinned() {
  static auto& all = *new std::map<const std::uint8_t*, std::size_t>;
  return all;
}

struct sigaction g_before;

/// Handles a fault: prints whose memory was accessed and by whom, then calls the previous handler.
/// CUDA would report cudaErrorIllegalAddress on the device whose kernel accesses another device's
/// memory.
void say_whose_memory(int, siginfo_t* info, void*) {
  if (const int device = Memory::DeviceOf(info->si_addr); device >= 0) {
    const std::string what = "memory of device " + std::to_string(device) + " was touched ";
    if (running_kernel() != nullptr) fail_in(running_kernel(), what + "by another device's kernel");
    std::fprintf(stderr, "CUDA on a CPU: %sby the host\n", what.c_str());
  }
  sigaction(SIGSEGV, &g_before, nullptr);
}

}  // namespace

Memory& Memory::Of(int device) {
  static const std::array<Memory*, kDevices> all = [] {
    struct sigaction ours{};
    ours.sa_sigaction = say_whose_memory;
    ours.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &ours, &g_before);
    std::array<Memory*, kDevices> made{};
    for (int d = 0; d < kDevices; ++d) made[static_cast<std::size_t>(d)] = new Memory(d);
    return made;
  }();
  return *all[static_cast<std::size_t>(device)];
}

std::recursive_mutex& Memory::mutex() {
  static auto& mutex = *new std::recursive_mutex;
  return mutex;
}

Memory::Memory(int device)
    : device_(device), base_(all_addresses() + kAddresses * static_cast<std::size_t>(device)) {}

int Memory::DeviceOf(const void* memory) {
  const auto* const place = static_cast<const std::uint8_t*>(memory);
  const std::uint8_t* const first = all_addresses();
  if (place < first || place >= first + kAddresses * kDevices) return -1;
  return static_cast<int>(static_cast<std::size_t>(place - first) / kAddresses);
}

void Memory::Protect(int how) const { Protect(base_, used_, how); }

void Memory::Protect(std::uint8_t* place, std::size_t bytes, int how) {
  if (bytes != 0 && mprotect(place, bytes, how) != 0) fail("the device's memory cannot be opened");
}

void Memory::Open(Devices devices) {
  const Devices changed = g_open ^ devices;
  g_open = devices;
  for (int d = 0; d < kDevices; ++d) {
    if ((changed & Only(d)) == 0) continue;
    Of(d).Protect((devices & Only(d)) != 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}

/// Returns an address for `whole` bytes; null if there is no room. May use a freed range of up to
/// twice the size, and then sets `whole` to that range's size. In larger ranges, the access to too
/// many pages would have to be opened and closed.
std::uint8_t* Memory::Place(std::size_t& whole) {
  if (const auto found = free_.lower_bound(whole);
      found != free_.end() && found->first <= 2 * whole) {
    std::uint8_t* place = found->second;
    whole = found->first;
    free_.erase(found);
    return place;
  }
  if (whole > kDeviceBytes - used_) return nullptr;
  std::uint8_t* place = base_ + used_;
  used_ += rounded_up(whole, kPage);
  ASAN_POISON_MEMORY_REGION(place, rounded_up(whole, kPage));
  return place;
}

void* Memory::Allocate(std::size_t bytes, bool pooled) {
  if (bytes > kDeviceBytes) return nullptr;
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  std::size_t whole = rounded_up(bytes, kZone) + kZone;
  std::uint8_t* place = Place(whole);
  if (place == nullptr) return nullptr;
  taken_[place] = {bytes, whole, pooled};
  const bool is_open = (g_open & Only(device_)) != 0;
  const std::size_t pages = rounded_up(whole, kPage);
  Protect(place, pages, PROT_READ | PROT_WRITE);
  ASAN_UNPOISON_MEMORY_REGION(place, whole);
  std::memset(place, kNew, bytes);
  std::memset(place + bytes, kBehind, whole - bytes);
  ASAN_POISON_MEMORY_REGION(place + bytes, whole - bytes);
  if (!is_open) Protect(place, pages, PROT_NONE);
  return place;
}

void Memory::Free(void* memory) {
  if (memory == nullptr) return;
  const Access access(Only(device_));
  auto* place = static_cast<std::uint8_t*>(memory);
  const auto found = taken_.find(place);
  if (found == taken_.end()) fail("memory is freed that is not allocated");
  const auto [bytes, whole, pooled] = found->second;
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

bool Memory::IsPooled(const void* memory) {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  const auto* place = static_cast<const std::uint8_t*>(memory);
  const auto next = taken_.upper_bound(const_cast<std::uint8_t*>(place));
  return next != taken_.begin() && std::prev(next)->second.pooled;
}

std::int64_t Memory::pieces() {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  return static_cast<std::int64_t>(taken_.size());
}

void* Memory::AllocatePinned(std::size_t bytes) {
  if (bytes > kDeviceBytes) return nullptr;
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  auto* memory = static_cast<std::uint8_t*>(std::aligned_alloc(kZone, rounded_up(bytes, kZone)));
  if (memory == nullptr) return nullptr;
  std::memset(memory, kNew, bytes);
  pinned()[memory] = bytes;
  return memory;
}

void Memory::FreePinned(void* memory) {
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  if (pinned().erase(static_cast<std::uint8_t*>(memory)) == 0) {
    fail("pinned memory is freed that is not allocated");
  }
  std::free(memory);
}

bool Memory::IsKnown(const void* memory) {
  if (DeviceOf(memory) >= 0) return true;
  const std::lock_guard<std::recursive_mutex> lock(mutex());
  const auto* place = static_cast<const std::uint8_t*>(memory);
  auto next = pinned().upper_bound(place);
  return next != pinned().begin() && place < std::prev(next)->first + std::prev(next)->second;
}

Memory::Access::Access(Devices devices) : lock_(mutex()), before_(g_open) { Open(devices); }

Memory::Access::~Access() { Open(before_); }

}  // namespace cuda_on_cpu
