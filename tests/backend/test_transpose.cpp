// SPDX-License-Identifier: Apache-2.0
//
// Tests the kernel that transposes matrices of 32-bit words: every backend gives the result of the
// definition and writes nothing else. The sizes include multiples of 8 and 16 (the sides of the
// squares that are transposed in registers) and the numbers next to these multiples.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/backends.h"

namespace cpd {
namespace {

using Words = std::vector<std::uint32_t>;

/// Returns n words that are all different.
Words Numbered(std::int64_t n) {
  Words words(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = static_cast<std::uint32_t>(i) * 0x9E3779B1U;
  }
  return words;
}

TEST(Transpose, IsTheDefinition) {
  constexpr std::uint32_t kNone = 7;
  for (const KernelTable* table : testing::kernel_tables()) {
    for (const std::int64_t rows : {0, 1, 7, 8, 15, 16, 17, 33, 64, 80}) {
      for (const std::int64_t columns : {0, 1, 3, 8, 16, 31, 48, 65}) {
        for (const std::int64_t gap : {0, 5, 100}) {
          for (const bool far_rows : {false, true}) {
            const std::int64_t from_stride = columns + (far_rows ? gap : 0);
            const std::int64_t to_stride = rows + (far_rows ? 1 : gap);
            const Words from = Numbered(rows * from_stride + 1);
            Words to(static_cast<std::size_t>(columns * to_stride + 1), kNone);
            Words expected = to;
            for (std::int64_t r = 0; r < rows; ++r) {
              for (std::int64_t c = 0; c < columns; ++c) {
                expected[static_cast<std::size_t>(c * to_stride + r)] =
                    from[static_cast<std::size_t>(r * from_stride + c)];
              }
            }
            table->transpose(rows, columns, from.data(), from_stride, to.data(), to_stride);
            ASSERT_EQ(to, expected)
                << table->name << ", " << rows << " x " << columns << ", gap " << gap;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace cpd
