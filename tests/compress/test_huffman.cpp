// SPDX-License-Identifier: Apache-2.0
//
// Tests that Huffman codes are as short as possible. The lengths are compared with a tree built
// with a heap, with all trees of a few symbols, and with the entropy.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "cpd/compress/huffman.h"
#include "cpd/compress/radix.h"
#include "tests/testing/refusal.h"

namespace cpd {
namespace {

using Counts = std::vector<std::uint32_t>;
using Lengths = std::vector<std::uint8_t>;

std::int64_t bits_of(const Counts& counts, const Lengths& lengths) {
  std::int64_t bits = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) bits += std::int64_t{counts[i]} * lengths[i];
  return bits;
}

/// Returns the least number of bits by Huffman's algorithm. Joins the two trees with the smallest
/// counts until one tree remains, and adds up the counts of all joined trees.
std::int64_t fewest_bits(const Counts& counts) {
  std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> heap;
  for (const std::uint32_t count : counts) heap.push(count);
  std::int64_t bits = 0;
  while (heap.size() > 1) {
    std::int64_t joined = heap.top();
    heap.pop();
    joined += heap.top();
    heap.pop();
    heap.push(joined);
    bits += joined;
  }
  return bits;
}

/// Returns the least number of bits by trying all code lengths that Kraft's inequality allows.
std::int64_t fewest_of_all(const Counts& counts) {
  const auto most = static_cast<int>(counts.size()) - 1;
  std::int64_t best = 1LL << 60;
  std::function<void(std::size_t, std::int64_t, std::int64_t)> from =
      [&](std::size_t i, std::int64_t room, std::int64_t bits) {
        if (i == counts.size()) {
          best = std::min(best, bits);
          return;
        }
        for (int length = 1; length <= most; ++length) {
          const std::int64_t takes = 1LL << (most - length);
          if (takes <= room) from(i + 1, room - takes, bits + std::int64_t{counts[i]} * length);
        }
      };
  from(0, 1LL << most, 0);
  return best;
}

double kraft(const Lengths& lengths) {
  double sum = 0;
  for (const std::uint8_t length : lengths) sum += std::ldexp(1.0, -length);
  return sum;
}

Counts random_counts(std::size_t n, std::mt19937_64& random) {
  Counts counts(n);
  const int kind = static_cast<int>(random() % 3);
  for (std::uint32_t& count : counts) {
    count = kind == 0 ? 1 + random() % 4
            : kind == 1
                ? 1 + random() % 100
                : static_cast<std::uint32_t>(1 + std::exp(static_cast<double>(random() % 60) / 10));
  }
  return counts;
}

TEST(Huffman, NoLengthsAreBetter) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 300; ++i) {
    const Counts counts = random_counts(2 + random() % 5, random);
    EXPECT_EQ(bits_of(counts, HuffmanLengths(counts)), fewest_of_all(counts));
  }
  for (int i = 0; i < 300; ++i) {
    const Counts counts = random_counts(2 + random() % 600, random);
    const Lengths lengths = HuffmanLengths(counts);
    EXPECT_EQ(bits_of(counts, lengths), fewest_bits(counts));
    EXPECT_EQ(kraft(lengths), 1);
    const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
    double entropy = 0;
    for (const std::uint32_t count : counts) entropy -= count * std::log2(count / total);
    EXPECT_GE(static_cast<double>(bits_of(counts, lengths)), entropy - 1e-6);
    EXPECT_LT(static_cast<double>(bits_of(counts, lengths)), entropy + total);
  }
}

TEST(Huffman, TiesHaveARule) {
  EXPECT_EQ(HuffmanLengths(Counts{}), Lengths{});
  EXPECT_EQ(HuffmanLengths(Counts{9}), Lengths{0});
  EXPECT_EQ(HuffmanLengths(Counts{9, 1}), (Lengths{1, 1}));
  EXPECT_EQ(HuffmanLengths(Counts{1, 1, 1}), (Lengths{2, 2, 1}));
  EXPECT_EQ(HuffmanLengths(Counts{2, 1, 1, 2}), (Lengths{2, 2, 2, 2}));  // symbols before trees
  EXPECT_EQ(HuffmanLengths(Counts{1, 1, 2, 3, 5}), (Lengths{4, 4, 3, 2, 1}));
  EXPECT_EQ(HuffmanLengths(Counts{5, 3, 2, 1, 1}), (Lengths{1, 2, 3, 4, 4}));
}

