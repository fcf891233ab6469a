// SPDX-License-Identifier: Apache-2.0
//
// Tests the measures of round-off: the mean relative error (Eq. 5 of the APS paper), the RMS error,
// and the numbers of zero references and of values that are Inf or NaN.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cpd/spec/error.h"
#include "cpd/study/roundoff.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

Roundoff measure(const std::vector<double>& reference, const std::vector<float>& value) {
  return MeasureRoundoff(testing::view_of(reference), testing::view_of(value));
}

TEST(Roundoff, FollowsEquation5) {
  const Roundoff r = measure({1, -2, 4, 0}, {1, -1, 5, 3});
  EXPECT_DOUBLE_EQ(r.error, (0 + 0.5 + 0.25) / 3);  // the zero reference is counted apart
  EXPECT_DOUBLE_EQ(r.relative_rms, std::sqrt((1.0 + 1 + 9) / 21));
  EXPECT_EQ(r.error_squares, 1 + 1 + 9);
  EXPECT_EQ(r.reference_squares, 21);
  EXPECT_EQ(r.count, 4);
  EXPECT_EQ(r.zero_references, 1);
  EXPECT_EQ(r.non_finite, 0);
}

TEST(Roundoff, LeavesNonFiniteValuesOut) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Roundoff r = measure({1, 2, 0}, {0.5F, infinity, infinity});
  EXPECT_DOUBLE_EQ(r.error, 0.5);
  EXPECT_EQ(r.non_finite, 2);
  EXPECT_EQ(r.zero_references, 1);
}

TEST(Roundoff, AReferenceIsTheMeanOfItsTerms) {
  std::vector<double> sum{0, 10};
  const TensorView view = testing::view_of(sum);
  AddToReference(testing::view_of(std::vector<float>{1, 2}), view);
  AddToReference(testing::view_of(std::vector<double>{3, 4}), view);
  EXPECT_EQ(sum, (std::vector<double>{4, 16}));
  DivideReference(view, 2);
  EXPECT_EQ(sum, (std::vector<double>{2, 8}));
  EXPECT_THROW(DivideReference(view, 0), Error);
}

TEST(Roundoff, OfNothingIsZero) {
  const Roundoff r = measure({}, {});
  EXPECT_EQ(r.error, 0);
  EXPECT_EQ(r.relative_rms, 0);
  EXPECT_EQ(measure({0, 0}, {0, 0}).error, 0);
}

TEST(Roundoff, RefusesOtherTypesAndShapes) {
  EXPECT_THROW(measure({1, 2}, {1}), Error);
  const std::vector<float> x(2);
  EXPECT_THROW(MeasureRoundoff(testing::view_of(x), testing::view_of(x)), Error);
}

}  // namespace
}  // namespace cpd
