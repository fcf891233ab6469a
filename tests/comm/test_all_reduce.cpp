// SPDX-License-Identifier: Apache-2.0
//
// Reductions over local ranks (threads) against the virtual ranks, bit for bit; what they cost
// against the cost model; and what happens where ranks disagree, bytes change, or a rank is lost.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "cpd/comm/all_reduce.h"
#include "cpd/comm/engine/layout.h"
#include "cpd/comm/transport/fault.h"
#include "cpd/comm/transport/local.h"
#include "cpd/study/cost.h"
#include "tests/testing/bits.h"
#include "tests/testing/reduce.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::Layers;
using testing::Ranks;
using testing::sizes_of;

using Transports = std::vector<std::unique_ptr<Transport>>;

// ---- ranks --------------------------------------------------------------------------------------

/// How one rank's work ended.
struct Fate {
  enum class Kind : std::uint8_t { well, mismatch, lost, corrupt, error, other };
  Kind kind = Kind::well;
  std::string what;
  std::vector<int> lost;  ///< RankLost's
};

std::ostream& operator<<(std::ostream& out, const Fate& fate) {
  constexpr std::array kNames = {"well", "mismatch", "lost", "corrupt", "error", "other"};
  out << kNames.at(static_cast<std::size_t>(fate.kind)) << ": " << fate.what;
  return out;
}

Fate fate_of(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const RankLost& error) {
    return {Fate::Kind::lost, error.what(), error.ranks};
  } catch (const Mismatch& error) {
    return {Fate::Kind::mismatch, error.what(), {}};
  } catch (const Corrupt& error) {
    return {Fate::Kind::corrupt, error.what(), {}};
  } catch (const Error& error) {
    return {Fate::Kind::error, error.what(), {}};
  } catch (const std::exception& error) {
    return {Fate::Kind::other, error.what(), {}};
  }
}

