// SPDX-License-Identifier: Apache-2.0
//
// Matrix products on every device against the oracle, by the values that fast paths must tell
// apart: factors far from one, signs of zero, sums next to ties, sums of few products, limits of
// blocks, orders of k; and products of scaled operands.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cpd/ops/gemm.h"
#include "cpd/spec/presets.h"
#include "tests/testing/devices.h"
#include "tests/testing/few_products.h"
#include "tests/testing/gemm.h"
#include "tests/testing/gemm_cases.h"
#include "tests/testing/gemm_devices.h"
#include "tests/testing/gemm_scaled.h"
#include "tests/testing/near_ties.h"

namespace cpd {
namespace {

using testing::schemes_of_tiles;
using testing::Shape;
using testing::Tensor;
using testing::Values;

using GemmDeviceValues = testing::GemmDevices;

/// Nearest-even, a directed mode, and stochastic rounding by few, some and all random bits.
std::vector<RoundingOptions> roundings() {
  std::vector<RoundingOptions> all;
  RoundingOptions o;
  for (const Rounding mode : {Rounding::nearest_even, Rounding::down}) {
    o.mode = mode;
    all.push_back(o);
  }
  o.mode = Rounding::stochastic;
  for (const int random_bits : {7, 13, 24}) {
    o.random_bits = random_bits;
    o.variant = random_bits == 13 ? Variant::B : Variant::A;
    all.push_back(o);
  }
  return all;
}

TEST_F(GemmDeviceValues, EverySchemeFormatAndRounding) {
  std::size_t turn = 0;
  for (const char* name : {"e4m3", "e5m2", "e6m9", "e8m7", "e5m10", "e8m23", "e4m3fn", "e4m3fnuz",
                           "e3m0", "e4m3:nosub"}) {
    const Format format = ParseFormat(name);
    for (const Values kind : testing::kValues) {
      const std::int64_t depth = kind == Values::wild || kind == Values::mixed ? 3 : 19;
      const Tensor a = Make({3, depth}, kind, format);
      const Tensor b = Make({depth, 5}, kind, format);
      const Tensor c = Make({3, 5}, Values::mixed, format);
      for (Accumulator accumulator : schemes_of_tiles(format)) {
        for (const RoundingOptions& o : roundings()) {
          if (!testing::is_chosen_on_cpu(++turn, 3)) continue;
          accumulator.rounding = o;
          ASSERT_TRUE(OracleMatches({a, b, turn % 2 == 0 ? &c : nullptr}, accumulator)) << name;
        }
      }
    }
  }
}

/// Products of ordinary size whose factors are not, and sums that overflow and come back.
TEST_F(GemmDeviceValues, FactorsFarFromOne) {
  for (const char* name : {"e4m3", "e5m2", "e6m9", "e8m7", "e8m10"}) {
    const Format format = ParseFormat(name);
    for (const int exponent : {60, 100, 120, -60, -100, -120}) {
      const auto scaled = [&](const Tensor& x, int e) {
        std::vector<float> values = x.values();
        for (float& value : values) value = std::ldexp(value, e);
        return Tensor(x.shape(), values);
      };
      const Tensor a = scaled(Make({5, 40}, Values::on_grid, format), exponent);
      const Tensor b = scaled(Make({40, 7}, Values::on_grid, format), -exponent);
      const Tensor x = Make({5, 40}, Values::large, format);
      const Tensor y = Make({40, 7}, Values::large, format);
      const Tensor c = Make({5, 7}, Values::mixed, format);
      for (const Accumulator& accumulator : schemes_of_tiles(format)) {
        ASSERT_TRUE(OracleMatches({a, b, &c}, accumulator)) << name;
        ASSERT_TRUE(OracleMatches({x, y, &c}, accumulator)) << name;
      }
    }
  }
}

/// A sum of -0 remains -0 as long as products are -0.
TEST_F(GemmDeviceValues, SumsThatStartFromNegativeZero) {
  for (const char* name : {"e4m3", "e5m2", "e4m3fnuz", "e8m23"}) {
    for (const std::int64_t zeros : {4, 8, 12}) {
      std::vector<float> values(12, -0.0F);
      for (std::size_t k = static_cast<std::size_t>(zeros); k < 12; ++k) values[k] = 0.0F;
      const Tensor a({1, 12}, values);
      const Tensor b({12, 3}, std::vector<float>(36, 1.0F));
      const Tensor c({1}, {-0.0F});
      for (const Accumulator& accumulator : schemes_of_tiles(ParseFormat(name))) {
        ASSERT_TRUE(OracleMatches({a, b, &c}, accumulator)) << name;
      }
    }
  }
}

/// Exact products next to ties, whose sums a GPU rounds to odd by those rounded down and up.
TEST_F(GemmDeviceValues, FusedSumsRoundedToOddByDirections) {
  for (const char* name : {"e4m3", "e5m2", "e6m9", "e5m10", "e8m3"}) {
    const Format format = ParseFormat(name);
    const std::size_t rows = testing::kOnGpuItself ? 1024 : 64;
    const testing::FmaProblems p = testing::NearTies(reference::spec_of(format), 3).make(rows, 32);
    EXPECT_GT(p.near_ties, p.b.size() / 2);
    const auto n = static_cast<std::int64_t>(p.rows);
    std::vector<float> addends = p.c;
    for (float& c : addends) c = reference::cast(reference::spec_of(format), c);
    const Tensor x({n, 1, 1}, p.a);  // a batch of rows of sums of one product
    const Tensor y({n, 1, 32}, p.b);
    const Tensor z({n, 1, 32}, addends);
    for (const Scheme scheme : {Scheme::sequential, Scheme::kahan}) {
      Accumulator accumulator{.format = format, .scheme = scheme};
      accumulator.exact_products = true;
      ASSERT_TRUE(OracleMatches({x, y, &z}, accumulator)) << name;
    }
  }
}

/// Sums of no products, and of fewer than a unit's block.
TEST_F(GemmDeviceValues, FewProducts) {
  const Tensor c({2, 6}, testing::few_product_addends());
  std::size_t turn = 0;
  for (Accumulator accumulator : testing::few_product_sums()) {
    for (const Rounding mode : testing::kFewModes) {
      accumulator.rounding.mode = mode;
      for (const std::int64_t k : {0, 1, 5}) {
        if (!testing::is_chosen_on_cpu(++turn, 3)) continue;
        const auto n = static_cast<std::size_t>(k);
        const Tensor a({2, k}, std::vector<float>(2 * n, 1.5F));
        const Tensor b({k, 6}, std::vector<float>(n * 6, testing::few_product_factor(accumulator)));
        ASSERT_TRUE(OracleMatches<reference::ExactArithmetic>({a, b, nullptr}, accumulator));
        ASSERT_TRUE(OracleMatches<reference::ExactArithmetic>({a, b, &c}, accumulator));
      }
    }
  }
}

TEST_F(GemmDeviceValues, MatrixUnits) {
  for (const NamedSpec& info : testing::few(Presets(), 5)) {
    for (const std::int64_t k : {0, 1, 5, 16, 33, 64, 65, 130, 200}) {
      Accumulator accumulator = Preset(info.name);
      const bool has_nan = accumulator.unit->a.has_nan() && accumulator.unit->b.has_nan();
      const Values specials = has_nan ? Values::mixed : Values::small;
      const Tensor a = MakeRounded({5, k}, specials, accumulator.unit->a);
      const Tensor b = MakeRounded({k, 17}, specials, accumulator.unit->b);
      const Tensor x = MakeRounded({5, k}, Values::on_grid, accumulator.unit->a);
      const Tensor y = MakeRounded({k, 17}, Values::on_grid, accumulator.unit->b);
      const Tensor c = Make({5, 17}, Values::arbitrary, accumulator.format);
      ASSERT_TRUE(OracleMatches({a, b}, accumulator)) << info.name;
      ASSERT_TRUE(OracleMatches({x, y, &c}, accumulator)) << info.name;
      accumulator.format = ParseFormat("e6m9");
      accumulator.unit->promote = 2 * accumulator.unit->block;
      for (const RoundingOptions& o : testing::few_on_cpu(roundings(), 3)) {
        accumulator.rounding = o;
        ASSERT_TRUE(OracleMatches({x, y, &c}, accumulator)) << info.name;
      }
    }
  }
}

/// Terms at the limits of binary32 (ShortBlocks), next to other terms, zeros of both signs and
/// values that are not finite; units with each way to end a block.
TEST_F(GemmDeviceValues, LimitsOfShortBlocks) {
  for (const char* text :
       {"h100-bf16", "h100-tf32", "fp32 block_fma a=bf16 b=bf16 block=16",
        "fp32 block_fma a=tf32 b=tf32 block=4",
        "fp32 block_fma a=bf16 b=bf16 block=12 min_exponent=-400",
        "fp32 block_fma a=bf16 b=bf16 block=16 min_exponent=-90",
        "fp32 block_fma a=bf16 b=bf16 block=8 fraction_bits=24 min_exponent=-102",
        "fp32 block_fma a=bf16 b=tf32 block=8 min_exponent=119",
        "fp32 block_fma a=bf16 b=bf16 block=16 sum_rounding=nearest_even",
        "fp32 block_fma a=bf16 b=bf16 block=32 fraction_bits=13 sum=e8m13 min_exponent=-139",
        "fp32 block_fma a=bf16 b=bf16 block=8 addend=separate promote=16"}) {
    const Accumulator accumulator = ParseAccumulator(text);
    const testing::LimitCases cases(accumulator.unit->fraction_bits - 126, 118);
    for (std::size_t turn = 0; turn < 12; ++turn) {
      const auto [a, b, c] = cases.make(turn, {9, 37}, {37, 10});
      testing::queued_kernels();
      ASSERT_TRUE(OracleMatches({a, b}, accumulator)) << text << ", turn " << turn;
      if (const auto kernels = testing::queued_kernels()) {
        ASSERT_EQ(kernels->back(), "multiply_units") << text;
      }
      ASSERT_TRUE(OracleMatches({a, b, &c}, accumulator)) << text << ", turn " << turn;
    }
  }
}

TEST_F(GemmDeviceValues, OrdersOfK) {
  for (const char* text :
       {"fp32 block_fma a=e4m3fn b=e5m2 block=4 group=8 fraction_bits=3",
        "fp32 block_fma a=e4m3fn b=e5m2 block=3 group=12 stride=6 take=3 promote=24",
        "fp32 block_fma a=e4m3fn b=e5m2 block=16 group=48 stride=8 take=1 sum=fp16",
        "fp16 block_fma a=e4m3fn b=e5m2 block=16 group=32 promote=32 sum=fp16 "
        "sum_rounding=nearest_even min_exponent=-21"}) {
    const Accumulator accumulator = ParseAccumulator(text);
    for (const std::int64_t k : {0, 1, 3, 5, 32, 33, 65, 130}) {
      const Tensor a = MakeRounded({5, k}, Values::mixed, accumulator.unit->a);
      const Tensor b = MakeRounded({k, 17}, Values::mixed, accumulator.unit->b);
      const Tensor x = MakeRounded({5, k}, Values::on_grid, accumulator.unit->a);
      const Tensor y = MakeRounded({k, 17}, Values::on_grid, accumulator.unit->b);
      const Tensor c = Make({5, 17}, Values::arbitrary, accumulator.format);
      ASSERT_TRUE(OracleMatches({x, y}, accumulator)) << text;
      ASSERT_TRUE(OracleMatches({a, b, &c}, accumulator)) << text;
    }
  }
}

// --- scaled operands -----------------------------------------------------------------------------

class GemmScaledDevices : public testing::OverDevices {
 protected:
  static ::testing::AssertionResult Match(const testing::ScaledCase& made,
                                          const Accumulator& accumulator) {
    const std::vector<float> expected = testing::oracle_gemm_scaled(made, accumulator);
    for (const std::string& name : testing::devices()) {
      const testing::OnBackendOrGpu device(name);
      testing::Copies there = device.There();
      const auto scales = [&](const testing::ScaledTensor& x) {
        const testing::ScaleViews host(x);
        return OperandScales{there(host.given.scales), x.block, x.lines, there(host.given.factor)};
      };
      const Tensor out(testing::out_shape(made), std::vector<float>(expected.size(), -7.0F));
      TensorView c;
      if (made.c) c = made.c->view();
      GemmScaled(there(made.a.elements.view()), scales(made.a), there(made.b.elements.view()),
                 scales(made.b), accumulator, made.at, there(out.view()),
                 made.c ? there(&c) : nullptr, testing::kKey);
      there.Read(out.view());
      auto equal = testing::scaled_equal(made, accumulator, name, expected, out.read());
      if (!equal) return equal;
    }
    return ::testing::AssertionSuccess();
  }
};

TEST_F(GemmScaledDevices, EverySchemeAndRounding) {
  testing::ScaledCases make(ParseFormat("e4m3"));
  std::size_t turn = 0;
  for (const std::int64_t block : {5, 16, 32, 64, 100, 200}) {
    for (Accumulator accumulator : schemes_of_tiles(ParseFormat("e5m7"))) {
      for (const RoundingOptions& o : roundings()) {
        if (++turn % 5 != 0) continue;
        accumulator.rounding = o;
        const testing::ScaleTile of_b{turn % 2 == 0 ? block : 2 * block, 3};
        testing::ScaledCase made = make.Make(18, 133, 17, {block, 1}, of_b, turn % 4 == 0);
        if (turn % 3 == 0) make.AddFactors(made, 18, 17);
        if (turn % 4 == 0) made.c = make.Addend({18, 17});
        ASSERT_TRUE(Match(made, accumulator));
      }
    }
  }
}

TEST_F(GemmScaledDevices, BatchesEpiloguesAndSumsOfNothing) {
  testing::ScaledCases make(ParseFormat("e4m3"));
  for (const char* text : {"e5m7 sequential", "e5m7 kahan", "e5m7 pairwise", "h100-fp8"}) {
    const Accumulator accumulator = ParseAccumulator(text);
    testing::ScaledCase made{{make.Elements({2, 1, 5, 40})}, {make.Elements({3, 40, 9})}};
    testing::round_into(ParseFormat("e4m3fn"), made.a.elements);
    testing::round_into(ParseFormat("e4m3fn"), made.b.elements);
    made.a.block = made.b.block = 16;
    made.a.scales = make.Scales({2, 1, 5, 3});
    made.b.scales = make.Scales({3, 3, 9});
    made.b.factor = make.Scales({3, 1, 1});
    made.c = make.Addend({3, 5, 9});
    ASSERT_TRUE(Match(made, accumulator));
    made.at = ScalesAt::epilogue;
    made.a.block = made.b.block = 0;
    made.a.scales = make.Scales({2, 1, 5, 1});
    made.b.scales = make.Scales({1, 1, 9});
    ASSERT_TRUE(Match(made, accumulator));
    for (const ScalesAt at : {ScalesAt::block, ScalesAt::epilogue}) {
      testing::ScaledCase none{{Tensor({2, 0}, {})}, {Tensor({0, 3}, {})}};
      none.at = at;
      ASSERT_TRUE(Match(none, accumulator));
      none.c = Tensor({3}, {-0.0F, 1.5F, 3.0F});
      ASSERT_TRUE(Match(none, accumulator));
    }
  }
}

TEST_F(GemmScaledDevices, Units) {
  for (const char* text :
       {"h100-fp8", "deepseek-promoted", "a100", "h100-fp8 block=8 group=16", "rtx-blackwell-mxfp8",
        "rtx-blackwell-mxfp4", "rtx-blackwell-nvfp4", "rtx-blackwell-mxfp8 promote=64"}) {
    Accumulator accumulator = ParseAccumulator(text);
    const BlockFma unit = accumulator.unit.value();
    testing::ScaledCases make(unit.a);
    if (unit.scale) make.scale = *unit.scale;
    for (const std::int64_t k : {1, 33, 64, 130, 200}) {
      const std::int64_t block = unit.scale ? unit.scale_block : 24;
      testing::ScaledCase made = make.Make(5, k, 17, {block, 1}, {2 * block, 2});
      testing::round_into(unit.a, made.a.elements);
      testing::round_into(unit.b, made.b.elements);
      ASSERT_TRUE(Match(made, accumulator)) << text;
      made.c = make.Addend({5, 17});
      ASSERT_TRUE(Match(made, accumulator)) << text;
      make.AddFactors(made, 5, 17);
      ASSERT_TRUE(Match(made, accumulator)) << text;
      Accumulator stochastic = accumulator;
      stochastic.format = ParseFormat("e6m9");
      stochastic.unit->promote = std::max(unit.block, unit.group);
      stochastic.rounding = roundings().back();  // drawn at each promotion of each block
      ASSERT_TRUE(Match(made, stochastic)) << text << ", stochastic";
    }
  }
}

}  // namespace
}  // namespace cpd
