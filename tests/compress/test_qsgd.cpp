// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cpd/backend/roster.h"
#include "cpd/compress/codecs.h"
#include "cpd/compress/qsgd.h"
#include "cpd/compress/spacing.h"
#include "cpd/numeric/error.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/levels.h"

namespace cpd {
namespace {

using testing::decode_piece;
using testing::encode_piece;
using testing::gradient_like;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kHuge = std::numeric_limits<float>::max();
constexpr float kInfinite = std::numeric_limits<float>::infinity();

RoundingOptions with_bits(int random_bits, std::uint64_t seed = 5) {
  RoundingOptions rounding;
  rounding.random_bits = random_bits;
  rounding.seed = seed;
  return rounding;
}

LevelPlan plan_of(int bits, bool intervals, int random_bits, std::int64_t bucket = 512) {
  const int steps = (1 << (intervals ? bits : bits - 1)) - 1;
  return {.bits = bits,
          .steps = steps,
          .most = steps,
          .intervals = intervals,
          .random_bits = random_bits,
          .bucket = bucket};
}

::testing::AssertionResult same(const std::vector<float>& expected, const std::vector<float>& got) {
  return testing::bits_equal(std::span<const float>(expected), std::span<const float>(got));
}

// --- the rule ------------------------------------------------------------------------------------

TEST(Levels, AreThoseOfWholeNumbers) {
  for (const int bits : {2, 3, 4, 5, 8, 12, 16}) {
    for (const bool intervals : {false, true}) {
      for (const int random_bits : {1, 8, 16, 24}) {
        const LevelPlan plan = plan_of(bits, intervals, random_bits);
        for (const float norm : {1.0F, 0.7F, 1e-38F, 3e-45F, 1.7e38F, kHuge}) {
          std::vector<float> x = gradient_like(300, 17, plan.steps);
          for (float& v : x) v = std::clamp(v * norm, -norm, norm);
          const auto random = testing::random_integers(x.size(), random_bits, 3);
          for (std::size_t i = 0; i < x.size(); ++i) {
            ASSERT_EQ(level_of(plan, x[i], norm, random[i]),
                      testing::level_by_integers(plan, x[i], norm, random[i]))
                << testing::hex(x[i]) << " of " << testing::hex(norm) << ", " << random[i] << " of "
                << random_bits << " bits, " << bits << (intervals ? " intervals" : " signed");
          }
        }
      }
    }
  }
}

/// Every R once: the mean is floor(fraction 2^N) / 2^N beyond the lower level.
TEST(Levels, AreWithoutBias) {
  constexpr int kRandomBits = 8;
  constexpr int kDraws = 1 << kRandomBits;
  for (const bool intervals : {false, true}) {
    const LevelPlan plan = plan_of(4, intervals, kRandomBits);
    for (const float v : gradient_like(500, 23)) {
      if (std::fabs(v) > 1.25F || std::fabs(v) < 0x1p-60F) continue;
      const float norm = 1.25F;
      std::int64_t sum = 0;
      for (std::uint32_t r = 0; r < kDraws; ++r) sum += level_of(plan, v, norm, r);
      // u 2^8, or (u + s) / 2 * 2^8, is exact here but for its quotient by 1.25.
      const testing::Quad u = static_cast<testing::Quad>(v) * plan.steps / norm;
      const testing::Quad place = (intervals ? (u + plan.steps) / 2
                                   : u < 0   ? -u
                                             : u) *
                                  static_cast<testing::Quad>(kDraws);
      EXPECT_EQ(sum, static_cast<std::int64_t>(place)) << testing::hex(v);
    }
  }
}

TEST(Levels, ValuesAreRoundedOnce) {
  for (const auto& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const int bits : {2, 3, 4, 5, 7, 8, 9, 12, 16}) {
      for (const bool intervals : {false, true}) {
        const LevelPlan plan = plan_of(bits, intervals, 24, 1 << 20);
        std::vector<std::uint32_t> codes;
        for (std::uint32_t c = 0; c < 1U << bits; c += bits > 12 ? 7 : 1) codes.push_back(c);
        const auto bytes = testing::packed(codes, bits);
        for (const float norm : {1.0F, 0.7F, 15.0F, 4194307.0F, 16777215.0F, 1e-38F, 7e-45F, kHuge,
                                 0.0F, kNan, 5.0F, 1.0F / 3}) {
          std::vector<float> got(codes.size());
          Kernels().decode_levels(plan, 0, 1, 0, static_cast<std::int64_t>(codes.size()),
                                  bytes.data(), &norm, got.data());
          std::vector<float> expected;
          for (const std::uint32_t code : codes) {
            expected.push_back(testing::value_by_quad(plan, code, norm));
          }
          EXPECT_TRUE(same(expected, got)) << backend << ", " << bits << " bits of " << norm;
        }
      }
    }
  }
}

// --- kernels -------------------------------------------------------------------------------------

TEST(Levels, EveryBackendHasTheRulesCodes) {
  for (const auto& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const int bits : {2, 3, 4, 6, 8, 9, 13, 16}) {
      for (const bool intervals : {false, true}) {
        for (const int random_bits : {1, 7, 16, 24}) {
          const auto n = std::int64_t{2500};
          for (const std::int64_t bucket : {1, 5, 64, 512, 65536}) {
            const std::int64_t before = 13 % bucket;
            LevelPlan plan = plan_of(bits, intervals, random_bits, bucket);
            const std::vector<float> x = gradient_like(2500, 100 + bits, plan.steps);
            std::vector<float> norms;
            for (std::int64_t b = 0; b < (before + n + bucket - 1) / bucket; ++b) {
              norms.push_back(
                  std::vector<float>{1.0F, 1.3F, 4.0F, 1.7e38F, 1.01F, 0,
                                     kNan}[static_cast<std::size_t>(b % (bucket < 512 ? 7 : 3))]);
            }
            const auto random = testing::random_integers(2500, random_bits, 4);
            std::vector<std::uint32_t> codes;
            for (std::int64_t i = 0; i < n; ++i) {
              const auto at = static_cast<std::size_t>(i);
              codes.push_back(testing::code_by_integers(
                  plan, x[at], norms[static_cast<std::size_t>((before + i) / bucket)], random[at]));
            }
            std::vector<std::uint8_t> got((2500 * static_cast<std::size_t>(bits) + 7) / 8);
            Kernels().encode_levels(plan, 3, before, n, x.data(), norms.data(), random.data(),
                                    got.data());
            ASSERT_EQ(testing::packed(codes, bits), got)
                << backend << ", " << bits << " bits, buckets of " << bucket << ", " << random_bits
                << (intervals ? " intervals" : " signed");
          }
        }
      }
    }
  }
}

