// SPDX-License-Identifier: Apache-2.0
//
// Tests which random bits the operations of a stochastic sum use: Gemm on every backend gives the
// oracle's results.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/testing/gemm.h"
#include "tests/testing/gemm_cases.h"

namespace cpd {
namespace {

using testing::gemm_matches;
using testing::operands;
using testing::schemes;
using testing::Tensor;
using testing::Turns;
using testing::Values;

TEST(GemmDraws, StochasticRoundingTakesTheDocumentedDraws) {
  int failures = 0;
  std::uint64_t seed = 1;
  Turns turns;
  for (const char* name : {"e4m3", "e5m2", "e6m9", "e5m10", "e8m7", "e8m23", "e3m0", "e2m1",
                           "e4m3fnuz", "binary8p1se"}) {
    const Format format = ParseFormat(name);
    const Tensor a({2, 9, 19}, operands(Values::arbitrary, format, 2 * 9 * 19, 31));
    const Tensor b({2, 19, 37}, operands(Values::arbitrary, format, 2 * 19 * 37, 32));
    const Tensor c({9, 1}, operands(Values::arbitrary, format, 9, 33));
    for (const int bits : {1, 7, 8, 9, 16, 17, 24}) {
      for (const Variant variant : testing::kVariants) {
        for (Accumulator accumulator : schemes(format)) {
          if (!turns.one_of(2)) continue;
          accumulator.rounding.mode = Rounding::stochastic;
          accumulator.rounding.random_bits = bits;
          accumulator.rounding.variant = variant;
          ++seed;
          const RandomKey key{seed << 33 | seed, seed % 2 == 0 ? ~seed : seed};
          const auto equal = gemm_matches(
              {.a = a, .b = b, .c = seed % 3 == 0 ? nullptr : &c, .key = key}, accumulator);
          EXPECT_TRUE(equal);
          if (!equal && ++failures > 8) FAIL() << "more than 8 failures; the rest is left out";
        }
      }
    }
  }
}

// Tests sums of 1,100 products, which take more than a thousand random integers each.
TEST(GemmDraws, DrawsOfDeepSums) {
  Turns turns;
  for (const Accumulator& base : schemes(ParseFormat("e5m7"))) {
    for (const int bits : {5, 12, 20}) {
      if (!turns.one_of(1)) continue;
      Accumulator accumulator = base;
      accumulator.rounding.mode = Rounding::stochastic;
      accumulator.rounding.random_bits = bits;
      const Tensor a({1, 1100}, operands(Values::arbitrary, base.format, 1100, 1));
      const Tensor b({1100, 33}, operands(Values::arbitrary, base.format, 1100 * 33, 2));
      ASSERT_TRUE(gemm_matches({a, b, nullptr}, accumulator));
    }
  }
}

}  // namespace
}  // namespace cpd
