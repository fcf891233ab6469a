// SPDX-License-Identifier: Apache-2.0
//
// Tests that GemmScaled on every device gives the oracle's results (reference_gemm.h). Scales are
// applied to the sum of each block of k or of the whole product (epilogue), or by a matrix unit.
// Tests also shapes, random integers and errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cpd/spec/error.h"
#include "cpd/spec/presets.h"
#include "tests/testing/bits.h"
#include "tests/testing/devices.h"
#include "tests/testing/gemm.h"
#include "tests/testing/gemm_cases.h"
#include "tests/testing/gemm_scaled.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::accumulator_of;
using testing::gemm_scaled_matches;
using testing::kInf;
using testing::kNan;
using testing::operands;
using testing::ScaledCase;
using testing::schemes;
using testing::Tensor;
using testing::Turns;
using testing::Values;

using Maker = testing::ScaledCases;
using Tile = testing::ScaleTile;

// --- blocks --------------------------------------------------------------------------------------

TEST(GemmScaled, EverySchemeAndMode) {
  int failures = 0;
  Turns turns;
  for (const char* name : {"e4m3", "e5m2", "e6m9", "e8m7", "e8m23", "e4m3fn"}) {
    const Format format = ParseFormat(name);
    for (const Values kind : {Values::on_grid, Values::arbitrary, Values::mixed}) {
      Maker make(format, kind);
      for (Accumulator accumulator : schemes(format)) {
        for (const RoundingOptions& o : testing::gemm_roundings()) {
          const bool always = o.overflow == Overflow::ieee &&
                              (o.mode == Rounding::nearest_even || o.mode == Rounding::stochastic);
          if (!turns.one_of(always ? 3 : 23)) continue;
          accumulator.rounding = o;
          ScaledCase made = make.Make(9, kind == Values::mixed ? 5 : 19, 35, {8, 1}, {8, 1});
          if (turns.one_of(2)) made.c = make.Addend({9, 35});
          const auto equal = gemm_scaled_matches(made, accumulator);
          EXPECT_TRUE(equal) << "values " << static_cast<int>(kind);
          if (!equal && ++failures > 8) FAIL() << "more than 8 failures; the rest is left out";
        }
      }
    }
  }
}

TEST(GemmScaled, BlocksOfAnyLength) {
  int failures = 0;
  const std::vector<Accumulator> all = schemes(ParseFormat("e4m3"));
  std::size_t turn = 0;
  for (const std::int64_t block : {1, 3, 8, 16, 20, 32, 64, 100, 128, 130, 256, 300, 1000}) {
    for (const std::int64_t k : testing::thinned<std::int64_t>({300, 1, 16, 31, 129, 257})) {
      Accumulator accumulator = all[++turn % all.size()];
      if (turn % 3 == 0) accumulator.rounding.mode = Rounding::stochastic;
      accumulator.rounding.random_bits = 1 + static_cast<int>(turn % 24);
      Maker make(accumulator.format);
      const ScaledCase made = make.Make(9, k, 35, {block, 1}, {block, 1});
      const auto equal = gemm_scaled_matches(made, accumulator);
      EXPECT_TRUE(equal);
      if (!equal && ++failures > 8) FAIL() << "more than 8 failures; the rest is left out";
    }
  }
}

TEST(GemmScaled, TilesOfScales) {
  Maker make(ParseFormat("e4m3"));
  const std::vector<Accumulator> all = schemes(ParseFormat("e5m7"));
  std::size_t turn = 0;
  for (const Tile& a : {Tile{32, 1}, Tile{64, 4}, Tile{16, 16}, Tile{0, 1}, Tile{0, 0}}) {
    for (const Tile& b : {Tile{32, 1}, Tile{128, 128}, Tile{16, 3}, Tile{0, 1}, Tile{64, 0}}) {
      ScaledCase made = make.Make(21, 130, 37, a, b);
      if (++turn % 2 == 0) make.AddFactors(made, 21, 37);
      if (turn % 3 == 0) made.c = make.Addend({37});
      EXPECT_TRUE(gemm_scaled_matches(made, all[turn % all.size()])) << "turn " << turn;
    }
  }
}

