// SPDX-License-Identifier: Apache-2.0
//
// Tests that matrix products on every device give the oracle's results for values that are
// difficult for fast paths. Such values are factors far from one, zeros of both signs, sums next to
// ties, sums of few products, and values at the limits of blocks. Other files test matrix units
// (test_gemm_devices) and scaled operands (test_gemm_scaled).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cpd/ops/gemm.h"
#include "tests/testing/devices.h"
#include "tests/testing/few_products.h"
#include "tests/testing/gemm.h"
#include "tests/testing/gemm_cases.h"
#include "tests/testing/gemm_devices.h"
#include "tests/testing/near_ties.h"

namespace cpd {
namespace {

using testing::schemes_of_tiles;
using testing::Tensor;
using testing::Values;

using GemmDeviceValues = testing::GemmDevices;

/// Returns nearest-even, a directed mode, and stochastic rounding with few, some and all random
/// bits.
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

/// Tests factors that are very large or very small although their products are of ordinary size,
/// and sums of many terms that overflow before the last term.
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

/// A sum that starts from -0 stays -0 while all products are -0, and then becomes +0.
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

/// Tests exact products whose sums lie next to ties. A GPU rounds such a sum to odd by comparing
/// the sum rounded down with the sum rounded up.
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

/// Tests sums of no products, and of fewer products than a unit's block.
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

/// Tests terms at the limits of what ShortBlocks computes in binary32, next to ordinary terms,
/// zeros of both signs, Inf and NaN. The listed matrix units cover every way of rounding the sum
/// after a block.
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

}  // namespace
}  // namespace cpd
