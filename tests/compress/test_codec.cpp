// SPDX-License-Identifier: Apache-2.0
//
// Codecs by themselves: packed, scaled, and the tests' own run lengths, by the checks that every
// codec must pass.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpd/compress/codec.h"
#include "cpd/compress/codecs.h"
#include "cpd/compress/packed.h"
#include "cpd/compress/scaled_blocks.h"
#include "cpd/ops/codec.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"
#include "tests/testing/run_length_codec.h"

namespace cpd {
namespace {

using testing::RunLength;

RoundingOptions stochastic() {
  RoundingOptions rounding;
  rounding.mode = Rounding::stochastic;
  return rounding;
}

// clang-format off: one a line
constexpr const char* kCompressors[] = {
    "fp8_rows",
    "fp8_rows row=27",
    "int8_rows",
    "int8_rows row=576 stochastic",
    "int4",
    "int4 bucket=7 stochastic",
    "quantized int8 512 scale=fp32",
    "quantized mxfp8 stochastic",
    "quantized e3m2 3 scale=e4m2",
    "one_bit",
    "one_bit bucket=64",
    "one_bit bucket=100",
    "one_bit bucket=100 axis=0",
    "uniform",
    "uniform bits=8",
    "uniform bits=20",
    "uniform bits=5 coding=fixed",
    "uniform bits=6 results=encoded",
    "blockwise nvfp4",
    "blockwise uniform",
    "blockwise qsgd bits=5 bucket=tensor",
    "blockwise terngrad share=off",
    "feedback blockwise nvfp4",
    "feedback int4 32 scale=fp32",
    "feedback qsgd bits=2 bucket=128",
    "feedback e4m3",
    "qsgd",
    "qsgd bits=2 bucket=128 norm=2",
    "qsgd bits=16 bucket=8192",
    "qsgd bits=7 bucket=9 levels=intervals",
    "qsgd bits=5 bucket=tensor",
    "qsgd bits=1 levels=intervals",
    "qsgd bits=5 bucket=100 axis=0",
    "qsgd bits=5 bucket=100 whole=9",
    "qsgd s=1 bucket=tensor norm=2",
    "qsgd s=16",
    "qsgd s=22 bucket=50 norm=2 coding=elias-sparse",
    "qsgd s=300 bucket=50 coding=smallest",
    "qsgd s=5 bucket=50 spacing=optimal",
    "qsgd coding=elias-dense",
    "qsgd norm=2 coding=elias-sparse",
    "qsgd bits=3 bucket=50 coding=smallest",
    "qsgd bits=3 bucket=50 spacing=optimal",
    "terngrad",
    "terngrad clip=none share=off",
    "terngrad bucket=100",
    "terngrad clip_at=workers",
    "terngrad clip=none share=off coding=trits",
    "terngrad bucket=13 coding=trits",
    "terngrad clip=1 clip_at=workers coding=trits",
    "sparse",
    "sparse e5m2",
    "top_k 0.1",
    "top_k 0.5 feedback=off",
    "top_k 1 e4m3",
    "top_k 0.3 int4 stochastic",
    "top_k 0.05 mxfp8",
    "top_k 0.1 qsgd bits=4",
};
// clang-format on

std::vector<SharedCodec> codecs() {
  std::vector<SharedCodec> all;
  for (const char* name : {"e4m3", "e3m0", "e5m2", "e6m9", "fp16", "fp32"}) {
    for (const RoundingOptions& rounding : {RoundingOptions{}, stochastic()}) {
      all.push_back(std::make_shared<Packed>(ParseFormat(name), rounding));
      all.push_back(std::make_shared<RunLength>(ParseFormat(name), rounding));
    }
  }
  for (const char* name : {"mxfp8", "mxfp6-e2m3", "nvfp4", "fp8-tensor", "int5 7 scale=bf16",
                           "e2m1 4500 scale=e4m3fn", "e5m2 1", "e3m2 3 scale=e4m2"}) {
    for (RoundingOptions rounding : {RoundingOptions{}, stochastic()}) {
      rounding.overflow = Overflow::saturate;
      all.push_back(std::make_shared<ScaledBlocks>(ParseScaled(name), rounding));
    }
  }
  for (const char* text : kCompressors) {
    all.push_back(MakeCodec(text));
  }
  return all;
}

std::vector<float> values_of(std::size_t n) {
  std::vector<float> x =
      testing::moderate_values(reference::spec_of(ParseFormat("e5m2")), n, 77 + n);
  for (std::size_t i = 10; i < n; i += 3) x[i] = x[i - 1];  // runs
  return x;
}

/// Returns a codec's state for layer x, of which `piece` is one; null if there is none.
std::unique_ptr<CodecState> begun(const Codec& codec, const Piece& piece,
                                  const std::vector<float>& x) {
  const auto size = static_cast<std::int64_t>(x.size());
  std::unique_ptr<CodecState> state = codec.MakeState(size);
  if (state != nullptr) state->Begin({piece.layer, 0, size, piece.shift, piece.key}, x.data());
  return state;
}

/// Returns the piece with the known facts of its layer x.
Piece of_layer(const Codec& codec, Piece piece, const std::vector<float>& x) {
  piece.size = static_cast<std::int64_t>(x.size());
  if (codec.measured() == Measured::nothing) return piece;
  Piece layer = piece;
  layer.begin = 0;
  layer.n = piece.size;
  piece.scale = codec.Measure(layer, begun(codec, piece, x).get(), x.data());
  return piece;
}

std::vector<std::uint8_t> encoded(const Codec& codec, const Piece& piece,
                                  const std::vector<float>& x) {
  const std::int64_t most = codec.MostBytes(piece.n, piece.begin % codec.bucket());
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(most));
  const float* values = x.data() + piece.begin;
  const auto state = begun(codec, piece, x);
  const std::int64_t used =
      codec.Encode(of_layer(codec, piece, x), state.get(), values, bytes.data());
  EXPECT_LE(used, most);
  EXPECT_TRUE(!codec.is_fixed() || used == most);
  bytes.resize(static_cast<std::size_t>(used));
  return bytes;
}

std::vector<float> decoded(const Codec& codec, const std::vector<std::uint8_t>& bytes,
                           std::int64_t n, int shift = 0, float divisor = 1,
                           std::int64_t before = 0) {
  std::vector<float> y(static_cast<std::size_t>(n));
  codec.Decode(bytes, n, shift, divisor, y.data(), before);
  return y;
}

::testing::AssertionResult same(const std::vector<float>& expected, const std::vector<float>& got) {
  return testing::bits_equal(std::span<const float>(expected), std::span<const float>(got));
}

TEST(Codec, PackedBytesAreEncodes) {
  const std::vector<float> x = values_of(1001);
  for (const char* name : {"e4m3", "e3m0", "e6m9", "fp32"}) {
    const RoundingOptions rounding = stochastic();
    const RandomKey key{.seed = 9, .stream = 5};
    const Packed codec(ParseFormat(name), rounding);
    const auto bytes = encoded(codec, {.n = 1001, .key = key}, x);
    EXPECT_EQ(bytes, testing::run_encode(x, ParseFormat(name), rounding, key)) << name;
    EXPECT_EQ(codec.MostBytes(1001), PackedBytes(ParseFormat(name), 1001));
    EXPECT_TRUE(
        same(testing::run_decode(bytes, ParseFormat(name), 1001), decoded(codec, bytes, 1001)));
  }
}

TEST(Codec, ValuesDoNotDependOnThePieces) {
  const std::vector<float> x = values_of(5000);
  for (const SharedCodec& codec : codecs()) {
    SCOPED_TRACE(codec->text());
    for (const int shift : {0, 3, -5}) {
      const Piece whole{0, 0, 5000, shift, {.stream = 12}};
      const std::vector<float> expected = decoded(*codec, encoded(*codec, whole, x), 5000);
      std::vector<float> rounded(5000);
      codec->Round(of_layer(*codec, whole, x), begun(*codec, whole, x).get(), x.data(),
                   rounded.data());
      EXPECT_TRUE(same(expected, rounded));
      for (std::int64_t begin = 0, n = 1; begin < 5000; begin += n, n = n * 3 + 1) {
        const Piece piece{0, begin, std::min(n, 5000 - begin), shift, {.stream = 12}};
        const auto part =
            decoded(*codec, encoded(*codec, piece, x), piece.n, 0, 1, begin % codec->bucket());
        EXPECT_TRUE(same({expected.begin() + begin, expected.begin() + begin + piece.n}, part));
      }
    }
  }
}

TEST(Codec, FixedSizesAdd) {
  for (const SharedCodec& codec : codecs()) {
    if (!codec->is_fixed()) continue;
    const std::int64_t block = codec->block();
    for (const std::int64_t rest : {std::int64_t{0}, std::int64_t{1}, std::int64_t{7}, block - 1}) {
      EXPECT_EQ(codec->MostBytes(3 * block + rest),
                3 * codec->MostBytes(block) + codec->MostBytes(rest))
          << codec->text();
    }
  }
}

/// A layer's bytes are those of its blocks, the last one shorter; blocks with NaN that the codec
/// has no code for travel in binary32.
TEST(Codec, LayersTakeTheBytesOfTheirBlocks) {
  const SharedCodec fixed = MakeCodec("e4m3");
  const std::int64_t n = fixed->block() + 3;
  std::vector<float> x(static_cast<std::size_t>(n), 1.0F);
  const Piece long_layer{.n = n, .size = n};
  EXPECT_EQ(LayerBytes(*fixed, long_layer, nullptr, x.data()), n);
  x.assign(10, 1.0F);
  const SharedCodec sparse = MakeCodec("sparse e2m1");
  const Piece layer{.n = 10, .size = 10};
  EXPECT_LT(LayerBytes(*sparse, layer, nullptr, x.data()), 40);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(LayerBytes(*sparse, layer, nullptr, x.data()), 40);
}

TEST(Codec, DecodeUndoesTheScaleAndDivides) {
  const std::vector<float> x = values_of(300);
  for (const SharedCodec& codec : codecs()) {
    const auto bytes = encoded(*codec, {0, 0, 300, 4, {.stream = 1}}, x);
    std::vector<float> expected = decoded(*codec, bytes, 300);
    for (float& value : expected) value = std::ldexp(value, -4) / 3.0F;
    EXPECT_TRUE(same(expected, decoded(*codec, bytes, 300, -4, 3))) << codec->text();
  }
}

TEST(Unscale, IsTwoRoundingsInPlaceToo) {
  std::vector<float> x = values_of(1000);
  x.insert(x.end(), {std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max(),
                     -std::numeric_limits<float>::infinity(), std::nanf("7"), -0.0F});
  for (const int shift : {0, 1, -3, 126, -140, 200, -300, 5000}) {
    for (const float divisor : {1.0F, 3.0F, 8.0F, 257.0F}) {
      std::vector<float> expected;
      for (const float value : x) {
        const float one = static_cast<float>(std::ldexp(double{value}, shift)) / divisor;
        expected.push_back(std::isnan(one) ? std::numeric_limits<float>::quiet_NaN() : one);
      }
      std::vector<float> y = x;
      Unscale(shift, divisor, static_cast<std::int64_t>(y.size()), y.data(), y.data());
      EXPECT_TRUE(same(expected, y)) << shift << " " << divisor;
    }
  }
}

TEST(Codec, NanIsOneNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x{-nan, nan, infinity, -infinity, -0.0F};
  for (const char* name : {"e5m2", "fp32"}) {
    for (const SharedCodec& codec : {SharedCodec(std::make_shared<Packed>(ParseFormat(name))),
                                     SharedCodec(std::make_shared<RunLength>(ParseFormat(name)))}) {
      const auto y = decoded(*codec, encoded(*codec, {0, 0, 5, 0}, x), 5);
      EXPECT_TRUE(same({nan, nan, infinity, -infinity, -0.0F}, y)) << codec->text();
    }
  }
  const Packed without(ParseFormat("e2m1"));
  try {
    encoded(without, {3, 0, 5, 0}, x);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "tensor 3, value 0 is NaN, and e2m1 has no code for NaN");
  }
}

