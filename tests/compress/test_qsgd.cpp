// SPDX-License-Identifier: Apache-2.0
//
// Tests QSGD: bytes and values by the definition, codings, random integers, variance, texts and
// refused arguments.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/compress/qsgd.h"
#include "cpd/numeric/draws/philox.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/levels.h"

namespace cpd {
namespace {

using testing::decode_piece;
using testing::encode_piece;
using testing::gradient_like;
using testing::kInf;
using testing::kNan;
using testing::norms_of;
using testing::plan_of;
using testing::same;

constexpr float kHuge = std::numeric_limits<float>::max();

RoundingOptions with_bits(int random_bits) { return {.random_bits = random_bits}; }

LevelPlan plan_of_options(const QsgdOptions& options, int random_bits) {
  return options.steps != 0 ? testing::plan_of_levels(options.steps, random_bits)
                            : plan_of(options.bits, options.intervals, random_bits);
}

/// Returns the bytes of a whole layer as the definition of QSGD gives them: for each block the
/// norms of its buckets, then the codes of its values.
std::vector<std::uint8_t> bytes_of(const QsgdOptions& options, int random_bits,
                                   const std::vector<float>& x,
                                   const std::vector<std::uint32_t>& random) {
  const LevelPlan plan = plan_of_options(options, random_bits);
  const auto size = static_cast<std::int64_t>(x.size());
  const std::int64_t bucket = options.bucket == 0 ? size : options.bucket;
  const std::vector<float> norms = norms_of(x, bucket, options.euclidean);
  const std::int64_t block = BlockOfBucket(std::max<std::int64_t>(options.bucket, 1));
  std::vector<std::uint8_t> all;
  for (std::int64_t begin = 0; begin < size; begin += block) {
    const std::int64_t end = std::min(begin + block, size);
    for (std::int64_t b = begin / bucket; b * bucket < end; ++b) {
      std::uint8_t four[4];
      std::memcpy(four, &norms[static_cast<std::size_t>(b)], 4);
      all.insert(all.end(), four, four + 4);
    }
    std::vector<std::uint32_t> codes;
    for (std::int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      codes.push_back(testing::code_by_integers(
          plan, x[at], norms[static_cast<std::size_t>(i / bucket)], random[at]));
    }
    const auto packed = testing::packed(codes, plan.bits);
    all.insert(all.end(), packed.begin(), packed.end());
  }
  return all;
}

TEST(Qsgd, BytesAreNormsAndLevels) {
  for (const QsgdOptions& options :
       {QsgdOptions{}, QsgdOptions{.bits = 2, .bucket = 128}, QsgdOptions{.bits = 8},
        QsgdOptions{.bits = 16, .bucket = 8192}, QsgdOptions{.bits = 4, .euclidean = true},
        QsgdOptions{.bits = 5, .bucket = 100, .euclidean = true, .intervals = true},
        QsgdOptions{.bits = 8, .bucket = 3, .intervals = true}, QsgdOptions{.bucket = 65536},
        QsgdOptions{.bits = 1, .bucket = 512, .intervals = true}, QsgdOptions{.steps = 1},
        QsgdOptions{.steps = 16, .euclidean = true}, QsgdOptions{.steps = 20, .bucket = 100},
        QsgdOptions{.steps = 300, .bucket = 8192}, QsgdOptions{.bits = 6, .bucket = 0},
        QsgdOptions{.bits = 6, .bucket = 0, .euclidean = true}}) {
    std::vector<float> x = gradient_like(20011, 3);
    if (options.bucket != 0) {
      x[300] = kNan;
      x[6000] = kInf;
      if (options.euclidean) x[9000] = kHuge, x[9001] = kHuge;
    }
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

/// The Elias codings give the same values as codes of fixed width. `smallest` takes the shortest
/// coding for each block, plus one byte for each block.
TEST(Qsgd, CodingsHaveTheSameValues) {
  const std::vector<float> x = gradient_like(9001, 21);
  for (const char* options :
       {"", " bits=8 bucket=100", " bits=16 bucket=5000", " norm=2", " bits=3 bucket=64 norm=2",
        " bits=2 bucket=tensor norm=2", " s=16 norm=2", " s=1 norm=2", " s=200 bucket=100"}) {
    const std::string text = std::string("qsgd") + options;
    const SharedCodec fixed = MakeCodec(text);
    const auto expected = decode_piece(*fixed, encode_piece(*fixed, {.n = 9001}, x), 9001);
    std::size_t least = encode_piece(*fixed, {.n = 4000}, x).size();
    for (const char* coding : {"elias-dense", "elias-sparse", "smallest"}) {
      const SharedCodec codec = MakeCodec(text + " coding=" + coding);
      SCOPED_TRACE(codec->name());
      EXPECT_FALSE(codec->is_fixed());
      EXPECT_TRUE(same(expected, decode_piece(*codec, encode_piece(*codec, {.n = 9001}, x), 9001)));
      const std::size_t size = encode_piece(*codec, {.n = 4000}, x).size();
      if (std::string(coding) == "smallest") {
        EXPECT_EQ(size, least + 1);
      }
      least = std::min(least, size);
    }
  }
}

/// Gaussian gradients with 4 bits, buckets of 512 values and the largest magnitude as norm:
/// elias-dense takes 4.26 to 4.28 bits a value, elias-sparse 4.18, and codes of fixed width 4.06.
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

TEST(Qsgd, DrawsAreThoseOfElements) {
  const std::vector<float> x = gradient_like(3000, 8);
  const Qsgd codec({}, with_bits(16));
  std::vector<std::uint32_t> random;
  for (std::uint64_t i = 0; i < x.size(); ++i) random.push_back(random_integer(16, 77, 41, i));
  Piece given{.n = 3000};
  given.random = random.data();
  EXPECT_EQ(encode_piece(codec, {.n = 3000, .key = {.seed = 77, .stream = 41}}, x),
            encode_piece(codec, given, x));
}

/// Tests Lemma 3.1 of the QSGD paper: E |Q(v) - v|^2 <= min(n / s^2, sqrt(n) / s) |v|^2 in the
/// 2-norm, and E |Q(v)|_0 <= s (s + sqrt(n)). The expectations are means over all 256 random
/// integers R, which is exact because the values are rounded independently.
TEST(Qsgd, VarianceIsBounded) {
  constexpr int kDraws = 256;
  for (const int steps : {1, 5, 7, 16, 22, 31}) {
    const Qsgd codec({.steps = steps, .bucket = 512, .euclidean = true}, with_bits(8));
    const double s = steps;
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
  EXPECT_EQ(Qsgd({.bucket = 0}).ForResults(kFp32, 4), nullptr);
  const Qsgd codec({.bits = 8, .bucket = 100}, with_bits(16));
  ASSERT_NE(codec.ForResults(kFp32, 8), nullptr);
  EXPECT_EQ(codec.ForResults(kFp32, 8)->text(), codec.text());
}

TEST(Qsgd, BucketsRunAlongAnAxis) {
  const SharedCodec codec = MakeCodec("qsgd axis=0 bucket=100 s=5", with_bits(16));
  EXPECT_EQ(codec->name(), "qsgd s=5 bucket=100 axis=0");
  EXPECT_TRUE(codec->by_rows());
  const std::int64_t shape[] = {40, 7};
  EXPECT_EQ(codec->LayoutOf(shape), (RowLayout{0, 40}));
  const SharedCodec columns = codec->ForRows(40);
  EXPECT_EQ(columns->text(), "qsgd s=5 bucket=100 axis=0 of columns of 40 random_bits=16");
  EXPECT_EQ(columns->ForResults(kFp32, 4)->text(), columns->text());
  EXPECT_FALSE(columns->by_rows());
  EXPECT_EQ(columns->LayoutOf(shape), RowLayout{});
  const std::vector<float> x = gradient_like(3000, 8);
  EXPECT_EQ(encode_piece(*columns, {.n = 3000}, x),
            encode_piece(*MakeCodec("qsgd s=5 bucket=100", with_bits(16)), {.n = 3000}, x));
  EXPECT_THROW(MakeCodec("qsgd axis=0 bucket=tensor"), Error);
  EXPECT_THROW(MakeCodec("top_k 0.1 qsgd axis=0"), Error);
}

TEST(Qsgd, BucketsSplitNoRun) {
  EXPECT_EQ(MakeCodec("qsgd whole=9")->bucket(), 504);
  EXPECT_EQ(MakeCodec("qsgd whole=512")->bucket(), 512);
  EXPECT_EQ(MakeCodec("qsgd bucket=1000 whole=501")->bucket(), 501);
  EXPECT_EQ(MakeCodec("qsgd whole=9 bucket=100 s=5")->name(), "qsgd s=5 bucket=99");
  EXPECT_EQ(MakeCodec("one_bit bucket=64 whole=9 axis=0")->name(), "one_bit bucket=63 axis=0");
  EXPECT_EQ(MakeCodec("terngrad bucket=64 whole=9")->bucket(), 63);
  EXPECT_EQ(MakeCodec("terngrad whole=1")->name(), "terngrad clip=2.5");
  for (const char* each :
       {"qsgd whole=513", "qsgd whole=0", "qsgd bucket=tensor whole=9", "terngrad whole=9",
        "one_bit whole=9", "one_bit bucket=8 whole=9", "qsgd whole=9 whole=9"}) {
    EXPECT_THROW(MakeCodec(each), Error) << each;
  }
}

TEST(Qsgd, Texts) {
  const auto text = [](const char* given) { return MakeCodec(given, with_bits(24))->name(); };
  EXPECT_EQ(text("qsgd"), "qsgd bits=4 bucket=512");
  EXPECT_EQ(text("qsgd bucket=tensor norm=max"), "qsgd bits=4 bucket=tensor");
  EXPECT_EQ(text("qsgd levels=intervals bits=8 norm=2"),
            "qsgd bits=8 bucket=512 norm=2 levels=intervals");
  EXPECT_EQ(text("qsgd spacing=optimal s=127"), "qsgd s=127 bucket=512 spacing=optimal");
  EXPECT_EQ(MakeCodec("qsgd")->text(), "qsgd bits=4 bucket=512 random_bits=24");
}

TEST(Qsgd, RefusesWhatItHasNot) {
  for (const char* each : {"qsgd bits=17", "qsgd bucket=0", "qsgd bucket=65537", "qsgd norm=1",
                           "qsgd levels=three", "qsgd 4", "qsgd bits=4 bits=5", "qsgd bucket=layer",
                           "qsgd s=-1", "qsgd bits=1 levels=intervals coding=smallest"}) {
    EXPECT_THROW(MakeCodec(each), Error) << each;
  }
  EXPECT_THROW(Qsgd({.bits = 1}), Error);
  EXPECT_THROW(Qsgd({.steps = 32768}), Error);
  EXPECT_THROW(Qsgd({.steps = 7, .intervals = true}), Error);
  EXPECT_THROW(Qsgd({.bucket = -1}), Error);
  EXPECT_THROW(Qsgd({}, with_bits(25)), Error);
  const Qsgd codec({.bucket = 8});
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(codec.MostBytes(8)));
  for (const float norm : {-1.0F, -0.0F, kInf}) {
    std::memcpy(bytes.data(), &norm, 4);
    EXPECT_THROW(decode_piece(codec, bytes, 8), DamagedBytes) << norm;
  }
  std::memcpy(bytes.data(), &kNan, 4);
  EXPECT_TRUE(same(std::vector<float>(8, kNan), decode_piece(codec, bytes, 8)));
  // With two levels and codes of 3 bits, the codes 3, 4 and 5 have no level and decode to NaN.
  const Qsgd two({.steps = 2, .bucket = 8});
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(two.MostBytes(8)));
  const float norm = 1;
  std::memcpy(codes.data(), &norm, 4);
  const auto packed = testing::packed({0, 1, 2, 3, 4, 5, 6, 7}, 3);
  std::ranges::copy(packed, codes.begin() + 4);
  EXPECT_TRUE(same({0, 0.5F, 1, kNan, kNan, kNan, -1, -0.5F}, decode_piece(two, codes, 8)));
}

}  // namespace
}  // namespace cpd
