// SPDX-License-Identifier: Apache-2.0
//
// Tests sums of exponents (one word holds two) against plain integers. Tests also the blocks that
// ShortBlocks computes in binary32, against binary64. The products and sums of these blocks lie at
// the limits of both types and of 32-bit integers.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>

#include "cpd/numeric/units/exponent_pairs.h"
#include "tests/testing/bits.h"

namespace cpd {
namespace {

using testing::bits_of;
using testing::kInf;
using testing::kNan;

BlockFmaPlan plan_of(const std::string& unit) {
  return make_block_fma_plan(ParseAccumulator("fp32 block_fma " + unit));
}

std::uint32_t pair_of(int first, int second) {
  return (static_cast<std::uint32_t>(second) << 16) | (static_cast<std::uint32_t>(first) & 0xFFFF);
}

TEST(ExponentPairs, LargerOfSumIsThatOfEachHalf) {
  constexpr std::array kLimits = {-32768, -16384, -8192, -4096, -252,  -1,   0,
                                  1,      118,    119,   8192,  16384, 32767};
  for (const int a : kLimits) {
    for (const int b : kLimits) {
      if (a + b < -32768 || a + b > 32767) continue;
      for (const int c : kLimits) {
        const int expected = std::max(a + b, c);
        for (const auto& [x, y, z] : {std::array{-1, 1, -32768}, {-1, -1, 0}, {32766, 1, -1}}) {
          const int other = std::max(x + y, z);
          EXPECT_EQ(larger_of_sum(pair_of(a, x), pair_of(b, y), pair_of(c, z)),
                    pair_of(expected, other));
          EXPECT_EQ(larger_of_sum(pair_of(x, a), pair_of(y, b), pair_of(z, c)),
                    pair_of(other, expected));
        }
      }
    }
  }
}

TEST(ExponentPairs, Operands) {
  const auto exponent = [](float x, int emin = -126) {
    return first_exponent(paired_exponent(x, emin));
  };
  EXPECT_EQ(exponent(1.5F), 0);
  EXPECT_EQ(exponent(-0x1p-126F), -126);
  EXPECT_EQ(exponent(0x1p-149F), -126);
  EXPECT_EQ(exponent(0x1p-20F, -14), -14);
  EXPECT_EQ(exponent(0x1.8p127F), 127);
  for (const float zero : {0.0F, -0.0F}) EXPECT_EQ(exponent(zero), kNoExponent);
  for (const float x : {kInf, -kInf, kNan}) EXPECT_EQ(exponent(x), kSpecialExponent);
  EXPECT_EQ(first_exponent(pair_of(-252, 254)), -252);
  EXPECT_EQ(second_exponent(pair_of(-252, 254)), 254);
  EXPECT_EQ(second_exponent(pair_of(254, -252)), -252);
  EXPECT_EQ(kNoExponents, pair_of(2 * kNoExponent, 2 * kNoExponent));
  // The greatest and the least sum of two exponents fit in 16 bits, so they keep their signs.
  EXPECT_GT(first_exponent(pair_of(2 * kSpecialExponent, 0)), kMostEnd32);
  EXPECT_LT(second_exponent(kNoExponents), -600);
}

/// Plans permit sums of blocks in binary32 (short blocks) only if the products have few enough
/// bits.
TEST(ExponentPairs, PlansHaveShortBlocks) {
  const auto has = [](const std::string& unit) { return plan_of(unit).has_short_blocks; };
  EXPECT_TRUE(has("a=e8m11 b=tf32 block=4"));
  EXPECT_FALSE(has("a=e8m11 b=e8m11 block=4"));
  EXPECT_TRUE(has("a=bf16 b=bf16 block=32 fraction_bits=24"));
  EXPECT_FALSE(has("a=bf16 b=bf16 block=32 fraction_bits=25"));
  EXPECT_FALSE(has("a=bf16 b=bf16 block=4 adder=exact"));
}

TEST(ExponentPairs, ShortBlocksAreThoseWithinTheLimits) {
  for (const int fraction : {1, 13, 25}) {
    for (const int least : {-400, -133, -126, -125, -101, -100, 0, 117, 118, 119, 127}) {
      const BlockFmaPlan plan =
          plan_of("a=bf16 b=bf16 block=4 fraction_bits=" + std::to_string(fraction) +
                  " min_exponent=" + std::to_string(least));
      ShortBlocks all(plan);
      for (int greatest = -298; greatest <= 254; ++greatest) {
        const int e = std::max(greatest, least);
        const bool expected = e >= fraction - 126 && e <= 118;
        ShortBlocks one(plan);
        EXPECT_EQ(one.take(greatest) == e && one.all(), expected)
            << fraction << ", " << least << ", " << greatest;
        if (!expected) one.take(std::max(0, least));
        EXPECT_EQ(one.all(), expected) << fraction << ", " << least << ", " << greatest;
        if (expected) all.take(greatest);
      }
      // Tests blocks whose products are all zero: zero times zero, and zero times the greatest and
      // the least number.
      for (const int none : {2 * kNoExponent, kNoExponent + 127, kNoExponent - 149}) {
        EXPECT_GE(all.take(none), least);
      }
      EXPECT_TRUE(all.all()) << fraction << ", " << least;
      // Tests products of Inf or NaN with zero, with the least binary32 number and with another Inf
      // or NaN, and Inf or NaN as the addend.
      for (const int other : {kNoExponent, -149, kSpecialExponent, 128 - kSpecialExponent}) {
        ShortBlocks one(plan);
        one.take(kSpecialExponent + other);
        EXPECT_FALSE(one.all());
      }
    }
  }
}

/// Returns a float with `bits` significant bits, the last one set, and the exponent e. The lowest
/// bits of the float may lie below 2^-149.
float odd_of(int bits, int e, std::mt19937_64& generator) {
  const int significand = 1 << (bits - 1) | static_cast<int>(generator() % (1U << (bits - 1))) | 1;
  const float x = std::ldexp(static_cast<float>(significand), e - bits + 1);
  return generator() % 2 == 0 ? x : -x;
}

TEST(ExponentPairs, ProductsAreThoseOfBinary64) {
  std::mt19937_64 generator(1);
  for (const int fraction : {1, 13, 25}) {
    const BlockFmaPlan plan =
        plan_of("a=e8m11 b=tf32 block=4 fraction_bits=" + std::to_string(fraction));
    for (const int e : {least_end32(plan), least_end32(plan) + 1, -60, 0, 117, kMostEnd32}) {
      const float scale = alignment<float>(e, plan);
      const double exact = alignment<double>(std::int64_t{e}, plan);
      for (int of_product = e; of_product >= std::max(e - 60, -252); --of_product) {
        for (const int of_a : {of_product / 2, std::clamp(of_product, -126, 127)}) {
          const float a = odd_of(12, of_a, generator);
          const float b = odd_of(11, of_product - of_a, generator);
          EXPECT_EQ(aligned_product(a, b, scale), aligned_product<double>(a, b, exact))
              << fraction << ": " << testing::hex(a) << " * " << testing::hex(b) << ", E " << e;
        }
      }
    }
  }
}

/// Tests sums of up to a whole block of the greatest products, as multiples of the unit (the last
/// place), with addends of every size.
TEST(ExponentPairs, EndsAreThoseOfBinary64) {
  using R = Rule<Rounding::toward_zero>;
  for (const char* unit :
       {"block=8 fraction_bits=26", "block=32 fraction_bits=24",
        "block=32 fraction_bits=13 sum=e8m13", "block=64 fraction_bits=1 sum=e8m1"}) {
    const BlockFmaPlan plan = plan_of(std::string("a=bf16 b=bf16 ") + unit);
    ASSERT_TRUE(plan.ends_in_binary32 && plan.has_short_blocks) << unit;
    const int most = plan.block * ((1 << plan.fraction_bits << 2) - 1);
    for (const int e : {least_end32(plan), least_end32(plan) + 1, 0, 117, kMostEnd32}) {
      for (const int magnitude : {0, 1, 2, 3, (1 << 24) - 1, 1 << 24, (1 << 24) + 1, (1 << 25) + 3,
                                  1 << 30, (1 << 30) + 127, most - 1, most}) {
        for (const float significand : {0.0F, 1.0F, 0x1.8p0F, 0x1.fffffep0F}) {
          for (int below = 0; below < 60; ++below) {
            const float addend = std::ldexp(significand, e - below);
            for (const int signs : {0, 1, 2, 3}) {
              const int units = std::min(magnitude, most) * (signs % 2 == 0 ? 1 : -1);
              const float sum = signs < 2 ? addend : -addend;
              const auto expected = static_cast<float>(
                  end_block<R>(static_cast<double>(units), double{sum}, std::int64_t{e}, plan));
              EXPECT_EQ(bits_of(end_in_range32(units, sum, e, plan)), bits_of(expected))
                  << unit << ": " << units << " and " << testing::hex(sum) << ", E " << e;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace cpd
