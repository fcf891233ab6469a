// SPDX-License-Identifier: Apache-2.0
//
// Tests the Hadamard transform of one group: the matrix by which it multiplies, and the factor 1 /
// sqrt n.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "cpd/numeric/scaled/hadamard_stages.h"
#include "tests/testing/hadamard.h"

namespace cpd {
namespace {

TEST(HadamardGroup, TheColumnsAreSylvestersWithSigns) {
  for (const Hadamard& h : testing::all_transforms()) {
    const auto size = static_cast<std::size_t>(h.size);
    for (const bool inverse : {false, true}) {
      const HadamardPlan plan = make_hadamard_plan(h, inverse);
      for (std::size_t j = 0; j < size; ++j) {
        std::vector<float> v(size);
        v[j] = 1;
        with_size(plan, [&]<int kSize>() {
          if (!h.to_bf16) return hadamard<kSize, false>(v.data(), plan);
          std::vector<double> wide(v.begin(), v.end());
          hadamard<kSize, false>(wide.data(), plan);
          for (std::size_t i = 0; i < size; ++i) v[i] = static_cast<float>(wide[i]);
        });
        for (std::size_t i = 0; i < size; ++i) {
          const bool flipped = h.negates(static_cast<int>(inverse ? i : j));
          const bool negative = (std::popcount(i & j) % 2 != 0) != flipped;
          float entry = static_cast<float>(plan.scale);
          if (h.to_bf16)
            entry = testing::from_bits((testing::bits_of(entry) + 0x8000U) & 0xFFFF0000U);
          EXPECT_EQ(v[i], negative ? -entry : entry) << ToString(h) << " at " << i << ", " << j;
        }
      }
    }
  }
}

/// Transforms a group of `h.size` equal values in the type that the plan requires, binary32 or
/// binary64.
std::vector<float> transformed(const Hadamard& h, float value) {
  const HadamardPlan plan = make_hadamard_plan(h, false);
  std::vector<float> v(static_cast<std::size_t>(h.size), value);
  with_size(plan, [&]<int kSize>() {
    if (!h.to_bf16) return hadamard<kSize, false>(v.data(), plan);
    std::vector<double> wide(v.begin(), v.end());
    hadamard<kSize, false>(wide.data(), plan);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(wide[i]);
  });
  return v;
}

TEST(HadamardGroup, NanHasOneCodeAndBf16NoNegativeZero) {
  for (const Hadamard& h : testing::all_transforms()) {
    for (const float y : transformed(h, testing::from_bits(0xFFC12345U))) {
      if (h.to_bf16) {
        EXPECT_TRUE(std::isnan(y)) << ToString(h);
      } else {
        EXPECT_EQ(testing::bits_of(y), 0x7FC00000U) << ToString(h);
      }
    }
    if (!h.to_bf16) continue;
    for (const float y : transformed(h, -0.0F)) EXPECT_EQ(testing::bits_of(y), 0U) << ToString(h);
  }
}

TEST(HadamardGroup, TheFactorIsTheNearestToOneOverTheRoot) {
  for (int size = 2; size <= Hadamard::kMostSize; size *= 2) {
    const HadamardPlan plan = make_hadamard_plan({size, {}, false}, false);
    // Returns whether c is nearest to 1 / sqrt n, where `half` is half a unit in the last place of
    // c. This holds iff n (c - half)^2 <= 1 <= n (c + half)^2.
    const auto nearest = [&](long double c, long double half) {
      const auto n = static_cast<long double>(size);
      return n * (c - half) * (c - half) <= 1 && 1 <= n * (c + half) * (c + half);
    };
    const double c = plan.scale;
    EXPECT_TRUE(nearest(c, std::ldexp(1.0L, std::ilogb(c) - 53))) << size;
    const auto narrow = static_cast<float>(c);
    EXPECT_TRUE(nearest(narrow, std::ldexp(1.0L, std::ilogb(narrow) - 24))) << size;
    EXPECT_EQ(testing::hadamard_scale<float>(size), narrow);
    EXPECT_EQ(testing::hadamard_scale<double>(size), c);
  }
}

}  // namespace
}  // namespace cpd
