// SPDX-License-Identifier: Apache-2.0
//
// Tests messages that hold the indices of nonzero values, and the codec for values that are mostly
// zeros. Checks decoding, the lengths of messages, and damaged bytes.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cpd/backend/queue.h"
#include "cpd/backend/roster.h"
#include "cpd/compress/codecs.h"
#include "cpd/compress/places.h"
#include "cpd/compress/sparse.h"
#include "cpd/spec/error.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"

namespace cpd {
namespace {

using testing::same;
using Places = std::vector<std::int64_t>;
using Bytes = std::vector<std::uint8_t>;

Bytes put(const Places& places, std::int64_t n, std::int64_t begin = 0) {
  Bytes bytes(static_cast<std::size_t>(MostPlaceBytes(n)));
  bytes.resize(static_cast<std::size_t>(PutPlaces(places, begin, n, bytes.data()) - bytes.data()));
  return bytes;
}
Places take(const Bytes& bytes, std::int64_t n) {
  std::span<const std::uint8_t> rest(bytes);
  const Places places = TakePlaces(rest, n);
  EXPECT_TRUE(rest.empty());
  return places;
}

/// Returns random indices below n; each index is chosen with probability `share`.
Places some(std::int64_t n, double share, unsigned seed) {
  std::mt19937 bits(seed);
  std::bernoulli_distribution is_there(share);
  Places places;
  for (std::int64_t i = 0; i < n; ++i) {
    if (is_there(bits)) places.push_back(i);
  }
  return places;
}

TEST(Places, EverySetOfAFew) {
  for (std::int64_t n = 1; n <= 12; ++n) {
    for (unsigned set = 0; set < 1U << n; ++set) {
      Places places;
      for (std::int64_t i = 0; i < n; ++i) {
        if ((set >> i & 1U) != 0) places.push_back(i);
      }
      EXPECT_EQ(take(put(places, n), n), places);
    }
  }
}

TEST(Places, NumbersAndGapsOfEverySize) {
  for (const double share : {0.0, 1e-4, 0.003, 0.01, 0.1, 0.4, 0.6, 0.99, 1.0}) {
    const Places places = some(50000, share, 4);
    EXPECT_EQ(take(put(places, 50000), 50000), places) << share;
  }
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{1000}, std::int64_t{1} << 20}) {
    EXPECT_EQ(take(put({n - 1}, n), n), Places{n - 1});
    EXPECT_EQ(take(put({0}, n), n), Places{0});
    Places packed(static_cast<std::size_t>(std::min<std::int64_t>(n, 40)));
    std::iota(packed.begin(), packed.end(), n - static_cast<std::int64_t>(packed.size()));
    EXPECT_EQ(take(put(packed, n), n), packed);
  }
  const std::int64_t large = std::int64_t{1} << 26;  // codes with as many zeros as there can be
  const Places ends{large - 2, large - 1};
  EXPECT_EQ(take(put(ends, large), large), ends);
  EXPECT_EQ(take(put({7, 9}, 5, 5), 5), (Places{2, 4}));
}

/// If one value in a hundred is nonzero, the entropy is 8.08 bits for each index. If half of the
/// values are nonzero, one bit a value is the least.
TEST(Places, AreCompact) {
  const Places hundredth = some(1 << 20, 0.01, 1);
  EXPECT_LT(8.0 * static_cast<double>(put(hundredth, 1 << 20).size()),
            8.2 * static_cast<double>(hundredth.size()));
  EXPECT_LE(put(some(1 << 16, 0.5, 2), 1 << 16).size(), (1U << 13) + 4);
}

TEST(Places, Damage) {
  const Bytes bytes = put(some(3000, 0.05, 3), 3000);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    std::span<const std::uint8_t> cut(bytes.data(), length);
    EXPECT_THROW(TakePlaces(cut, 3000), DamagedBytes);
  }
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    Bytes changed = bytes;
    changed[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
    std::span<const std::uint8_t> rest(changed);
    try {
      std::int64_t least = 0;
      for (const std::int64_t place : TakePlaces(rest, 3000)) {
        EXPECT_TRUE(place >= least && place < 3000);
        least = place + 1;
      }
    } catch (const DamagedBytes&) {
    }
  }
  Bytes number(kMostNumberBytes);
  number.resize(static_cast<std::size_t>(PutNumber(300, number.data()) - number.data()));
  std::span<const std::uint8_t> of_number(number);
  EXPECT_EQ(TakeNumber(of_number, 300), 300);
  of_number = number;
  EXPECT_THROW(TakeNumber(of_number, 299), DamagedBytes);
  for (const Bytes& wrong : {Bytes{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1},
                             Bytes{0x80, 0x80}, Bytes{11}, Bytes{}}) {
    std::span<const std::uint8_t> rest(wrong);
    EXPECT_THROW(TakePlaces(rest, 10), DamagedBytes);
  }
}

