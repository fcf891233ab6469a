// SPDX-License-Identifier: Apache-2.0
//
// Tests that the dry runs of all ranks agree: each message that one rank sends is received by
// another rank, and the times of all steps add up to the time that the cost model computes from
// only one or two ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "cpd/spec/error.h"
#include "cpd/study/cost.h"
#include "cpd/study/dry_run.h"

namespace cpd {
namespace {

using Sizes = std::vector<std::int64_t>;

constexpr std::int64_t kOneChunk = std::int64_t{1} << 60;

/// The messages that each rank sends and receives in one transfer of an exchange.
struct Transfer {
  std::vector<Moves> ranks;

  [[nodiscard]] const Moves& operator[](int rank) const {
    return ranks[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] int world() const { return static_cast<int>(ranks.size()); }
};

std::vector<Transfer> transfers_of(const DryRun& run, int world, std::int64_t chunk) {
  std::vector<Transfer> transfers;
  for (int rank = 0; rank < world; ++rank) {
    std::size_t t = 0;
    run.Run(rank, chunk, [&](const Moves& moves) {
      if (rank == 0) transfers.emplace_back();
      ASSERT_LT(t, transfers.size());
      transfers[t++].ranks.push_back(moves);
    });
    EXPECT_EQ(t, transfers.size()) << "transfers of rank " << rank;
  }
  return transfers;
}

void expect_met(const Transfer& transfer) {
  std::map<std::pair<int, int>, std::int64_t> sent;
  std::map<std::pair<int, int>, std::int64_t> taken;
  for (int rank = 0; rank < transfer.world(); ++rank) {
    for (const Moves::Message& message : transfer[rank].out) {
      EXPECT_TRUE(sent.emplace(std::pair(rank, message.peer), message.bytes).second);
      EXPECT_NE(message.peer, rank);
    }
    for (const Moves::Message& message : transfer[rank].in) {
      EXPECT_TRUE(taken.emplace(std::pair(message.peer, rank), message.bytes).second);
    }
  }
  EXPECT_EQ(sent, taken);
}

std::size_t place_of(const std::vector<Moves::Message>& messages, int peer) {
  return static_cast<std::size_t>(std::ranges::find(messages, peer, &Moves::Message::peer) -
                                  messages.begin());
}

/// Returns the step of an exchange in which rank `from` sends a message to rank `to`. A rank that
/// also receives messages sends to the nearest following rank first. A rank that only sends (a
/// master) serves one member after the other.
std::size_t step_of(const Transfer& transfer, int from, int to) {
  const Moves& moves = transfer[from];
  if (moves.in.empty()) return std::max(place_of(moves.out, to), place_of(transfer[to].in, from));
  const auto distance = [&](int peer) {
    return (peer - from + transfer.world()) % transfer.world();
  };
  return static_cast<std::size_t>(std::ranges::count_if(
      moves.out, [&](const Moves::Message& other) { return distance(other.peer) < distance(to); }));
}

/// Returns the longest message of each step. A rank sends at most one message and receives at most
/// one in a step.
std::vector<std::int64_t> steps_of(const Transfer& transfer) {
  std::vector<std::int64_t> longest;
  std::set<std::pair<std::size_t, int>> sends;  // (step, rank)
  std::set<std::pair<std::size_t, int>> takes;
  for (int from = 0; from < transfer.world(); ++from) {
    for (const auto& [to, bytes] : transfer[from].out) {
      const std::size_t step = step_of(transfer, from, to);
      longest.resize(std::max(longest.size(), step + 1));
      longest[step] = std::max(longest[step], bytes);
      EXPECT_TRUE(sends.emplace(step, from).second);
      EXPECT_TRUE(takes.emplace(step, to).second);
    }
  }
  return longest;
}

double time_of(const std::vector<Transfer>& transfers, double alpha, double beta) {
  double seconds = 0;
  for (const Transfer& transfer : transfers) {
    for (const std::int64_t bytes : steps_of(transfer)) {
      seconds += alpha + beta * static_cast<double>(bytes);
    }
  }
  return seconds;
}

Cost cost_of(const std::vector<Transfer>& transfers, int rank) {
  Cost cost;
  for (const Transfer& transfer : transfers) {
    for (const auto& message : transfer[rank].out) cost.bytes_sent += message.bytes;
    for (const auto& message : transfer[rank].in) cost.bytes_received += message.bytes;
  }
  return cost;
}

void expect_simulated(const Reduce& spec, int world, const Sizes& sizes) {
  SCOPED_TRACE(ToString(spec.exchange) + ", W = " + std::to_string(world) + ", groups of " +
               std::to_string(spec.group_size) + ", " + ToString(spec.format) + " -> " +
               ToString(spec.accumulator) + " -> " + ToString(spec.result));
  const std::vector<float> zeros(sizes.size());
  const KnownLayers small{.largest = zeros};  // so that nothing overflows
  const DryRun run(spec, world, sizes);
  for (const std::int64_t chunk : {std::int64_t{300}, kOneChunk}) {
    const std::vector<Transfer> transfers = transfers_of(run, world, chunk);
    for (const Transfer& transfer : transfers) expect_met(transfer);
    for (int rank = 0; rank < world; ++rank) {
      const Cost cost = CostOf(spec, world, rank, sizes, chunk, small);
      const Cost moved = cost_of(transfers, rank);
      EXPECT_EQ(cost.bytes_sent, moved.bytes_sent) << rank;
      EXPECT_EQ(cost.bytes_received, moved.bytes_received) << rank;
      EXPECT_EQ(cost.steps, run.Run(0, chunk, [](const Moves&) {})) << rank;
      EXPECT_LE(run.Run(rank, chunk, [](const Moves&) {}), cost.steps) << rank;
    }
  }
  const std::vector<Transfer> whole = transfers_of(run, world, kOneChunk);
  EXPECT_NEAR(TimeOf(spec, world, sizes, 3, 0.25, small), time_of(whole, 3, 0.25), 1e-9);
  EXPECT_NEAR(time_of(whole, 1, 0), static_cast<double>(CostOf(spec, world, 0, sizes, 1).steps),
              1e-9);
}

std::vector<Reduce> specs_for(int world) {
  std::vector<Reduce> specs;
  const auto add = [&](Exchange exchange, Order order, int group_size) {
    Reduce spec;
    spec.exchange = exchange;
    spec.order = order;
    spec.group_size = group_size;
    specs.push_back(spec);
  };
  add(Exchange::ring, Order::ring, 0);
  for (int group_size = 1; group_size <= world; ++group_size) {
    add(Exchange::hierarchical, Order::ring, group_size);
  }
  for (const Order order : {Order::sequential, Order::ring, Order::tree}) {
    for (const int group_size : {0, 1, (world + 1) / 2, world}) {
      add(Exchange::owner, order, group_size);
      add(Exchange::gather, order, group_size);
    }
  }
  return specs;
}

TEST(DryRun, TimeIsThatOfAllRanks) {
  for (const int world : {1, 2, 3, 5, 8, 13}) {
    for (Reduce spec : specs_for(world)) {
      for (const Sizes& sizes :
           {Sizes{1}, Sizes{0, 5, 1031}, Sizes{9, 2, 700, 3, 0, 77, 5, 5, 1}}) {
        spec.format = ParseFormat("e2m1");
        spec.accumulator.format = ParseFormat("e5m7");
        spec.accumulator.scheme = Scheme::sequential;
        spec.result = ParseFormat("e3m2");
        expect_simulated(spec, world, sizes);
        if (spec.order == Order::tree) continue;
        spec.format = ParseFormat("e5m5");
        spec.accumulator.scheme = Scheme::kahan;
        spec.result = ParseFormat("e1m1");
        expect_simulated(spec, world, sizes);
      }
    }
  }
}

TEST(DryRun, OfNoValues) {
  for (const Sizes& sizes : {Sizes{}, Sizes{0, 0}}) {
    const DryRun run({}, 3, sizes);
    EXPECT_EQ(run.Run(0, 1, [](const Moves&) { ADD_FAILURE(); }), 0);
  }
}

TEST(DryRun, SaysWhatIsSentAndWhatIsReceived) {
  // Rank 0 sends its values of rank 1's slice, and receives rank 1's values of its own slice.
  constexpr std::int64_t kValues = 3;
  const DryRun run({}, 2, Sizes{kValues});
  std::vector<Moves> all;
  run.Run(0, kOneChunk, [&](const Moves& moves) { all.push_back(moves); });
  ASSERT_EQ(all.size(), 2U);
  const std::int64_t own = SliceBegin(kValues, 2, 1);
  const std::int64_t size = sizeof(float);
  EXPECT_EQ(all[0].out.at(0).bytes, (kValues - own) * size);
  EXPECT_EQ(all[0].in.at(0).bytes, own * size);
  EXPECT_EQ(all[1].out.at(0).bytes, own * size);
  EXPECT_EQ(all[1].in.at(0).bytes, (kValues - own) * size);
}

TEST(DryRun, RefusesMisuse) {
  EXPECT_THROW(DryRun({}, 0, Sizes{1}), Error);
  EXPECT_THROW(DryRun({}, 2, Sizes{1, -1}), Error);
  EXPECT_THROW(DryRun({}, 2, Sizes{std::int64_t{1} << 58}), Error);
  EXPECT_THROW(DryRun({}, 1024, Sizes{std::int64_t{1} << 50}), Error) << "over all ranks";
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(DryRun({}, 2, Sizes{kMost, kMost, 3}), Error) << "the sum has wrapped to 1";
}

}  // namespace
}  // namespace cpd
