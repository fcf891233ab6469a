// SPDX-License-Identifier: Apache-2.0
//
// Quantized codecs: values are Cast's of the whole layer from any piece, torchft's rule step by
// step, rows, results, special values, the same bits from every instruction set.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/compress/quantized.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/scaled.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/patterns.h"

namespace cpd {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr RandomKey kKey{.seed = 5, .stream = 17};
const RoundingOptions kBits{.random_bits = 11};

/// Blocks of every size of values, zeros among them.
std::vector<float> layer(std::size_t n = 20011) {
  std::vector<float> x(n);
  const std::vector<float> moderate =
      testing::moderate_values(reference::spec_of(ParseFormat("e5m2")), n, 3);
  for (std::size_t i = 0; i < n; ++i) {
    const bool zero = i % 900 < 80;
    x[i] = zero ? 0 : std::ldexp(moderate[i] * 1.0078125F, static_cast<int>(i / 64) % 60 - 30);
  }
  return x;
}

/// Returns what the codec makes of values begin … begin + n - 1 of the layer.
std::vector<float> coded(const Codec& codec, const std::vector<float>& x, std::int64_t begin,
                         std::int64_t n, int shift = 0, const std::uint32_t* random = nullptr) {
  const std::int64_t before = begin % codec.bucket();
  Piece piece{.begin = begin, .n = n, .shift = shift, .key = kKey};
  piece.size = static_cast<std::int64_t>(x.size());
  piece.random = random == nullptr ? nullptr : random + begin;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(codec.MostBytes(n, before)));
  EXPECT_EQ(codec.Encode(piece, nullptr, x.data() + begin, bytes.data()),
            static_cast<std::int64_t>(bytes.size()));
  std::vector<float> y(static_cast<std::size_t>(n));
  codec.Decode(bytes, n, 0, 1, y.data(), before);
  return y;
}
std::vector<float> coded(const Codec& codec, const std::vector<float>& x) {
  return coded(codec, x, 0, static_cast<std::int64_t>(x.size()));
}
std::vector<float> coded(const char* text, const std::vector<float>& x) {
  return coded(*MakeCodec(text, kBits), x);
}

/// Cast of the layer, +0 for what lies below a scale of 0.
std::vector<float> cast(const std::string& scaled, bool stochastic, std::vector<float> x) {
  RoundingOptions options = kBits;
  options.mode = stochastic ? Rounding::stochastic : Rounding::nearest_even;
  options.overflow = Overflow::saturate;
  const Scaled format = ParseScaled(scaled);
  std::vector<float> y(x.size());
  Cast(View(x), format, 0, options, View(y), {}, kKey);
  const auto block = static_cast<std::size_t>(format.block.columns);
  for (std::size_t begin = 0; begin < y.size(); begin += block) {
    const std::size_t end = std::min(begin + block, y.size());
    bool zeros = true;
    for (std::size_t i = begin; i < end; ++i) zeros &= y[i] == 0;
    for (std::size_t i = begin; zeros && i < end; ++i) y[i] = 0;
  }
  return y;
}

::testing::AssertionResult same(const std::vector<float>& expected, const std::vector<float>& got) {
  return testing::bits_equal(std::span<const float>(expected), std::span<const float>(got));
}

TEST(Quantized, ValuesAreCastsOfTheLayer) {
  const std::vector<float> x = layer();
  for (const char* scaled :
       {"int8 512 scale=fp32", "int8 7 scale=fp32", "int4 32 scale=fp32", "int4 1000 scale=fp32",
        "int4 999 scale=fp32", "int8 2048 scale=fp32", "int8 5000 scale=bf16", "int8 1 scale=fp32",
        "mxfp8", "mxfp4 rule=even", "mxint8", "fp8-block", "bfp8", "e5m2 3 scale=e4m3fn",
        "e4m3fn 16 scale=fp32 arithmetic=torchao rule=max_pow2", "e3m2 7 scale=e4m2"}) {
    for (const bool stochastic : {false, true}) {
      SCOPED_TRACE(std::string(scaled) + (stochastic ? " stochastic" : ""));
      const std::vector<float> expected = cast(scaled, stochastic, x);
      const SharedCodec codec =
          MakeCodec(std::string("quantized ") + scaled + (stochastic ? " stochastic" : ""), kBits);
      EXPECT_TRUE(same(expected, coded(*codec, x)));
      for (std::int64_t begin = 0, n = 1; begin + n <= 20011; begin += n, n = n * 2 + 1) {
        EXPECT_TRUE(same({expected.begin() + begin, expected.begin() + begin + n},
                         coded(*codec, x, begin, n)));
      }
    }
  }
}