/// Values on levels, and next to them, for which estimates cannot tell.
TEST(Levels, EveryBackendSeesWhatLiesBesideALevel) {
  for (const auto& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const int bits : {2, 4, 8, 11}) {
      for (const bool intervals : {false, true}) {
        const LevelPlan plan = plan_of(bits, intervals, 8, 1 << 20);
        const float norm = 0.9F;
        std::vector<float> x;
        std::vector<std::uint32_t> random;
        for (int level = 0; level <= std::min(plan.steps, 300); ++level) {
          for (const std::uint32_t r : {0U, 1U, 77U, 255U}) {
            const double place = (level - r / 256.0) * norm / plan.steps;
            const auto near = static_cast<float>(place);
            for (const float v : {near, std::nextafterf(near, 2), std::nextafterf(near, -2)}) {
              x.push_back(std::clamp(v, -norm, norm));
              x.push_back(-x.back());
              random.insert(random.end(), 2, r);
            }
          }
        }
        std::vector<std::uint32_t> codes;
        for (std::size_t i = 0; i < x.size(); ++i) {
          codes.push_back(testing::code_by_integers(plan, x[i], norm, random[i]));
        }
        const auto expected = testing::packed(codes, bits);
        std::vector<std::uint8_t> got(expected.size());
        Kernels().encode_levels(plan, 0, 0, static_cast<std::int64_t>(x.size()), x.data(), &norm,
                                random.data(), got.data());
        EXPECT_EQ(expected, got) << backend << ", " << bits;
      }
    }
  }
}

