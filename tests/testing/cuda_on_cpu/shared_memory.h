// SPDX-License-Identifier: Apache-2.0
//
// Finds the __shared__ variables of a kernel. In the emulation, these variables are thread-local
// variables of the kernel's function, but not of functions that the kernel calls. The addresses of
// the variables are read from the symbols of the program or library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cuda_on_cpu {

/// The __shared__ variables of one kernel.
class SharedMemory {
 public:
  /// Returns the variables of the kernel whose code is at this address. The result of the first
  /// call is stored.
  static SharedMemory& Of(const void* kernel);

  /// Fills the calling thread's variables with 0xA5, and stores a copy of the 256 bytes before and
  /// after them.
  void Begin();
  /// Ends the process if a byte before or after the variables differs from the copy that Begin
  /// stored.
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
