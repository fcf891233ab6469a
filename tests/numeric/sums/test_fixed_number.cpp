// SPDX-License-Identifier: Apache-2.0
//
// Tests sums in integers against 128-bit integers. The widths are 2 to 96 bits, terms may have bits
// beyond the width, and sums wrap or saturate.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "cpd/numeric/sums/fixed_number.h"

namespace cpd {
namespace {

__extension__ using Wide = __int128;

constexpr Rounding kModes[] = {Rounding::nearest_even, Rounding::nearest_away,
                               Rounding::toward_zero,  Rounding::up,
                               Rounding::down,         Rounding::to_odd};

FixedPlan plan_of(int width, int fraction, bool saturates) {
  Accumulator accumulator;
  accumulator.scheme = Scheme::fixed;
  accumulator.fixed = FixedPoint{width, fraction, Rounding::toward_zero};
  accumulator.rounding.overflow = saturates ? Overflow::saturate : Overflow::ieee;
  return make_fixed_plan(accumulator);
}

Wide value_of(const FixedTerm& term) {
  const Wide size = static_cast<Wide>(term.significand) << term.shift;
  return term.negative ? -size : size;
}

// Returns s as an integer of `width` bits: saturated if `saturates`, else wrapped.
Wide kept(Wide s, int width, bool saturates) {
  const Wide half = Wide{1} << (width - 1);
  if (saturates) return s >= half ? half - 1 : s < -half ? -half : s;
  const Wide rest = (s + half) % (2 * half);
  return (rest < 0 ? rest + 2 * half : rest) - half;
}

TEST(FixedNumber, AddsAsIntegersDo) {
  std::mt19937_64 random(7);
  for (int width = 2; width <= 96; ++width) {
    for (const bool saturates : {false, true}) {
      const FixedPlan plan = plan_of(width, 0, saturates);
      std::vector<std::uint32_t> words(static_cast<std::size_t>(plan.words));
      Wide expected = 0;
      for (int step = 0; step < 400; ++step) {
        FixedTerm term;
        term.significand = random() >> (11 + random() % 53);
        term.shift = static_cast<int>(random() % static_cast<unsigned>(width / 2 + 2));
        term.negative = random() % 2 != 0;
        FixedNumber sum(plan, words.data(), 1);
        const Wide exact = expected + value_of(term);
        expected = kept(exact, width, saturates);
        EXPECT_EQ(sum.add(term, saturates), expected == exact) << width;
        sum.store(words.data(), 1);
        const double value = FixedNumber(plan, words.data(), 1).value(0);
        const Wide down = static_cast<Wide>(value);  // of 53 bits, to odd
        const Wide error = expected > down ? expected - down : down - expected;
        const bool is_exact = down == expected;
        ASSERT_TRUE(is_exact || std::ldexp(static_cast<double>(error), 52) < std::fabs(value))
            << width << " " << saturates << " " << step;
        if (!is_exact) {
          EXPECT_EQ(bits_as<std::uint64_t>(value) & 1, 1U);
        }
      }
    }
  }
}

TEST(FixedNumber, EveryWordCountsForTheRounding) {
  const FixedPlan plan = plan_of(1000, 0, false);
  for (const int far : {60, 100, 200, 900}) {
    for (int near = 0; near < far - 54; near += 31) {
      const std::vector<std::uint32_t> words(static_cast<std::size_t>(plan.words));
      FixedNumber sum(plan, words.data(), 1);
      EXPECT_TRUE(sum.add({.significand = 1, .shift = far}, false));
      EXPECT_TRUE(sum.add({.significand = 1, .shift = near}, false));
      const double power = std::ldexp(1.0, far);
      EXPECT_EQ(sum.value(0), std::nextafter(power, 2 * power)) << far << ", " << near;
    }
  }
}

// Tests terms that are multiples of an eighth of the sum's last place, in every rounding mode.
TEST(FixedNumber, RoundsTermsToUnits) {
  for (const Rounding mode : kModes) {
    for (int eighths = -200; eighths <= 200; ++eighths) {
      const double x = eighths / 8.0;
      const FixedTerm term = fixed_term(x, 0, mode);
      const double magnitude = std::fabs(x);
      const double whole = std::floor(magnitude);
      const double part = magnitude - whole;
      const bool odd = std::fmod(whole, 2) == 1;
      bool away = false;
      if (mode == Rounding::nearest_even) away = part > 0.5 || (part == 0.5 && odd);
      if (mode == Rounding::nearest_away) away = part >= 0.5;
      if (mode == Rounding::up) away = part > 0 && x > 0;
      if (mode == Rounding::down) away = part > 0 && x < 0;
      if (mode == Rounding::to_odd) away = part > 0 && !odd;
      const auto expected = static_cast<std::int64_t>(whole) + (away ? 1 : 0);
      EXPECT_EQ(static_cast<std::int64_t>(value_of(term)), x < 0 ? -expected : expected) << x;
      EXPECT_EQ(term.exact, part == 0) << x;
      const FixedTerm narrow = fixed_term(static_cast<float>(x), 0, mode);
      EXPECT_EQ(value_of(narrow), value_of(term)) << x;
    }
  }
}

TEST(FixedNumber, FarBelowTheUnitAndFarBeyondTheWidth) {
  for (const double x : {0x1p-1074, 0x1p-60, 0x1.fffffffffffffp-2}) {
    EXPECT_EQ(fixed_term(x, 0, Rounding::up).significand, 1U);
    EXPECT_EQ(fixed_term(x, 0, Rounding::nearest_even).significand, 0U);
    EXPECT_EQ(fixed_term(-x, 0, Rounding::down).significand, 1U);
    EXPECT_EQ(fixed_term(x, 0, Rounding::to_odd).significand, 1U);
    EXPECT_FALSE(fixed_term(x, 0, Rounding::to_odd).exact);
  }
  EXPECT_FALSE(fixed_term(HUGE_VAL, 0, Rounding::up).finite);
  EXPECT_FALSE(fixed_term(std::nanf(""), 0, Rounding::up).finite);
  const FixedTerm most = fixed_term(0x1.fffffffffffffp1023, 1024, Rounding::up);
  for (const bool saturates : {false, true}) {
    const FixedPlan plan = plan_of(1024, 1024, saturates);
    const std::vector<std::uint32_t> words(static_cast<std::size_t>(plan.words));
    FixedNumber sum(plan, words.data(), 1);
    EXPECT_FALSE(sum.add(most, saturates));
    EXPECT_EQ(sum.value(0), saturates ? kGreatest : 0.0);  // its last 53 bits lie beyond
    EXPECT_EQ(sum.value(1024), saturates ? 0x1.fffffffffffffp-2 : 0.0);
  }
}

}  // namespace
}  // namespace cpd