double folded(std::vector<double> sums) {
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

TEST(Levels, MomentsAreSixteenSums) {
  for (const auto& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const std::size_t n : {0, 1, 15, 16, 17, 1000}) {
      std::vector<float> x = gradient_like(n, n);
      for (std::size_t i = 5; i < n; i += 7) x[i] = i % 2 == 0 ? kNan : -kInfinite;
      for (const double mean : {0.0, 0.037}) {
        std::vector<double> sums(16), squares(16);
        std::int64_t finite = 0;
        float largest = 0;
        for (std::size_t i = 0; i < n; ++i) {
          if (!std::isfinite(x[i])) continue;
          const double d = static_cast<double>(x[i]) - mean;
          sums[i % 16] += d;
          squares[i % 16] = std::fma(d, d, squares[i % 16]);
          ++finite;
          largest = std::max(largest, std::fabs(x[i]));
        }
        Moments got;
        Kernels().moments(static_cast<std::int64_t>(n), x.data(), mean, &got);
        EXPECT_EQ(got.finite, finite);
        EXPECT_EQ(got.largest, largest);
        EXPECT_TRUE(testing::same_bits(got.sum, folded(sums))) << backend << " " << n;
        EXPECT_TRUE(testing::same_bits(got.squares, folded(squares))) << backend << " " << n;
      }
    }
  }
}

// --- the codec -----------------------------------------------------------------------------------

std::vector<float> norms_of(const std::vector<float>& x, std::int64_t bucket, bool euclidean) {
  std::vector<float> norms;
  const auto size = static_cast<std::int64_t>(x.size());
  for (std::int64_t begin = 0; begin < size; begin += bucket) {
    const std::int64_t end = std::min(begin + bucket, size);
    float largest = 0;
    std::vector<double> squares(16);
    bool finite = true;
    for (std::int64_t i = begin; i < end; ++i) {
      const float v = x[static_cast<std::size_t>(i)];
      finite = finite && std::isfinite(v);
      largest = std::max(largest, std::fabs(v));
      squares[static_cast<std::size_t>((i - begin) % 16)] += static_cast<double>(v) * v;
    }
    float norm = largest;
    if (euclidean) {
      __extension__ using Wide = long double;  // 64 bits: the root of 53 lies on no tie of 24
      norm = static_cast<float>(std::sqrt(static_cast<Wide>(folded(squares))));
    }
    norms.push_back(finite && std::isfinite(norm) ? norm : kNan);
  }
  return norms;
}

/// Bytes of the whole layer, for buckets of which blocks are multiples.
std::vector<std::uint8_t> bytes_of(const QsgdOptions& options, int random_bits,
                                   const std::vector<float>& x,
                                   const std::vector<std::uint32_t>& random) {
  const LevelPlan plan = plan_of(options.bits, options.intervals, random_bits);
  const std::vector<float> norms = norms_of(x, options.bucket, options.euclidean);
  const std::int64_t block = BlockOfBucket(options.bucket);
  const auto size = static_cast<std::int64_t>(x.size());
  std::vector<std::uint8_t> all;
  for (std::int64_t begin = 0; begin < size; begin += block) {
    const std::int64_t end = std::min(begin + block, size);
    for (std::int64_t b = begin / options.bucket; b * options.bucket < end; ++b) {
      std::uint8_t four[4];
      std::memcpy(four, &norms[static_cast<std::size_t>(b)], 4);
      all.insert(all.end(), four, four + 4);
    }
    std::vector<std::uint32_t> codes;
    for (std::int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      codes.push_back(testing::code_by_integers(
          plan, x[at], norms[static_cast<std::size_t>(i / options.bucket)], random[at]));
    }
    const auto packed = testing::packed(codes, options.bits);
    all.insert(all.end(), packed.begin(), packed.end());
  }
  return all;
}

