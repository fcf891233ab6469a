// SPDX-License-Identifier: Apache-2.0
//
// The largest values, compared with a sort of all values; error feedback; inner codecs; pieces.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cpd/backend/cpu/largest.h"
#include "cpd/backend/queue.h"
#include "cpd/backend/roster.h"
#include "cpd/compress/codecs.h"
#include "cpd/compress/sparse.h"
#include "cpd/compress/top_k.h"
#include "cpd/spec/error.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"

namespace cpd {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
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

::testing::AssertionResult same(const Values& expected, const Values& got) {
  return testing::bits_equal(std::span<const float>(expected), std::span<const float>(got));
}

/// Layers of many kinds: none, one, equals, few values, zeros, periods, sorted, of NaN.
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
  // Few and many of them, none that a sample finds, equals on both sides of a piece.
  Values rare(300007), equal(300007, 2);
  for (std::size_t i = 0; i < rare.size(); i += 50021) rare[i] = kInf;
  for (std::size_t i = 0; i < equal.size(); i += 3) equal[i] = 1;
  for (const Values& x : {normal(300007, 3), rare, equal}) {
    const Values r = normal(x.size(), 5);
    Values sums(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) sums[i] = x[i] + r[i];
    const Places order = sorted(x), order_of_sums = sorted(sums);
    for (const char* threads : {"1", "2", "5"}) {
      setenv("CPD_NUM_THREADS", threads, 1);
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
  unsetenv("CPD_NUM_THREADS");
}

/// A rank's calls.
class Caller {
 public:
  Caller(const std::string& text, std::size_t n, const RoundingOptions& rounding = {})
      : codec(MakeCodec(text, rounding)),
        size(static_cast<std::int64_t>(n)),
        state(codec->MakeState(size)) {}

  /// Returns what ranks get of a layer, in pieces of `step`.
  Values Send(const Values& x, std::int64_t step = 0, int shift = 0) {
    Piece layer{.n = size, .shift = shift, .key = {.stream = 5}, .size = size};
    state->Begin(layer, x.data());
    layer.scale = codec->Measure(layer, state.get(), x.data());
    Values y(x.size());
    bytes = 0;
    for (std::int64_t i = 0; i < size; i += step == 0 ? size : step) {
      Piece piece = layer;
      piece.begin = i;
      piece.n = std::min(step == 0 ? size : step, size - i);
      std::vector<std::uint8_t> to(static_cast<std::size_t>(codec->MostBytes(piece.n)));
      const std::int64_t used = codec->Encode(piece, state.get(), x.data() + i, to.data());
      EXPECT_LE(used, codec->MostBytes(piece.n));
      to.resize(static_cast<std::size_t>(used));
      codec->Decode(to, piece.n, 0, 1, y.data() + i);
      bytes += used;
      Values rounded(static_cast<std::size_t>(piece.n));
      codec->Round(piece, state.get(), x.data() + i, rounded.data());
      EXPECT_TRUE(same({y.begin() + i, y.begin() + i + piece.n}, rounded));
    }
    return y;
  }
  Values Call(const Values& x, std::int64_t step = 0) {
    const Values y = Send(x, step);
    state->Commit();
    return y;
  }

  SharedCodec codec;
  std::int64_t size, bytes = 0;
  std::unique_ptr<CodecState> state;
};

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

TEST(TopK, KeepsTheLargestAndFeedsBackTheOthers) {
  for (const std::size_t n : {1, 10, 700, 20000}) {
    Caller caller("top_k 0.1", n);
    Values residual(n);
    for (unsigned call = 0; call < 5; ++call) {
      const Values x = normal(n, 10 + call);
      Values v(n), expected(n);
      for (std::size_t i = 0; i < n; ++i) v[i] = x[i] + residual[i];
      residual = v;
      for (const std::int64_t i : by_sorting(v, (static_cast<std::int64_t>(n) + 9) / 10)) {
        expected[i] = v[i];
        residual[i] = 0;
      }
      EXPECT_TRUE(same(expected, caller.Call(x)));
      EXPECT_TRUE(same(residual, caller.state->Kept()));
    }
  }
}

TEST(TopK, WithoutFeedback) {
  Caller caller("top_k 0.2 feedback=off", 10);
  const Values x{1, -9, 2, 3, 9, 9, -1, 0, 0, 0};
  for (int call = 0; call < 2; ++call) {
    EXPECT_TRUE(same({0, -9, 0, 0, 9, 0, 0, 0, 0, 0}, caller.Call(x)));
  }
  EXPECT_TRUE(caller.state->Kept().empty());
}

TEST(TopK, ValuesDoNotDependOnThePieces) {
  const Values x = normal(3000, 4);
  for (const char* text :
       {"top_k 0.05", "top_k 0.05 int4 stochastic", "top_k 0.3 int4 bucket=7", "top_k 1 e4m3",
        "top_k 0.02 mxfp8", "top_k 0.5 fp8-tensor", "top_k 0.1 quantized int8 32 stochastic",
        "top_k 0.1 qsgd bits=4 bucket=16", "top_k 0.1 qsgd bits=4 bucket=16 coding=elias-dense",
        "top_k 0.1 terngrad", "top_k 0.1 terngrad share=off"}) {
    Caller whole(text, 3000), parts(text, 3000);
    for (const std::int64_t step : {1000, 7, 999}) {
      EXPECT_TRUE(same(whole.Call(x), parts.Call(x, step))) << text;
      EXPECT_TRUE(same(whole.state->Kept(), parts.state->Kept())) << text;
    }
  }
}

TEST(TopK, InnerCodecsLoseWhatIsFedBack) {
  const Values x = normal(500, 6);
  Caller caller("top_k 0.2 int4 bucket=16", 500);
  const Values y = caller.Call(x);
  const Values kept = caller.state->Kept();
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(kept[i], x[i] - y[i]);
  // The selected values are the inner codec's layer.
  Values run;
  const Places places = by_sorting(x, 100);
  for (const std::int64_t i : places) run.push_back(x[i]);
  Values inner(100);
  MakeCodec("int4 bucket=16")->Round({.n = 100, .size = 100}, nullptr, run.data(), inner.data());
  for (std::size_t k = 0; k < 100; ++k) EXPECT_EQ(y[places[k]], inner[k]);
}

TEST(TopK, ASharedScaleIsTheInnerCodecs) {
  const Values x = normal(300, 12);
  const SharedCodec codec = MakeCodec("top_k 0.1 terngrad clip=none");
  ASSERT_EQ(codec->measured(), Measured::shared);
  const auto state = codec->MakeState(300);
  Piece piece{.n = 300, .size = 300};
  state->Begin(piece, x.data());
  const float own = codec->Measure(piece, state.get(), x.data());
  EXPECT_EQ(own, std::abs(*std::ranges::max_element(x, {}, [](float v) { return std::abs(v); })));
  piece.scale = 2 * own;  // another rank's
  Values y(300);
  codec->Round(piece, state.get(), x.data(), y.data());
  state->Commit();
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_TRUE(y[i] == 0 || std::abs(y[i]) == 1);
    EXPECT_EQ(state->Kept()[i], x[i] - y[i] * piece.scale);
  }
}

TEST(TopK, OnlyCommitChangesWhatComesNext) {
  const Values x = normal(300, 7);
  Caller caller("top_k 0.1 e3m0", 300);
  caller.Call(normal(300, 8));
  const Values kept = caller.state->Kept();
  const Values once = caller.Send(x);
  EXPECT_TRUE(same(once, caller.Send(x, 11)));
  EXPECT_TRUE(same(kept, caller.state->Kept()));
  Caller other("top_k 0.1 e3m0", 300);
  other.state->Restore(kept);
  EXPECT_TRUE(same(once, other.Call(x)));
  EXPECT_THROW(other.state->Restore(std::vector<float>(299)), Error);
}

TEST(TopK, NanAndInfinityAreKeptAndNotFedBack) {
  Caller caller("top_k 0.1", 10);
  const Values x{1, kNan, 2, kInf, 3, 4, 5, -kInf, 6, 7};
  EXPECT_TRUE(same({0, kNan, 0, kInf, 0, 0, 0, -kInf, 0, 0}, caller.Call(x)));
  EXPECT_TRUE(same({1, 0, 2, 0, 3, 4, 5, 0, 6, 7}, caller.state->Kept()));
  // A bucket that a NaN has made NaN is sent with the next call.
  Caller bucket("top_k 0.5 int4 bucket=2", 4);
  EXPECT_TRUE(same({kNan, 0, kNan, 0}, bucket.Call({7, 1, kNan, 2})));
  EXPECT_TRUE(same({7, 1, 0, 2}, bucket.state->Kept()));
}

TEST(TopK, ALossScaleComesFirst) {
  const Values x = normal(400, 9);
  Values scaled(400);
  Unscale(-9, 1, 400, x.data(), scaled.data());
  Caller plain("top_k 0.1", 400), shifted("top_k 0.1", 400);
  EXPECT_TRUE(same(plain.Send(scaled), shifted.Send(x, 0, -9)));
  Values y(4);
  const TopK codec(0.5, true, MakeCodec("fp32"));
  const Values small{0, 12, 0, -5};
  const auto state = codec.MakeState(4);
  state->Begin({.n = 4, .size = 4}, small.data());
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(codec.MostBytes(4)));
  bytes.resize(static_cast<std::size_t>(
      codec.Encode({.n = 4, .size = 4}, state.get(), small.data(), bytes.data())));
  codec.Decode(bytes, 4, -1, -2, y.data());
  EXPECT_TRUE(same({-0.0F, -3, -0.0F, 1.25F}, y));
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

TEST(TopK, GivenIntegersOfAPieceBeginWithIt) {
  const Values x{0.1F, 7, 0.1F, 3.5F, 0.1F, 3.5F};
  const TopK codec(0.5, false, MakeCodec("int4 stochastic", {.random_bits = 8}));
  const std::uint32_t random[] = {0, 0, 0, 128, 0, 127};
  const auto state = codec.MakeState(6);
  Piece piece{.n = 6, .size = 6};
  state->Begin(piece, x.data());
  piece.begin = 3;
  piece.n = 3;
  piece.random = random + 3;
  Values y(3);
  codec.Round(piece, state.get(), x.data() + 3, y.data());
  EXPECT_TRUE(same({4, 0, 3}, y));
}

TEST(TopK, WhatIsKeptUnderALossScaleIsUnscaled) {
  // 2.25 and 1.75 times 4 round to 9 and 7 in integers of 4 bits and a sign: exactly what is sent.
  const Values x{2.25F, 0, 1.75F, 0.5F};
  Caller caller("top_k 0.5 int5", 4);
  EXPECT_TRUE(same({9, 0, 7, 0}, caller.Send(x, 0, 2)));
  caller.state->Commit();
  EXPECT_TRUE(same({0, 0, 0, 0.5F}, caller.state->Kept()));
}

TEST(TopK, NothingFollowsNoValues) {
  const SharedCodec codec = MakeCodec("top_k 0.5");
  Values y(4);
  const std::vector<std::uint8_t> none{0};
  EXPECT_NO_THROW(codec->Decode(none, 4, 0, 1, y.data()));
  const std::vector<std::uint8_t> more{0, 7};
  EXPECT_THROW(codec->Decode(more, 4, 0, 1, y.data()), DamagedBytes);
}

TEST(TopK, BytesArePlacesAndValues) {
  Caller caller("top_k 0.01", 1 << 20);
  caller.Call(normal(1 << 20, 3), 1 << 16);
  EXPECT_LT(static_cast<double>(8 * caller.bytes), 10486 * (32 + 8.3));
  EXPECT_FALSE(caller.codec->is_fixed());
  EXPECT_EQ(caller.codec->MostBytes(0), 0);
  EXPECT_EQ(caller.codec->block() % 4096, 0);
}

/// Losses, bytes and the largest value, as other devices count them.
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
    Values y = x;  // in place if there is no residual
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
  const auto text_of = [](const char* text) {
    const SharedCodec codec = MakeCodec(text);
    EXPECT_EQ(MakeCodec(codec->name())->text(), codec->text());
    return codec->name();
  };
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