TEST(Huffman, NoCodeIsLongerThan32Bits) {
  Counts fibonacci{1, 1};
  while (true) {
    const std::uint32_t next = fibonacci[fibonacci.size() - 2] + fibonacci.back();
    if (std::accumulate(fibonacci.begin(), fibonacci.end(), std::int64_t{next}) >
        kMostHuffmanValues) {
      break;
    }
    fibonacci.push_back(next);
  }
  const Lengths lengths = HuffmanLengths(fibonacci);
  EXPECT_EQ(*std::ranges::max_element(lengths), 31);
  EXPECT_EQ(bits_of(fibonacci, lengths), fewest_bits(fibonacci));
  EXPECT_REFUSAL("a Huffman code is made of at most 8388608 values, got 8388609",
                 HuffmanLengths(Counts{1, static_cast<std::uint32_t>(kMostHuffmanValues)}));
}

TEST(Huffman, CodesAreCanonical) {
  const std::vector<BitCode> codes = CanonicalCodes(Lengths{2, 3, 1, 3});
  const std::vector<std::pair<std::uint32_t, int>> expected{{2, 2}, {6, 3}, {0, 1}, {7, 3}};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(codes[i].bits, expected[i].first);
    EXPECT_EQ(codes[i].length, expected[i].second);
  }
  EXPECT_EQ(CanonicalCodes(Lengths{0})[0].length, 0);
  Lengths steps(33);
  for (std::size_t i = 0; i < 32; ++i) steps[i] = static_cast<std::uint8_t>(i + 1);
  steps[32] = 32;
  const std::vector<BitCode> longest = CanonicalCodes(steps);
  EXPECT_EQ(longest[31].bits, 0xFFFFFFFEU);
  EXPECT_EQ(longest[32].bits, 0xFFFFFFFFU);
}

/// A Huffman code, symbols, and the bytes that hold the code's table and the encoded symbols.
struct Message {
  HuffmanCode code;
  std::vector<std::uint32_t> symbols;
  std::vector<std::uint8_t> bytes;  ///< the code's table and the symbols' codes
};

Message message_of(HuffmanCode code, const std::vector<std::size_t>& places) {
  Message message;
  const std::vector<BitCode> codes = CanonicalCodes(code.lengths);
  std::vector<std::uint8_t> bytes(100 + 12 * code.symbols.size() + 4 * places.size());
  BitWriter writer(bytes);
  PutHuffmanCode(code, writer);
  EXPECT_EQ(writer.bits(), HuffmanCodeBits(code));
  for (const std::size_t place : places) {
    writer.Put(codes[place]);
    message.symbols.push_back(code.symbols[place]);
  }
  bytes.resize(static_cast<std::size_t>(writer.End()));
  message.bytes = bytes;
  message.code = std::move(code);
  return message;
}

Message random_message(std::size_t used, std::size_t n, std::uint32_t gap,
                       std::mt19937_64& random) {
  HuffmanCode code;
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < used; ++i) {
    next += 1 + static_cast<std::uint32_t>(random() % gap);
    code.symbols.push_back(next - 1);
  }
  code.lengths = HuffmanLengths(random_counts(used, random));
  std::vector<std::size_t> places(n);
  for (std::size_t& place : places) place = random() % used;
  return message_of(std::move(code), places);
}

