// SPDX-License-Identifier: Apache-2.0
//
// Tests that exact sums, and the centers of bins, are rounded only once. The cases lie next to a
// tie and are computed in integers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "cpd/numeric/scaled/uniform_bins.h"

namespace cpd {
namespace {

TEST(WideSums, TheLeastBitBreaksATie) {
  const float above = std::nextafter(0x1p100F, HUGE_VALF);
  for (const float least : {0x1p-149F, 0x1p-100F, 0x1p-60F, 1.0F, 0x1p40F}) {
    WideSum sum;
    sum.Add(1, 0x1p100F, 0);
    sum.Add(1, 0x1p76F, 0);  // a tie, to even
    EXPECT_EQ(sum.Rounded(0), 0x1p100F);
    sum.Add(1, least, 0);
    EXPECT_EQ(sum.Rounded(0), above) << least;
    sum.Add(-2, least, 0);
    EXPECT_EQ(sum.Rounded(0), 0x1p100F) << least;
  }
}

/// Returns the number t < 2^30 for which g * t = 1 modulo 2^30, by Newton's iteration. g must be
/// odd.
std::uint64_t inverse_of(std::uint64_t g) {
  std::uint64_t t = g;
  for (int step = 0; step < 5; ++step) t *= 2 - g * t;
  return t & ((1U << 30) - 1);
}

/// Divides the range from 0 to g into 2^29 bins. The center of bin c is g * t / 2^30, with
/// t = 2 c + 1. The products g * t have 54 bits and lie just above a tie. binary64 would lose their
/// last bit and round the tie the wrong way.
TEST(UniformBins, CentersAreRoundedOnce) {
  constexpr std::uint64_t kTie = (1U << 29) + 1;
  int found = 0;
  for (std::uint64_t g = (1U << 23) + 1; g < 1U << 24; g += 1002) {
    const std::uint64_t t = inverse_of(g) * kTie & ((1U << 30) - 1);
    const std::uint64_t product = g * t;
    if (product >> 53 != 1 || (product >> 30) % 2 != 0) continue;
    ASSERT_EQ(product % (1U << 30), kTie);
    ++found;
    const UniformBins bins(0, static_cast<float>(g), 29);
    EXPECT_EQ(bins.CentreOf(static_cast<std::uint32_t>(t / 2)),
              static_cast<float>((product >> 30) + 1))
        << g;
  }
  EXPECT_GT(found, 100);
}

}  // namespace
}  // namespace cpd