/// Tests chunks of sums and blocks of scales that end within a step: the values of k that a GPU's
/// kernel adds at once.
TEST(GemmScaled, SchemesOfTiles) {
  Maker make(ParseFormat("e4m3"));
  std::size_t turn = 0;
  for (const std::int64_t block : {5, 16, 32, 64, 100, 200}) {
    for (Accumulator accumulator : testing::schemes_of_tiles(ParseFormat("e5m7"))) {
      for (const RoundingOptions& o : testing::gemm_roundings()) {
        if (++turn % 14 != 0) continue;
        accumulator.rounding = o;
        ScaledCase made = make.Make(18, 133, 17, {block, 1}, {turn % 4 == 0 ? block : 2 * block, 3},
                                    turn % 8 == 0);
        if (turn % 3 == 0) make.AddFactors(made, 18, 17);
        if (turn % 4 == 0) made.c = make.Addend({18, 17});
        ASSERT_TRUE(gemm_scaled_matches(made, accumulator, 1));
      }
    }
  }
}

TEST(GemmScaled, OneOperandAlone) {
  Maker make(ParseFormat("e4m3"));
  ScaledCase made = make.Make(9, 70, 35, {32, 1}, {0, 1});
  made.b.scales.reset();
  EXPECT_TRUE(gemm_scaled_matches(made, accumulator_of("e6m9")));
  made.a.scales.reset();
  EXPECT_TRUE(gemm_scaled_matches(made, accumulator_of("e6m9")));
  made.b.factor = make.Scales({1, 1});
  EXPECT_TRUE(gemm_scaled_matches(made, accumulator_of("e6m9")));
}

/// A block of values that share a scale may be longer than the sums, by any amount.
TEST(GemmScaled, HugeBlocks) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  Maker make(ParseFormat("e4m3"));
  ScaledCase made = make.Make(3, 20, 5, {20, 1}, {20, 1});
  for (const char* text : {"e5m7 sequential rounding=stochastic random_bits=8",
                           "e5m7 kahan rounding=stochastic random_bits=8"}) {
    const Accumulator accumulator = ParseAccumulator(text);
    made.a.block = made.b.block = 20;
    const std::vector<float> expected = testing::run_scaled(made, accumulator);
    made.a.block = made.b.block = kMost;
    EXPECT_TRUE(testing::scaled_equal(made, accumulator, "huge blocks", expected,
                                      testing::run_scaled(made, accumulator)));
  }
}

TEST(GemmScaled, Batches) {
  Maker make(ParseFormat("e4m3"));
  for (const char* text : {"e5m7 sequential", "e5m7 sequential rounding=stochastic", "e5m7 kahan",
                           "e5m7 pairwise", "h100-fp8"}) {
    for (const bool shared : {false, true}) {
      const Accumulator accumulator = ParseAccumulator(text);
      ScaledCase made{{make.Elements({3, 2, 5, 40})}, {make.Elements({shared ? 1 : 2, 40, 9})}};
      testing::round_into(ParseFormat("e4m3fn"), made.a.elements);
      testing::round_into(ParseFormat("e4m3fn"), made.b.elements);
      made.a.block = made.b.block = 16;
      made.a.scales = make.Scales({3, 2, 5, 3});
      made.b.scales = make.Scales({shared ? 1 : 2, 3, 9});
      made.a.factor = make.Scales({3, 1, 5, 1});
      made.c = make.Addend({2, 5, 9});
      EXPECT_TRUE(gemm_scaled_matches(made, accumulator, 1)) << text;
      made.at = ScalesAt::epilogue;
      made.a.block = made.b.block = 0;
      made.a.scales = make.Scales({3, 2, 5, 1});
      made.b.scales = make.Scales({1, 1, 9});
      EXPECT_TRUE(gemm_scaled_matches(made, accumulator, 1)) << text;
    }
  }
}

// The products have more rows or more columns than the block of sums that one task computes.
TEST(GemmScaled, LargeProducts) {
  Maker make(ParseFormat("e4m3"));
  for (const auto& [m, n] : {std::pair{1030, 5}, std::pair{5, 1030}, std::pair{140, 70}}) {
    ScaledCase made = make.Make(m, 9, n, {4, 1}, {4, 1});
    make.AddFactors(made, m, n);
    made.c = make.Addend({m, n});
    EXPECT_TRUE(gemm_scaled_matches(made, accumulator_of("e4m3")));
  }
}

