// SPDX-License-Identifier: Apache-2.0
//
// Tests the texts of casts: they are printed and parsed back, and wrong texts give errors. Tests
// also for which casts the result does not depend on the axis.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cpd/spec/cast_spec.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

std::string Refusal(const std::string& text) {
  try {
    ParseCastSpec(text);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(CastSpec, CanonicalTextsParseBack) {
  for (const char* text :
       {"e4m3fn", "e5m2 rounding=stochastic random_bits=8 variant=C", "fp16 overflow=saturate",
        "mxfp8", "nvfp4 rounding=stochastic random_bits=8",
        "int8 row rounding=stochastic variant=B", "mxfp4 overflow=ieee factor=0.75",
        "mxfp4 factor=0.0001", "mxfp4 factor=1e-05", "mxfp4 factor=1.25e-300",
        "fp8-tensor history=1024 amax=most_recent", "fp8-block 128x128",
        "mxfp4 transform=hadamard16:te rounding=stochastic"}) {
    EXPECT_EQ(ToString(ParseCastSpec(text)), text);
  }
}

TEST(CastSpec, OtherTextsOfTheSame) {
  const std::vector<std::pair<std::string, std::string>> texts{
      {"mxfp8 overflow=saturate rounding=nearest_even", "mxfp8"},
      {"mxfp4 factor=.5 rule=rceil", "mxfp4 rule=rceil factor=0.5"},
      {"mxfp4 factor=7.5e-1 amax=max history=0", "mxfp4 factor=0.75"},
      {"rounding=up e4m3", "e4m3 rounding=up"},
      {"(4, 3) rounding=up", "e4m3 rounding=up"},
      {"e4m3fn:bias=11:nosub up", "e4m3fn:bias=11:nosub rounding=up"},
      {"e4m3fn stochastic random_bits=8", "e4m3fn rounding=stochastic random_bits=8"},
      {"random_bits=8 e4m3fn stochastic", "e4m3fn rounding=stochastic random_bits=8"},
      {"int8 row up", "int8 row rounding=up"},
      {"int8 up row", "int8 row rounding=up"},
      {" MXFP8  factor=1 ", "mxfp8"}};
  for (const auto& [text, canonical] : texts) {
    EXPECT_EQ(ToString(ParseCastSpec(text)), canonical) << text;
  }
}

TEST(CastSpec, EveryFieldOfAScaledOne) {
  const CastSpec cast = ParseCastSpec(
      "fp8-tensor rounding=stochastic random_bits=7 variant=B overflow=ieee history=3 "
      "amax=most_recent");
  EXPECT_EQ(std::get<Scaled>(cast.format), ParseScaled("fp8-tensor"));
  EXPECT_EQ(cast.rounding.mode, Rounding::stochastic);
  EXPECT_EQ(cast.rounding.random_bits, 7);
  EXPECT_EQ(cast.rounding.variant, Variant::B);
  EXPECT_EQ(cast.rounding.overflow, Overflow::ieee);
  EXPECT_EQ(cast.factor, 1);
  EXPECT_EQ(cast.history, 3);
  EXPECT_EQ(cast.amax, CastSpec::Amax::most_recent);
  EXPECT_EQ(ParseCastSpec("mxfp4 factor=0.75").factor, 0.75);
  EXPECT_EQ(ParseCastSpec("mxfp4").rounding.overflow, Overflow::saturate);
  EXPECT_EQ(std::get<Format>(ParseCastSpec("e5m2").format), ParseFormat("e5m2"));
  EXPECT_EQ(ParseCastSpec("e5m2").rounding.overflow, Overflow::ieee);
}

TEST(CastSpec, RefusesWithWhatIsGivenAndWhatIsAllowed) {
  const std::vector<std::pair<std::string, std::string>> refused{
      {"mxfp4 factor=0", "factor must be above 0 and at most 1, got 0"},
      {"mxfp4 factor=-1e300", "factor must be above 0 and at most 1, got -1e+300"},
      {"mxfp4 factor=nan", "factor must be above 0 and at most 1, got nan"},
      {"mxfp4 factor=half", "factor must be a number, got 'half'"},
      {"mxfp4 history=-1", "history must be 0…2^20 steps, got -1"},
      {"mxfp4 history=1048577", "history must be 0…2^20 steps, got 1048577"},
      {"mxfp4 history=many", "history must be an integer, got 'many'"},
      {"mxfp4 amax=least", "amax must be max or most_recent, got 'least'"},
      {"mxfp4 history=4", "(e4m3fn block=tensor scale=fp32), got mxfp4"},
      {"fp8-tensor history=4 factor=0.5", "a history goes with one fp32 scale a tensor"},
      {"fp8-tensor factor=0.5", "a factor goes with one level of blocks, got fp8-tensor"},
      {"nvfp4 factor=0.5", "a factor goes with one level of blocks, got nvfp4"},
      {"mxfp4 factor=0.5 factor=0.5", "option 'factor' of a cast is given twice"},
      {"e4m3 factor=0.5", "a factor goes with one level of blocks, got e4m3"},
      {"e4m3 history=4", "a history goes with one fp32 scale a tensor"},
      {"e4m3 up rounding=down", "option 'rounding' of a cast is given twice"},
      {"e4m3 up up", "option 'rounding' of a cast is given twice"},
      {"mxfp8 stochastik", "got 'stochastik'; did you mean 'stochastic'?"},
      {"e4m3fn saturate", "got 'saturate'; did you mean overflow=saturate?"},
      {"e4m3fn randombits=8", "of a cast; there are rounding, overflow, random_bits, variant"},
      {"e4m3fn randombits=8", "did you mean 'random_bits'?"},
      {"mxfp8 rul=up", "did you mean 'rule'?"},
      {"mxfp4 random_bits=25", "random_bits must be 1…24, got 25"},
      {"mxfp4 random_bits=8", "random_bits=8 has no effect with rounding=nearest_even"},
      {"e4m3fn rounding=to_odd variant=B", "variant=B has no effect with rounding=to_odd"},
      {"fp8-tensor amax=most_recent", "amax=most_recent has no effect without a history"},
      {"mxfp4 round=up", "unknown option 'round' of a cast"},
      {"", "unknown format ''"}};
  for (const auto& [text, told] : refused) {
    EXPECT_NE(Refusal(text).find(told), std::string::npos) << text << ": " << Refusal(text);
  }
  EXPECT_THROW(ToString(CastSpec{.format = ParseScaled("mxfp4"), .factor = 2}), Error);
}

TEST(CastSpec, IsWholeWhereNoAxisMatters) {
  for (const char* text : {"e4m3fn", "fp8-tensor", "fp8-block 128x128", "nvfp4 block=16x16"}) {
    EXPECT_TRUE(IsWhole(ParseCastSpec(text))) << text;
  }
  for (const char* text :
       {"mxfp8", "fp8-row", "fp8-block", "mxfp8 2x32", "mxfp8 1x1", "nvfp4 block=16x1 outer=tensor",
        "nvfp4 outer=row", "mxfp4 block=16x16 transform=hadamard16"}) {
    EXPECT_FALSE(IsWhole(ParseCastSpec(text))) << text;
  }
}

}  // namespace
}  // namespace cpd
