// SPDX-License-Identifier: Apache-2.0
//
// Lines of vectors for RTL as text: hexadecimal digits of fixed width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cpd/export.h"

namespace cpd {

/// A field of n lines: `count` numbers of `width` bits, at most 64, of which the first stands
/// lowest in the field's number.
struct TextField {
  std::string before;             ///< the text before its digits
  const void* numbers = nullptr;  ///< n × count unsigned integers
  int bytes = 8;                  ///< of each integer: 1, 2, 4, 8
  int count = 1;
  int width = 64;

  /// The number of its digits.
  [[nodiscard]] std::size_t digits() const {
    return (static_cast<std::size_t>(count) * static_cast<std::size_t>(width) + 3) / 4;
  }
};

/// The bytes of a line, with `end` after its last digit.
CPD_API std::size_t LineSize(const std::vector<TextField>& fields, const std::string& end);

/// Writes n lines into n LineSize bytes.
CPD_API void WriteLines(const std::vector<TextField>& fields, const std::string& end,
                        std::int64_t n, char* out);

}  // namespace cpd