// Tests scales and sums at the ends of binary32's range. Each intermediate rounding affects a
// result, and some results are Inf or NaN.
TEST(GemmScaled, ScalesOfAllSizes) {
  Maker make(ParseFormat("e4m3"), Values::mixed);
  for (const char* name : {"e8m23", "e4m3", "e8m7"}) {
    for (int i = 0; i < 20; ++i) {
      make.scale = i % 2 == 0 ? kFp32 : ParseFormat("e8m0");
      ScaledCase made = make.Make(9, 7, 35, {3, 1}, {3, 1}, true);
      if (i % 3 == 0) make.AddFactors(made, 9, 35);
      made.at = ScalesAt::block;
      EXPECT_TRUE(gemm_scaled_matches(made, accumulator_of(name)));
    }
  }
}

TEST(GemmScaled, Units) {
  int failures = 0;
  std::vector<std::string> texts{"h100-fp8 block=8 group=16"};
  for (const NamedSpec& preset : testing::thinned(Presets())) texts.emplace_back(preset.name);
  for (const std::string& text : texts) {
    const Accumulator accumulator = ParseAccumulator(text);
    if (accumulator.unit->scale) continue;
    Accumulator stochastic = accumulator;  // drawn at each promotion of each block
    stochastic.format = ParseFormat("e6m9");
    stochastic.unit->promote = std::max(accumulator.unit->block, accumulator.unit->group);
    stochastic.rounding = {.mode = Rounding::stochastic, .random_bits = 24};
    Maker make(ParseFormat("e2m1"));
    for (const std::int64_t block : {16, 20, 64, 200}) {
      ScaledCase made = make.Make(5, 80, 33, {block, 1}, {2 * block, 2});
      if (block == 64) make.AddFactors(made, 5, 33);
      for (const Accumulator& sums : {accumulator, stochastic}) {
        const auto equal = gemm_scaled_matches(made, sums);
        EXPECT_TRUE(equal) << text;
        if (!equal && ++failures > 4) FAIL() << "more than 4 failures; the rest is left out";
      }
    }
  }
}

// --- epilogue ------------------------------------------------------------------------------------

TEST(GemmScaled, Epilogue) {
  int failures = 0;
  std::size_t turn = 0;
  for (const Accumulator& accumulator : schemes(ParseFormat("e4m3"))) {
    Maker make(ParseFormat("e4m3"));
    for (const Tile& tile : {Tile{0, 1}, Tile{0, 0}, Tile{200, 4}}) {
      ScaledCase made = make.Make(9, 150, 35, tile, {0, 1});
      made.at = ScalesAt::epilogue;
      if (++turn % 2 == 0) make.AddFactors(made, 9, 35);
      if (turn % 3 == 0) made.c = make.Addend({9, 35});
      const auto equal = gemm_scaled_matches(made, accumulator);
      EXPECT_TRUE(equal);
      if (!equal && ++failures > 4) FAIL() << "more than 4 failures; the rest is left out";
    }
  }
}

TEST(GemmScaled, SignsOfZero) {
  const Tensor a({1, 2}, {-0.0f, -0.0f});
  const Tensor b({2, 1}, {1.0f, 1.0f});
  ScaledCase made{{a}, {b}};
  for (const ScalesAt at : {ScalesAt::block, ScalesAt::epilogue}) {
    made.at = at;
    EXPECT_TRUE(gemm_scaled_matches(made, accumulator_of("e4m3")));
  }
  // A negative scale turns a sum of +0 into -0, and the epilogue preserves the sign.
  made.a.scales = Tensor({1, 1}, {-1.0f});
  made.at = ScalesAt::epilogue;
  EXPECT_TRUE(gemm_scaled_matches(made, accumulator_of("e4m3")));
}

TEST(GemmScaled, WithoutTerms) {
  for (const ScalesAt at : {ScalesAt::block, ScalesAt::epilogue}) {
    for (const char* text : {"e4m3 sequential", "e4m3 chunked", "e4m3 kahan", "h100-fp8"}) {
      ScaledCase made{{Tensor({2, 0}, {})}, {Tensor({0, 3}, {})}};
      made.at = at;
      made.a.factor = Tensor({2, 1}, {3.0f, kInf});
      EXPECT_TRUE(gemm_scaled_matches(made, ParseAccumulator(text))) << text;
      made.c = Tensor({3}, {-0.0f, 1.5f, kInf});
      EXPECT_TRUE(gemm_scaled_matches(made, ParseAccumulator(text))) << text;
    }
  }
}

// --- units that take scales ----------------------------------------------------------------------