/// Runs work(rank's communicator) on one thread a rank.
std::vector<Fate> on_ranks(Transports transports, const CommOptions& options,
                           const std::function<void(Communicator&)>& work) {
  std::vector<Fate> fates(transports.size());
  std::vector<std::thread> threads;
  threads.reserve(transports.size());
  for (std::size_t r = 0; r < transports.size(); ++r) {
    threads.emplace_back([&, r] {
      fates[r] = fate_of([&] {
        Communicator comm(std::move(transports[r]), options);
        work(comm);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return fates;
}

std::vector<Fate> on_ranks(int world, const CommOptions& options,
                           const std::function<void(Communicator&)>& work) {
  return on_ranks(LocalTransports(world), options, work);
}

void expect_well(const std::vector<Fate>& fates) {
  for (std::size_t r = 0; r < fates.size(); ++r) {
    EXPECT_EQ(fates[r].kind, Fate::Kind::well) << "rank " << r << ", " << fates[r];
  }
}

std::vector<TensorView> views_of(const Layers& layers) {
  std::vector<TensorView> views;
  for (const auto& layer : layers) views.push_back(testing::view_of(layer));
  return views;
}

/// Layers of such sizes whose values no sum gives.
Layers blank(const std::vector<std::int64_t>& sizes) {
  Layers layers;
  for (const std::int64_t n : sizes) layers.emplace_back(static_cast<std::size_t>(n), -12345.0F);
  return layers;
}

::testing::AssertionResult same_layers(const Layers& expected, const Layers& got) {
  if (expected.size() != got.size()) return ::testing::AssertionFailure() << "other layers";
  for (std::size_t l = 0; l < expected.size(); ++l) {
    const auto same =
        testing::bits_equal(std::span<const float>(expected[l]), std::span<const float>(got[l]));
    if (!same) return ::testing::AssertionFailure() << "layer " << l << ": " << same.message();
  }
  return ::testing::AssertionSuccess();
}

std::string describe(const ReduceSpec& spec, std::size_t world) {
  return ToString(spec.exchange) + ", order " + ToString(spec.order) +
         ", W = " + std::to_string(world) + ", groups of " + std::to_string(spec.group_size) +
         ", " + ToString(spec.format) + " -> " + ToString(spec.accumulator) + " -> " +
         ToString(spec.result) + ", " + ToString(spec.rounding.mode);
}

// ---- the same as virtual ranks ------------------------------------------------------------------

struct Outcome {
  Layers out;
  ReduceReport report;
};

std::vector<Outcome> all_reduce(const ReduceSpec& spec, const Ranks& ranks,
                                const CommOptions& options, bool in_place = false,
                                bool counts = true) {
  std::vector<Outcome> outcomes(ranks.size());
  const auto fates = on_ranks(static_cast<int>(ranks.size()), options, [&](Communicator& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    Outcome& mine = outcomes[r];
    mine.out = in_place ? ranks[r] : blank(sizes_of(ranks[r]));
    const Layers& x = in_place ? mine.out : ranks[r];
    mine.report = comm.AllReduce(views_of(x), views_of(mine.out), spec, counts);
  });
  expect_well(fates);
  return outcomes;
}

void expect_same_report(const std::vector<LayerReport>& expected,
                        const std::vector<LayerReport>& got, bool counts) {
  ASSERT_EQ(expected.size(), got.size());
  for (std::size_t l = 0; l < got.size(); ++l) {
    EXPECT_EQ(expected[l].shift, got[l].shift) << "layer " << l;
    EXPECT_EQ(counts ? expected[l].non_finite : 0, got[l].non_finite) << "layer " << l;
    EXPECT_EQ(counts ? expected[l].overflowed : 0, got[l].overflowed) << "layer " << l;
    EXPECT_EQ(counts ? expected[l].underflowed : 0, got[l].underflowed) << "layer " << l;
  }
}

/// Whether some of the formats have no code for NaN.
bool lacks_nan(const ReduceSpec& spec) {
  const Accumulator& a = spec.accumulator;
  return !(spec.format.has_nan() && a.format.has_nan() && a.inner.value_or(a.format).has_nan() &&
           spec.result.has_nan());
}

/// The same reduction where everything travels as binary32.
ReduceSpec plain(ReduceSpec spec) {
  spec.format = spec.accumulator.format = spec.result = kFp32;
  spec.accumulator.inner.reset();
  return spec;
}

/// Each rank's own bytes, and the greatest number of steps. What a format has no code for travels
/// as binary32, and with it everything else.
void expect_traffic(const ReduceSpec& spec, const std::vector<Outcome>& outcomes,
                    const std::vector<std::int64_t>& sizes, std::int64_t chunk) {
  const int world = static_cast<int>(outcomes.size());
  const auto is_of = [&](const ReduceSpec& moved) {
    for (int r = 0; r < world; ++r) {
      const Traffic& traffic = outcomes[static_cast<std::size_t>(r)].report.traffic;
      const Cost cost = CostOf(moved, world, r, sizes, chunk);
      if (traffic.bytes_sent != cost.bytes_sent) return false;
      if (traffic.bytes_received != cost.bytes_received) return false;
    }
    return true;
  };
  EXPECT_TRUE(is_of(spec) || (lacks_nan(spec) && is_of(plain(spec))));
  std::int64_t steps = 0;
  for (const Outcome& outcome : outcomes) {
    const Traffic& traffic = outcome.report.traffic;
    steps = std::max(steps, traffic.steps);
    if (world > 1) {
      EXPECT_GT(traffic.header_bytes, 0);
      EXPECT_GT(traffic.messages, 0);
    }
  }
  EXPECT_EQ(steps, CostOf(spec, world, 0, sizes, chunk).steps);
}

void expect_virtual(const ReduceSpec& spec, const Ranks& ranks, const CommOptions& options,
                    bool in_place = false, bool counts = true) {
  SCOPED_TRACE(describe(spec, ranks.size()) + ", chunk " + std::to_string(options.chunk));
  std::vector<LayerReport> reports;
  const Layers expected = testing::virtual_reduce(spec, ranks, &reports);
  const auto outcomes = all_reduce(spec, ranks, options, in_place, counts);
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    EXPECT_TRUE(same_layers(expected, outcomes[r].out)) << "on rank " << r;
    expect_same_report(reports, outcomes[r].report.layers, counts);
  }
  expect_traffic(spec, outcomes, sizes_of(ranks[0]), options.chunk);
}

CommOptions options_of(std::int64_t chunk, double timeout = 60) {
  CommOptions options;
  options.timeout = timeout;
  options.chunk = chunk;
  return options;
}

/// An order, its messages, its groups.
struct Way {
  Order order;
  Exchange exchange;
  int group;
};

std::vector<Way> ways(int world) {
  std::vector<Way> all;
  std::vector<int> groups = {0, 1, world};
  for (const int group : {3, 4}) {
    if (world > group) groups.push_back(group);
  }
  for (const int group : groups) {
    for (const Order order : {Order::sequential, Order::ring, Order::tree}) {
      all.push_back({order, Exchange::owner, group});
      all.push_back({order, Exchange::gather, group});
    }
    all.push_back({Order::ring, group == 0 ? Exchange::ring : Exchange::hierarchical, group});
  }
  return all;
}

const std::vector<Format>& formats() {
  static const std::vector<Format> all = {
      MakeFormat(4, 3),      MakeFormat(5, 2),    MakeFormat(3, 0),        MakeFormat(2, 1),
      MakeFormat(8, 7),      MakeFormat(1, 2),    ParseFormat("fp16"),     ParseFormat("bf16"),
      ParseFormat("e4m3fn"), ParseFormat("e2m1"), ParseFormat("e5m2fnuz"), kFp32};
  return all;
}

/// The sums that a way can have, in a format.
std::vector<Accumulator> accumulators(const Way& way, const Format& format) {
  std::vector<Accumulator> all(1);
  if (way.order != Order::tree) {
    all.resize(4);
    all[1].scheme = Scheme::kahan;
    all[2].scheme = all[3].scheme = Scheme::chunked;
    all[2].chunk = 2;
    all[2].inner = ParseFormat("e6m9");
    all[3].chunk = 3;
    all[3].inner = ParseFormat("e4m2");
    if (way.exchange == Exchange::owner || way.exchange == Exchange::gather) {
      all.emplace_back().scheme = Scheme::pairwise;
    }
  }
  for (Accumulator& a : all) a.format = format;
  return all;
}

/// One of many specs of a way: number `pick` runs through formats, sums, roundings and scales.
ReduceSpec spec_of(const Way& way, std::size_t pick) {
  ReduceSpec spec;
  spec.order = way.order;
  spec.exchange = way.exchange;
  spec.group_size = way.group;
  spec.format = formats()[pick % formats().size()];
  const Format& sum = pick % 3 == 0 ? formats()[(pick / 3) % formats().size()] : spec.format;
  const auto sums = accumulators(way, sum);
  spec.accumulator = sums[(pick / 2) % sums.size()];
  spec.result = pick % 4 == 1 ? formats()[(pick / 4) % formats().size()] : sum;
  if (pick % 5 == 2) spec.rounding.mode = Rounding::stochastic;
  if (pick % 5 >= 2) spec.accumulator.rounding.mode = Rounding::stochastic;
  if (pick % 7 == 6) spec.accumulator.rounding.mode = Rounding::toward_zero;
  spec.rounding.random_bits = pick % 2 == 0 ? 8 : 24;
  spec.rounding.seed = pick;
  spec.accumulator.rounding.seed = pick + 1;
  spec.step = pick % 11;
  if (pick % 3 == 1) spec.aps = pick % 2 == 0 ? Aps::on : Aps::paper;
  if (spec.aps == Aps::off && pick % 4 == 3) spec.loss_scale = 0x1p-3;
  spec.average = pick % 6 == 5;
  return spec;
}

TEST(AllReduce, EqualsVirtualRanks) {
  std::size_t pick = 0;
  for (const int world : {1, 2, 3, 7, 8, 16}) {
    if (testing::kSanitized && world > 3 && world != 7) continue;
    const auto w = static_cast<std::size_t>(world);
    const Ranks ranks = testing::random_ranks(w, {0, 1, w - 1, w, w + 1, 255, 256, 257, 5000}, w);
    for (const Way& way : ways(world)) {
      for (int specs = 0; specs < (testing::kSanitized ? 1 : 5); ++specs) {
        const std::int64_t chunk = std::array{700, 6000, 1 << 20}[pick % 3];
        expect_virtual(spec_of(way, pick), ranks, options_of(chunk), pick % 5 == 0, pick % 4 != 0);
        ++pick;
      }
    }
  }
}

TEST(AllReduce, EveryFormatAndSum) {
  for (const int world : {3, 5}) {
    const Ranks ranks = testing::random_ranks(static_cast<std::size_t>(world), {13, 40, 3}, 9);
    std::size_t pick = 0;
    for (const Way& way : ways(world)) {
      if (way.group != 0 && way.group != 3) continue;
      for (const Format& format : formats()) {
        for (const Accumulator& accumulator : accumulators(way, format)) {
          if (testing::kSanitized && ++pick % 9 != 0) continue;
          ReduceSpec spec = spec_of(way, 0);
          spec.format = spec.result = format;
          spec.accumulator = accumulator;
          expect_virtual(spec, ranks, options_of(16));
        }
      }
    }
  }
}

TEST(AllReduce, SmallChunksAndManyLayers) {
  std::vector<std::size_t> sizes;
  for (std::size_t l = 0; l < 60; ++l) sizes.push_back(l * l % 23);
  const Ranks ranks = testing::random_ranks(4, sizes, 2);
  std::size_t pick = 3;
  for (const Way& way : ways(4)) {
    for (const std::int64_t chunk : {1, 2, 7, 64, 300}) {
      ++pick;
      if (testing::kSanitized && pick % 5 != 0) continue;
      expect_virtual(spec_of(way, pick), ranks, options_of(chunk));
    }
  }
}

TEST(AllReduce, ManyRanks) {
  const Ranks ranks = testing::random_ranks(64, {700, 3, 65}, 4);
  std::size_t pick = 0;
  for (const Way& way :
       {Way{Order::sequential, Exchange::owner, 0}, Way{Order::tree, Exchange::owner, 8},
        Way{Order::ring, Exchange::ring, 0}, Way{Order::ring, Exchange::hierarchical, 8},
        Way{Order::ring, Exchange::hierarchical, 10}}) {
    if (testing::kSanitized && ++pick > 2) continue;
    expect_virtual(spec_of(way, 0), ranks, options_of(1 << 20));
  }
  if (testing::kSanitized) return;
  expect_virtual(spec_of({Order::ring, Exchange::hierarchical, 16}, 0),
                 testing::random_ranks(256, {300}, 5), options_of(1 << 20));
}

TEST(AllReduce, NothingToReduce) {
  for (const int world : {1, 3}) {
    const auto w = static_cast<std::size_t>(world);
    for (const Way& way : ways(world)) {
      expect_virtual(spec_of(way, 1), Ranks(w), options_of(64));
      expect_virtual(spec_of(way, 1), Ranks(w, Layers(3)), options_of(64));
      expect_virtual(spec_of(way, 1), Ranks(w, {{}, {1, -2, 3}, {}}), options_of(64));
    }
  }
}

TEST(AllReduce, NanAndInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Ranks ranks = testing::random_ranks(4, {9, 40, 70, 1}, 6);
  ranks[0][1][7] = nan;
  ranks[3][1][39] = -nan;
  ranks[2][1][0] = infinity;
  ranks[1][2][5] = infinity;
  ranks[2][2][5] = -infinity;
  ranks[0][2][69] = -infinity;
  for (auto& rank : ranks) rank[3][0] = -0.0F;
  std::size_t pick = 0;
  for (const Way& way : ways(4)) {
    if (way.group == 1 || way.group == 3) continue;
    for (const Format& format : formats()) {
      if (testing::kSanitized && ++pick % 5 != 0) continue;
      ReduceSpec spec = spec_of(way, 0);
      spec.format = spec.accumulator.format = spec.result = format;
      spec.aps = ++pick % 2 == 0 ? Aps::on : Aps::off;
      expect_virtual(spec, ranks, options_of(33));
      spec.result = kFp32;
      expect_virtual(spec, ranks, options_of(33));
    }
  }
}

TEST(AllReduce, NanThatNoInputShows) {
  Ranks ranks = testing::random_ranks(3, {50, 6}, 6);
  ranks[0][0][7] = 1e6F;  // infinite in e5m2
  ranks[2][0][7] = -1e6F;
  ranks[1][1][0] = ranks[2][1][0] = 3e38F;  // whose sum is infinite in binary32
  std::size_t pick = 0;
  for (const Way& way : ways(3)) {
    for (const char* sum : {"e5m2", "fp32", "e3m0"}) {
      ReduceSpec spec = spec_of(way, 0);
      spec.format = ParseFormat("e5m2");
      spec.accumulator.format = ParseFormat(sum);
      spec.result = ParseFormat(++pick % 2 == 0 ? "e2m1" : "e3m0");
      expect_virtual(spec, ranks, options_of(1 << 20));
      spec.format = ParseFormat("e3m0");  // in which 1 * 512 is infinite
      spec.loss_scale = 512;
      expect_virtual(spec, ranks, options_of(1 << 20));
    }
  }
}

TEST(AllReduce, AnyThreeFormats) {
  std::vector<Format> all = formats();
  for (const char* name : {"e8m0", "e4m3", "e2m3", "binary8p3ue", "binary8p4uf", "binary8p4sf",
                           "binary8p3se", "e4m3fnuz", "e6m9", "e5m0", "e1m0"}) {
    all.push_back(ParseFormat(name));
  }
  Ranks ranks = testing::random_ranks(3, {60, 6}, 6);
  std::mt19937_64 generator(5);
  for (Layers& rank : ranks) {  // huge and tiny values, all finite
    for (int i = 0; i < 12; ++i)
      rank[0][generator() % 60] *= std::ldexp(1.0F, static_cast<int>(generator() % 200) - 100);
  }
  const std::vector<Way> all_ways = ways(3);
  for (int n = 0; n < (testing::kSanitized ? 60 : 1500); ++n) {
    const auto any = [&]() -> const Format& { return all[generator() % all.size()]; };
    const Way& way = all_ways[generator() % all_ways.size()];
    ReduceSpec spec = spec_of(way, generator() % 1000);
    spec.format = any();
    spec.accumulator.format = any();
    if (spec.accumulator.inner) spec.accumulator.inner = any();
    spec.result = any();
    if (generator() % 4 == 0) spec.rounding.overflow = Overflow::saturate;
    if (generator() % 4 == 0) spec.accumulator.rounding.overflow = Overflow::saturate;
    expect_virtual(spec, ranks, options_of(1 << 20));
  }
}

TEST(AllReduce, FormatsWithoutZero) {
  Ranks ranks = testing::random_ranks(3, {60, 6}, 6);
  for (Layers& rank : ranks) {
    for (auto& layer : rank) {
      for (float& x : layer) x = std::fabs(x);
    }
  }
  for (const Way& way : ways(3)) {
    for (const Accumulator& accumulator : accumulators(way, ParseFormat("e8m0"))) {
      ReduceSpec spec = spec_of(way, 0);
      spec.format = spec.result = ParseFormat("e4m3");
      spec.accumulator = accumulator;
      if (accumulator.inner) spec.accumulator.inner = accumulator.format;
      expect_virtual(spec, ranks, options_of(1 << 20));
    }
  }
}

TEST(AllReduce, FiniteValuesTravelAtTheirWidth) {
  const Ranks ranks = testing::random_ranks(4, {400, 6}, 6);
  for (const Way& way : ways(4)) {
    for (const char* name : {"e3m0", "e2m1", "e4m3"}) {
      ReduceSpec spec = spec_of(way, 0);
      spec.format = spec.accumulator.format = spec.result = ParseFormat(name);
      spec.aps = Aps::on;
      SCOPED_TRACE(describe(spec, 4));
      const auto outcomes = all_reduce(spec, ranks, options_of(300));
      for (int r = 0; r < 4; ++r) {
        const Traffic& traffic = outcomes[static_cast<std::size_t>(r)].report.traffic;
        const Cost cost = CostOf(spec, 4, r, sizes_of(ranks[0]), 300);
        EXPECT_EQ(traffic.bytes_sent, cost.bytes_sent) << r;
        EXPECT_EQ(traffic.bytes_received, cost.bytes_received) << r;
      }
    }
  }
}

TEST(AllReduce, InPlaceAndCallsInARow) {
  const Ranks ranks = testing::random_ranks(3, {100, 7, 1000}, 8);
  for (const Way& way : ways(3)) {
    const ReduceSpec spec = spec_of(way, 2);
    SCOPED_TRACE(describe(spec, 3));
    Ranks expected = ranks;
    for (int call = 0; call < 3; ++call) {
      expected = Ranks(3, testing::virtual_reduce(spec, expected));
    }
    Ranks values = ranks;
    expect_well(on_ranks(3, options_of(90), [&](Communicator& comm) {
      const auto views = views_of(values[static_cast<std::size_t>(comm.rank())]);
      for (int call = 0; call < 3; ++call) comm.AllReduce(views, views, spec);
      comm.Barrier();
      EXPECT_EQ(comm.broken(), "");
    }));
    for (const Layers& rank : values) EXPECT_TRUE(same_layers(expected[0], rank));
  }
}

TEST(AllReduce, Reduce) {
  const Ranks ranks = testing::random_ranks(5, {100, 0, 3, 257}, 8);
  for (const Way& way : ways(5)) {
    if (way.exchange != Exchange::owner) continue;
    for (const int root : {0, 3, 4}) {
      const ReduceSpec spec = spec_of(way, 7);
      SCOPED_TRACE(describe(spec, 5));
      std::vector<LayerReport> reports;
      const Layers expected = testing::virtual_reduce(spec, ranks, &reports);
      Layers out = blank(sizes_of(ranks[0]));
      expect_well(on_ranks(5, options_of(50), [&](Communicator& comm) {
        const auto x = views_of(ranks[static_cast<std::size_t>(comm.rank())]);
        const auto to = comm.rank() == root ? views_of(out) : std::vector<TensorView>{};
        expect_same_report(reports, comm.Reduce(x, to, spec, root, true).layers, true);
      }));
      EXPECT_TRUE(same_layers(expected, out));
    }
  }
}

TEST(AllReduce, ReduceScatter) {
  for (const int world : {1, 4, 5}) {
    const Ranks ranks = testing::random_ranks(static_cast<std::size_t>(world), {100, 0, 3, 257}, 8);
    const auto sizes = sizes_of(ranks[0]);
    for (const Way& way : ways(world)) {
      if (way.exchange != Exchange::owner) continue;
      const ReduceSpec spec = spec_of(way, 4);
      SCOPED_TRACE(describe(spec, ranks.size()));
      std::vector<LayerReport> reports;
      const Layers whole = testing::virtual_reduce(spec, ranks, &reports);
      expect_well(on_ranks(world, options_of(50), [&](Communicator& comm) {
        std::vector<std::int64_t> mine;
        Layers expected;
        for (std::size_t l = 0; l < sizes.size(); ++l) {
          const std::int64_t begin = SliceBegin(sizes[l], world, comm.rank());
          const std::int64_t end = SliceBegin(sizes[l], world, comm.rank() + 1);
          mine.push_back(end - begin);
          expected.emplace_back(whole[l].begin() + begin, whole[l].begin() + end);
        }
        Layers out = blank(mine);
        const auto x = views_of(ranks[static_cast<std::size_t>(comm.rank())]);
        const ReduceReport report = comm.ReduceScatter(x, views_of(out), spec, true);
        expect_same_report(reports, report.layers, true);
        EXPECT_TRUE(same_layers(expected, out)) << "rank " << comm.rank();
      }));
    }
  }
}

TEST(AllReduce, AllGather) {
  Ranks ranks = testing::random_ranks(4, {100, 0, 3, 257}, 8);
  ranks[1][0][5] = std::numeric_limits<float>::infinity();
  ranks[2][3][5] = std::numeric_limits<float>::quiet_NaN();
  for (const Format& format : formats()) {
    for (const Rounding mode : {Rounding::nearest_even, Rounding::toward_zero}) {
      RoundingOptions rounding;
      rounding.mode = mode;
      Layers expected(ranks[0].size());
      for (const Layers& rank : ranks) {
        for (std::size_t l = 0; l < rank.size(); ++l) {
          const auto y = testing::oracle_cast(rank[l], format, rounding);
          expected[l].insert(expected[l].end(), y.begin(), y.end());
        }
      }
      expect_well(on_ranks(4, options_of(50), [&](Communicator& comm) {
        Layers out = blank(sizes_of(expected));
        const auto x = views_of(ranks[static_cast<std::size_t>(comm.rank())]);
        comm.AllGather(x, views_of(out), format, rounding);
        EXPECT_TRUE(same_layers(expected, out)) << ToString(format);
      }));
    }
  }
}

TEST(AllReduce, SliceBeginIsTheContracts) {
  for (const std::int64_t n : {0, 1, 5, 16, 17, 1000}) {
    for (const std::int64_t slices : {1, 3, 16}) {
      std::int64_t begin = 0;
      for (std::int64_t s = 0; s < slices; ++s) {
        EXPECT_EQ(SliceBegin(n, slices, s), begin);
        begin += n / slices + (s < n % slices ? 1 : 0);
      }
      EXPECT_EQ(SliceBegin(n, slices, slices), n);
      EXPECT_EQ(begin, n);
    }
  }
}

// ---- misuse -------------------------------------------------------------------------------------

TEST(AllReduce, RefusesMisuse) {
  EXPECT_THROW(LocalTransports(0), Error);
  for (const CommOptions& bad :
       {options_of(0), options_of(-1), options_of(8, 0), options_of(8, -1)}) {
    EXPECT_THROW(Communicator(std::move(LocalTransports(1)[0]), bad), Error);
  }
  Communicator comm(std::move(LocalTransports(1)[0]), options_of(8));
  EXPECT_EQ(comm.rank(), 0);
  EXPECT_EQ(comm.size(), 1);
  const Layers x = {{1, 2, 3}};
  const Layers longer = {{1, 2, 3, 4}};
  const std::vector<double> doubles(3);
  const ReduceSpec spec;
  EXPECT_THROW(comm.AllReduce(views_of(x), {}, spec), Error);
  EXPECT_THROW(comm.AllReduce(views_of(x), views_of(longer), spec), Error);
  EXPECT_THROW(comm.AllReduce(std::array{testing::view_of(doubles)}, views_of(x), spec), Error);
  TensorView strided = testing::view_of(longer[0]);
  strided.shape[0] = 2;
  strided.stride[0] = 2;
  EXPECT_THROW(comm.AllReduce(std::array{strided}, std::array{strided}, spec), Error);
  ReduceSpec bad = spec;
  bad.loss_scale = 3;
  EXPECT_THROW(comm.AllReduce(views_of(x), views_of(x), bad), Error);
  bad = spec;
  bad.accumulator = Preset("h100-fp8");
  EXPECT_THROW(comm.AllReduce(views_of(x), views_of(x), bad), Error);
  bad = spec;
  bad.group_size = 2;
  EXPECT_THROW(comm.AllReduce(views_of(x), views_of(x), bad), Error);
  bad = spec;
  bad.accumulator.rounding.stream = 1;
  EXPECT_THROW(comm.AllReduce(views_of(x), views_of(x), bad), Error);
  bad = spec;
  bad.exchange = Exchange::gather;
  EXPECT_THROW(comm.Reduce(views_of(x), views_of(x), bad, 0), Error);
  EXPECT_THROW(comm.ReduceScatter(views_of(x), views_of(x), bad), Error);
  EXPECT_THROW(comm.Reduce(views_of(x), views_of(x), spec, 1), Error);
  EXPECT_THROW(comm.Reduce(views_of(x), views_of(x), spec, -1), Error);
  EXPECT_THROW(comm.AllGather(views_of(x), views_of(longer), kFp32, {}), Error);
  EXPECT_EQ(comm.broken(), "");
  EXPECT_EQ(x[0], (std::vector<float>{1, 2, 3}));
}

// ---- ranks that disagree ------------------------------------------------------------------------

/// What the last rank does otherwise than the others.
struct Otherwise {
  const char* name;
  std::function<void(ReduceSpec&, Layers&, CommOptions&)> change;
};

std::vector<Otherwise> disagreements() {
  using S = ReduceSpec;
  using O = CommOptions;
  return {
      {"a layer more", [](S&, Layers& x, O&) { x.emplace_back(4); }},
      {"a layer less", [](S&, Layers& x, O&) { x.pop_back(); }},
      {"a value more", [](S&, Layers& x, O&) { x[1].push_back(1); }},
      {"layers swapped", [](S&, Layers& x, O&) { std::swap(x[0], x[1]); }},
      {"format", [](S& s, Layers&, O&) { s.format = ParseFormat("e5m2"); }},
      {"rounding", [](S& s, Layers&, O&) { s.rounding.mode = Rounding::up; }},
      {"overflow", [](S& s, Layers&, O&) { s.rounding.overflow = Overflow::saturate; }},
      {"seed", [](S& s, Layers&, O&) { s.rounding.seed = 1; }},
      {"random bits", [](S& s, Layers&, O&) { s.rounding.random_bits = 8; }},
      {"accumulator's format", [](S& s, Layers&, O&) { s.accumulator.format = kFp32; }},
      {"scheme", [](S& s, Layers&, O&) { s.accumulator.scheme = Scheme::kahan; }},
      {"sum's rounding", [](S& s, Layers&, O&) { s.accumulator.rounding.mode = Rounding::down; }},
      {"sum's seed", [](S& s, Layers&, O&) { s.accumulator.rounding.seed = 5; }},
      {"result", [](S& s, Layers&, O&) { s.result = kFp32; }},
      {"order", [](S& s, Layers&, O&) { s.order = Order::tree; }},
      {"exchange", [](S& s, Layers&, O&) { s.exchange = Exchange::gather; }},
      {"groups", [](S& s, Layers&, O&) { s.group_size = 2; }},
      {"APS", [](S& s, Layers&, O&) { s.aps = Aps::on; }},
      {"loss scale", [](S& s, Layers&, O&) { s.loss_scale = 2; }},
      {"average", [](S& s, Layers&, O&) { s.average = true; }},
      {"step", [](S& s, Layers&, O&) { s.step = 9; }},
      {"chunk", [](S&, Layers&, O& o) { o.chunk = 51; }},
  };
}

/// All ranks have the same Mismatch, nothing is written, and the next call works.
void expect_mismatch(int world, const char* name,
                     const std::function<void(Communicator&, Layers& out)>& disagree,
                     const std::function<CommOptions(int)>& options) {
  SCOPED_TRACE(name);
  Transports transports = LocalTransports(world);
  std::vector<Fate> fates(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      Communicator comm(std::move(transports[static_cast<std::size_t>(r)]), options(r));
      Layers out;
      fates[static_cast<std::size_t>(r)] = fate_of([&] { disagree(comm, out); });
      for (const auto& layer : out) {
        for (const float x : layer) EXPECT_EQ(x, -12345.0F);
      }
      EXPECT_EQ(comm.broken(), "");
      EXPECT_EQ(fate_of([&] { comm.Barrier(); }).what, "");
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Fate& fate : fates) {
    EXPECT_EQ(fate.kind, Fate::Kind::mismatch) << fate;
    EXPECT_EQ(fate.what, fates[0].what);
  }
}

TEST(AllReduce, DisagreementsAreTheSameErrorEverywhere) {
  for (const int world : {2, 5}) {
    for (const Otherwise& other : disagreements()) {
      const auto plain = [&](int) { return options_of(50, 20); };
      const auto changed = [&](int r) {
        CommOptions options = plain(r);
        ReduceSpec spec;
        Layers x(4);
        x[1].resize(3);
        if (r == world - 1) other.change(spec, x, options);
        return options;
      };
      const auto disagree = [&](Communicator& comm, Layers& out) {
        ReduceSpec spec;
        spec.format = spec.accumulator.format = spec.result = ParseFormat("e4m3");
        Layers x = testing::random_ranks(1, {10, 130, 7}, 1)[0];
        CommOptions options;
        if (comm.rank() == world - 1) other.change(spec, x, options);
        out = blank(sizes_of(x));
        comm.AllReduce(views_of(x), views_of(out), spec);
      };
      expect_mismatch(world, other.name, disagree, changed);
    }
  }
}

TEST(AllReduce, OtherCallsDisagree) {
  const ReduceSpec spec;
  const Layers x = {{1, 2, 3, 4, 5, 6}};
  const auto plain = [](int) { return options_of(50, 20); };
  const auto reduce_to = [&](Communicator& comm, Layers& out, int root) {
    if (comm.rank() == root) out = blank({6});
    comm.Reduce(views_of(x), views_of(out), spec, root);
  };
  expect_mismatch(
      3, "root", [&](Communicator& c, Layers& out) { reduce_to(c, out, c.rank() == 2 ? 2 : 0); },
      plain);
  expect_mismatch(
      3, "AllReduce and Reduce",
      [&](Communicator& c, Layers& out) {
        if (c.rank() == 1) return reduce_to(c, out, 0);
        out = blank({6});
        c.AllReduce(views_of(x), views_of(out), spec);
      },
      plain);
  expect_mismatch(
      3, "AllReduce and ReduceScatter",
      [&](Communicator& c, Layers& out) {
        out = blank({c.rank() == 1 ? 2 : 6});
        if (c.rank() == 1) {
          c.ReduceScatter(views_of(x), views_of(out), spec);
        } else {
          c.AllReduce(views_of(x), views_of(out), spec);
        }
      },
      plain);
  expect_mismatch(
      3, "AllGather's format",
      [&](Communicator& c, Layers& out) {
        out = blank({18});
        c.AllGather(views_of(x), views_of(out), c.rank() == 2 ? ParseFormat("e4m3") : kFp32, {});
      },
      plain);
  expect_mismatch(
      3, "AllReduce and Barrier",
      [&](Communicator& c, Layers& out) {
        if (c.rank() == 0) return c.Barrier();
        out = blank({6});
        c.AllReduce(views_of(x), views_of(out), spec);
      },
      plain);
}

// ---- bytes that change on their way -------------------------------------------------------------

/// Which bit of which message to change.
struct Flip {
  std::int64_t message = 0;  ///< of those that arrive with bytes, by completion
  std::int64_t bit = 0;      ///< modulo the message's
  std::atomic<bool> done = false;
  std::atomic<std::int64_t> seen = 0;
};

class FlippingTransfer : public Transfer {
 public:
  FlippingTransfer(std::unique_ptr<Transfer> inner, std::vector<Incoming> in, Flip& flip)
      : inner_(std::move(inner)), in_(std::move(in)), flip_(flip) {}
  bool Poll() override {
    if (!inner_->Poll()) return false;
    for (const Incoming& message : in_) {
      if (message.bytes == 0 || flip_.seen++ != flip_.message) continue;
      const std::int64_t bit = flip_.bit % (8 * message.bytes);
      static_cast<std::uint8_t*>(message.data)[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
      flip_.done = true;
    }
    in_.clear();
    return true;
  }
  [[nodiscard]] std::vector<int> Waiting() const override { return inner_->Waiting(); }

 private:
  std::unique_ptr<Transfer> inner_;
  std::vector<Incoming> in_;
  Flip& flip_;
};

/// Changes one bit of what one rank receives.
class FlippingTransport : public Transport {
 public:
  FlippingTransport(std::unique_ptr<Transport> inner, Flip& flip)
      : inner_(std::move(inner)), flip_(flip) {}
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  [[nodiscard]] int ranks_on_host() const override { return inner_->ranks_on_host(); }
  std::unique_ptr<Transfer> Start(std::span<const Outgoing> out, std::span<const Incoming> in,
                                  int tag) override {
    return std::make_unique<FlippingTransfer>(inner_->Start(out, in, tag),
                                              std::vector<Incoming>(in.begin(), in.end()), flip_);
  }
  void RaiseAlarm() noexcept override { inner_->RaiseAlarm(); }
  [[nodiscard]] std::vector<bool> Alarms() override { return inner_->Alarms(); }
  std::unique_ptr<Transport> Subgroup(std::span<const int> ranks, double timeout) override {
    return inner_->Subgroup(ranks, timeout);
  }
  [[noreturn]] void Abort(const std::string& /*reason*/) noexcept override { std::abort(); }

 private:
  std::unique_ptr<Transport> inner_;
  Flip& flip_;
};

/// Rank 1 receives a changed message and says so; the others give up too, unless they were done.
/// False where there was no such message.
bool expect_corrupt(const ReduceSpec& spec, const Ranks& ranks, Flip& flip) {
  Transports transports = LocalTransports(static_cast<int>(ranks.size()));
  transports[1] = std::make_unique<FlippingTransport>(std::move(transports[1]), flip);
  const Ranks before = ranks;
  Ranks outs(ranks.size());
  const auto fates = on_ranks(std::move(transports), options_of(64, 1), [&](Communicator& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    const Layers& x = ranks[r];
    outs[r] = blank(sizes_of(x));
    try {
      comm.AllReduce(views_of(x), views_of(outs[r]), spec);
    } catch (...) {
      EXPECT_NE(comm.broken(), "");
      throw;
    }
  });
  EXPECT_EQ(ranks, before);
  if (!flip.done) {
    expect_well(fates);
    return false;
  }
  EXPECT_EQ(fates[1].kind, Fate::Kind::corrupt) << fates[1];
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (r == 1 || fates[r].kind == Fate::Kind::lost) continue;
    EXPECT_EQ(fates[r].kind, Fate::Kind::well) << fates[r];
    EXPECT_TRUE(same_layers(testing::virtual_reduce(spec, ranks), outs[r])) << "rank " << r;
  }
  return true;
}

TEST(AllReduce, ChangedBytesAreFound) {
  const Ranks ranks = testing::random_ranks(3, {70, 5}, 3);
  for (const Way& way :
       {Way{Order::sequential, Exchange::owner, 0}, Way{Order::tree, Exchange::gather, 0},
        Way{Order::ring, Exchange::ring, 0}, Way{Order::ring, Exchange::hierarchical, 2}}) {
    ReduceSpec spec = spec_of(way, 0);
    spec.format = spec.accumulator.format = spec.result = ParseFormat("e4m3");
    spec.aps = Aps::on;
    SCOPED_TRACE(describe(spec, 3));
    for (std::int64_t message = 0, bit = 1;; ++message, bit = bit * 37 % 1009) {
      Flip flip;
      flip.message = message;
      flip.bit = bit;
      SCOPED_TRACE("message " + std::to_string(message) + ", bit " + std::to_string(bit));
      if (!expect_corrupt(spec, ranks, flip)) {
        EXPECT_GE(message, 6);
        break;
      }
    }
  }
}

// ---- lost ranks ---------------------------------------------------------------------------------

struct Loss {
  Way way;
  Phase phase;
  int victim;
  std::int64_t chunk;
};

class Hooked {
 public:
  explicit Hooked(FaultHook hook) { SetFaultHook(std::move(hook)); }
  Hooked(const Hooked&) = delete;
  Hooked& operator=(const Hooked&) = delete;
  ~Hooked() { SetFaultHook({}); }
};

/// The victim's link drops as it enters the phase: the others name it, and work on without it.
void expect_loss(const Loss& loss, int world) {
  const Ranks ranks = testing::random_ranks(static_cast<std::size_t>(world), {5000, 9}, 3);
  ReduceSpec spec = spec_of(loss.way, 0);
  spec.format = spec.accumulator.format = spec.result = ParseFormat("e4m3");
  spec.aps = Aps::on;
  SCOPED_TRACE(describe(spec, ranks.size()) + ", rank " + std::to_string(loss.victim) +
               " lost in " + ToString(loss.phase) + " of chunk " + std::to_string(loss.chunk));
  std::atomic<int> fired = 0;
  const Hooked hook([&](Phase phase, std::int64_t chunk, Transport& transport) {
    if (phase != loss.phase || chunk != loss.chunk || transport.rank() != loss.victim ||
        transport.size() != world) {
      return;
    }
    ++fired;
    Break(transport);
  });
  Transports transports;
  for (auto& one : LocalTransports(world)) transports.push_back(Breakable(std::move(one)));
  std::vector<int> survivors;
  Ranks left;
  for (int r = 0; r < world; ++r) {
    if (r == loss.victim) continue;
    survivors.push_back(r);
    left.push_back(ranks[static_cast<std::size_t>(r)]);
  }
  const Layers expected = testing::virtual_reduce(spec, left);
  const auto start = std::chrono::steady_clock::now();
  std::atomic<double> longest = 0;
  const auto fates = on_ranks(std::move(transports), options_of(100, 0.5), [&](Communicator& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    Layers x = ranks[r];
    Layers out = blank(sizes_of(x));
    const Fate fate = fate_of([&] { comm.AllReduce(views_of(x), views_of(out), spec); });
    EXPECT_EQ(fate.kind, Fate::Kind::lost) << "rank " << r << ", " << fate;
    EXPECT_TRUE(same_layers(ranks[r], x));
    EXPECT_NE(comm.broken(), "");
    EXPECT_NE(fate_of([&] { comm.Barrier(); }).kind, Fate::Kind::well);
    if (comm.rank() == loss.victim) return;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    double before = longest;
    while (waited.count() > before && !longest.compare_exchange_weak(before, waited.count())) {
    }
    EXPECT_EQ(fate.lost, std::vector<int>{loss.victim}) << "rank " << r << ", " << fate;
    EXPECT_NE(fate.what.find(std::to_string(loss.victim)), std::string::npos) << fate;
    Communicator rest = comm.Subgroup(survivors);
    EXPECT_EQ(rest.size(), static_cast<int>(survivors.size()));
    rest.AllReduce(views_of(x), views_of(out), spec);
    EXPECT_TRUE(same_layers(expected, out)) << "rank " << r;
  });
  expect_well(fates);
  EXPECT_EQ(fired, 1);
  EXPECT_LT(longest, testing::kSanitized ? 20 : 4);
}

TEST(AllReduce, LostRanksAreNamed) {
  const Way owner{Order::sequential, Exchange::owner, 0};
  const Way gather{Order::tree, Exchange::gather, 2};
  const Way ring{Order::ring, Exchange::ring, 0};
  const Way groups{Order::ring, Exchange::hierarchical, 2};
  const std::vector<Loss> losses = {
      {owner, Phase::handshake, 0, 0},  {owner, Phase::exponents, 2, 0},
      {owner, Phase::exchange, 1, 0},   {owner, Phase::fold, 3, 0},
      {owner, Phase::gather, 0, 0},     {owner, Phase::exchange, 3, 2},
      {owner, Phase::gather, 2, 4},     {gather, Phase::handshake, 3, 0},
      {gather, Phase::exponents, 1, 0}, {gather, Phase::exchange, 0, 1},
      {gather, Phase::fold, 2, 3},      {ring, Phase::handshake, 2, 0},
      {ring, Phase::exponents, 0, 0},   {ring, Phase::exchange, 2, 1},
      {ring, Phase::fold, 1, 2},        {ring, Phase::gather, 1, 0},
      {groups, Phase::exponents, 3, 0}, {groups, Phase::exchange, 1, 0},
      {groups, Phase::exchange, 2, 1},  {groups, Phase::fold, 0, 1},
      {groups, Phase::gather, 0, 0},    {groups, Phase::gather, 3, 0}};
  for (std::size_t i = 0; i < losses.size(); i += testing::kSanitized ? 4 : 1) {
    const Loss& loss = losses[i];
    expect_loss(loss, 4);
  }
}

TEST(AllReduce, ARankThatNeverCalls) {
  std::atomic<bool> over = false;
  std::atomic<int> waiting = 3;
  const auto fates = on_ranks(4, options_of(100, 0.4), [&](Communicator& comm) {
    if (comm.rank() == 2) {
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    const Fate fate = fate_of([&] { comm.Barrier(); });
    EXPECT_EQ(fate.lost, std::vector<int>{2}) << fate;
    if (--waiting == 0) over = true;
  });
  expect_well(fates);
}

TEST(AllReduce, Subgroups) {
  const Ranks ranks = testing::random_ranks(6, {50, 3}, 3);
  const ReduceSpec spec = spec_of({Order::ring, Exchange::owner, 0}, 0);
  expect_well(on_ranks(6, options_of(20), [&](Communicator& comm) {
    const bool even = comm.rank() % 2 == 0;
    const std::array evens = {0, 2, 4};
    const std::array odds = {1, 3, 5};
    Communicator half = comm.Subgroup(even ? evens : odds);
    EXPECT_EQ(half.size(), 3);
    EXPECT_EQ(half.rank(), comm.rank() / 2);
    Ranks mine;
    for (const int r : even ? evens : odds) mine.push_back(ranks[static_cast<std::size_t>(r)]);
    Layers out = blank(sizes_of(mine[0]));
    half.AllReduce(views_of(ranks[static_cast<std::size_t>(comm.rank())]), views_of(out), spec);
    EXPECT_TRUE(same_layers(testing::virtual_reduce(spec, mine), out));
    comm.Barrier();
    const std::array without = {1 - comm.rank() % 2};
    EXPECT_THROW(static_cast<void>(comm.Subgroup(without)), Error);
    const std::array descending = {5, 4, 3, 2, 1, 0};
    EXPECT_THROW(static_cast<void>(comm.Subgroup(descending)), Error);
  }));
}

}  // namespace
}  // namespace cpd
