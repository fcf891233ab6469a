// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include "cpd/base/export.h"

namespace cpd {

/// A bad argument. The message says what was given and what is allowed; nothing has been written.
class CPD_API Error : public std::invalid_argument {
 public:
  explicit Error(const std::string& message) : std::invalid_argument(message) {}
};

}  // namespace cpd