TEST(Qsgd, BytesAreNormsAndLevels) {
  for (const QsgdOptions& options :
       {QsgdOptions{}, QsgdOptions{.bits = 2, .bucket = 128}, QsgdOptions{.bits = 8},
        QsgdOptions{.bits = 16, .bucket = 8192}, QsgdOptions{.bits = 4, .euclidean = true},
        QsgdOptions{.bits = 5, .bucket = 100, .euclidean = true, .intervals = true},
        QsgdOptions{.bits = 8, .bucket = 3, .intervals = true}, QsgdOptions{.bucket = 65536}}) {
    std::vector<float> x = gradient_like(20011, 3);
    x[300] = kNan;
    x[6000] = kInfinite;
    if (options.euclidean) x[9000] = kHuge, x[9001] = kHuge;
    std::fill(x.begin() + 12000, x.begin() + 14000, 0.0F);
    for (const int random_bits : {8, 24}) {
      const Qsgd codec(options, with_bits(random_bits));
      SCOPED_TRACE(codec.text());
      const auto random = testing::random_integers(x.size(), random_bits, 9);
      Piece piece{.n = 20011};
      piece.random = random.data();
      const auto expected = bytes_of(options, random_bits, x, random);
      EXPECT_EQ(static_cast<std::int64_t>(expected.size()), codec.MostBytes(20011));
      EXPECT_EQ(expected, encode_piece(codec, piece, x));
    }
  }
}

/// Norms, then buckets one by one as Elias writes them; of `smallest` the shortest of all.
TEST(Qsgd, EliasCodesLevels) {
  const std::vector<float> x = gradient_like(9001, 21);
  for (const char* options : {"", " bits=8 bucket=100", " bits=16 bucket=5000", " norm=2",
                              " bits=3 bucket=64 norm=2", " bits=2 bucket=tensor norm=2"}) {
    const std::string text = std::string("qsgd") + options;
    const SharedCodec fixed = MakeCodec(text);
    const auto expected = decode_piece(*fixed, encode_piece(*fixed, {.n = 9001}, x), 9001);
    std::size_t least = encode_piece(*fixed, {.n = 4000}, x).size();
    for (const char* coding : {"elias-dense", "elias-sparse", "smallest"}) {
      const SharedCodec codec = MakeCodec(text + " coding=" + coding);
      SCOPED_TRACE(codec->name());
      EXPECT_FALSE(codec->is_fixed());
      EXPECT_EQ(MakeCodec(codec->name())->text(), codec->text());
      const auto bytes = encode_piece(*codec, {.n = 9001}, x);
      EXPECT_TRUE(same(expected, decode_piece(*codec, bytes, 9001)));
      for (const std::int64_t begin : {1, 500, 4096}) {
        const auto part = encode_piece(*codec, {.begin = begin, .n = 4500}, x);
        EXPECT_TRUE(same({expected.begin() + begin, expected.begin() + begin + 4500},
                         decode_piece(*codec, part, 4500, begin % codec->bucket())));
      }
      const std::size_t size = encode_piece(*codec, {.n = 4000}, x).size();
      if (std::string(coding) == "smallest") {
        EXPECT_EQ(size, least + 1);
      } else {
        least = std::min(least, size);
      }
      auto cut = bytes;
      for (int i = 0; i < 20; ++i) {
        cut.pop_back();
        EXPECT_THROW(decode_piece(*codec, cut, 9001), DamagedBytes);
      }
      cut = bytes;
      cut.push_back(0);
      EXPECT_THROW(decode_piece(*codec, cut, 9001), DamagedBytes);
    }
  }
  EXPECT_THROW(MakeCodec("qsgd levels=intervals coding=smallest"), Error);
}

