// SPDX-License-Identifier: Apache-2.0
//
// Ranks whose link drops, or that never call: the others name them, and work on without them.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/faulty_transports.h"
#include "tests/testing/ranks.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/ways.h"

namespace cpd {
namespace {

using testing::blank;
using testing::describe;
using testing::expect_well;
using testing::Fate;
using testing::fate_of;
using testing::Hooked;
using testing::Layers;
using testing::on_ranks;
using testing::options_of;
using testing::Ranks;
using testing::same_layers;
using testing::sizes_of;
using testing::spec_of;
using testing::Transports;
using testing::views_of;
using testing::Way;

struct Loss {
  Way way;
  Phase phase;
  int victim;
  std::int64_t chunk;
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
  for (const Loss& loss : testing::few(losses, 2)) expect_loss(loss, 4);
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

TEST(BrokenCommunicators, MayBeAskedDuringACall) {  // a race that the thread sanitizer sees
  for (int round = 0; round < 20; ++round) {
    CommOptions options;
    options.timeout = 0.05;
    Communicator comm(std::move(LocalTransports(2)[0]), options);
    std::atomic<bool> over = false;
    std::thread asking([&] {
      while (!over) {
        const std::string why = comm.broken();
        EXPECT_TRUE(why.empty() || why.starts_with("rank 1 of 2 lost")) << why;
      }
    });
    EXPECT_THROW(comm.Barrier(), RankLost);
    over = true;
    asking.join();
    EXPECT_TRUE(comm.broken().starts_with("rank 1 of 2 lost"));
  }
}

}  // namespace
}  // namespace cpd
