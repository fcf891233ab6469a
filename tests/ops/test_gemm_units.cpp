// SPDX-License-Identifier: Apache-2.0
//
// Tests matrix units on every backend with results worked out by hand: sums at the ends of the
// range, and adders other than Adder::aligned.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpd/spec/presets.h"
#include "tests/testing/bits.h"
#include "tests/testing/gemm.h"

namespace cpd {
namespace {

using testing::kInf;
using testing::Tensor;

// Returns Gemm's dot product of a and b, plus c. Expects that every backend agrees with the oracle.
float dot(const Accumulator& accumulator, const std::vector<float>& a, const std::vector<float>& b,
          float c = 0) {
  const auto k = static_cast<std::int64_t>(a.size());
  const Tensor left({1, k}, a);
  const Tensor right({k, 1}, b);
  const Tensor start({1, 1}, {c});
  EXPECT_TRUE(testing::gemm_matches({left, right, &start}, accumulator));
  const Tensor out({1, 1}, {0});
  const TensorView addend = start.view();
  Gemm(left.view(), right.view(), accumulator, out.view(), &addend);
  return *static_cast<const float*>(out.view().data);
}

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

Accumulator custom(const char* text) { return ParseAccumulator(text); }

TEST(GemmBlockFma, SumsBeyondTheRangeAreInfinite) {
  const float top = std::numeric_limits<float>::max();
  const Accumulator zero = Preset("h100-bf16");
  EXPECT_EQ(dot(zero, {0x1p100F}, {0x1p100F}), kInf);
  EXPECT_EQ(dot(zero, {0x1p100F}, {-0x1p100F}), -kInf);
  // The exact sum is 2^128 minus half of the last place of `top`, the largest binary32 number. The
  // sum is cut to `top`.
  EXPECT_EQ(dot(zero, {0x1p64F, 0x1p60F}, {0x1p64F, -0x1p43F}), top);
  EXPECT_EQ(dot(zero, {0x1p100F}, {0x1p100F}, -kInf), -kInf);
  const Accumulator none =
      custom("fp32 block_fma a=fp16 b=fp16 block=4 fraction_bits=3 sum=e4m3fn");
  EXPECT_EQ(dot(none, {1024}, {1}), 448);                           // there is no Inf
  EXPECT_EQ(dot(zero, {0x1p64F}, {0x1p64F}, -0x1p127F), 0x1p127F);  // in one block
  const Accumulator even = Preset("h100-fp16", ParseFormat("fp16"));
  EXPECT_EQ(dot(even, {256}, {256}), kInf);
  std::vector<float> a(17, 0);
  a[0] = 256;
  a[16] = -1;
  EXPECT_EQ(dot(even, a, std::vector<float>(17, 256)), kInf);
}

TEST(GemmBlockFma, SumsCutToNothingArePositiveZeros) {
  const Accumulator zero = Preset("h100-bf16");
  EXPECT_EQ(bits_of(dot(zero, {-0x1p-100F}, {0x1p-100F})), 0U);
  EXPECT_EQ(bits_of(dot(zero, {-0x1p-75F}, {0x1p-75F})), 0U);
  EXPECT_EQ(dot(zero, {-0x1p-75F}, {0x1p-74F}), -0x1p-149F);
  const Accumulator even = Preset("h100-fp16", ParseFormat("fp16"));
  EXPECT_EQ(bits_of(dot(even, {-0x1p-14F}, {0x1p-12F})), 0U);
}

// The expected results are worked out from the rules that the enumeration Adder documents.
TEST(GemmBlockFma, OtherAddersByHand) {
  const Accumulator exact = Preset("cdna1-fp16");
  EXPECT_EQ(dot(exact, {1024, 0x1p-14F, -1024}, {1024, 0x1p-10F, 1024}), 0x1p-24F);
  EXPECT_EQ(dot(exact, {1, 0x1p-14F}, {1, 0x1p-10F}), 1);  // a tie
  EXPECT_EQ(dot(exact, {1, 0x1p-14F, 0x1p-14F}, {1, 0x1p-10F, 0x1p-14F}), 0x1.000002p0F);
  const Accumulator wide = Preset("cdna1-bf16");
  EXPECT_EQ(dot(wide, {0x1p127F, -0x1p-126F}, {0x1p127F, 0x1p-126F}), kInf);
  EXPECT_EQ(bits_of(dot(wide, {-0x1p-100F}, {0x1p-100F})), 0x80000000U);

  const Accumulator pairs = Preset("cdna2-fp16");
  // The unit adds the pairs (1 + 2^-24) and (2^-24 + 0). The first pair is a tie and rounds to 1.
  // Adding the second pair to 1 is a tie again, and gives 1.
  EXPECT_EQ(dot(pairs, {1, 0x1p-14F, 0x1p-14F}, {1, 0x1p-10F, 0x1p-10F}), 1);
  EXPECT_EQ(dot(pairs, {0x1p-15F}, {1024}), 0);  // a subnormal operand
  EXPECT_EQ(dot(pairs, {1}, {0}, 0x1p-127F), 0);
  EXPECT_EQ(bits_of(dot(Preset("cdna2-bf16"), {-0x1p-100F}, {0x1p-100F})), 0U);  // +0 + -0
  EXPECT_EQ(bits_of(dot(Preset("cdna2-bf16"), {-0x1.8p-126F}, {1}, 0x1p-126F)), 0x80000000U);

  const Accumulator steps = Preset("cdna3-bf16");
  // For terms near 1, products are cut toward zero to multiples of 2^-24. Their sum is rounded down
  // to a multiple of 2^-32, and the sum with the addend to a multiple of 2^-31.
  EXPECT_EQ(dot(steps, {1, -0x1p-25F}, {1, 1}), 1);
  EXPECT_EQ(dot(steps, {-0x1p-40F}, {1}, 1), 0x1.fffffep-1F + 0x1p-24F);  // 1 - 2^-31 rounds to 1
  EXPECT_EQ(dot(steps, {1}, {1}, -0x1p-26F), 0x1.fffffep-1F);  // -2^-26 goes down to -2^-24
  EXPECT_EQ(dot(steps, {0x1p127F}, {2}, -0x1p127F), kInf);     // a product beyond binary32's range
  const Accumulator halves = Preset("cdna3-fp8");
  EXPECT_EQ(dot(halves, {1}, {1}, -0x1p-25F), 0x1.fffffep-1F);
  EXPECT_EQ(dot(halves, {1}, {1}, -0x1p-26F), 1);
}

// Tests wide sums of many terms, for which binary64 has too few bits.
TEST(GemmBlockFma, ExactSums) {
  const Accumulator unit =
      custom("fp32 block_fma a=fp32 b=fp32 block=64 adder=exact sum_rounding=nearest_even");
  const float top = std::numeric_limits<float>::max();
  const float low = 0x1p-149F;
  EXPECT_EQ(dot(unit, {top, low, -top}, {top, low, top}), 0);  // 2^-298 is left, and rounds to 0
  EXPECT_EQ(dot(unit, {top, 1, -top}, {top, low, top}), low);
  EXPECT_EQ(dot(unit, {1, 0x1p-24F, low}, {1, 1, low}), 0x1.000002p0F);  // above the tie
  EXPECT_EQ(dot(unit, {1, 0x1p-24F, -low}, {1, 1, low}), 1);             // below it
  EXPECT_EQ(dot(unit, {-1, -0x1p-24F, -low}, {1, 1, low}), -0x1.000002p0F);
  EXPECT_EQ(dot(unit, std::vector<float>(64, top), std::vector<float>(64, top)), kInf);
  EXPECT_EQ(bits_of(dot(unit, {-0.0F, 0}, {1, -1}, -0.0F)), 0U);
  const Accumulator zero = custom("fp32 block_fma a=fp32 b=fp32 block=64 adder=exact");
  EXPECT_EQ(dot(zero, {1, 0x1p-24F, low}, {1, 1, low}), 1);
  EXPECT_EQ(dot(zero, {1, -low}, {1, low}), 0x1.fffffep-1F);
}

}  // namespace
}  // namespace cpd