/// At 4 bits, 512 values and the largest magnitude, Gaussian gradients: 4.26 to 4.28 bits a value
/// dense, 4.18 sparse, 4.06 at fixed width.
TEST(Qsgd, EliasIsLongerThanFixedWidthAtFourBits) {
  std::mt19937_64 generator(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(1 << 18);
  for (float& v : x) v = normal(generator);
  const auto bits_of = [&](const char* text) {
    const SharedCodec codec = MakeCodec(text);
    const auto n = static_cast<std::int64_t>(x.size());
    return 8.0 * static_cast<double>(encode_piece(*codec, {.n = n}, x).size()) /
           static_cast<double>(n);
  };
  EXPECT_NEAR(bits_of("qsgd coding=elias-dense"), 4.27, 0.02);
  EXPECT_NEAR(bits_of("qsgd coding=elias-sparse"), 4.18, 0.02);
  EXPECT_EQ(bits_of("qsgd"), 4.0625);
  EXPECT_LE(bits_of("qsgd coding=smallest"), 4.0625 + 8.0 / 4096);
}

// --- levels of least variance --------------------------------------------------------------------

/// The expected squared error of levels at these places, value by value.
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

/// Against every choice of one and of two levels, and many of six.
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

/// floor(|u| ...) between places: by whole numbers.
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
        const testing::Quad u = std::fabs(static_cast<testing::Quad>(v)) * 256;
        const testing::Quad scale = norm;
        int lower = 6;
        while (u < scale * spacing.place[lower]) --lower;
        const testing::Quad draws = std::ldexp(1.0, random_bits);
        const int low = spacing.place[lower];
        const int gap = spacing.place[lower + 1] - low;
        // The fraction (u / scale - low) / gap + R / 2^N against 1, all times scale gap 2^N.
        const bool up = (u - scale * low) * draws + scale * gap * random[i] >= scale * gap * draws;
        ASSERT_EQ(spaced_level_of(plan, v, norm, random[i]), up ? lower + 1 : lower)
            << testing::hex(v) << " of " << testing::hex(norm) << " " << random[i];
      }
    }
  }
}

