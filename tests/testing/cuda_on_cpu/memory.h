// SPDX-License-Identifier: Apache-2.0
//
// The memory of the device: one range of addresses that the host may touch only while the device
// works. New memory holds 0xA5; behind each piece are bytes that must not change, which is looked
// at when it is freed; under AddressSanitizer nothing around a piece may be read either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace cuda_on_cpu {

class Memory {
 public:
  /// The device's, which outlives all that uses it.
  static Memory& Get();

  /// Null where there is none left.
  void* Allocate(std::size_t bytes);
  void Free(void* memory);

  /// How many pieces are in use.
  [[nodiscard]] std::int64_t pieces();

  void* AllocatePinned(std::size_t bytes);
  void FreePinned(void* memory);

  /// Device or pinned: copies of it are made when the stream comes to them.
  [[nodiscard]] bool IsKnown(const void* memory);

  /// One at a time: the device works.
  class Access {
   public:
    Access();
    ~Access();
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    const std::lock_guard<std::recursive_mutex> lock_;
  };
  std::recursive_mutex& mutex() { return mutex_; }

 private:
  struct Piece {
    std::size_t bytes;
    std::size_t whole;  ///< with the bytes behind it
  };

  Memory();
  void Protect(int how) const;
  std::uint8_t* Place(std::size_t whole);

  std::recursive_mutex mutex_;
  std::uint8_t* base_;
  std::size_t used_ = 0;
  std::map<std::uint8_t*, Piece> taken_;
  std::multimap<std::size_t, std::uint8_t*> free_;
  std::map<const std::uint8_t*, std::size_t> pinned_;
  int open_ = 0;
};

}  // namespace cuda_on_cpu
