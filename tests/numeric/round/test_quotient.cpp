// SPDX-License-Identifier: Apache-2.0
//
// Tests quotients and square roots that are rounded to odd without an FMA instruction. The last bit
// of an inexact result must be 1. The exact quotient or root must lie between the two neighbors of
// the result; the test compares them by fused multiply-adds.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include "cpd/numeric/round/quotient.h"

namespace cpd {
namespace {

bool is_odd(double x) { return (std::bit_cast<std::uint64_t>(x) & 1) != 0; }

/// Returns a binary32 number of either sign. The exponent of the number is so moderate that all
/// products are normal numbers.
float random_number(std::mt19937_64& bits) {
  const auto fraction = static_cast<float>(static_cast<std::int32_t>(bits()) >> (bits() % 24));
  return std::ldexp(fraction == 0 ? 1.0F : fraction, static_cast<int>(bits() % 80) - 40);
}

TEST(Quotients, AreRoundedToOdd) {
  std::mt19937_64 bits(7);
  int exact = 0;
  for (int i = 0; i < 200000; ++i) {
    const double y = random_number(bits);
    const double x = i % 4 == 0 ? y * random_number(bits) : double{random_number(bits)};
    if (x != static_cast<float>(x)) continue;
    const double q = quotient_to_odd(x, y);
    if (std::fma(q, y, -x) == 0) {
      ++exact;
      continue;
    }
    const double from_below = std::fma(std::nextafter(q, -HUGE_VAL), y, -x);
    const double from_above = std::fma(std::nextafter(q, HUGE_VAL), y, -x);
    ASSERT_TRUE(is_odd(q)) << x << " / " << y;
    ASSERT_TRUE((from_below < 0) == (y > 0) && (from_above > 0) == (y > 0)) << x << " / " << y;
    ASSERT_TRUE(from_below != 0 && from_above != 0) << x << " / " << y;
  }
  EXPECT_GT(exact, 1000);
}

TEST(Roots, AreRoundedToOdd) {
  std::mt19937_64 bits(8);
  int exact = 0;
  for (int i = 0; i < 200000; ++i) {
    const double root = std::abs(random_number(bits));
    const double x = i % 4 == 0 ? static_cast<float>(root * root) : root;
    if (!std::isfinite(x)) continue;
    const double r = root_to_odd(x);
    if (std::fma(r, r, -x) == 0) {
      ++exact;
      continue;
    }
    const double below = std::nextafter(r, 0.0);
    const double above = std::nextafter(r, HUGE_VAL);
    ASSERT_TRUE(is_odd(r)) << x;
    ASSERT_TRUE(std::fma(below, below, -x) < 0 && std::fma(above, above, -x) > 0) << x;
  }
  EXPECT_GT(exact, 1000);
}

}  // namespace
}  // namespace cpd
