// SPDX-License-Identifier: Apache-2.0
//
// Writes lines of vectors for RTL as text: hexadecimal digits of fixed width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cpd/export.h"

namespace cpd {

/// A field of n lines. In each line the field holds `count` numbers of `width` bits (at most 64),
/// concatenated into one number. The first number has the lowest bits.
struct TextField {
  std::string before;             ///< the text before its digits
  const void* numbers = nullptr;  ///< n × count unsigned integers
  int bytes = 8;                  ///< of each integer: 1, 2, 4, 8
  int count = 1;
  int width = 64;

  /// Returns the number of hexadecimal digits of the field.
  [[nodiscard]] std::size_t digits() const {
    return (static_cast<std::size_t>(count) * static_cast<std::size_t>(width) + 3) / 4;
  }
};

/// Returns the number of bytes of a line. `end` is the text after the line's last digit.
CPD_API std::size_t LineSize(const std::vector<TextField>& fields, const std::string& end);

/// Writes n lines to `out`, which must have n * LineSize(fields, end) bytes.
CPD_API void WriteLines(const std::vector<TextField>& fields, const std::string& end,
                        std::int64_t n, char* out);

}  // namespace cpd
