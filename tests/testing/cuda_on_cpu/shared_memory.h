// SPDX-License-Identifier: Apache-2.0
//
// The __shared__ variables of kernels, which are thread-local ones of their functions here (not of
// functions that these call): where they are is read from the symbols of the program or library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cuda_on_cpu {

/// Of one kernel.
class SharedMemory {
 public:
  /// `kernel`: the address of its code. Kept from the first call on.
  static SharedMemory& Of(const void* kernel);

  /// Makes the variables of the calling thread 0xA5, and remembers the 256 bytes on either side.
  void Begin();
  /// Ends the process where a byte on either side is another than Begin found.
  void CheckAround() const;

 private:
  explicit SharedMemory(const void* kernel);

  struct Variable {
    std::size_t begin, size;
  };
  const void* kernel_;
  std::vector<Variable> variables_;   ///< places in the thread-local memory of its file
  std::vector<std::size_t> around_;   ///< places beside them
  std::vector<std::uint8_t> before_;  ///< what stood there
  std::uint8_t* memory_ = nullptr;    ///< the thread-local memory of the thread that began
};

}  // namespace cuda_on_cpu