TEST(Quantized, ShortNames) {
  const std::vector<float> x = layer(5000);
  EXPECT_TRUE(same(cast("int4 32 scale=fp32", false, x), coded("int4", x)));
  EXPECT_TRUE(same(cast("int4 64 scale=fp32", true, x), coded("int4 stochastic bucket=64", x)));
  EXPECT_TRUE(same(cast("int8 5000 scale=fp32", false, x), coded("int8_rows", x)));
  EXPECT_TRUE(same(cast("int8 100 scale=fp32", true, x), coded("int8_rows row=100 stochastic", x)));
}

TEST(Quantized, ScalesAreTheLargestThroughTheLargestInteger) {
  const std::vector<float> x{0.3F, -1.7F, 0.9F, 1e-3F};
  const float scale = 1.7F / 127.0F;
  for (const float value : coded("int8_rows", x)) {
    EXPECT_EQ(value, std::nearbyint(value / scale) * scale);
  }
  EXPECT_EQ(coded("int8_rows", x)[1], -127 * scale);
  EXPECT_EQ(coded("int4", x)[1], -7 * (1.7F / 7.0F));
  EXPECT_TRUE(same({0, 0, 0}, coded("int8_rows", {0.0F, -0.0F, 0.0F})));
  EXPECT_TRUE(same({0, 0, 0}, coded("int4", {0.0F, -0.0F, 0.0F})));
}

/// torchft's kernel, one row.
std::vector<float> torchft(const std::vector<float>& x) {
  float max = 0;
  for (const float v : x) max = std::fmax(max, std::abs(v));
  float scale = 448.0F / max;
  if (scale == kInf) scale = 1;
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale;
  Cast(View(y), ParseFormat("e4m3fn"), {.overflow = Overflow::saturate}, View(y));
  for (float& v : y) {
    v = v / scale;
    if (v != v) v = kNan;
  }
  return y;
}

TEST(Quantized, Fp8RowsAreTorchfts) {
  std::vector<float> x = layer(9000);
  x[700] = kNan;
  x[4000] = -kInf;
  for (std::size_t i = 5000; i < 5600; ++i) x[i] = std::ldexp(1.0F + static_cast<float>(i), -140);
  for (const std::int64_t row : {1, 3, 27, 250, 256, 600, 1024, 9000}) {
    SCOPED_TRACE(row);
    std::vector<float> expected;
    for (auto at = x.begin(); at != x.end();) {
      const auto end = at + std::min<std::ptrdiff_t>(row, x.end() - at);
      for (const float v : torchft({at, end})) expected.push_back(v);
      at = end;
    }
    EXPECT_TRUE(same(expected, coded(*MakeCodec("fp8_rows")->ForRows(row), x)));
  }
}

TEST(Quantized, NanAndInfinityMakeTheBucketNan) {
  for (const float bad : {kNan, -kNan, kInf, -kInf}) {
    const std::vector<float> x{1, 2, bad, 4, 5, 6};
    const auto y = coded("quantized int8 4 scale=fp32", x);
    EXPECT_TRUE(same({kNan, kNan, kNan, kNan}, {y.begin(), y.begin() + 4}));
    EXPECT_EQ(y[5], 6);
  }
  EXPECT_TRUE(same({kNan, 448, -448}, coded("fp8_rows", {kNan, 448, -448})));
  EXPECT_TRUE(same({kNan, kNan, kNan}, coded("fp8_rows", {kInf, 448, -448})));
  EXPECT_TRUE(same({kNan}, coded("fp8_rows", {kNan})));
}

TEST(Quantized, ALossScaleComesFirst) {
  const std::vector<float> x = layer(3000);
  const SharedCodec codec = MakeCodec("int8_rows row=300");
  std::vector<float> scaled(x.size());
  Unscale(7, 1, 3000, x.data(), scaled.data());
  EXPECT_TRUE(same(coded(*codec, scaled), coded(*codec, x, 0, 3000, 7)));
  const auto part = coded(*codec, scaled);
  EXPECT_TRUE(same({part.begin() + 100, part.begin() + 700}, coded(*codec, x, 100, 600, 7)));
}

