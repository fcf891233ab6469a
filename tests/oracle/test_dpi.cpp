// SPDX-License-Identifier: Apache-2.0
//
// Tests the C functions for simulators: results and flags worked out by hand, and errors.
#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "cpd/oracle/dpi.h"

namespace {

TEST(Dpi, OneRounding) {
  const int rule = cpd_dpi_rule("mul", "e4m3fn", "e4m3fn", "nearest_even", 0);
  ASSERT_GE(rule, 0) << cpd_dpi_error();
  std::uint32_t result = 0, flags = 0;
  ASSERT_EQ(cpd_dpi_compute(rule, 0x3A, 0x3A, 0, 0, &result, &flags), 0);  // 1.25² = 1.5625
  EXPECT_EQ(result, 0x3Cu);
  EXPECT_EQ(flags, 1u);
  ASSERT_EQ(cpd_dpi_compute(rule, 0x7E, 0xFE, 0, 0, &result, &flags), 0);  // -448²
  EXPECT_EQ(result, 0x7Fu);
  EXPECT_EQ(flags, 5u);
}

TEST(Dpi, RandomIntegers) {
  const int rule = cpd_dpi_rule("cast", "fp32", "e5m2", "stochastic", 5);
  ASSERT_GE(rule, 0) << cpd_dpi_error();
  int up = 0;
  for (std::uint32_t r = 0; r < 32; ++r) {
    std::uint32_t result = 0;
    ASSERT_EQ(
        cpd_dpi_compute(rule, std::bit_cast<std::uint32_t>(259.0f), 0, 0, r, &result, nullptr), 0);
    up += result == 0x5D ? 1 : 0;
  }
  // 259 is 3/64 of the way from 256 to 320. Five random bits truncate 3/64 to 1/32.
  EXPECT_EQ(up, 1);
  EXPECT_EQ(cpd_dpi_compute(rule, 0, 0, 0, 32, nullptr, nullptr), -1);
}

TEST(Dpi, DotProducts) {
  const int dot = cpd_dpi_dot("fp16", "h100-fp16", 16);
  ASSERT_GE(dot, 0) << cpd_dpi_error();
  for (int k = 0; k < 16; ++k) ASSERT_EQ(cpd_dpi_set(dot, k, 0x3C00, 0x4000), 0);  // 1 · 2
  std::uint32_t result = 0, flags = 0;
  ASSERT_EQ(cpd_dpi_sum(dot, std::bit_cast<std::uint32_t>(0.5f), &result, &flags), 0);
  EXPECT_EQ(result, std::bit_cast<std::uint32_t>(32.5f));
  EXPECT_EQ(flags, 0u);
}

TEST(Dpi, Scales) {
  const int dot = cpd_dpi_dot("e4m3fn", "rtx-blackwell-mxfp8", 32);
  ASSERT_GE(dot, 0) << cpd_dpi_error();
  ASSERT_EQ(cpd_dpi_set(dot, 31, 0x38, 0x38), 0);
  std::uint32_t result = 0;
  ASSERT_EQ(cpd_dpi_sum(dot, 0, &result, nullptr), 0);
  EXPECT_EQ(result, std::bit_cast<std::uint32_t>(1.0f));
  ASSERT_EQ(cpd_dpi_set_scales(dot, 0, 130, 126), 0);
  ASSERT_EQ(cpd_dpi_sum(dot, 0, &result, nullptr), 0);
  EXPECT_EQ(result, std::bit_cast<std::uint32_t>(4.0f));
}

TEST(Dpi, ScalesAreOne) {
  const int dot = cpd_dpi_dot("e2m1", "rtx-blackwell-nvfp4", 32);
  ASSERT_GE(dot, 0) << cpd_dpi_error();
  ASSERT_EQ(cpd_dpi_set(dot, 3, 0x2, 0x4), 0);  // 1 · 2
  std::uint32_t result = 0;
  ASSERT_EQ(cpd_dpi_sum(dot, 0, &result, nullptr), 0);
  EXPECT_EQ(result, std::bit_cast<std::uint32_t>(2.0f));
}

TEST(Dpi, UnitsWithoutFlags) {
  const int dot = cpd_dpi_dot("fp16", "cdna3-fp16", 8);
  ASSERT_GE(dot, 0) << cpd_dpi_error();
  for (int k = 0; k < 8; ++k) ASSERT_EQ(cpd_dpi_set(dot, k, 0x3C00, 0x4000), 0);  // 1 · 2
  std::uint32_t result = 0, flags = 7;
  EXPECT_EQ(cpd_dpi_sum(dot, std::bit_cast<std::uint32_t>(0.5f), &result, &flags), -1);
  EXPECT_STREQ(cpd_dpi_error(),
               "a unit that does not align every term has no flags: pass null for them");
  EXPECT_EQ(flags, 7u);
  ASSERT_EQ(cpd_dpi_sum(dot, std::bit_cast<std::uint32_t>(0.5f), &result, nullptr), 0);
  EXPECT_EQ(result, std::bit_cast<std::uint32_t>(16.5f));
}

void ExpectError(int returned, const std::string& text) {
  EXPECT_EQ(returned, -1);
  EXPECT_EQ(cpd_dpi_error(), text);
}

TEST(Dpi, Errors) {
  std::uint32_t result = 7, flags = 7;
  const int no_nan = cpd_dpi_rule("sqrt", "e2m1", "e2m1", "nearest_even", 0);
  ExpectError(cpd_dpi_compute(no_nan, 0xA, 0, 0, 0, &result, &flags),
              "the result is NaN, and its format has no code for it");  // sqrt(-1)
  ExpectError(cpd_dpi_rule("root", "e4m3fn", "e4m3fn", "nearest_even", 0),
              "operation must be cast, add, mul, fma, div or sqrt, got 'root'");
  EXPECT_EQ(cpd_dpi_rule("mul", "e4n3", "e4m3fn", "nearest_even", 0), -1);
  EXPECT_TRUE(std::string(cpd_dpi_error()).starts_with("unknown format 'e4n3'; did you mean"));
  ExpectError(cpd_dpi_rule("mul", nullptr, "e4m3fn", "nearest_even", 0), "a text must not be null");
  ExpectError(cpd_dpi_compute(-1, 0, 0, 0, 0, &result, &flags), "there is no rule -1");
  ExpectError(cpd_dpi_dot("fp16", "h100-fp16", 0), "length must be 1…2^20, got 0");
  ExpectError(cpd_dpi_dot("fp16", "fp32 sequential rounding=stochastic", 4),
              "no random integers are given here: take another rounding");
  ExpectError(cpd_dpi_dot("fp16", "fixed<40,12>", 4),
              "integers have at most 32 bits here, got fp32 fixed width=40 fraction=12");
  ExpectError(cpd_dpi_sum(12345, 0, &result, &flags), "there is no dot product 12345");
  const int dot = cpd_dpi_dot("fp16", "h100-fp16", 16);
  ExpectError(cpd_dpi_set(dot, 16, 0, 0), "k must be at least 0 and below 16, got 16");
  ExpectError(cpd_dpi_set_scales(dot, 0, 127, 127), "this accumulator takes no scales");
  EXPECT_EQ(cpd_dpi_set(dot, 0, 0x10000, 0), 0);
  ExpectError(cpd_dpi_sum(dot, 0, &result, &flags), "a code of fp16 must have 16 bits, got 65536");
  EXPECT_EQ(result, 7u);
  EXPECT_EQ(flags, 7u);
}

}  // namespace
