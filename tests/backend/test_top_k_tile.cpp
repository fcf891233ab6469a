// SPDX-License-Identifier: Apache-2.0
//
// The bodies of the kernels that select the values of largest magnitude, on the CPU: spans of any
// length, any number of blocks in any order, and counts beyond 32 bits.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cpd/base/plans.h"
#include "kernels/cuda/top_k_tile.h"
#include "tests/testing/bits.h"
#include "tests/testing/cuda_stand_in.h"
#include "tests/testing/largest.h"

namespace cpd {
namespace {

using cuda::TopKCall;
using cuda::TopKSpan;
using testing::HostBlock;

constexpr int kThreads = cuda::kThreads;

/// Runs body(block) for each of so many blocks, the last first.
template <class Body>
void Grid(std::int64_t blocks, Body body) {
  for (std::int64_t b = blocks; b-- > 0;) body(HostBlock{b, blocks});
}

std::vector<float> Rounded(const std::vector<float>& x, std::int64_t k, std::int32_t span,
                           std::int64_t blocks) {
  std::vector<TopKSpan> spans(x.size() / cuda::kTile / static_cast<std::size_t>(span) + 2);
  const auto search = std::make_unique<cuda::TopKSearch>();
  TopKCall call;
  call.n = static_cast<std::int64_t>(x.size());
  call.k = k;
  call.x = x.data();
  call.search = search.get();
  call.spans = spans.data();
  call.span = span;
  call.cast = PlanOf(kFp32);
  for (int digit = 0; digit < kPatternDigits; ++digit) {
    Grid(blocks, [&](const HostBlock& block) {
      std::vector<std::uint32_t> bins(kMostDigit + 1, 77);
      count_digits_block(block, call, digit, bins.data());
    });
    std::int64_t sums[2][kThreads] = {};
    find_digit_block(HostBlock{}, call, digit, sums);
  }
  Grid(blocks, [&](const HostBlock& block) { count_spans_block(block, call); });
  TopKSpan sums[2][kThreads] = {};
  sum_spans_block(HostBlock{}, call, sums);
  std::vector<float> y(x.size(), 7);
  Grid(blocks, [&](const HostBlock& block) {
    const auto tile = std::make_unique<cuda::TopKTile>();
    cuda::round_top_k_block<Rounding::nearest_even>(block, call, y.data(), nullptr, *tile);
  });
  return y;
}

TEST(TopKTile, SpansAndBlocks) {
  constexpr std::int64_t kTile = cuda::kTile;
  std::mt19937 random(1);
  for (const std::int64_t n : {std::int64_t{1}, kTile, 8 * kTile - 1, 70 * kTile + 5}) {
    std::vector<float> x(static_cast<std::size_t>(n));
    for (float& value : x) {
      value = static_cast<float>(static_cast<int>(random() % 9) - 4);
      if (random() % 501 == 0) value = INFINITY;
    }
    for (const std::int64_t k : {std::int64_t{1}, (n + 2) / 3, n}) {
      std::vector<float> expected(x.size());
      for (const std::int64_t place : testing::places_of_largest(x, k)) {
        expected[static_cast<std::size_t>(place)] = x[static_cast<std::size_t>(place)];
      }
      for (const std::int32_t span : {1, 2, 32}) {
        for (const std::int64_t blocks : {1, 3, 40}) {
          const std::vector<float> got = Rounded(x, k, span, blocks);
          EXPECT_TRUE(
              testing::bits_equal(std::span<const float>(expected), std::span<const float>(got)))
              << n << " values, " << k << ", spans of " << span << ", " << blocks << " blocks";
        }
      }
    }
  }
}

TEST(TopKTile, DigitsOfManyValues) {
  const auto search = std::make_unique<cuda::TopKSearch>();
  std::mt19937_64 random(2);
  for (int digit = 0; digit < kPatternDigits; ++digit) {
    auto& counts = search->counts[digit];
    std::int64_t all = 0;
    for (std::uint32_t bin = 0; bin <= last_digit(digit); ++bin) {
      counts[bin] = random() % 3 == 0 ? 0 : random() >> 24;
      all += static_cast<std::int64_t>(counts[bin]);
    }
    for (int trial = 0; trial < 200; ++trial) {
      std::int64_t wanted =
          1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(all));
      if (trial == 0) wanted = 1;
      if (trial == 1) wanted = all;
      TopKCall call;
      call.k = wanted;
      call.search = search.get();
      const std::uint32_t first = trial % 2 == 0 ? 0x40000000U : 0x7F800000U;
      const std::uint32_t before = digit == 0 ? 0 : first;  // the digits that are known
      search->limit = {before, wanted};
      std::int64_t sums[2][kThreads] = {};
      find_digit_block(HostBlock{}, call, digit, sums);
      std::uint32_t bin = last_digit(digit);
      for (; static_cast<std::int64_t>(counts[bin]) < wanted; --bin) {
        wanted -= static_cast<std::int64_t>(counts[bin]);
      }
      LargestLimit expected{before | bin << digit_shift(digit), wanted};
      if (digit + 1 == kPatternDigits && expected.pattern >= 0x7F800000U) {
        expected = {0x7F800000U, INT64_MAX};
      }
      EXPECT_EQ(search->limit.pattern, expected.pattern);
      EXPECT_EQ(search->limit.equals, expected.equals);
    }
  }
}

/// More spans than one pass of the block takes, of counts whose sums are beyond 2^40.
TEST(TopKTile, SumsOfManySpans) {
  for (const std::int64_t tiles : {1, 7, 2047, 2048, 2049, 5000}) {
    std::mt19937_64 random(3);
    std::vector<TopKSpan> spans(static_cast<std::size_t>(tiles) + 1);
    for (TopKSpan& span : spans) span = {random() >> 32, random() >> 33};
    spans.back() = {};
    std::vector<TopKSpan> expected;
    TopKSpan sum{};
    for (const TopKSpan& span : spans) {
      expected.push_back(sum);
      sum = sum + span;
    }
    TopKCall call;
    call.n = tiles * cuda::kTile;
    call.spans = spans.data();
    const auto search = std::make_unique<cuda::TopKSearch>();
    search->limit = {7, 5};
    call.search = search.get();
    TopKSpan sums[2][kThreads] = {};
    sum_spans_block(HostBlock{}, call, sums);
    EXPECT_EQ(search->kept, static_cast<std::int64_t>(sum.above) + 5);
    for (std::size_t s = 0; s < spans.size(); ++s) {
      ASSERT_EQ(spans[s].above, expected[s].above) << s << " of " << tiles;
      ASSERT_EQ(spans[s].equal, expected[s].equal) << s << " of " << tiles;
    }
  }
}

/// The last of 2^33 ties before this tile is kept, or some of the tile's own.
TEST(TopKTile, RanksBeyond32Bits) {
  constexpr unsigned long long kMany = 1ULL << 33;
  std::vector<float> x(100, 1.0F);
  x[50] = 2;
  for (const int more : {0, 1, 30}) {
    const auto search = std::make_unique<cuda::TopKSearch>();
    search->limit = {0x3F800000U, static_cast<std::int64_t>(kMany) + more};
    TopKCall call;
    call.n = 100;
    call.x = x.data();
    call.search = search.get();
    const auto memory = std::make_unique<cuda::TopKTile>();
    const TopKSpan before{.above = 3 * kMany, .equal = kMany};
    int calls = 0;
    for_ranked_tiles(HostBlock{}, call, 0, 1, before, *memory,
                     [&](std::int64_t begin, int count, std::int64_t first, int kept) {
                       ++calls;
                       EXPECT_EQ(begin, 0);
                       EXPECT_EQ(count, 100);
                       EXPECT_EQ(first, static_cast<std::int64_t>(4 * kMany));
                       EXPECT_EQ(kept, more + 1);
                     });
    EXPECT_EQ(calls, 1);
    int rank = 0;
    for (int j = 0; j < 100; ++j) {
      const bool is_kept = j == 50 || j < more;
      EXPECT_EQ(memory->ranks[j], is_kept ? rank++ : -1) << j;
    }
  }
}

}  // namespace
}  // namespace cpd
