// SPDX-License-Identifier: Apache-2.0
#pragma once

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
/// where that helps. In Python a RuntimeError. (No memory on the CPU is std::bad_alloc, in Python a
/// MemoryError.)
class CPD_API MachineError : public std::runtime_error {
 public:
  explicit MachineError(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace cpd
