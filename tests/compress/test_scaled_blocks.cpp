// SPDX-License-Identifier: Apache-2.0
//
// Tests the codec of scaled formats: encoding and decoding any range of a layer gives the values of
// a cast of the whole layer. Tests also the bytes and the refused arguments.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpd/compress/scaled_blocks.h"
#include "cpd/ops/scaled.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/patterns.h"
#include "tests/testing/refusal.h"

namespace cpd {
namespace {

using testing::refusal_of;
using testing::same;

constexpr std::int64_t kSize = 9001;
constexpr std::array kNames = {"mxfp8",
                               "mxfp8-e5m2 rule=rceil",
                               "mxfp6-e3m2",
                               "mxfp4 rule=even",
                               "mxint8",
                               "nvfp4",
                               "nvfp4 choose=mse",
                               "fp8-tensor",
                               "fp8-tensor arithmetic=te",
                               "fp8-block",
                               "bfp8",
                               "int4 64",
                               "e4m3fn 16 scale=fp32 arithmetic=torchao rule=max_pow2",
                               "e3m2 7 scale=e4m2",
                               "e2m1 5000 scale=e4m3fn tensor_scale=bf16",
                               "e5m2 1"};

RoundingOptions options_of(Rounding mode = Rounding::nearest_even) {
  return {.mode = mode, .overflow = Overflow::saturate};
}

/// Returns a layer whose blocks have values of different magnitudes, some of them all zero.
std::vector<float> scaled_layer() {
  std::vector<float> x(static_cast<std::size_t>(kSize));
  const std::vector<float> moderate =
      testing::moderate_values(reference::spec_of(ParseFormat("e5m2")), x.size(), 3);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] =
        i % 500 < 40 ? 0 : std::ldexp(moderate[i] * 1.0078125F, static_cast<int>(i / 64) % 60 - 30);
  }
  return x;
}

std::vector<float> cast(const Scaled& scaled, const RoundingOptions& options, std::uint64_t stream,
                        const std::vector<float>& x) {
  std::vector<float> y(x.size());
  Cast(View(x), scaled, 0, options, View(y), {}, {.stream = stream});
  for (float& value : y) {
    if (std::isnan(value)) value = std::numeric_limits<float>::quiet_NaN();
  }
  return y;
}

std::unique_ptr<CodecState> begun(const Codec& codec, const Piece& layer,
                                  const std::vector<float>& x) {
  auto state = codec.MakeState(static_cast<std::int64_t>(x.size()));
  state->Begin(layer, x.data());
  return state;
}

std::vector<std::uint8_t> encoded(const Codec& codec, CodecState& state, const Piece& piece,
                                  const float* x) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(codec.MostBytes(piece.n)));
  EXPECT_EQ(codec.Encode(piece, &state, x, bytes.data()), codec.MostBytes(piece.n));
  return bytes;
}

TEST(ScaledBlocks, ValuesAreTheLayersCast) {
  const std::vector<float> x = scaled_layer();
  for (const char* name : kNames) {
    for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
      SCOPED_TRACE(name);
      const ScaledBlocks codec(ParseScaled(name), options_of(mode));
      const std::vector<float> expected = cast(ParseScaled(name), options_of(mode), 77, x);
      const auto state = begun(codec, {0, 0, kSize, 0, {.stream = 77}}, x);
      for (std::int64_t begin = 0, n = 1; begin < kSize; begin += n, n = n * 3 % 4999 + 1) {
        const Piece piece{0, begin, std::min(n, kSize - begin), 0, {.stream = 77}};
        const auto bytes = encoded(codec, *state, piece, x.data() + begin);
        std::vector<float> y(static_cast<std::size_t>(piece.n));
        codec.Decode(bytes, piece.n, 0, 1, y.data());
        const std::span<const float> wanted(expected.data() + begin, y.size());
        EXPECT_TRUE(same(wanted, y)) << begin;
        codec.Round(piece, state.get(), x.data() + begin, y.data());
        EXPECT_TRUE(same(wanted, y)) << begin;
      }
    }
  }
}

TEST(ScaledBlocks, Bytes) {
  // A message holds the number of values in its first block (two bytes), then for each 4096 values
  // the scales and the elements.
  EXPECT_EQ(ScaledBlocks(ParseScaled("mxfp8")).MostBytes(4096), 2 + 129 + 4096);
  EXPECT_EQ(ScaledBlocks(ParseScaled("mxfp8")).MostBytes(8192 + 33), 2 * 4227 + 2 + 2 + 33);
  EXPECT_EQ(ScaledBlocks(ParseScaled("nvfp4")).MostBytes(4096), 2 + 4 + 257 + 2048);
  EXPECT_EQ(ScaledBlocks(ParseScaled("fp8-tensor")).MostBytes(4096), 2 + 4 + 4096);
  EXPECT_EQ(ScaledBlocks(ParseScaled("fp8-tensor")).MostBytes(0), 0);
  EXPECT_EQ(ScaledBlocks(ParseScaled("e5m2 5000")).MostBytes(4096), 2 + 2 + 4096);
  // Encodes values 31 … 34 of a layer. Value 31 belongs to the first block, which holds ones and
  // has the scale 2^-8. Values 32 … 34 belong to the second block, which holds fours and has the
  // scale 2^-6.
  const ScaledBlocks codec(ParseScaled("mxfp8"));
  std::vector<float> x(64, 1);
  std::fill_n(x.begin() + 32, 32, 4.0F);
  const auto state = begun(codec, {0, 0, 64, 0}, x);
  const std::vector<std::uint8_t> expected{1, 0, 119, 121, 0x78, 0x78, 0x78, 0x78};
  EXPECT_EQ(encoded(codec, *state, {0, 31, 4, 0}, x.data() + 31), expected);
}

