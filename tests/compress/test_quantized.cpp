// SPDX-License-Identifier: Apache-2.0
//
// Tests the quantized codecs: the decoded values equal a cast of the whole layer. Tests also the
// codecs' bytes and text forms. tests/python/compress/test_rows.py compares values with the
// rounding rules, and with torchft's codec of rows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/compress/quantized.h"
#include "cpd/ops/scaled.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/patterns.h"

namespace cpd {
namespace {

using testing::same;

constexpr RandomKey kKey{.seed = 5, .stream = 17};
const RoundingOptions kBits{.random_bits = 11};

/// Returns a layer whose blocks have values of different magnitudes, some of them all zero.
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

/// Encodes the layer x with the codec that `text` describes, and returns the decoded values.
std::vector<float> coded(const std::string& text, const std::vector<float>& x) {
  const SharedCodec codec = MakeCodec(text, kBits);
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(codec->MostBytes(n)));
  EXPECT_EQ(codec->Encode({.n = n, .key = kKey, .size = n}, nullptr, x.data(), bytes.data()),
            static_cast<std::int64_t>(bytes.size()));
  std::vector<float> y(x.size());
  codec->Decode(bytes, n, 0, 1, y.data());
  return y;
}

/// Returns the cast of the layer. If a block's scale is 0, all its values become +0.
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

TEST(Quantized, ValuesAreCastsOfTheLayer) {
  const std::vector<float> x = layer();
  for (const char* scaled :
       {"int8 512 scale=fp32", "int8 7 scale=fp32", "int4 32 scale=fp32", "int4 1000 scale=fp32",
        "int4 999 scale=fp32", "int8 2048 scale=fp32", "int8 5000 scale=bf16", "int8 1 scale=fp32",
        "mxfp8", "mxfp4 rule=even", "mxint8", "fp8-block", "bfp8", "e5m2 3 scale=e4m3fn",
        "e4m3fn 16 scale=fp32 arithmetic=torchao rule=max_pow2", "e3m2 7 scale=e4m2"}) {
    for (const bool stochastic : {false, true}) {
      const std::string text =
          std::string("quantized ") + scaled + (stochastic ? " stochastic" : "");
      EXPECT_TRUE(same(cast(scaled, stochastic, x), coded(text, x))) << text;
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
