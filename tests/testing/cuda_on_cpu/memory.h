// SPDX-License-Identifier: Apache-2.0
//
// Emulates the memory of the devices. Each device has a range of addresses that is accessible only
// while that device works. The host and the other device cannot access the range, since there is no
// peer access. New memory is filled with 0xA5. Guard bytes follow each allocation and are checked
// when it is freed. AddressSanitizer also detects reads around an allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace cuda_on_cpu {

constexpr int kDevices = 2;

class Memory {
 public:
  /// Returns a device's memory. The object is never destroyed.
  static Memory& Of(int device);
  /// Returns the device whose range contains an address; -1 if no range does.
  static int DeviceOf(const void* memory);

  /// Returns new memory; null if none is left. If `pooled` is true, the memory comes from a pool,
  /// and no other device may copy it.
  void* Allocate(std::size_t bytes, bool pooled = false);
  void Free(void* memory);
  [[nodiscard]] bool IsPooled(const void* memory);
  /// Returns the number of allocations in use.
  [[nodiscard]] std::int64_t pieces();

  static void* AllocatePinned(std::size_t bytes);
  static void FreePinned(void* memory);
  /// Returns whether an address is in device or pinned memory. Such memory is read or
  /// written when the stream runs a copy; pageable memory, before the call of the copy returns.
  static bool IsKnown(const void* memory);

  /// A set of devices. Bit d is device d.
  using Devices = unsigned;
  static Devices Only(int device) { return device < 0 ? 0 : 1U << device; }

  /// Makes the memory of these devices, and of no others, accessible while the object lives. Only
  /// one thread at a time has such objects.
  class Access {
   public:
    explicit Access(Devices devices);
    ~Access();
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    const std::lock_guard<std::recursive_mutex> lock_;
    const Devices before_;
  };
  static std::recursive_mutex& mutex();

 private:
  struct Piece {
    std::size_t bytes;
    std::size_t whole;  ///< with the bytes behind it
    bool pooled;
  };

  explicit Memory(int device);
  static void Open(Devices devices);
  void Protect(int how) const;
  static void Protect(std::uint8_t* place, std::size_t bytes, int how);
  std::uint8_t* Place(std::size_t& whole);

  const int device_;
  std::uint8_t* base_;
  std::size_t used_ = 0;
  std::map<std::uint8_t*, Piece> taken_;
  std::multimap<std::size_t, std::uint8_t*> free_;
};

}  // namespace cuda_on_cpu