TEST(Spacing, CodecSendsThePlaces) {
  const std::vector<float> x = gradient_like(9000, 41);
  for (const char* text :
       {"qsgd spacing=optimal", "qsgd bits=2 spacing=optimal",
        "qsgd bits=8 bucket=100 spacing=optimal", "qsgd bucket=tensor norm=2 spacing=optimal",
        "qsgd bits=3 coding=smallest spacing=optimal"}) {
    const SharedCodec codec = MakeCodec(text);
    SCOPED_TRACE(text);
    EXPECT_EQ(MakeCodec(codec->name())->name(), codec->name());
    const auto whole = decode_piece(*codec, encode_piece(*codec, {.n = 9000}, x), 9000);
    const auto part = encode_piece(*codec, {.begin = 700, .n = 5000}, x);
    EXPECT_TRUE(same({whole.begin() + 700, whole.begin() + 5700},
                     decode_piece(*codec, part, 5000, 700 % codec->bucket())));
  }
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

/// A Gaussian's levels of least variance beat equal distances.
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

TEST(Qsgd, DecodeUndoesTheScaleAndDivides) {
  const std::vector<float> x = gradient_like(3000, 8);
  for (const char* text : {"qsgd", "qsgd levels=intervals", "qsgd bits=16 coding=elias-dense"}) {
    const SharedCodec codec = MakeCodec(text);
    const auto bytes = encode_piece(*codec, {.n = 3000}, x);
    for (const int shift : {0, 3, -9, 126, -126, 127, -200, 300}) {
      for (const float divisor : {1.0F, 4.0F, 3.0F, 0x1p-120F}) {
        std::vector<float> expected = decode_piece(*codec, bytes, 3000);
        Unscale(shift, divisor, 3000, expected.data(), expected.data());
        EXPECT_TRUE(same(expected, decode_piece(*codec, bytes, 3000, 0, shift, divisor)));
      }
    }
  }
}

TEST(Qsgd, DrawsAreThoseOfElements) {
  const std::vector<float> x = gradient_like(3000, 8);
  const Qsgd codec({}, with_bits(16, 77));
  std::vector<std::uint32_t> random;
  for (std::uint64_t i = 0; i < x.size(); ++i) random.push_back(random_integer(16, 77, 41, i));
  Piece given{.n = 3000};
  given.random = random.data();
  EXPECT_EQ(encode_piece(codec, {.n = 3000, .stream = 41}, x), encode_piece(codec, given, x));
}

TEST(Qsgd, CutBucketsHaveWholeNorms) {
  const std::vector<float> x = gradient_like(30000, 11);
  for (const char* text : {"qsgd", "qsgd bits=8 bucket=1000 norm=2", "qsgd bits=3 bucket=65536",
                           "qsgd bits=6 bucket=4500 levels=intervals"}) {
    const SharedCodec codec = MakeCodec(text);
    const auto whole =
        decode_piece(*codec, encode_piece(*codec, {.n = 30000, .stream = 1}, x), 30000);
    for (const std::int64_t begin : {0, 1, 511, 4096, 12345}) {
      for (const std::int64_t n : {0, 1, 600, 15000}) {
        const auto bytes = encode_piece(*codec, {.begin = begin, .n = n, .stream = 1}, x);
        const std::int64_t before = begin % codec->bucket();
        EXPECT_EQ(static_cast<std::int64_t>(bytes.size()), codec->MostBytes(n, before));
        EXPECT_TRUE(same({whole.begin() + begin, whole.begin() + begin + n},
                         decode_piece(*codec, bytes, n, before)));
      }
    }
  }
}

TEST(Qsgd, ALossScaleComesFirst) {
  std::vector<float> x = gradient_like(5000, 12);
  std::vector<float> scaled(x.size());
  Unscale(-7, 1, 5000, x.data(), scaled.data());
  const Qsgd codec;
  EXPECT_EQ(encode_piece(codec, {.n = 5000, .stream = 1}, scaled),
            encode_piece(codec, {.n = 5000, .shift = -7, .stream = 1}, x));
}

TEST(Qsgd, TensorsHaveOneNorm) {
  std::vector<float> x = gradient_like(9000, 13);
  for (const bool euclidean : {false, true}) {
    const Qsgd codec({.bits = 6, .bucket = 0, .euclidean = euclidean});
    EXPECT_EQ(codec.measured(), Measured::nothing);
    EXPECT_EQ(codec.bucket(), 1);
    const float norm = norms_of(x, 9000, euclidean)[0];
    const auto whole = decode_piece(codec, encode_piece(codec, {.n = 9000}, x), 9000);
    const LevelPlan plan = plan_of(6, false, 24);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::uint32_t code =
          testing::code_by_integers(plan, x[i], norm, random_integer(24, 0, 0, i));
      ASSERT_TRUE(testing::same_bits(whole[i], testing::value_by_quad(plan, code, norm)));
    }
    const auto part = encode_piece(codec, {.begin = 777, .n = 5000}, x);
    EXPECT_TRUE(same({whole.begin() + 777, whole.begin() + 5777}, decode_piece(codec, part, 5000)));
    EXPECT_EQ(codec.ForResults(kFp32, 4), nullptr);
  }
  x[8999] = kInfinite;
  const Qsgd codec({.bucket = 0});
  EXPECT_TRUE(same(std::vector<float>(9000, kNan),
                   decode_piece(codec, encode_piece(codec, {.n = 9000}, x), 9000)));
}

