// SPDX-License-Identifier: Apache-2.0
//
// Tests functions that return the number of bits of coded numbers and gaps. The numbers must equal
// the lengths of codes that the test writes bit by bit.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "cpd/numeric/scaled/gap_codes.h"

namespace cpd {
namespace {

TEST(GapCodes, SevenBitsOfANumberAByte) {
  for (std::int64_t bytes = 1; bytes <= 8; ++bytes) {
    const std::int64_t above = std::int64_t{1} << (7 * bytes);
    EXPECT_EQ(number_bytes(above - 1), bytes);
    EXPECT_EQ(number_bytes(above), bytes + 1);
  }
  EXPECT_EQ(number_bytes(0), 1);
}

TEST(GapCodes, GapsAreUnaryWithAStopBitAndLowBits) {
  for (int low = 0; low < 5; ++low) {
    for (std::int64_t gap = 0; gap < 200; ++gap) {
      std::string code;
      std::int64_t left = gap;
      for (; left >= 1 << low; left -= 1 << low) code += '1';
      code += '0';
      for (int bit = low - 1; bit >= 0; --bit) code += (left >> bit) % 2 == 0 ? '0' : '1';
      EXPECT_EQ(gap_bits(gap, low), static_cast<std::int64_t>(code.size())) << gap << ", " << low;
    }
  }
}

}  // namespace
}  // namespace cpd