/// Decodes n symbols of `bytes`, which begin with the code's table. At the same time, decodes
/// `behind` symbols of `second`, a stream of the same code without a table.
std::vector<std::uint32_t> decoded(std::vector<std::uint8_t> bytes, std::size_t n,
                                   std::uint32_t alphabet, std::int64_t most,
                                   std::vector<std::uint8_t> second = {}, std::size_t behind = 0) {
  bytes.shrink_to_fit();
  second.shrink_to_fit();
  BitReader reader(bytes), reader_behind(second);
  const HuffmanCode code = ReadHuffmanCode(reader, alphabet, most);
  std::vector<std::uint32_t> symbols(n + behind);
  HuffmanDecoder(code.lengths, code.symbols)
      .Decode(reader, static_cast<std::int64_t>(n), reader_behind,
              static_cast<std::int64_t>(behind), symbols.data());
  EXPECT_EQ(reader.End(), static_cast<std::int64_t>(bytes.size()));
  EXPECT_EQ(reader_behind.End(), static_cast<std::int64_t>(second.size()));
  return symbols;
}

TEST(Huffman, ComesBack) {
  std::mt19937_64 random(4);
  for (const std::size_t used : {1, 2, 3, 17, 256, 5000, 65536}) {
    for (const std::size_t n : {0, 1, 5, 6, 1000}) {
      for (const std::uint32_t gap : {1U, 3U, 16000U}) {
        const Message message = random_message(used, n, gap, random);
        const std::uint32_t alphabet = message.code.symbols.back() + 1;
        BitReader reader(message.bytes);
        const HuffmanCode code = ReadHuffmanCode(reader, alphabet, static_cast<std::int64_t>(used));
        ASSERT_EQ(code.symbols, message.code.symbols);
        ASSERT_EQ(code.lengths, message.code.lengths);
        ASSERT_EQ(decoded(message.bytes, n, alphabet, 1 << 20), message.symbols);
      }
    }
  }
  EXPECT_TRUE(decoded(message_of({}, {}).bytes, 0, 9, 9).empty());
}

TEST(Huffman, LongCodesComeBack) {
  HuffmanCode code;
  for (std::uint32_t i = 0; i < 33; ++i) {
    code.symbols.push_back(i * i);
    code.lengths.push_back(static_cast<std::uint8_t>(std::min<std::uint32_t>(32, i + 1)));
  }
  std::mt19937_64 random(5);
  std::vector<std::size_t> places;
  for (int i = 0; i < 2000; ++i) places.push_back(random() % 33);
  const Message message = message_of(code, places);
  EXPECT_EQ(decoded(message.bytes, 2000, 1 << 20, 33), message.symbols);
  // Decodes two streams at the same time. Either stream may be the longer one.
  const auto bytes_of = [&](std::size_t begin, std::size_t end, bool with_table) {
    std::vector<std::uint8_t> bytes(9000);
    BitWriter writer(bytes);
    if (with_table) PutHuffmanCode(code, writer);
    for (std::size_t i = begin; i < end; ++i) writer.Put(CanonicalCodes(code.lengths)[places[i]]);
    bytes.resize(static_cast<std::size_t>(writer.End()));
    return bytes;
  };
  for (const std::size_t n : {0, 1, 4, 5, 300, 1000, 1001, 1700, 1999, 2000}) {
    EXPECT_EQ(decoded(bytes_of(0, n, true), n, 1 << 20, 33, bytes_of(n, 2000, false), 2000 - n),
              message.symbols);
  }
  // All codes are longer than the decoder's lookup window.
  HuffmanCode even;
  for (std::uint32_t i = 0; i < 1 << 14; ++i) {
    even.symbols.push_back(i);
    even.lengths.push_back(14);
  }
  const Message same = message_of(even, {0, 1, 5000, 16383});
  EXPECT_EQ(decoded(same.bytes, 4, 1 << 14, 1 << 14), same.symbols);
}

std::string damage(const HuffmanCode& code, std::uint32_t alphabet, std::int64_t most) {
  std::vector<std::uint8_t> bytes(200);
  BitWriter writer(bytes);
  PutHuffmanCode(code, writer);
  writer.End();
  try {
    BitReader reader(bytes);
    ReadHuffmanCode(reader, alphabet, most);
    return "none";
  } catch (const DamagedBytes& error) {
    return error.what();
  }
}

