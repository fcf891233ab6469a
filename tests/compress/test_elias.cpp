// SPDX-License-Identifier: Apache-2.0
//
// Tests Elias codes of quantized values (levels). The codes must equal the codes that the test
// writes bit by bit from the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "cpd/compress/elias.h"

namespace cpd {
namespace {

using Levels = std::vector<std::int16_t>;
constexpr EliasLayout kLayouts[] = {EliasLayout::dense, EliasLayout::sparse};

std::string elias(std::uint32_t k) {
  std::string code = "0";
  while (k > 1) {
    std::string binary;
    for (std::uint32_t rest = k; rest > 0; rest /= 2) binary.insert(0, 1, rest % 2 ? '1' : '0');
    code.insert(0, binary);
    k = static_cast<std::uint32_t>(binary.size() - 1);
  }
  return code;
}

std::string expected(EliasLayout layout, const Levels& levels) {
  const auto magnitude = [](std::int32_t l) { return static_cast<std::uint32_t>(std::abs(l)); };
  const auto sign = [](std::int32_t l) { return l < 0 ? "1" : "0"; };
  std::string bits;
  if (layout == EliasLayout::dense) {
    for (const std::int32_t l : levels) bits += elias(magnitude(l) + 1) + (l != 0 ? sign(l) : "");
    return bits;
  }
  std::uint32_t nonzeros = 0, gap = 1;
  for (const std::int32_t l : levels) {
    if (l != 0) {
      bits += elias(gap) + sign(l) + elias(magnitude(l));
      ++nonzeros;
      gap = 0;
    }
    ++gap;
  }
  return elias(nonzeros + 1) + bits;
}

std::string text_of(const std::vector<std::uint8_t>& bytes, std::int64_t bits) {
  std::string text;
  for (std::int64_t i = 0; i < bits; ++i) {
    text += (bytes[static_cast<std::size_t>(i / 8)] >> (7 - i % 8) & 1) != 0 ? '1' : '0';
  }
  return text;
}

struct Written {
  std::vector<std::uint8_t> bytes;
  std::int64_t bits = 0;
};

template <class Level>
std::vector<Level> levels_as(const Levels& levels) {
  return {levels.begin(), levels.end()};
}

/// Encodes levels of type `Level` into a buffer of the size that EliasMostBits promises to be
/// enough.
template <class Level>
Written encoded_as(EliasLayout layout, const Levels& levels, std::int32_t most) {
  const auto n = static_cast<std::int64_t>(levels.size());
  const std::int64_t room = EliasMostBits(layout, n, most);
  const std::vector<Level> own = levels_as<Level>(levels);
  Written written;
  written.bytes.resize(static_cast<std::size_t>((room + 7) / 8));
  BitWriter writer(written.bytes);
  EliasEncode<Level>(layout, own, writer);
  written.bits = writer.bits();
  EXPECT_LE(written.bits, room);
  EXPECT_EQ(EliasBits<Level>(layout, own), written.bits);
  written.bytes.resize(static_cast<std::size_t>(writer.End()));
  return written;
}

/// Encodes the levels as 16-bit integers and, if they fit, as 8-bit integers. Expects the same
/// bytes.
Written encoded(EliasLayout layout, const Levels& levels, std::int32_t most) {
  const Written written = encoded_as<std::int16_t>(layout, levels, most);
  if (most <= 127) {
    const Written small = encoded_as<std::int8_t>(layout, levels, most);
    EXPECT_EQ(small.bytes, written.bytes);
    EXPECT_EQ(small.bits, written.bits);
  }
  return written;
}

template <class Level>
Levels decoded_as(EliasLayout layout, const std::vector<std::uint8_t>& bytes, std::size_t n,
                  std::int32_t most) {
  std::vector<Level> levels(n, 123);
  levels.shrink_to_fit();
  BitReader reader(bytes);
  EliasDecode<Level>(layout, most, reader, levels);
  EXPECT_EQ(reader.End(), static_cast<std::int64_t>(bytes.size()));
  return {levels.begin(), levels.end()};
}

/// Decodes the levels as 16-bit integers and, if they fit, as 8-bit integers. Expects the same
/// levels.
Levels decoded(EliasLayout layout, const std::vector<std::uint8_t>& bytes, std::size_t n,
               std::int32_t most) {
  if (most > 127) return decoded_as<std::int16_t>(layout, bytes, n, most);
  const Levels levels = decoded_as<std::int8_t>(layout, bytes, n, most);
  EXPECT_EQ(decoded_as<std::int16_t>(layout, bytes, n, most), levels);
  return levels;
}

std::int64_t bits_of(EliasLayout layout, const Levels& levels) {
  return EliasBits<std::int16_t>(layout, levels);
}

/// Returns n random levels. About `zeros` percent of them are 0, and most of the others are small.
Levels random_levels(std::size_t n, std::int32_t most, unsigned zeros, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Levels levels(n);
  for (std::int16_t& level : levels) {
    if (random() % 100 < zeros || most == 0) continue;
    const auto bits = static_cast<int>(random() % 16);
    const auto range = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(most) >> bits);
    const auto magnitude = static_cast<int>(1 + random() % range);
    level = static_cast<std::int16_t>(random() % 2 == 0 ? -magnitude : magnitude);
  }
  return levels;
}

/// Returns a level for each value of v, among s levels from 0 to v's 2-norm. A value between two
/// levels is rounded up with a probability equal to its distance from the lower level, as a
/// fraction of the distance between the levels.
Levels levels_of(const std::vector<double>& v, int s, std::mt19937_64& random) {
  double norm = 0;
  for (const double x : v) norm += x * x;
  norm = std::sqrt(norm);
  std::uniform_real_distribution<double> uniform;
  Levels levels;
  for (const double x : v) {
    const auto level = std::min(s, static_cast<int>(std::abs(x) * s / norm + uniform(random)));
    levels.push_back(static_cast<std::int16_t>(x < 0 ? -level : level));
  }
  return levels;
}

std::vector<double> gaussian(std::size_t n, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::vector<double> v(n);
  for (double& x : v) x = normal(random);
  return v;
}

TEST(Elias, LengthsOfTheNumbers) {
  const auto expect = [](std::uint32_t from, std::uint32_t to, int length) {
    for (std::uint32_t k = from; k <= to; ++k) EXPECT_EQ(EliasLength(k), length) << k;
  };
  expect(1, 1, 1);
  expect(2, 3, 3);
  expect(4, 7, 6);
  expect(8, 15, 7);
  expect(16, 31, 11);
  EXPECT_EQ(EliasLength(1U << 31), 43);
  EXPECT_EQ(EliasLength(~0U), 43);
}

TEST(Elias, NumbersAsDefined) {
  for (std::uint64_t k = 1; k < (1ULL << 32); k = k < 70000 ? k + 1 : k * 3 / 2) {
    const auto number = static_cast<std::uint32_t>(k);
    std::vector<std::uint8_t> bytes(6);
    BitWriter writer(bytes);
    PutElias(number, writer);
    const std::int64_t bits = writer.bits();
    writer.End();
    ASSERT_EQ(text_of(bytes, bits), elias(number)) << k;
    ASSERT_EQ(EliasLength(number), bits);
    BitReader reader(bytes);
    ASSERT_EQ(ReadElias(reader, number), number);
    ASSERT_EQ(reader.at(), bits);
    BitReader again(bytes);
    ASSERT_THROW(ReadElias(again, number - 1), DamagedBytes);
  }
}

TEST(Elias, LayoutsAsDefined) {
  for (const EliasLayout layout : kLayouts) {
    for (const std::int32_t most : {0, 1, 3, 7, 15, 16, 126, 127, 128, 255, 32767}) {
      for (const unsigned zeros : {0U, 30U, 97U, 100U}) {
        for (const std::size_t n : {0, 1, 2, 5, 7, 8, 9, 16, 17, 512, 3000}) {
          const Levels levels = random_levels(n, most, zeros, n + zeros);
          const Written written = encoded(layout, levels, most);
          ASSERT_EQ(text_of(written.bytes, written.bits), expected(layout, levels))
              << most << " " << zeros << " " << n;
          ASSERT_EQ(decoded(layout, written.bytes, n, most), levels);
        }
      }
    }
  }
}

TEST(Elias, EveryShortRunOfLevels) {
  for (const EliasLayout layout : kLayouts) {
    for (int number = 0; number < 7 * 7 * 7 * 7 * 7; ++number) {
      Levels levels;
      for (int rest = number, i = 0; i < 5; ++i, rest /= 7)
        levels.push_back(static_cast<std::int16_t>(rest % 7 - 3));
      const Written written = encoded(layout, levels, 3);
      ASSERT_EQ(text_of(written.bytes, written.bits), expected(layout, levels));
      ASSERT_EQ(decoded(layout, written.bytes, 5, 3), levels);
    }
  }
}

TEST(Elias, ZerosBetweenLevels) {
  for (const EliasLayout layout : kLayouts) {
    for (std::size_t zeros = 0; zeros < 80; ++zeros) {  // across words and the table's end
      for (const std::int16_t level : {-128, -127, -1, 1, 7, 127, 300}) {
        Levels levels(3 * zeros + 3);
        for (const std::size_t nth : {1, 2, 3}) levels[nth * zeros + nth - 1] = level;
        const Written written = encoded_as<std::int16_t>(layout, levels, 300);
        ASSERT_EQ(text_of(written.bytes, written.bits), expected(layout, levels)) << zeros;
        ASSERT_EQ(decoded(layout, written.bytes, levels.size(), 300), levels);
        if (level > 127) continue;
        ASSERT_EQ(encoded_as<std::int8_t>(layout, levels, 128).bytes, written.bytes);
      }
    }
    Levels last(1 << 16);
    last.back() = 1;
    ASSERT_EQ(decoded(layout, encoded(layout, last, 1).bytes, last.size(), 1), last);
  }
}

TEST(Elias, TheWorstIsReached) {
  for (const std::int32_t most : {1, 7, 126, 127, 32767}) {
    for (const EliasLayout layout : kLayouts) {
      const Levels levels(64, static_cast<std::int16_t>(-most));
      const std::int64_t bits = bits_of(layout, levels);
      EXPECT_LE(bits, EliasMostBits(layout, 64, most));
      EXPECT_GE(bits, EliasMostBits(layout, 64, most) - 64);
    }
  }
  // A gap of zeros never takes more bits than the same zeros coded one by one.
  for (std::uint32_t gap = 1; gap < 100000; ++gap) {
    ASSERT_LE(EliasLength(gap) + 2, gap * 3);
  }
}

TEST(Elias, BucketsFollowEachOther) {
  std::vector<std::uint8_t> bytes(4000);
  BitWriter writer(bytes);
  std::vector<Levels> buckets;
  for (std::uint64_t b = 0; b < 6; ++b) {
    buckets.push_back(random_levels(300, 7, 30, b));
    writer.Put(0xDEADBEEF, 32);
    EliasEncode<std::int16_t>(kLayouts[b % 2], buckets.back(), writer);
  }
  bytes.resize(static_cast<std::size_t>(writer.End()));
  BitReader reader(bytes);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    EXPECT_EQ(reader.Read(32), 0xDEADBEEFU);
    Levels levels(300);
    EliasDecode<std::int16_t>(kLayouts[b % 2], 7, reader, levels);
    EXPECT_EQ(levels, buckets[b]);
  }
  EXPECT_EQ(reader.End(), static_cast<std::int64_t>(bytes.size()));
}