/// A decoder gives values, or says that the bytes are damaged; it reads nothing else, which the
/// sanitizers see.
void expect_values_or_damage(const Codec& codec, std::vector<std::uint8_t> bytes, std::int64_t n) {
  bytes.shrink_to_fit();
  try {
    EXPECT_EQ(decoded(codec, bytes, n).size(), static_cast<std::size_t>(n));
  } catch (const DamagedBytes& error) {
    EXPECT_STRNE(error.what(), "");
  }
}

TEST(Codec, EveryBitFlipAndTruncation) {
  const std::vector<float> x = values_of(40);
  for (const SharedCodec& codec : codecs()) {
    SCOPED_TRACE(codec->text());
    const auto bytes = encoded(*codec, {0, 0, 40, 0, {.stream = 3}}, x);
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      auto changed = bytes;
      changed[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
      expect_values_or_damage(*codec, changed, 40);
    }
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      const std::vector<std::uint8_t> cut(bytes.begin(),
                                          bytes.begin() + static_cast<std::ptrdiff_t>(length));
      EXPECT_THROW(decoded(*codec, cut, 40), DamagedBytes) << length << " bytes";
    }
    auto longer = bytes;
    longer.insert(longer.end(), 5, 1);
    EXPECT_THROW(decoded(*codec, longer, 40), DamagedBytes);
  }
}

