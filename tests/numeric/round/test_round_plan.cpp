// SPDX-License-Identifier: Apache-2.0
//
// Tests that each computation path that a plan chooses is exact for the formats it is chosen for.
// The formats have every bias at which the choice changes, and the least and the greatest bias.
// exhaustive/ tests every width of mantissa.
#include <gtest/gtest.h>

#include <array>

#include "tests/testing/edges.h"

namespace cpd {
namespace {

constexpr std::array kModes = {Rounding::nearest_even, Rounding::stochastic, Rounding::nearest_away,
                               Rounding::stochastic,   Rounding::up,         Rounding::stochastic,
                               Rounding::toward_zero,  Rounding::stochastic, Rounding::down,
                               Rounding::stochastic,   Rounding::to_odd,     Rounding::stochastic};

RoundingOptions options_of(Rounding mode, std::uint32_t turn) {
  RoundingOptions o;
  o.mode = mode;
  o.overflow = testing::kPolicies[turn / 3 % 2];
  o.variant = testing::kVariants[turn / 2 % 3 == 0 ? turn % 3 : 0];
  o.random_bits = testing::kRandomBits[turn % testing::kRandomBits.size()];
  return o;
}

// e1m0 and similar formats hold only zero, so overflow cannot be found by comparing with the
// largest nonzero number.
TEST(Plan, FormatsThatHoldNothingButZero) {
  int failures = 0;
  for (const Encoding encoding :
       {Encoding::ieee, Encoding::fn, Encoding::p3109, Encoding::fnuz, Encoding::finite}) {
    for (int bias = -126; bias <= 150; ++bias) {
      if (!testing::is_admissible({1, 0, bias, encoding, true, true})) continue;
      const Format format = MakeFormat(1, 0, encoding, bias);
      for (const Overflow overflow : testing::kPolicies) {
        RoundingOptions o;
        o.overflow = overflow;
        const auto turn = static_cast<std::uint32_t>(bias + 200);
        const testing::Edge edge(format, o, turn);
        failures += edge.Casts() ? 0 : 1;
        if (turn % 8 == 0) failures += edge.Products(turn / 8) && edge.Sums(turn) ? 0 : 1;
        if (failures > 8) FAIL() << "more than 8 failures; the rest is left out";
      }
    }
  }
}

TEST(Plan, EveryRouteHoldsItsFormats) {
  constexpr std::array kMantissas = {0, 1, 2, 10, 11, 22, 23};
  std::uint32_t turn = 0;
  int failures = 0;
  for (const testing::Family& family : testing::families(kMantissas)) {
    for (const Format& format : testing::edge_formats(family)) {
      for (const Rounding mode : {Rounding::nearest_even, kModes[turn % kModes.size()]}) {
        ++turn;
        const testing::Edge edge(format, options_of(mode, turn), turn);
        failures += edge.Casts() ? 0 : 1;
        if (turn % 90 == 0) failures += edge.Products(turn / 90) ? 0 : 1;
        if (turn % 32 < 2 && mode != Rounding::stochastic) failures += edge.Sums(turn) ? 0 : 1;
        if (failures > 8) FAIL() << "more than 8 failures; the rest is left out";
      }
    }
  }
  EXPECT_GT(turn, testing::kSanitized ? 1000u : 10000u);
}

}  // namespace
}  // namespace cpd
