// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

#include "cpd/export.h"

namespace cpd {

/// A bad argument. The message says what was given and what is allowed; nothing has been written.
/// In Python a ValueError.
class CPD_API Error : public std::invalid_argument {
 public:
  explicit Error(const std::string& message) : std::invalid_argument(message) {}
};

/// The machine could not do what was asked of it with good arguments: a GPU or its driver fails or
/// is not there, its memory is spent, a library cannot be loaded. The message says what to install
/// where that helps. In Python a RuntimeError. (No memory on the CPU is NoMemory.)
class CPD_API MachineError : public std::runtime_error {
 public:
  explicit MachineError(const std::string& message) : std::runtime_error(message) {}
};

/// The CPU has no memory for so many bytes. In Python a MemoryError. (std::bad_alloc of the
/// standard library's containers is one without their number.)
class CPD_API NoMemory : public std::bad_alloc {
 public:
  /// `of`: what they are, as "a tensor of shape (3, 4)".
  NoMemory(std::uint64_t bytes, const std::string& of)
      : message_("no memory for " + std::to_string(bytes) + " bytes, " + of) {}
  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

}  // namespace cpd
