// SPDX-License-Identifier: Apache-2.0
//
// Tests that writers and readers of bit streams agree with a vector of single bits.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cpd/compress/bits.h"

namespace cpd {
namespace {

using Numbers = std::vector<std::pair<std::uint64_t, int>>;

Numbers some(std::size_t n, int longest) {
  std::mt19937_64 random(n);
  Numbers all;
  for (std::size_t i = 0; i < n; ++i) {
    const int length = 1 + static_cast<int>(random() % static_cast<unsigned>(longest));
    all.emplace_back(random() >> (64 - length), length);
  }
  return all;
}

std::vector<std::uint8_t> by_bits(const Numbers& numbers) {
  std::vector<std::uint8_t> bytes;
  int bits = 0;
  for (const auto& [number, length] : numbers) {
    for (int i = length - 1; i >= 0; --i, ++bits) {
      if (bits % 8 == 0) bytes.push_back(0);
      bytes.back() |= static_cast<std::uint8_t>((number >> i & 1) << (7 - bits % 8));
    }
  }
  return bytes;
}

TEST(Bits, TheFirstIsUppermost) {
  std::vector<std::uint8_t> bytes(2);
  BitWriter writer(bytes);
  writer.Put(1, 1);
  writer.Put(3, 3);
  writer.Put(5, 5);
  EXPECT_EQ(writer.bits(), 9);
  EXPECT_EQ(writer.End(), 2);
  EXPECT_EQ(bytes, (std::vector<std::uint8_t>{0b1011'0010, 0b1000'0000}));
}

TEST(Bits, AreThoseOfAVector) {
  for (const int longest : {1, 5, 13, 32, 56}) {
    for (const std::size_t n : {0, 1, 2, 7, 8, 9, 100, 1000}) {
      const Numbers numbers = some(n, longest);
      const std::vector<std::uint8_t> expected = by_bits(numbers);
      std::vector<std::uint8_t> bytes(expected.size(), 0xEE);  // not a byte more
      BitWriter writer(bytes);
      std::int64_t bits = 0;
      for (const auto& [number, length] : numbers) {
        writer.Put(number, length);
        bits += length;
        ASSERT_EQ(writer.bits(), bits);
      }
      EXPECT_EQ(writer.End(), static_cast<std::int64_t>(expected.size()));
      ASSERT_EQ(bytes, expected) << longest << " " << n;

      BitReader reader(bytes);
      for (const auto& [number, length] : numbers) {
        ASSERT_EQ(reader.Peek() >> (64 - length), number);
        ASSERT_EQ(reader.Read(length), number);
      }
      EXPECT_EQ(reader.at(), bits);
      EXPECT_EQ(reader.End(), static_cast<std::int64_t>(expected.size()));
    }
  }
}

TEST(Bits, FourCodesComeInOrder) {
  for (const int longest : {1, 14, 15, 32}) {  // together at most kMost bits, or more
    std::vector<std::uint8_t> bytes(200);
    BitWriter writer(bytes);
    const Numbers numbers = some(40, longest);
    for (std::size_t i = 0; i < 40; i += 4) {
      const auto code = [&](std::size_t j) {
        const auto& [bits, length] = numbers[i + j];
        return BitCode{static_cast<std::uint32_t>(bits), length};
      };
      writer.Put(code(0), code(1), code(2), code(3));
      writer.Put({}, {}, {}, {});
    }
    bytes.resize(static_cast<std::size_t>(writer.End()));
    EXPECT_EQ(bytes, by_bits(numbers)) << longest;
  }
}

TEST(Bits, NothingIsWrittenBehindTheRoom) {
  for (const std::size_t room : {0, 1, 3, 7, 8, 9, 20}) {
    std::vector<std::uint8_t> bytes(room);
    bytes.shrink_to_fit();
    BitWriter writer(bytes);
    for (std::size_t i = 0; i < room; ++i) writer.Put(0xAB, 8);
    EXPECT_EQ(writer.End(), static_cast<std::int64_t>(room));
    EXPECT_EQ(bytes, std::vector<std::uint8_t>(room, 0xAB));
    writer.Put(1, 3);  // held until the byte is whole
    EXPECT_THROW(writer.End(), std::length_error) << "of " << room;
  }
}

TEST(Bits, BehindTheEndComeZeros) {
  const std::vector<std::uint8_t> bytes{0xFF, 0x80};
  BitReader reader(bytes);
  EXPECT_EQ(reader.Read(9), 0x1FFU);
  EXPECT_EQ(reader.Peek(), 0U);
  EXPECT_EQ(BitReader(reader).End(), 2);
  EXPECT_EQ(reader.Read(7), 0U);
  reader.Check();
  EXPECT_EQ(reader.Read(56), 0U);
  EXPECT_THROW(reader.Check(), DamagedBytes);
  EXPECT_THROW(reader.End(), DamagedBytes);
  BitReader early(bytes);
  EXPECT_EQ(early.Read(4), 0xFU);
  EXPECT_THROW(early.End(), DamagedBytes);  // ones behind the last code
  EXPECT_EQ(BitReader({}).End(), 0);
}

}  // namespace
}  // namespace cpd
