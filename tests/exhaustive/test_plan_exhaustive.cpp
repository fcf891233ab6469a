// SPDX-License-Identifier: Apache-2.0
//
// Repeats tests/numeric/round/test_round_plan.cpp for every width of mantissa. Each computation
// path must be exact for the formats for which a plan chooses it, in every rounding mode.
#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>
#include <vector>

#include "tests/testing/edges.h"

namespace cpd {
namespace {

TEST(PlanExhaustive, EveryRouteHoldsItsFormats) {
  std::vector<int> mantissas(24);
  std::iota(mantissas.begin(), mantissas.end(), 0);
  std::uint32_t turn = 0;
  std::size_t formats = 0;
  int failures = 0;
  for (const testing::Family& family : testing::families(mantissas)) {
    for (const Format& format : testing::edge_formats(family)) {
      ++formats;
      for (int mode = 0; mode < 7; ++mode) {
        RoundingOptions o;
        o.mode = static_cast<Rounding>(mode);
        o.overflow = testing::kPolicies[++turn % 2];
        o.variant = testing::kVariants[turn / 7 % 3];
        o.random_bits = testing::kRandomBits[turn / 21 % testing::kRandomBits.size()];
        const testing::Edge edge(format, o, turn);
        failures += edge.Casts() ? 0 : 1;
        if (turn % 2 == 0) failures += edge.Products(turn / 2) ? 0 : 1;
        if (o.mode != Rounding::stochastic) failures += edge.Sums(turn) ? 0 : 1;
        if (failures > 8) FAIL() << "more than 8 failures; the rest is left out";
      }
    }
  }
  std::printf("%zu formats x 7 modes\n", formats);
}

}  // namespace
}  // namespace cpd
