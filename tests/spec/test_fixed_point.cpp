// SPDX-License-Identifier: Apache-2.0
//
// Tests accumulators that are integers: their texts, checks and names, and the widths that
// Kulisch's exact sums need.
#include <gtest/gtest.h>

#include <string>

#include "cpd/spec/accumulator.h"
#include "cpd/spec/error.h"
#include "cpd/spec/fixed_point.h"

namespace cpd {
namespace {

TEST(TextFixed, ReadsWhatItPrints) {
  for (const int width : {2, 32, 33, 1024}) {
    for (const int fraction : {-1024, 0, 12, 1024}) {
      for (const Rounding mode : {Rounding::toward_zero, Rounding::nearest_even, Rounding::down}) {
        for (const Overflow overflow : {Overflow::ieee, Overflow::saturate}) {
          const FixedPoint point{width, fraction, mode};
          Accumulator accumulator;
          accumulator.scheme = Scheme::fixed;
          accumulator.fixed = point;
          accumulator.rounding.overflow = overflow;
          const std::string text = ToString(accumulator);
          EXPECT_EQ(ToString(ParseAccumulator(text)), text);
          EXPECT_EQ(ParseAccumulator(text).fixed, point);
          EXPECT_EQ(OfTerms(accumulator).fixed, point);
          EXPECT_EQ(ToString(Swapped(accumulator)), text);
        }
      }
    }
  }
}

TEST(TextFixed, ShortNames) {
  EXPECT_EQ(ToString(ParseAccumulator("int32")), "fp32 fixed width=32 fraction=0");
  EXPECT_EQ(ToString(ParseAccumulator("fixed<40,-12> overflow=saturate rounding=up")),
            "fp32 fixed width=40 fraction=-12 rounding=up overflow=saturate");
  EXPECT_EQ(ToString(ParseAccumulator("bf16 fixed")), "bf16 fixed width=32 fraction=0");
  EXPECT_TRUE(NamesFixed("int8"));
  EXPECT_TRUE(NamesFixed("INT25"));
  EXPECT_TRUE(NamesFixed("int26"));
  EXPECT_FALSE(NamesFixed("int"));
  EXPECT_FALSE(NamesFixed("int-5"));
}

TEST(TextFixed, Errors) {
  for (const char* text :
       {"int1025", "fixed<1,0>", "fixed<8>", "fixed<8,0", "fixed<8,1025>",
        "int32 rounding=stochastic", "int32 sum_rounding=stochastic", "int32 sum_overflow=saturate",
        "int16 rounding=down", "int25 rounding=nearest_even", "bf16 fixed width=9 rounding=up",
        "int32 random_bits=8", "int32 chunk=3", "int32 product=e4m3", "int32 block=4",
        "e4m3 kahan width=8"}) {
    EXPECT_THROW(ParseAccumulator(text), Error) << text;
  }
  for (const char* text : {"int26 rounding=down", "fixed<25,200> rounding=down",
                           "fixed<8,-140> rounding=down", "bf16 fixed width=10 rounding=up"}) {
    EXPECT_NO_THROW(ParseAccumulator(text)) << text;
  }
  Accumulator accumulator;
  accumulator.scheme = Scheme::fixed;
  EXPECT_THROW(Check(accumulator), Error);
  accumulator.scheme = Scheme::kahan;
  accumulator.fixed.emplace();
  EXPECT_THROW(Check(accumulator), Error);
}

TEST(TextFixed, KulischsFractionIsOfBothOperands) {
  // The least values of the two formats are 2^-9 and 2^-16, so products are multiples of 2^-25.
  EXPECT_EQ(Kulisch(ParseFormat("e4m3fn"), ParseFormat("e5m2"), 1).fraction, 25);
  EXPECT_EQ(Kulisch(ParseFormat("e5m2"), ParseFormat("e4m3fn"), 1).fraction, 25);
}

TEST(TextFixed, KulischsWidths) {
  const Format e4m3fn = ParseFormat("e4m3fn");
  const FixedPoint point = Kulisch(e4m3fn, e4m3fn, 1);
  EXPECT_EQ(point.fraction, 18);
  EXPECT_EQ(point.width, 37);  // 448^2 = 49 * 2^12, in units of 2^-18: 36 bits and a sign
  EXPECT_THROW(Kulisch(e4m3fn, e4m3fn, 0), Error);
  EXPECT_LE(Kulisch(kFp32, kFp32, std::int64_t{1} << 57).width, kMostFixedWidth);
}

}  // namespace
}  // namespace cpd