/// Decodes bytes that may be damaged. Returns whether all levels are in range, or the decoder
/// throws DamagedBytes with a text.
template <class Level>
bool is_sound_as(EliasLayout layout, const std::vector<std::uint8_t>& bytes, std::size_t n,
                 std::int32_t most) {
  std::vector<Level> levels(n);
  levels.shrink_to_fit();
  try {
    BitReader reader(bytes);
    EliasDecode<Level>(layout, most, reader, levels);
    reader.End();
    return std::ranges::all_of(levels, [&](int l) { return -most <= l && l <= most; });
  } catch (const DamagedBytes& damage) {
    return std::string(damage.what()).size() > 5;
  }
}

bool is_sound(EliasLayout layout, std::vector<std::uint8_t> bytes, std::size_t n,
              std::int32_t most) {
  bytes.shrink_to_fit();
  return is_sound_as<std::int16_t>(layout, bytes, n, most) &&
         (most > 127 || is_sound_as<std::int8_t>(layout, bytes, n, most));
}

TEST(Elias, EveryBitFlipAndTruncation) {
  for (const EliasLayout layout : kLayouts) {
    for (std::uint64_t stream = 0; stream < 500; ++stream) {
      const std::int32_t most = std::vector{1, 3, 7, 127, 32767}[stream % 5];
      const Levels levels = random_levels(20 + stream % 40, most, stream % 90, stream);
      const Written written = encoded(layout, levels, most);
      for (std::size_t bit = 0; bit < 8 * written.bytes.size(); ++bit) {
        auto changed = written.bytes;
        changed[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
        ASSERT_TRUE(is_sound(layout, changed, levels.size(), most));
      }
      for (std::size_t length = 0; length < written.bytes.size(); ++length) {
        auto cut = written.bytes;
        cut.resize(length);
        ASSERT_TRUE(is_sound(layout, cut, levels.size(), most));
        ASSERT_THROW(decoded(layout, cut, levels.size(), most), DamagedBytes);
      }
    }
  }
}

TEST(Elias, AnyBytes) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::uint8_t> bytes(random() % 60);
    const std::uint64_t ones = random() % 3;  // many, half or few
    for (std::uint8_t& byte : bytes) {
      byte = static_cast<std::uint8_t>(ones == 0   ? random() | random() | random()
                                       : ones == 1 ? random()
                                                   : random() & random());
    }
    const auto most = static_cast<std::int32_t>(random() % 9);
    ASSERT_TRUE(is_sound(kLayouts[i % 2], bytes, random() % 200, most));
  }
}

