// SPDX-License-Identifier: Apache-2.0
//
// Tests that the level spacing of least variance beats all other spacings that the tests try.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/compress/spacing.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/levels.h"

namespace cpd {
namespace {

using testing::decode_piece;
using testing::encode_piece;
using testing::gradient_like;
using testing::norms_of;
using testing::plan_of;

constexpr float kHuge = std::numeric_limits<float>::max();

/// Returns the expected squared error of stochastic rounding to the levels of `spacing`, summed
/// value by value.
double variance_of(const std::vector<float>& x, std::int64_t bucket, const LevelSpacing& spacing) {
  const std::vector<float> norms = norms_of(x, bucket, false);
  double variance = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double norm = norms[i / static_cast<std::size_t>(bucket)];
    if (norm == 0) continue;
    const double u = std::fabs(x[i]) / norm;
    int level = 0;
    while (u > spacing.place[level + 1] / 256.0) ++level;
    const double low = spacing.place[level] / 256.0;
    const double high = spacing.place[level + 1] / 256.0;
    variance += (u - low) * (high - u) * norm * norm;
  }
  return variance;
}

LevelSpacing spacing_at(std::vector<int> inner) {
  LevelSpacing spacing;
  std::ranges::copy(inner, spacing.place + 1);
  spacing.place[inner.size() + 1] = 256;
  CompleteSpacing(spacing, static_cast<int>(inner.size()) + 1);
  return spacing;
}

SpacingSums sums_of(const std::vector<float>& x, std::int64_t bucket) {
  const std::vector<float> norms = norms_of(x, bucket, false);
  SpacingSums sums;
  for (std::size_t b = 0; b < norms.size(); ++b) {
    const std::size_t begin = b * static_cast<std::size_t>(bucket);
    const std::size_t n = std::min(x.size() - begin, static_cast<std::size_t>(bucket));
    sums.Add(static_cast<std::int64_t>(n), x.data() + begin, norms[b]);
  }
  return sums;
}

/// Compares the optimal spacing with every choice of one inner level (a level between 0 and the
/// norm), and with many choices of two and of six inner levels.
TEST(Spacing, NoPlacesHaveLessVariance) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    const std::vector<float> x = gradient_like(600, seed);
    const SpacingSums sums = sums_of(x, 64);
    const double one = variance_of(x, 64, sums.Optimal(2));
    const double two = variance_of(x, 64, sums.Optimal(3));
    const double six = variance_of(x, 64, sums.Optimal(7));
    const double rounding = 1e-12 * variance_of(x, 64, sums.Optimal(1));
    EXPECT_LE(six, two);
    EXPECT_LE(two, one);
    for (int a = 1; a < 256; ++a) {
      EXPECT_LE(one, variance_of(x, 64, spacing_at({a})) + rounding) << a;
      for (int b = a + 1; b < 256; b += 3) {
        EXPECT_LE(two, variance_of(x, 64, spacing_at({a, b})) + rounding) << a << " " << b;
      }
    }
    std::mt19937_64 generator(seed);
    std::vector<int> all(255);
    std::iota(all.begin(), all.end(), 1);
    for (int i = 0; i < 500; ++i) {
      std::vector<int> inner;
      std::ranges::sample(all, std::back_inserter(inner), 6, generator);
      EXPECT_LE(six, variance_of(x, 64, spacing_at(inner)) + rounding);
    }
  }
}

/// The levels have unequal distances. Compares the level to which each value is rounded with a
/// computation in exact integers.
TEST(Spacing, LevelsAreThoseOfWholeNumbers) {
  const LevelSpacing spacing = spacing_at({1, 2, 40, 90, 200, 255});
  for (const int random_bits : {1, 8, 24}) {
    LevelPlan plan = plan_of(4, false, random_bits);
    plan.spacing = &spacing;
    for (const float norm : {1.0F, 0.7F, 1e-38F, 7e-45F, kHuge}) {
      const std::vector<float> x = gradient_like(400, 5, 256);
      const auto random = testing::random_integers(x.size(), random_bits, 5);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float v = std::clamp(x[i] * norm, -norm, norm);
        const testing::Quad u = static_cast<testing::Quad>(std::fabs(v)) * 256;
        const testing::Quad scale = norm;
        int lower = 6;
        while (u < scale * spacing.place[lower]) --lower;
        const testing::Quad draws = std::ldexp(1.0, random_bits);
        const int low = spacing.place[lower];
        const int gap = spacing.place[lower + 1] - low;
        // The value lies at u / scale, between the levels at low and low + gap. It is rounded up if
        // (u / scale - low) / gap + R / 2^N is at least 1. The code multiplies both sides by scale
        // * gap * 2^N.
        const bool up = (u - scale * low) * draws + scale * gap * random[i] >= scale * gap * draws;
        ASSERT_EQ(spaced_level_of(plan, v, norm, random[i]), up ? lower + 1 : lower)
            << testing::hex(v) << " of " << testing::hex(norm) << " " << random[i];
      }
    }
  }
}

TEST(Spacing, CodecSendsThePlaces) {
  const std::vector<float> x = gradient_like(9000, 41);
  const SharedCodec codec = MakeCodec("qsgd spacing=optimal");
  const auto bytes = encode_piece(*codec, {.n = 512}, x);
  EXPECT_EQ(bytes.size(), 4 + 6 + 256U);
  const std::vector<float> first(x.begin(), x.begin() + 512);
  const LevelSpacing spacing = sums_of(x, 512).Optimal(7);
  const float norm = norms_of(first, 512, false)[0];
  std::set<float> allowed;
  for (int j = 0; j <= 7; ++j) {
    EXPECT_TRUE(j == 0 || j == 7 || bytes[static_cast<std::size_t>(3 + j)] == spacing.place[j]);
    const auto value = static_cast<float>(static_cast<double>(spacing.place[j]) * norm / 256);
    allowed.insert({value, -value});
  }
  for (const float v : decode_piece(*codec, bytes, 512)) EXPECT_TRUE(allowed.contains(v)) << v;
  auto wrong = bytes;
  wrong[5] = wrong[4];
  EXPECT_THROW(decode_piece(*codec, wrong, 512), DamagedBytes);
  EXPECT_EQ(codec->ForResults(kFp32, 4)->name(), "qsgd bits=4 bucket=512");
  EXPECT_THROW(MakeCodec("qsgd bits=9 spacing=optimal"), Error);
  EXPECT_THROW(MakeCodec("qsgd levels=intervals spacing=optimal"), Error);
}

/// For Gaussian values, the levels of least variance lose less than levels at equal distances.
TEST(Spacing, GaussiansLoseLess) {
  std::mt19937_64 generator(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(1 << 16);
  for (float& v : x) v = normal(generator);
  std::vector<int> even;
  for (int j = 1; j < 7; ++j) even.push_back((256 * j + 3) / 7);
  EXPECT_LT(variance_of(x, 512, sums_of(x, 512).Optimal(7)),
            0.9 * variance_of(x, 512, spacing_at(even)));
}

}  // namespace
}  // namespace cpd