TEST(ScaledBlocks, NanWithAndWithoutCodes) {
  std::vector<float> x(100, 1.5F);
  x[40] = -std::numeric_limits<float>::quiet_NaN();
  x[70] = std::numeric_limits<float>::infinity();
  for (const char* name : kNames) {
    SCOPED_TRACE(name);
    const Scaled scaled = ParseScaled(name);
    const ScaledBlocks codec(scaled);
    const Piece piece{2, 0, 100, 0};
    const auto state = begun(codec, piece, x);
    std::vector<float> y(100);
    codec.Round(piece, state.get(), x.data(), y.data());
    EXPECT_TRUE(same(cast(scaled, options_of(), 0, x), y));
    if (codec.has_nan()) {
      std::vector<float> z(100);
      codec.Decode(encoded(codec, *state, piece, x.data()), 100, 0, 1, z.data());
      EXPECT_TRUE(same(y, z));
      continue;
    }
    EXPECT_EQ(refusal_of([&] { encoded(codec, *state, piece, x.data()); }),
              "tensor 2 has NaN or infinities, and " + ToString(scaled) + " has no codes for them");
  }
  EXPECT_TRUE(ScaledBlocks(ParseScaled("mxfp8")).has_nan());
  EXPECT_TRUE(ScaledBlocks(ParseScaled("mxfp4")).has_nan());
  EXPECT_FALSE(ScaledBlocks(ParseScaled("nvfp4")).has_nan());
}

TEST(ScaledBlocks, DamageIsFound) {
  const auto damage = [](const char* name, std::vector<std::uint8_t> bytes, std::int64_t n) {
    std::vector<float> y(static_cast<std::size_t>(n));
    return refusal_of([&] { ScaledBlocks(ParseScaled(name)).Decode(bytes, n, 0, 1, y.data()); });
  };
  const std::string first = " cannot lie in the first block";
  EXPECT_EQ(damage("mxfp8", {2, 0, 119, 0, 0, 0}, 2), "");
  EXPECT_EQ(damage("mxfp8", {0, 0, 119, 0, 0, 0}, 2), "of 2 values in blocks of 32, 0" + first);
  EXPECT_EQ(damage("mxfp8", {3, 0, 119, 0, 0, 0}, 2), "of 2 values in blocks of 32, 3" + first);
  EXPECT_EQ(damage("e5m2 1", {2, 0, 119, 0, 0, 0}, 2), "of 2 values in blocks of 1, 2" + first);
  EXPECT_EQ(damage("mxfp8", {2, 0, 119, 0, 0}, 2), "2 values of mxfp8 take 6 bytes, got 5");
  EXPECT_EQ(damage("fp8-tensor", {1, 0, 0, 0, 0, 0, 0, 0}, 2), "there are too few scales");
  EXPECT_EQ(damage("fp8-tensor", {2, 0, 0, 0, 0x80, 0xBF, 0, 0}, 2), "a scale is negative");
}

TEST(ScaledBlocks, RefusesWhatNeedsAShape) {
  const auto refusal = [](const char* name) {
    return refusal_of([&] { const ScaledBlocks made(ParseScaled(name)); });
  };
  const std::string run =
      "a tensor of a reduction is a run of values, without rows: give block=N or block=tensor, "
      "or a codec of rows, int8_rows or fp8_rows, got ";
  for (const char* name : {"int8 row", "fp8-row", "fp8-block 128x128", "nvfp4 outer=row"}) {
    EXPECT_EQ(refusal(name), run + ToString(ParseScaled(name)));
  }
  EXPECT_EQ(refusal("mxfp4 transform=hadamard16"),
            "a sum of transformed tensors is transformed: give no transform, got " +
                ToString(ParseScaled("mxfp4 transform=hadamard16")));
  EXPECT_NE(refusal("e4m3fn 262144 scale=fp32 choose=mse"), "");
  EXPECT_THROW(ScaledBlocks(ParseScaled("mxfp8"), {.random_bits = 25}), Error);
}

TEST(ScaledBlocks, TextsNameEqualCodecs) {
  EXPECT_EQ(ScaledBlocks(ParseScaled("mxfp8 rule=floor")).text(),
            "scaled mxfp8 rounding=nearest_even overflow=saturate random_bits=24 variant=A");
  EXPECT_NE(ScaledBlocks(ParseScaled("mxfp8"), options_of(Rounding::stochastic)).text(),
            ScaledBlocks(ParseScaled("mxfp8"), options_of()).text());
}

}  // namespace
}  // namespace cpd