/// Lemma 3.1: E |Q(v) - v|^2 <= min(n / s^2, sqrt(n) / s) |v|^2 in the 2-norm, and
/// E |Q(v)|_0 <= s (s + sqrt(n)); by every R of 8 bits for each value, which are independent.
TEST(Qsgd, VarianceIsBounded) {
  constexpr int kDraws = 256;
  for (const int bits : {2, 4, 6}) {
    const Qsgd codec({.bits = bits, .bucket = 512, .euclidean = true}, with_bits(8));
    const double s = (1 << (bits - 1)) - 1;
    const std::vector<float> x = gradient_like(512, 31);
    double variance = 0, square = 0, nonzero = 0;
    for (const float v : x) square += static_cast<double>(v) * v;
    for (std::uint32_t r = 0; r < kDraws; ++r) {
      const std::vector<std::uint32_t> random(512, r);
      Piece piece{.n = 512};
      piece.random = random.data();
      const auto y = decode_piece(codec, encode_piece(codec, piece, x), 512);
      for (std::size_t i = 0; i < 512; ++i) {
        variance += std::pow(static_cast<double>(y[i]) - x[i], 2) / kDraws;
        nonzero += (y[i] != 0 ? 1.0 : 0.0) / kDraws;
      }
    }
    EXPECT_LE(variance, std::min(512 / (s * s), std::sqrt(512) / s) * square);
    EXPECT_GT(variance, 0);
    EXPECT_LE(nonzero, s * (s + std::sqrt(512)));
  }
}

TEST(Qsgd, ResultsAreEncodedAgain) {
  const Qsgd codec({.bits = 8, .bucket = 100}, with_bits(16));
  ASSERT_NE(codec.ForResults(kFp32, 8), nullptr);
  EXPECT_EQ(codec.ForResults(kFp32, 8)->text(), codec.text());
}

TEST(Qsgd, TextsParseBack) {
  const auto text = [](const char* given) { return MakeCodec(given, with_bits(24, 0))->name(); };
  EXPECT_EQ(text("qsgd"), "qsgd bits=4 bucket=512");
  EXPECT_EQ(text("qsgd bucket=tensor norm=max"), "qsgd bits=4 bucket=tensor");
  EXPECT_EQ(text("qsgd levels=intervals bits=8 norm=2"),
            "qsgd bits=8 bucket=512 norm=2 levels=intervals");
  for (const char* each : {"qsgd bits=2 bucket=128", "qsgd bits=16 bucket=8192 norm=2",
                           "qsgd bits=4 bucket=tensor levels=intervals"}) {
    EXPECT_EQ(text(each), each);
  }
  EXPECT_EQ(MakeCodec("qsgd")->text(), "qsgd bits=4 bucket=512 random_bits=24 seed=0");
}

TEST(Qsgd, RefusesWhatItHasNot) {
  for (const char* each :
       {"qsgd bits=1", "qsgd bits=17", "qsgd bucket=0", "qsgd bucket=65537", "qsgd norm=1",
        "qsgd levels=three", "qsgd 4", "qsgd bits=4 bits=5", "qsgd bucket=layer"}) {
    EXPECT_THROW(MakeCodec(each), Error) << each;
  }
  EXPECT_THROW(Qsgd({.bits = 1}), Error);
  EXPECT_THROW(Qsgd({.bucket = -1}), Error);
  EXPECT_THROW(Qsgd({}, with_bits(25)), Error);
  const Qsgd codec({.bucket = 8});
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(codec.MostBytes(8)));
  for (const float norm : {-1.0F, -0.0F, kInfinite}) {
    std::memcpy(bytes.data(), &norm, 4);
    EXPECT_THROW(decode_piece(codec, bytes, 8), DamagedBytes) << norm;
  }
  std::memcpy(bytes.data(), &kNan, 4);
  EXPECT_TRUE(same(std::vector<float>(8, kNan), decode_piece(codec, bytes, 8)));
}

}  // namespace
}  // namespace cpd