TEST(Codec, TextsNameEqualCodecs) {
  const Format format = ParseFormat("e4m3");
  EXPECT_EQ(Packed(format).text(), Packed(format).text());
  EXPECT_EQ(Packed(format).text(),
            "packed e4m3 rounding=nearest_even overflow=ieee random_bits=24 variant=A");
  EXPECT_NE(Packed(format).text(), Packed(ParseFormat("e5m2")).text());
  EXPECT_NE(Packed(format).text(), Packed(format, stochastic()).text());
  RoundingOptions bad;
  bad.random_bits = 25;
  EXPECT_THROW(Packed(format, bad), Error);
}

TEST(Codec, SumsArePackedUnlessItSays) {
  const Packed codec(ParseFormat("e4m3"));
  EXPECT_EQ(codec.ForSums(kFp32)->text(), Packed(kFp32).text());
  EXPECT_EQ(RunLength(ParseFormat("e4m3")).ForSums(kFp32)->text(), RunLength(kFp32).text());
}

TEST(CodecStates, AreOfARankAndALayer) {
  const RunLength codec(ParseFormat("e4m3"), {}, true);
  CodecStates states;
  CodecState* first = states.Of(codec, {0, 5}, 10);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(states.Of(codec, {0, 5}, 10), first);
  EXPECT_NE(states.Of(codec, {1, 5}, 10), first);
  EXPECT_NE(states.Of(codec, {0, 6}, 10), first);
  EXPECT_THROW(states.Of(codec, {0, 5}, 11), Error);
  EXPECT_THROW(states.Of(RunLength(ParseFormat("e5m2"), {}, true), {0, 5}, 10), Error);
  EXPECT_EQ(states.Of(Packed(kFp32), {7, 5}, 10), nullptr);
}