TEST(Quantized, TakesGivenIntegers) {
  const std::vector<float> x(3000, 0.7F);
  const SharedCodec codec = MakeCodec("quantized int4 100 scale=fp32 stochastic", kBits);
  std::vector<float> y = x;
  y[0] = 1;  // else all are the scale's multiple
  for (std::size_t i = 0; i < y.size(); i += 100) y[i] = 7;
  std::vector<std::uint32_t> random(3000);
  for (std::size_t i = 0; i < random.size(); ++i) random[i] = static_cast<std::uint32_t>(i) % 2048;
  const auto got = coded(*codec, y, 0, 3000, 0, random.data());
  const auto down = static_cast<std::uint32_t>(0.7F * 2048);  // floor(0.7 * 2^11)
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (i % 100 == 0) continue;
    EXPECT_EQ(got[i], down + random[i] >= 2048 ? 1 : 0) << i;
  }
  const auto part = coded(*codec, y, 1234, 700, 0, random.data());
  EXPECT_TRUE(same({got.begin() + 1234, got.begin() + 1934}, part));
}

TEST(Quantized, BytesAreScalesThenElements) {
  const SharedCodec rows = MakeCodec("int8_rows row=512");
  EXPECT_EQ(rows->block(), 4096);
  EXPECT_EQ(rows->MostBytes(4096), 8 * 4 + 4096);
  EXPECT_EQ(rows->MostBytes(1), 5);
  EXPECT_EQ(rows->MostBytes(2, 511), 2 * 4 + 2);
  EXPECT_EQ(rows->MostBytes(0, 511), 0);
  EXPECT_EQ(MakeCodec("int4 bucket=32")->MostBytes(4096), 128 * 4 + 2048);
  EXPECT_EQ(MakeCodec("int8_rows")->bucket(), kMostBucket);
}

TEST(Quantized, Damage) {
  const SharedCodec codec = MakeCodec("int8_rows row=4");
  std::vector<float> y(4);
  std::vector<std::uint8_t> bytes{0, 0, 128, 0xBF, 1, 2, 3, 4};  // -1
  EXPECT_THROW(codec->Decode(bytes, 4, 0, 1, y.data()), DamagedBytes);
  EXPECT_THROW(codec->Decode(std::span(bytes).first(7), 4, 0, 1, y.data()), DamagedBytes);
  bytes = {0, 0, 128, 0x7F, 1, 2, 3, 4};  // infinite
  EXPECT_THROW(MakeCodec("fp8_rows row=4")->Decode(bytes, 4, 0, 1, y.data()), DamagedBytes);
}

TEST(Quantized, TextsAndResults) {
  const auto both = [](const char* text) {
    const SharedCodec codec = MakeCodec(text, kBits);
    EXPECT_EQ(MakeCodec(codec->name(), kBits)->text(), codec->text()) << text;
    EXPECT_EQ(codec->ForResults(kFp32, 4)->text(), codec->text());
    EXPECT_TRUE(codec->has_nan() && codec->has_scales() && codec->is_fixed());
    return codec->text();
  };
  EXPECT_EQ(both("int8_rows"), "int8_rows");
  EXPECT_EQ(both("int8_rows stochastic"), "int8_rows stochastic random_bits=11");
  EXPECT_EQ(both("int4"), "int4 bucket=32");
  EXPECT_EQ(both("fp8_rows row=9"), "fp8_rows row=9");
  EXPECT_EQ(both("quantized int8 512 scale=fp32"), "quantized int8 512");
  EXPECT_EQ(both("quantized int8 row"), "quantized int8 row");
  EXPECT_EQ(MakeCodec("quantized int8 row")->ForRows(64)->name(), "quantized int8 64");
  EXPECT_EQ(MakeCodec("int8_rows")->ForRows(576)->name(), "int8_rows row=576");
  EXPECT_EQ(MakeCodec("int8_rows")->ForRows(70000)->bucket(), kMostBucket);
  EXPECT_EQ(MakeCodec("int4")->ForRows(70), nullptr);
  EXPECT_EQ(MakeCodec("int4 64")->name(), ToString(ParseScaled("int4 64")));
  for (const char* text :
       {"quantized", "quantized nvfp4", "quantized int8 tensor scale=fp32", "quantized fp8-tensor",
        "quantized int8 2x32 scale=fp32", "quantized int8 70000 scale=fp32",
        "quantized int8 32 scale=e4m3fn margin=70",
        "quantized e2m1 16 scale=e6m1 non_finite=element", "int8_rows row=0", "int8_rows row=70000",
        "int8_rows bucket=4", "fp8_rows stochastic", "int4 bucket=0", "int4 bucket=32 7",
        "quantized int8 32 scale=fp32 row=7"}) {
    EXPECT_THROW(MakeCodec(text), Error) << text;
  }
}

}  // namespace
}  // namespace cpd