Bytes encoded(const Codec& codec, const std::vector<float>& x, int shift = 0) {
  const auto n = static_cast<std::int64_t>(x.size());
  Bytes bytes(static_cast<std::size_t>(codec.MostBytes(n)));
  const std::int64_t used = codec.Encode({0, 0, n, shift}, nullptr, x.data(), bytes.data());
  EXPECT_LE(used, codec.MostBytes(n));
  bytes.resize(static_cast<std::size_t>(used));
  return bytes;
}
std::vector<float> decoded(const Codec& codec, const Bytes& bytes, std::size_t n) {
  std::vector<float> y(n);
  codec.Decode(bytes, static_cast<std::int64_t>(n), 0, 1, y.data());
  return y;
}
/// Rounding in place gives the same values and counts as rounding into other memory.
TEST(Sparse, RoundsInPlace) {
  const Sparse codec(ParseFormat("e4m3"));
  const std::vector<float> x{0, 1e-9F, 1.1F, -3, std::numeric_limits<float>::infinity(), -1e-9F};
  const Piece piece{.n = 6, .shift = 1};
  std::vector<float> apart(6);
  std::vector<float> y = x;
  for (float* to : {apart.data(), y.data()}) {
    SegmentCounts counts;
    codec.RoundOn(*HostQueue(), piece, nullptr, to == y.data() ? to : x.data(), to, &counts);
    EXPECT_EQ(counts.zeros, 3U);
    EXPECT_EQ(counts.underflowed, 2U);
    EXPECT_EQ(counts.non_finite, 1U);
  }
  EXPECT_TRUE(same(apart, y));
  EXPECT_TRUE(same(decoded(codec, encoded(codec, x, 1), 6), y));
}

TEST(Sparse, KeepsEveryBitButNansPayload) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const float least = std::numeric_limits<float>::denorm_min();
  std::vector<float> x(1000);
  x[3] = -0.0F;
  x[4] = least;
  x[500] = -inf;
  x[501] = inf;
  x[502] = -nan;
  x[999] = 3.25F;
  const Sparse codec;
  std::vector<float> expected = x;
  expected[502] = nan;
  for (const KernelTable* table : testing::kernel_tables()) {
    ForceKernels(table->name);
    EXPECT_TRUE(same(expected, decoded(codec, encoded(codec, x), x.size()))) << table->name;
  }
  ForceKernels("");
  std::vector<float> rounded(x.size());
  codec.Round({0, 0, 1000}, nullptr, x.data(), rounded.data());
  EXPECT_TRUE(same(expected, rounded));
}

TEST(Sparse, TheShorterOfTwo) {
  const Sparse codec;
  EXPECT_EQ(codec.MostBytes(1000), 4001);
  EXPECT_EQ(codec.MostBytes(0), 0);
  EXPECT_EQ(encoded(codec, std::vector<float>(1000, -0.0F)).size(), 4001U);
  EXPECT_EQ(encoded(codec, std::vector<float>(1000, 0.0F)), (Bytes{1, 0}));
  EXPECT_TRUE(encoded(codec, {}).empty());
  std::vector<float> x(1 << 16);
  for (const std::int64_t i : some(1 << 16, 0.02, 8)) x[i] = static_cast<float>(i) - 0.5F;
  const Bytes bytes = encoded(codec, x);
  EXPECT_LT(8 * bytes.size(), x.size());  // 0.02 * (32 + 7.2) bits a value
  EXPECT_TRUE(same(x, decoded(codec, bytes, x.size())));
}

/// A message is never longer than one flag byte plus all values, for any number and order of zeros.
TEST(Sparse, IsNoLongerThanAllValues) {
  constexpr std::int64_t n = 1000;
  for (const char* text : {"e2m1", "e4m3fn", "e5m2", "fp32"}) {
    const Sparse codec(ParseFormat(text));
    const std::int64_t most = 1 + (n * codec.format().bits() + 7) / 8;
    EXPECT_EQ(codec.MostBytes(n), most);
    for (int share = 0; share <= 100; ++share) {
      std::vector<float> x(n);
      for (const std::int64_t i : some(n, 0.01 * share, 5)) x[i] = 1.0F;
      const Bytes bytes = encoded(codec, x);
      EXPECT_LE(static_cast<std::int64_t>(bytes.size()), most) << text << ", " << share << " %";
      EXPECT_TRUE(same(x, decoded(codec, bytes, x.size()))) << text << ", " << share << " %";
    }
  }
}

TEST(Sparse, TextsAndDamage) {
  EXPECT_EQ(MakeCodec("sparse")->text(), "sparse");
  EXPECT_EQ(MakeCodec("sparse e5m2")->name(), "sparse e5m2");
  EXPECT_THROW(MakeCodec("sparse e8m0"), Error);
  EXPECT_THROW(MakeCodec("sparse e5m2 x"), Error);
  const Sparse codec;
  EXPECT_THROW(decoded(codec, {2, 0}, 4), DamagedBytes);
  EXPECT_THROW(decoded(codec, {}, 4), DamagedBytes);
  EXPECT_THROW(decoded(codec, {1, 0, 0}, 4), DamagedBytes);
  EXPECT_THROW(decoded(codec, {0}, 0), DamagedBytes);
}

}  // namespace
}  // namespace cpd