TEST(Huffman, OnlyFullTreesAreRead) {
  EXPECT_EQ(damage({{1, 4}, {1, 1}}, 5, 2), "none");
  EXPECT_EQ(damage({{1, 4}, {1, 1}}, 4, 2), "a number is above 2");
  EXPECT_EQ(damage({{1, 4}, {1, 1}}, 5, 1), "a number is above 2");
  const std::string none = "the lengths are those of no full tree of codes";
  EXPECT_EQ(damage({{1, 4}, {1, 2}}, 5, 2), none);
  EXPECT_EQ(damage({{1, 3, 4}, {1, 1, 1}}, 5, 3), none);
  EXPECT_EQ(damage({{3}, {1}}, 5, 3), none);
  EXPECT_EQ(damage({{3}, {0}}, 5, 3), "none");
  EXPECT_EQ(damage({{1, 4}, {1, 0}}, 5, 2), "a code of 0 bits");
  BitReader nothing({});
  EXPECT_THROW(ReadHuffmanCode(nothing, 10, 10), DamagedBytes);
  std::uint32_t to = 0;
  EXPECT_THROW(HuffmanDecoder({}, {}).Decode(nothing, 1, nothing, 0, &to), DamagedBytes);
}

/// Decodes bytes that may be damaged. Returns whether all symbols belong to the alphabet, or the
/// decoder throws DamagedBytes with a text.
bool is_sound(const std::vector<std::uint8_t>& bytes, std::size_t n, std::uint32_t alphabet) {
  try {
    std::vector<std::uint8_t> own(bytes);
    own.shrink_to_fit();
    BitReader reader(own);
    const HuffmanCode code = ReadHuffmanCode(reader, alphabet, static_cast<std::int64_t>(n));
    std::vector<std::uint32_t> symbols(n);
    BitReader second(own);
    const auto half = static_cast<std::int64_t>(n / 2);
    HuffmanDecoder(code.lengths, code.symbols)
        .Decode(reader, static_cast<std::int64_t>(n) - half, second, half, symbols.data());
    return std::ranges::all_of(symbols, [&](std::uint32_t symbol) { return symbol < alphabet; });
  } catch (const DamagedBytes& error) {
    return std::string(error.what()).size() > 5;
  }
}

TEST(Huffman, EveryBitFlipAndTruncation) {
  std::mt19937_64 random(6);
  for (int stream = 0; stream < 300; ++stream) {
    const std::size_t used = 1 + random() % 20;
    const std::size_t n = used + random() % 30;
    const Message message = random_message(used, n, 1 + random() % 4, random);
    const std::uint32_t alphabet = message.code.symbols.back() + 1;
    for (std::size_t bit = 0; bit < 8 * message.bytes.size(); ++bit) {
      auto changed = message.bytes;
      changed[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
      ASSERT_TRUE(is_sound(changed, n, alphabet));
    }
    for (std::size_t length = 0; length < message.bytes.size(); ++length) {
      auto cut = message.bytes;
      cut.resize(length);
      ASSERT_TRUE(is_sound(cut, n, alphabet));
    }
  }
}

TEST(Huffman, AnyBytes) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::uint8_t> bytes(random() % 40);
    const bool few = random() % 2 == 0;
    for (std::uint8_t& byte : bytes) {
      byte = static_cast<std::uint8_t>(few ? random() & random() : random());
    }
    ASSERT_TRUE(is_sound(bytes, random() % 100, 1 + random() % 300));
  }
}

TEST(Radix, SortsByTheBitsAndKeepsTheOrder) {
  std::mt19937_64 random(8);
  for (const int bits : {1, 7, 11, 12, 23, 32}) {
    std::vector<std::uint64_t> keys(1000);
    for (std::uint64_t& key : keys) key = random() & random();
    auto expected = keys;
    const auto part = [&](std::uint64_t key) { return key >> 20 & ((1ULL << bits) - 1); };
    std::ranges::stable_sort(expected, {}, part);
    SortByBits(keys, 20, bits);
    EXPECT_EQ(keys, expected) << bits;
  }
}

}  // namespace
}  // namespace cpd
