// SPDX-License-Identifier: Apache-2.0
//
// Tests the cost of values that may be sent packed or in binary32. Tests when the model's number of
// bytes is exact, and which of the two forms the model counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/study/cost.h"

namespace cpd {
namespace {

using Sizes = std::vector<std::int64_t>;

/// A cost is exact if the sizes of all messages, sent and received, do not depend on the values.
TEST(CostWays, ExactIsAllThatMoves) {
  Reduce spec;
  spec.format = ParseFormat("e3m0");  // results take 4 bytes in either way, terms 1/2 or 4
  const auto cost = [&](int rank) { return CostOf(spec, 2, rank, Sizes{1}, 1 << 20); };
  EXPECT_EQ(cost(0).bytes_sent, 4);
  EXPECT_EQ(cost(0).bytes_received, 4);
  EXPECT_FALSE(cost(0).exact);
  EXPECT_FALSE(cost(1).exact);
  spec.format = kFp32;
  EXPECT_TRUE(cost(0).exact);
  spec.wire = MakeCodec("sparse");  // terms vary, the results behind them do not
  EXPECT_FALSE(CostOf(spec, 2, 0, Sizes{100}, 1 << 20).exact);
}

/// Values are sent encoded, or in binary32 if their sums may be NaN. With this codec, the encoding
/// is longer than binary32 for one value, but shorter for 100. If the layers' magnitudes are
/// unknown, the cost model counts the longer form.
TEST(CostWays, TheWayOfMostBytes) {
  Reduce spec;
  spec.exchange = Exchange::gather;
  spec.wire = MakeCodec("e2m1 32 scale=fp32 non_finite=element");
  spec.accumulator.format = spec.result = ParseFormat("e4m3");
  const std::vector<float> small = {0}, infinite = {std::numeric_limits<float>::infinity()};
  for (const std::int64_t n : {1, 100}) {
    const Sizes sizes = {n};
    const auto time = [&](const KnownLayers& known) { return TimeOf(spec, 2, sizes, 0, 1, known); };
    const double packed = time({.largest = small});
    const double plain = time({.largest = infinite});
    EXPECT_EQ(plain, 4 * n);
    EXPECT_EQ(packed > plain, n == 1);
    EXPECT_EQ(time({}), std::max(packed, plain));
    const std::vector<Round> rounds = RoundsOf(spec, 2, sizes, 1);
    ASSERT_EQ(rounds.size(), 1U);
    EXPECT_EQ(static_cast<double>(rounds[0].bytes), std::max(packed, plain));
  }
}

}  // namespace
}  // namespace cpd