std::vector<Accumulator> scaled_units() {
  std::vector<Accumulator> all;
  for (const char* text :
       {"rtx-blackwell-mxfp8", "rtx-blackwell-mxfp8 a=e5m2 b=e3m2", "rtx-blackwell-mxfp4",
        "rtx-blackwell-nvfp4", "rtx-blackwell-nvfp4 addend=separate",
        "rtx-blackwell-mxfp8 scale_block=16 sum_rounding=nearest_even",
        "rtx-blackwell-mxfp8 fraction_bits=5 promote=64", "rtx-blackwell-mxfp8 scale=e4m3fn",
        "rtx-blackwell-nvfp4 dot=4 fraction_bits=9 scale_block=8 block=24"}) {
    all.push_back(ParseAccumulator(text));
  }
  return all;
}

TEST(GemmScaled, UnitsThatTakeScales) {
  int failures = 0;
  for (const Accumulator& accumulator : scaled_units()) {
    const BlockFma& unit = accumulator.unit.value();
    for (const std::int64_t k : {1, 15, 16, 40, 60, 64, 100, 130}) {  // 60: with c and factors
      for (const bool all : {false, true}) {
        testing::Generator generator(static_cast<std::uint64_t>(k));
        const auto values = [&](const Format& format, std::int64_t n) {
          std::vector<float> x(static_cast<std::size_t>(n));
          const reference::Spec spec = reference::spec_of(format);
          for (float& value : x) {
            value = reference::decode(
                spec, generator() % (spec.max_code() + 1) + generator() % 2 * spec.magnitudes());
          }
          return x;
        };
        Maker make(unit.a);
        make.scale = *unit.scale;
        const Tile tile{k % 2 == 0 ? unit.scale_block : 2 * unit.scale_block, 1};
        ScaledCase made = make.Make(9, k, 35, tile, {unit.scale_block, 2}, all && k < 70);
        made.a.elements = Tensor({9, k}, values(unit.a, 9 * k));
        made.b.elements = Tensor({k, 35}, values(unit.b, 35 * k));
        if (k % 3 == 0) made.c = make.Addend({9, 35});
        if (k % 4 == 0) make.AddFactors(made, 9, 35);
        const auto equal = gemm_scaled_matches(made, accumulator);
        EXPECT_TRUE(equal) << "k " << k;
        if (!equal && ++failures > 4) FAIL() << "more than 4 failures; the rest is left out";
      }
    }
  }
}

TEST(GemmScaled, SignsOfAUnitsScalesCountForNothing) {
  const Accumulator accumulator = Preset("rtx-blackwell-nvfp4");
  ScaledCase made{{Tensor({1, 16}, std::vector<float>(16, 1.0f))},
                  {Tensor({16, 1}, std::vector<float>(16, 3.0f))}};
  made.a.block = made.b.block = 16;
  made.a.scales = Tensor({1, 1}, {-2.0f});
  EXPECT_TRUE(gemm_scaled_matches(made, accumulator));
  const auto expected = testing::oracle_gemm_scaled(made, accumulator);
  EXPECT_EQ(expected[0], 96.0f);
  made.a.scales = Tensor({1, 1}, {kNan});
  EXPECT_TRUE(gemm_scaled_matches(made, accumulator));
}

// --- given draws ---------------------------------------------------------------------------------

TEST(GemmScaled, GivenDrawsFollowOneAnother) {
  for (const char* text : {"e4m3 sequential rounding=stochastic random_bits=8",
                           "e4m3 kahan rounding=stochastic random_bits=8",
                           "e4m3 chunked chunk=5 rounding=stochastic random_bits=8",
                           "e4m3 pairwise product=exact rounding=stochastic random_bits=8",
                           "e5m7 block_fma a=e4m3 b=e4m3 block=4 fraction_bits=20 "
                           "min_exponent=-133 sum=fp32 promote=8 rounding=stochastic "
                           "random_bits=8"}) {
    Accumulator accumulator = ParseAccumulator(text);
    Maker make(ParseFormat("e4m3"));
    const ScaledCase made = make.Make(3, 50, 5, {16, 1}, {16, 1});
    const auto of_block = DrawsOfGemm(accumulator, 16) - 1;
    const auto draws = DrawsOfGemmScaled(accumulator, 50, 16);
    EXPECT_EQ(draws, 1 + 3 * of_block + DrawsOfGemm(accumulator, 2) - 1) << text;
    // Passes the integers of the random stream as the caller's random integers. The result must be
    // the oracle's for that stream.
    std::vector<std::uint32_t> integers;
    for (std::uint64_t i = 0; i < 15; ++i) {
      reference::Draws source(accumulator.rounding, testing::kKey, i);
      integers.push_back(source.of_addend().random);
      for (std::int64_t t = 1; t < draws; ++t) integers.push_back(source.next().random);
    }
    TensorView random;
    random.data = integers.data();
    random.dtype = DType::u32;
    random.rank = 3;
    random.shape = {3, 5, draws};
    random.stride = {5 * draws, draws, 1};
    const std::vector<float> expected = testing::oracle_gemm_scaled(made, accumulator);
    const testing::ScaleViews a(made.a);
    const testing::ScaleViews b(made.b);
    const Tensor out({3, 5}, std::vector<float>(15));
    GemmScaled(made.a.elements.view(), a.given, made.b.elements.view(), b.given, accumulator,
               ScalesAt::block, out.view(), nullptr, {}, &random);
    EXPECT_EQ(out.read(), expected) << text;
  }
}

