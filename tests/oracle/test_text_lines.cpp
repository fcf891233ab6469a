// SPDX-License-Identifier: Apache-2.0
//
// Tests lines of numbers as text: the digits are those that printf writes, for numbers of every
// size.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "cpd/oracle/text_lines.h"

namespace cpd {
namespace {

std::string written(const std::vector<TextField>& fields, const std::string& end, std::int64_t n) {
  std::string text(static_cast<std::size_t>(n) * LineSize(fields, end), '?');
  WriteLines(fields, end, n, text.data());
  return text;
}

TEST(TextLines, AreThoseOfPrintf) {
  constexpr std::size_t n = 10'000;  // of several threads
  std::mt19937_64 generator(1);
  for (const std::string end : {"\n", "\"}, and so on\n"}) {
    std::vector<std::uint8_t> five(n);
    std::vector<std::uint16_t> thirteen(n);
    std::vector<std::uint32_t> word(n);
    std::vector<std::uint64_t> forty(n);
    std::string expected;
    for (std::size_t i = 0; i < n; ++i) {
      five[i] = static_cast<std::uint8_t>(generator() & 31);
      thirteen[i] = static_cast<std::uint16_t>(generator() & 0x1FFF);
      word[i] = static_cast<std::uint32_t>(generator());
      forty[i] = generator() >> 24;
      char line[100];
      std::snprintf(line, sizeof line, "a long begin%02X %04X_%08X,%010llX", five[i], thirteen[i],
                    word[i], static_cast<unsigned long long>(forty[i]));
      expected += line + end;
    }
    EXPECT_EQ(written({{"a long begin", five.data(), 1, 1, 5},
                       {" ", thirteen.data(), 2, 1, 13},
                       {"_", word.data(), 4, 1, 32},
                       {",", forty.data(), 8, 1, 40}},
                      end, n),
              expected);
  }
}

/// Each line is shorter than the block of characters that the writer stores at once.
TEST(TextLines, ShortLines) {
  std::vector<std::uint8_t> digits;
  std::string expected;
  for (int i = 0; i < 20'000; ++i) {
    digits.push_back(static_cast<std::uint8_t>(i % 10));
    expected += std::to_string(i % 10) + "\n";
    if (i < 20 || i == 19'999) {
      EXPECT_EQ(written({{"", digits.data(), 1, 1, 4}}, "\n", i + 1), expected) << i;
    }
  }
}

TEST(TextLines, TheFirstElementStandsLowest) {
  const std::vector<std::uint32_t> elements{1, 2, 0x1F, 0x10, 0, 3};
  EXPECT_EQ(written({{"", elements.data(), 4, 3, 5}}, "\n", 2),  // 11111 00010 00001; 3, 0, 16
            "7C41\n0C10\n");
  EXPECT_EQ(written({{"", elements.data(), 4, 3, 8}}, "\n", 2), "1F0201\n030010\n");
  EXPECT_EQ(written({{"", elements.data(), 4, 3, 8}}, "\n", 0), "");
}

TEST(TextLines, ALastDigitMayHaveOneBit) {
  const std::vector<std::uint64_t> numbers{(std::uint64_t{1} << 32) + 0xA5, 0xFFFFFFFF};
  EXPECT_EQ(written({{"", numbers.data(), 8, 1, 33}}, "\n", 2), "1000000A5\n0FFFFFFFF\n");
}

}  // namespace
}  // namespace cpd
