// SPDX-License-Identifier: Apache-2.0
//
// Tests that the exponents of APS equal those computed in exact integers.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "cpd/oracle/reference.h"
#include "cpd/scale/aps.h"
#include "cpd/spec/error.h"
#include "tests/testing/backends.h"
#include "tests/testing/refusal.h"
#include "tests/testing/run.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using reference::Exact;

/// Returns whether x * world <= 2^e, computed exactly.
bool at_most(float x, int world, int e) {
  const Exact product = reference::multiply(
      reference::exact(x), reference::exact_finite(false, static_cast<std::uint64_t>(world), 0));
  return reference::compare_magnitude(product, reference::exact_finite(false, 1, e)) <= 0;
}

TEST(Aps, ExponentIsTheExactCeilingOfLog2) {
  std::mt19937 random(1);
  for (int i = 0; i < (testing::kSanitized ? 20'000 : 200'000); ++i) {
    const int world = 1 + static_cast<int>(random() % 300);
    // Half of the values are powers of two or their neighbors, for which a logarithm in floating
    // point may be wrong.
    std::uint32_t bits = random() & 0x7FFFFFFF;
    if (i % 2 == 0) bits = (bits & 0x7F800000) + (random() % 3) - 1;
    if (bits == 0 || bits >= 0x7F800000) continue;
    const auto x = std::bit_cast<float>(bits);
    int e = -200;
    while (!at_most(x, world, e)) ++e;
    EXPECT_EQ(ApsExponent(x, world), e) << x << " x " << world;
  }
}

TEST(Aps, EdgesOfTheExponent) {
  constexpr int kMost = std::numeric_limits<int>::max();
  EXPECT_EQ(ApsExponent(1, 1), 0);
  EXPECT_EQ(ApsExponent(1, 8), 3);
  EXPECT_EQ(ApsExponent(std::nextafterf(1, 2), 8), 4);
  EXPECT_EQ(ApsExponent(std::numeric_limits<float>::denorm_min(), 1), -149);
  EXPECT_EQ(ApsExponent(std::numeric_limits<float>::denorm_min(), 3), -147);
  EXPECT_EQ(ApsExponent(std::numeric_limits<float>::max(), 256), 136);
  EXPECT_EQ(ApsExponent(std::numeric_limits<float>::max(), kMost), 128 + 31);
  EXPECT_THROW(ApsExponent(1, 0), Error);
}

TEST(Aps, TheLargerMagnitudeMayBeSubnormal) {
  const float least = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(std::bit_cast<std::uint32_t>(LargerMagnitude(0, least)), 1U);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(LargerMagnitude(2 * least, least)), 2U);
  EXPECT_EQ(LargerMagnitude(3, 2), 3);
}

TEST(Aps, RangeLeavesNonFiniteValuesOut) {
  std::vector<float> x(100'003, 0.5F);
  x[77] = -3;
  x[99'999] = std::numeric_limits<float>::infinity();
  x[100'002] = std::numeric_limits<float>::quiet_NaN();
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    const LayerRange range = MeasureRange(testing::view_of(x));
    EXPECT_EQ(range.max_abs, 3) << backend;
    EXPECT_EQ(range.non_finite, 2) << backend;
    EXPECT_EQ(MeasureRange(testing::view_of(std::vector<float>{})).max_abs, 0);
    EXPECT_EQ(MeasureRange(testing::view_of(std::vector<float>(5))).max_abs, 0);
  }
  EXPECT_REFUSAL("a tensor must be contiguous fp32 on the CPU, got fp64",
                 MeasureRange(testing::view_of(std::vector<double>(3))));
}

TEST(Aps, RangeIsOfContiguousLayers) {
  const std::vector<float> x(8, 1);
  TensorView strided = testing::view_of(x);
  strided.shape[0] = 4;
  strided.stride[0] = 2;
  EXPECT_THROW(MeasureRange(strided), Error);
  TensorView negative = testing::view_of(x);
  negative.shape[0] = -1;
  EXPECT_THROW(MeasureRange(negative), Error);
}

TEST(Aps, RangeCountsTheNonFiniteValuesOfAllPieces) {
  std::vector<float> x(3 << 20, 0.5F);  // a piece has 2^20 values
  const std::size_t step = x.size() / 12;
  for (std::size_t i = 0; i < x.size(); i += step) x[i] = std::numeric_limits<float>::infinity();
  x[5] = 2;
  const LayerRange range = MeasureRange(testing::view_of(x));
  EXPECT_EQ(range.non_finite, 12);
  EXPECT_EQ(range.max_abs, 2);
}

/// The terms of the sum are together at most 2^e. A rounded sum exceeds 2^e only in two cases.
/// Either a term was rounded away from zero, or a tie between 2^e and its neighbor below goes up in
/// a format with few numbers.
TEST(Aps, ModesThatRoundOutward) {
  for (const int exp : {1, 2, 3, 8}) {
    const Format format = MakeFormat(exp, 3);
    for (const Rounding mode : {Rounding::stochastic, Rounding::up, Rounding::down}) {
      EXPECT_TRUE(RoundsOutward(format, mode)) << exp << ToString(mode);
    }
    for (const Rounding mode : {Rounding::nearest_even, Rounding::toward_zero, Rounding::to_odd}) {
      EXPECT_FALSE(RoundsOutward(format, mode)) << exp << ToString(mode);
    }
    EXPECT_EQ(RoundsOutward(format, Rounding::nearest_away), exp <= 2) << exp;
  }
}

TEST(Aps, HasThreeValues) {
  for (const Aps aps : {Aps::off, Aps::on, Aps::paper}) EXPECT_NO_THROW(Check(aps));
  EXPECT_THROW(Check(static_cast<Aps>(3)), Error);
}

}  // namespace
}  // namespace cpd