// --- errors --------------------------------------------------------------------------------------

std::string error_of(const ScaledCase& made, const Accumulator& accumulator,
                     DType type = DType::f32) {
  const testing::ScaleViews a(made.a);
  const testing::ScaleViews b(made.b);
  const Tensor out({9, 35}, std::vector<float>(9 * 35, 1.0f), testing::Layout::contiguous, type);
  TensorView c;
  if (made.c) c = made.c->view();
  try {
    GemmScaled(made.a.elements.view(), a.given, made.b.elements.view(), b.given, accumulator,
               made.at, out.view(), made.c ? &c : nullptr, testing::kKey);
  } catch (const Error& error) {
    EXPECT_EQ(out.read(), std::vector<float>(9 * 35, 1.0f));
    return error.what();
  }
  return "no error";
}

TEST(GemmScaled, Errors) {
  Maker make(ParseFormat("e4m3"));
  const Accumulator accumulator = accumulator_of("e4m3");
  const auto expect = [&](const ScaledCase& made, const char* what, const Accumulator& with) {
    const std::string error = error_of(made, with);
    EXPECT_NE(error.find(what), std::string::npos) << error;
  };
  const ScaledCase good = make.Make(9, 70, 35, {32, 1}, {32, 1});
  EXPECT_EQ(error_of(good, accumulator), "no error");
  EXPECT_NE(error_of(good, accumulator, DType::bf16).find("must be fp32, got out in bf16"),
            std::string::npos);

  expect(make.Make(9, 70, 35, {32, 1}, {20, 1}),
         "must be equal, or one a multiple of the other, got 32 and 20", accumulator);
  ScaledCase bad = good;
  bad.at = ScalesAt::epilogue;
  expect(bad, "got one for 32 of a's and 32 of b's 70 values of k", accumulator);
  bad.at = ScalesAt::operand;
  expect(bad, "scales_at must be block or epilogue", accumulator);
  bad = good;
  bad.a.block = 16;
  bad.b.block = 16;
  expect(bad, "a's scales must be … x 9 x 5, got a's scales (9, 3)", accumulator);
  bad = good;
  bad.b.lines = 2;
  expect(bad, "b's scales must be … x 3 x 18", accumulator);
  bad = good;
  bad.a.lines = -1;
  expect(bad, "must be at least 0", accumulator);
  bad = good;
  bad.a.factor = make.Scales({3, 1});
  expect(bad, "a's factor must broadcast to … x 9 x 1, got a's factor (3, 1)", accumulator);
  bad = good;
  bad.a.scales = Tensor({9, 3}, std::vector<float>(27), testing::Layout::contiguous, DType::f16);
  expect(bad, "a's scales must be fp32, got fp16", accumulator);

  const Accumulator unit = Preset("rtx-blackwell-mxfp4");
  ScaledCase of_unit = good;
  of_unit.a.elements = Tensor({9, 70}, std::vector<float>(630, 1.0f));
  of_unit.b.elements = Tensor({70, 35}, std::vector<float>(2450, 1.0f));
  expect(of_unit, "a's scales must hold values of e8m0", unit);
  of_unit.a.scales = Tensor({9, 3}, std::vector<float>(27, 2.0f));
  of_unit.b.scales = Tensor({3, 35}, std::vector<float>(105, 2.0f));
  EXPECT_EQ(error_of(of_unit, unit), "no error");
  of_unit.at = ScalesAt::epilogue;
  expect(of_unit, "goes with scales_at block", unit);
  of_unit = make.Make(9, 70, 35, {16, 1}, {16, 1});
  expect(of_unit, "takes scales of 32 values of k, got blocks of 16 of a", unit);
}

}  // namespace
}  // namespace cpd