TEST(CodecStates, AreOfASlice) {
  const RunLength codec(ParseFormat("e4m3"), {}, true);
  const CodecStates::Key key{1, 5, Stage::result};
  const CodecStates::Begin rotated{.now = 10, .unrotated = 20};
  CodecStates states;
  CodecState* first = states.Of(codec, key, 2, rotated);
  EXPECT_EQ(states.Of(codec, key, 2, rotated), first);
  const std::vector<float> kept{0.5F, 0.25F};
  for (const std::optional<std::int64_t> begin : {std::optional<std::int64_t>(10), {}}) {
    states.Load({{key, {codec.text(), 2, kept, begin}}});
    EXPECT_EQ(states.Save().at(key).begin, begin);
    const CodecStates::Begin other{.now = begin ? 20 : 10, .unrotated = 20};
    EXPECT_THROW(states.Of(codec, key, 2, other), Error);
    EXPECT_EQ(states.Save().at(key).begin, begin) << "a refusal changes nothing";
    const CodecStates::Begin same{.now = begin.value_or(20), .unrotated = 20};
    ASSERT_NE(states.Of(codec, key, 2, same), nullptr);
    EXPECT_EQ(states.Save().at(key).begin, same.now);
  }
}

TEST(CodecStates, KnowWhoseTheyAre) {
  const RunLength codec(ParseFormat("e3m0"), {}, true);
  CodecStates states;
  states.Claim({3, 1});
  states.Claim({4, {}});  // nothing is kept yet
  EXPECT_EQ(states.owner(), std::nullopt);
  CodecState* state = states.Of(codec, {0, 0}, 1);
  const float x = 1.25F;
  float y = 0;
  state->Begin({0, 0, 1, 0}, &x);
  codec.Round({0, 0, 1, 0}, state, &x, &y);
  state->Commit();
  EXPECT_EQ(states.owner(), (CodecStates::Owner{4, {}}));
  for (const CodecStates::Owner& other : {CodecStates::Owner{5, {}}, {4, 0}}) {
    EXPECT_THROW(states.Claim(other), Error) << ToString(other);
  }
  auto saved = states.Save();
  CodecStates loaded;
  loaded.Load(saved);
  loaded.Claim({2, 1});  // what was nobody's
  loaded.Load(std::move(saved), CodecStates::Owner{2, 0});
  EXPECT_THROW(loaded.Claim({2, 1}), Error);
  loaded.Load({}, CodecStates::Owner{3, 2});
  EXPECT_EQ(loaded.owner(), (CodecStates::Owner{3, 2}));
  loaded.Claim({2, 1});  // nothing is kept
  EXPECT_EQ(loaded.owner(), std::nullopt);
  loaded.Reset();
  EXPECT_EQ(loaded.owner(), std::nullopt);
  loaded.Claim({2, 1});
}

TEST(CodecStates, ChangeOnlyWhereACallSucceeds) {
  const RunLength codec(ParseFormat("e3m0"), {}, true);
  CodecStates states;
  CodecState* state = states.Of(codec, {0, 0}, 3);
  const std::vector<float> x{1.25F, 3, -0.7F};
  const Piece piece{0, 0, 3, 0};
  const auto sent = [&] {
    state->Begin(piece, x.data());
    std::vector<float> y(3);
    codec.Round(piece, state, x.data(), y.data());
    return y;
  };
  const std::vector<float> once = sent();
  EXPECT_TRUE(same(once, sent()));
  state->Commit();
  std::vector<float> fed_back(3);
  const Packed plain(ParseFormat("e3m0"));
  for (std::size_t i = 0; i < 3; ++i) fed_back[i] = x[i] + (x[i] - once[i]);
  plain.Round(piece, nullptr, fed_back.data(), fed_back.data());
  EXPECT_TRUE(same(fed_back, sent()));
  EXPECT_FALSE(same(once, fed_back));
}

}  // namespace
}  // namespace cpd
