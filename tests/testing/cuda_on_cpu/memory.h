// SPDX-License-Identifier: Apache-2.0
//
// The memory of the devices: for each a range of addresses that may be touched only while that
// device works, not by the host nor by another device, between which there is no peer access. New
// memory holds 0xA5; behind each piece are bytes that must not change, which is looked at when it
// is freed; under AddressSanitizer nothing around a piece may be read either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace cuda_on_cpu {

constexpr int kDevices = 2;

class Memory {
 public:
  /// A device's, which outlives all that uses it.
  static Memory& Of(int device);
  /// The device in whose range an address is; -1: in none.
  static int DeviceOf(const void* memory);

  /// Returns null if no memory is left. `pooled`: from a pool, whose memory no other device may
  /// copy.
  void* Allocate(std::size_t bytes, bool pooled = false);
  void Free(void* memory);
  [[nodiscard]] bool IsPooled(const void* memory);
  /// How many pieces are in use.
  [[nodiscard]] std::int64_t pieces();

  static void* AllocatePinned(std::size_t bytes);
  static void FreePinned(void* memory);
  /// Device or pinned: copies of it are made when the stream comes to them.
  static bool IsKnown(const void* memory);

  /// A set of devices: bit d for device d.
  using Devices = unsigned;
  static Devices Only(int device) { return device < 0 ? 0 : 1U << device; }

  /// One at a time: these devices work, and no others, until it ends.
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
  std::uint8_t* Place(std::size_t whole);

  const int device_;
  std::uint8_t* base_;
  std::size_t used_ = 0;
  std::map<std::uint8_t*, Piece> taken_;
  std::multimap<std::size_t, std::uint8_t*> free_;
};

}  // namespace cuda_on_cpu
