// SPDX-License-Identifier: Apache-2.0
//
// Tests which values top-k selects as the largest, compared with a sort of all values. Tests also
// special values, the counts of losses and bytes, and the codec's text form. test_top_k_devices.cpp
// compares all kinds of calls with the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cpd/backend/cpu/largest.h"
#include "cpd/backend/queue.h"
#include "cpd/backend/roster.h"
#include "cpd/compress/codecs.h"
#include "cpd/compress/top_k.h"
#include "cpd/spec/error.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/threads.h"

namespace cpd {
namespace {

using testing::kInf;
using testing::kNan;
using testing::same;

using Places = std::vector<std::int64_t>;
using Values = std::vector<float>;

std::uint32_t magnitude(float v) { return std::bit_cast<std::uint32_t>(v) & 0x7FFFFFFF; }

Places sorted(const Values& v) {
  Places all(v.size());
  std::iota(all.begin(), all.end(), 0);
  std::ranges::stable_sort(all, [&](std::int64_t a, std::int64_t b) {
    return std::min(magnitude(v[a]), 0x7F800000U) > std::min(magnitude(v[b]), 0x7F800000U);
  });
  return all;
}

Places first_of(Places all, const Values& v, std::int64_t k) {
  const auto bad = std::ranges::count_if(v, [](float x) { return !std::isfinite(x); });
  all.resize(static_cast<std::size_t>(std::max<std::int64_t>(k, bad)));
  std::ranges::sort(all);
  return all;
}

Places by_sorting(const Values& v, std::int64_t k) { return first_of(sorted(v), v, k); }

Places largest(const Values& v, std::int64_t k) {
  Selection found{.places = {1, 2, 3}, .values = {1}};
  FindLargest({.n = static_cast<std::int64_t>(v.size()), .x = v.data()}, k, found);
  EXPECT_EQ(found.values.size(), found.places.size());
  for (std::size_t p = 0; p < found.places.size(); ++p) {
    EXPECT_EQ(magnitude(found.values[p]), magnitude(v[found.places[p]]));
  }
  return found.places;
}

Values normal(std::size_t n, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> draw;
  Values x(n);
  for (float& v : x) v = draw(bits);
  return x;
}

/// Returns layers of many kinds: empty, one value, equal values, few different values, zeros,
/// periodic or sorted values, and NaN.
std::vector<Values> layers() {
  std::vector<Values> all{{}, {0}, {-3}, {kNan}, {1, -1}, {0, -0.0F, 0}};
  for (const std::size_t n : {100, 5000, 16384, 30011}) {
    const Values x = normal(n, static_cast<unsigned>(n));
    all.push_back(x);
    all.emplace_back(n, -1.5F);
    all.emplace_back(n, 0.0F);
    Values few = x, zeros = x, period = x, sorted = x, bad = x, nans = x;
    for (float& v : few) v = std::nearbyint(v);
    for (std::size_t i = 0; i < n; ++i) {
      if (i % 97 != 0) zeros[i] = 0;
      period[i] = i % 16 == 0 ? 100 + x[i] : x[i];
      if (i % 1000 == 77) bad[i] = i % 3 == 0 ? kNan : -kInf;
      if (i % 5 != 0) nans[i] = i % 2 == 0 ? -kNan : kInf;
    }
    std::ranges::sort(sorted);
    for (const Values& each : {few, zeros, period, sorted, bad, nans}) all.push_back(each);
  }
  return all;
}

TEST(Largest, AreThoseOfASort) {
  for (const Values& x : layers()) {
    const auto n = static_cast<std::int64_t>(x.size());
    const Places order = sorted(x);
    for (const std::int64_t k : {n > 0 ? std::int64_t{1} : 0, n / 1000, n / 100, n / 7, n / 2, n}) {
      if (k == 0 && n > 0) continue;
      EXPECT_EQ(largest(x, k), first_of(order, x, k)) << n << " values, " << k;
    }
  }
}

TEST(Largest, EveryInstructionSetAndSums) {
  for (const KernelTable* table : testing::kernel_tables()) {
    ForceKernels(table->name);
    const Values x = normal(70003, 1);
    const Values r = normal(70003, 2);
    Values sums(x.size()), sum(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) sums[i] = x[i] + r[i];
    for (const std::int64_t k : {1, 700, 35000}) {
      Selection found;
      FindLargest({.n = 70003, .x = x.data(), .r = r.data(), .sum = sum.data()}, k, found);
      EXPECT_EQ(found.places, by_sorting(sums, k)) << table->name;
      EXPECT_TRUE(same(sums, sum));
      EXPECT_EQ(largest(sums, k), found.places);
    }
  }
  ForceKernels("");
}

TEST(Largest, DoNotDependOnThePieces) {
  // The layers have few or many infinities, large values that a sample may miss, and equal values
  // across the border between two threads' ranges.
  Values rare(300007), equal(300007, 2);
  for (std::size_t i = 0; i < rare.size(); i += 50021) rare[i] = kInf;
  for (std::size_t i = 0; i < equal.size(); i += 3) equal[i] = 1;
  for (const Values& x : {normal(300007, 3), rare, equal}) {
    const Values r = normal(x.size(), 5);
    Values sums(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) sums[i] = x[i] + r[i];
    const Places order = sorted(x), order_of_sums = sorted(sums);
    for (const char* threads : {"1", "2", "5"}) {
      const testing::WithThreads set(threads);
      for (const std::int64_t k : {1, 3000, 150000}) {
        EXPECT_EQ(largest(x, k), first_of(order, x, k)) << threads << " threads, " << k;
        Selection found;
        Values sum(x.size());
        FindLargest({.n = 300007, .x = x.data(), .r = r.data(), .sum = sum.data()}, k, found);
        EXPECT_EQ(found.places, first_of(order_of_sums, sums, k)) << threads << " threads, " << k;
        EXPECT_TRUE(same(sums, sum));
      }
    }
  }
}

TEST(TopK, CountIsExact) {
  const auto count = [](double fraction, std::int64_t n) {
    return TopK(fraction, true, MakeCodec("fp32")).Count(n);
  };
  EXPECT_EQ(count(0.01, 100), 1);
  EXPECT_EQ(count(0.01, 101), 2);
  EXPECT_EQ(count(0.07, 100), 7);
  EXPECT_EQ(count(0.1, 30), 3);
  EXPECT_EQ(count(1e-9, 5), 1);
  EXPECT_EQ(count(1, 12345), 12345);
  EXPECT_EQ(count(0.01, 0), 0);
  EXPECT_EQ(count(0.000000003, std::int64_t{7000000001}), 22);
  EXPECT_EQ(count(0.999999999, std::int64_t{1} << 40), 1099511627776 - 1099);
}

/// Returns the values that other ranks get from a layer's first call, and the residual for the next
/// call.
std::pair<Values, Values> sent_and_kept(const char* text, const Values& x) {
  const SharedCodec codec = MakeCodec(text);
  const auto n = static_cast<std::int64_t>(x.size());
  const auto state = codec->MakeState(n);
  state->Begin({.n = n, .size = n}, x.data());
  Values y(x.size());
  codec->Round({.n = n, .size = n}, state.get(), x.data(), y.data());
  state->Commit();
  return {y, state->Kept()};
}

TEST(TopK, NanAndInfinityAreKeptAndNotFedBack) {
  const auto [y, kept] = sent_and_kept("top_k 0.1", {1, kNan, 2, kInf, 3, 4, 5, -kInf, 6, 7});
  EXPECT_TRUE(same({0, kNan, 0, kInf, 0, 0, 0, -kInf, 0, 0}, y));
  EXPECT_TRUE(same({1, 0, 2, 0, 3, 4, 5, 0, 6, 7}, kept));
  // A NaN makes its whole bucket NaN. The residual keeps the bucket's other values, so the next
  // call sends them.
  const auto [of_bucket, next] = sent_and_kept("top_k 0.5 int4 bucket=2", {7, 1, kNan, 2});
  EXPECT_TRUE(same({kNan, 0, kNan, 0}, of_bucket));
  EXPECT_TRUE(same({7, 1, 0, 2}, next));
}

TEST(TopK, GivenIntegersBelongToElements) {
  const Values x{0.1F, 7, 0.1F, 3.5F, 0.1F, 3.5F};
  const TopK codec(0.5, false, MakeCodec("int4 stochastic", {.random_bits = 8}));
  for (const std::uint32_t up : {0, 1}) {
    const std::uint32_t random[] = {0, 0, 0, 127 + up, 0, 128 - up};
    const auto state = codec.MakeState(6);
    Piece piece{.n = 6, .size = 6};
    state->Begin(piece, x.data());
    piece.random = random;
    Values y(6);
    codec.Round(piece, state.get(), x.data(), y.data());
    EXPECT_TRUE(same({0, 7, 0, up == 1 ? 4.0F : 3.0F, 0, up == 1 ? 3.0F : 4.0F}, y));
  }
}

TEST(TopK, NothingFollowsNoValues) {
  const SharedCodec codec = MakeCodec("top_k 0.5");
  Values y(4);
  const std::vector<std::uint8_t> none{0};
  EXPECT_NO_THROW(codec->Decode(none, 4, 0, 1, y.data()));
  const std::vector<std::uint8_t> more{0, 7};
  EXPECT_THROW(codec->Decode(more, 4, 0, 1, y.data()), DamagedBytes);
}

/// Checks the figures that a codec computes on a queue: the values lost to rounding, the bytes and
/// the largest value. Here the queue is the CPU's; other devices compute the figures with kernels.
TEST(TopK, CountsWhatRoundingLoses) {
  const SharedQueue& queue = HostQueue();
  const std::int64_t n = 70001;  // two messages
  Values x = normal(static_cast<std::size_t>(n), 21);
  for (std::size_t i = 0; i < x.size(); i += 3) x[i] = 0;
  x[5000] = kNan;
  x[66000] = -kInf;
  for (const char* text : {"top_k 0.1", "top_k 0.00003 feedback=off e4m3", "top_k 0.1 int4",
                           "top_k 0.2 feedback=off qsgd bits=4 bucket=512",
                           "top_k 0.1 qsgd bits=4 bucket=512 coding=elias-dense"}) {
    const SharedCodec codec = MakeCodec(text);
    const auto state = codec->MakeState(n);
    Piece layer{.n = n, .key = {.stream = 5}, .size = n};
    state->Begin(layer, x.data());
    layer.scale = codec->Measure(layer, state.get(), x.data());
    EXPECT_EQ(codec->BytesOn(queue, layer, state.get(), x.data())(),
              LayerBytes(*codec, layer, state.get(), x.data()))
        << text;
    EXPECT_EQ(codec->Largest(*state), std::abs(*std::ranges::max_element(x, {}, [](float v) {
                return std::isfinite(v) ? std::abs(v) : 0;
              })));
    Values expected(x.size());
    codec->Round(layer, state.get(), x.data(), expected.data());
    Values y = x;  // in place where there is no residual
    const bool in_place = state->Kept().empty();
    SegmentCounts counts;
    codec->RoundOn(*queue, layer, state.get(), x.data(), y.data(), &counts);
    EXPECT_TRUE(same(expected, y)) << text;
    if (in_place) {
      Values values = x;
      const auto other = codec->MakeState(n);
      other->Begin(layer, values.data());
      SegmentCounts again;
      codec->RoundOn(*queue, layer, other.get(), values.data(), values.data(), &again);
      EXPECT_TRUE(same(expected, values)) << text;
      EXPECT_EQ(again.underflowed, counts.underflowed) << text;
    }
    const auto count = [&](auto is_counted) {
      unsigned long long all = 0;
      for (std::size_t i = 0; i < x.size(); ++i) all += is_counted(x[i], y[i]) ? 1 : 0;
      return all;
    };
    EXPECT_EQ(counts.non_finite, 2U);
    EXPECT_EQ(counts.zeros, count([](float, float to) { return to == 0; })) << text;
    EXPECT_EQ(counts.underflowed, count([](float of, float to) { return of != 0 && to == 0; }))
        << text;
  }
}

TEST(TopK, TextsAndResults) {
  EXPECT_FALSE(MakeCodec("top_k 0.01")->is_fixed());
  EXPECT_EQ(MakeCodec("top_k 0.01")->MostBytes(0), 0);
  const auto text_of = [](const char* text) { return MakeCodec(text)->name(); };
  EXPECT_EQ(text_of("top_k 0.01"), "top_k 0.01");
  EXPECT_EQ(text_of("top_k 0.010 fp32"), "top_k 0.01");
  EXPECT_EQ(text_of("top_k 0.5 feedback=off int4"), "top_k 0.5 feedback=off int4 bucket=32");
  EXPECT_EQ(text_of("top_k 1 int4 stochastic feedback=on"), "top_k 1 int4 bucket=32 stochastic");
  EXPECT_EQ(MakeCodec("top_k 0.1")->ForResults(kFp32, 8)->text(), "sparse");
  for (const char* text : {"top_k", "top_k 0", "top_k 1.5", "top_k -1", "top_k 1e-10",
                           "top_k 0.12345678901", "top_k 0.1 feedback=2", "top_k 0.1 int8_rows",
                           "top_k 0.1 top_k 0.1", "top_k 0.1 nothing"}) {
    EXPECT_THROW(MakeCodec(text), Error) << text;
  }
}

}  // namespace
}  // namespace cpd