TEST(Elias, WhatTheDamageIs) {
  const auto damage = [](EliasLayout layout, const Levels& levels, std::size_t n,
                         std::int32_t most) -> std::string {
    try {
      decoded(layout, encoded_as<std::int16_t>(layout, levels, 1000).bytes, n, most);
    } catch (const DamagedBytes& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(damage(EliasLayout::dense, {1, 2, 3}, 3, 3), "none");
  EXPECT_EQ(damage(EliasLayout::dense, {1, 2, 3}, 3, 2), "a number is above 3");
  EXPECT_EQ(damage(EliasLayout::dense, Levels(64, -6), 64, 5), "a number is above 6");
  Levels one(64, 0);
  one[0] = -3;
  EXPECT_EQ(damage(EliasLayout::dense, one, 64, 2), "level 3 is above 2");
  EXPECT_EQ(damage(EliasLayout::dense, Levels(64, 0), 65, 5), "codes end behind the last byte");
  EXPECT_EQ(damage(EliasLayout::sparse, {0, 0, 1}, 2, 7), "a number is above 2");
  EXPECT_EQ(damage(EliasLayout::sparse, {1, 1, 1}, 2, 7), "a number is above 3");
}

// Tests the QSGD paper's bound on the length of the sparse coding, 2.8 n + 32 bits. The parameters
// are the paper's: s = sqrt(n), and the 2-norm.
TEST(Elias, SparseBoundHoldsForGaussianDataAlone) {
  std::mt19937_64 random(1);
  const std::size_t n = 4096;
  const int s = 64;
  double bits = 0;
  for (int i = 0; i < 50; ++i) {
    const Levels levels = levels_of(gaussian(n, random), s, random);
    const std::int64_t each = bits_of(EliasLayout::sparse, levels);
    EXPECT_LE(each + 32, 2.8 * n + 32);
    bits += static_cast<double>(each);
  }
  EXPECT_NEAR(bits / (50.0 * n), 2.756, 0.01);
  // If all |v| are equal, every level is 1.
  const Levels same = levels_of(std::vector<double>(n, 0.25), s, random);
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(same, 1)), n);
  EXPECT_NEAR(static_cast<double>(bits_of(EliasLayout::sparse, same)) / n, 3.0, 0.01);
}

}  // namespace
}  // namespace cpd
