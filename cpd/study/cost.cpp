// SPDX-License-Identifier: Apache-2.0
#include "cpd/study/cost.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cpd/base/guarded.h"
#include "cpd/spec/error.h"
#include "cpd/study/dry_run.h"

namespace cpd {
namespace {

constexpr std::int64_t kOneChunk = std::int64_t{1} << 60;

/// The bytes of the longest message of each step of one transfer.
using Steps = std::vector<std::int64_t>;

/// The steps of all transfers, from the transfers of one rank. Where a rank sends and receives, as
/// to and from all others or around a ring, pieces rotate: in each step every piece is sent by some
/// rank, so that each step is as long as the longest piece. In a ring each step is a transfer, and
/// a rank has sent all pieces after one turn. Between a master and its members each step moves one
/// piece.
class Rotations {
 public:
  explicit Rotations(int slices) : turn_(std::max(slices - 1, 1)) {}

  void Add(const Moves& moves) {
    const bool is_hop = moves.out.size() == 1 && moves.in.size() == 1;
    const auto peers = is_hop ? std::pair(moves.out[0].peer, moves.in[0].peer) : std::pair(-1, -1);
    if (!is_hop || peers != peers_ || hops_ == turn_) EndTurn();
    transfers_.push_back(StepsOf(moves));
    peers_ = peers;
    hops_ += is_hop ? 1 : 0;
  }
  [[nodiscard]] std::vector<Steps> Take() {
    EndTurn();
    return std::move(transfers_);
  }

 private:
  static Steps StepsOf(const Moves& moves) {
    Steps steps;
    for (const auto* messages : {&moves.out, &moves.in}) {
      for (const Moves::Message& message : *messages) steps.push_back(message.bytes);
    }
    if (moves.out.empty() || moves.in.empty()) return steps;
    return Steps(std::max(moves.out.size(), moves.in.size()), std::ranges::max(steps));
  }

  /// Makes all hops since the last turn as long as the longest of them.
  void EndTurn() {
    std::int64_t longest = 0;
    const auto begin = transfers_.end() - hops_;
    for (auto hop = begin; hop != transfers_.end(); ++hop)
      longest = std::max(longest, hop->front());
    for (auto hop = begin; hop != transfers_.end(); ++hop) hop->front() = longest;
    hops_ = 0;
  }

  int turn_;
  std::vector<Steps> transfers_;
  std::pair<int, int> peers_;
  int hops_ = 0;
};

std::vector<Steps> StepsOf(const DryRun& run, int rank) {
  Rotations rotations(run.slices());
  run.Run(rank, kOneChunk, [&](const Moves& moves) { rotations.Add(moves); });
  return rotations.Take();
}

/// The steps of all ranks. A group's first rank takes part in all transfers of its members, and all
/// groups but the last have the size of the first.
std::vector<Steps> StepsOfAll(const DryRun& run) {
  const Reduction& reduction = run.reduction();
  if (!reduction.grouped()) return StepsOf(run, 0);
  const std::int64_t last = reduction.rounds().units - 1;
  std::vector<Steps> all = StepsOf(run, 0);
  if (reduction.group_size(last) == reduction.group_size(0)) return all;
  const std::vector<Steps> in_last = StepsOf(run, static_cast<int>(reduction.group_begin(last)));
  for (std::size_t t = 0; t < all.size(); ++t) {
    for (std::size_t i = 0; i < in_last[t].size(); ++i) {
      all[t][i] = std::max(all[t][i], in_last[t][i]);
    }
  }
  return all;
}

/// The most that a layer's largest magnitude is taken to be where it is not known.
constexpr float kUnknown = 0x1.fffffep95F;

void CheckLargest(std::span<const float> largest, std::size_t layers) {
  if (!largest.empty() && largest.size() != layers) {
    throw Error("there are " + std::to_string(layers) + " layers but " +
                std::to_string(largest.size()) + " largest magnitudes");
  }
  const auto wrong = std::ranges::find_if(largest, [](float value) { return value < 0; });
  if (wrong == largest.end()) return;
  throw Error("a largest magnitude must be at least 0, got " + std::to_string(*wrong));
}

/// Whether values of these layers are sent in binary32 (Reduction::LacksNan).
bool IsPlain(const Reduction& reduction, std::span<const float> largest) {
  std::vector<std::uint8_t> exponents;
  for (const float value : largest) {
    if (!std::isfinite(value)) return true;
    exponents.push_back(reduction.ExponentOf(value));
  }
  return reduction.MayMeetNan(exponents);
}

bool MayBePlain(const Reduction& reduction) {
  std::vector<std::uint8_t> exponents(reduction.ExponentOf(kUnknown));
  std::iota(exponents.begin(), exponents.end(), std::uint8_t{1});
  return reduction.MayMeetNan(exponents);
}

/// The ways in which values may be sent: packed, in binary32, or either.
std::vector<DryRun> WaysOf(const ReduceSpec& spec, int world, std::span<const std::int64_t> sizes,
                           const KnownLayers& known) {
  CheckLargest(known.largest, sizes.size());
  std::vector<DryRun> ways;
  ways.emplace_back(spec, world, sizes, known.rows);
  const Reduction& reduction = ways[0].reduction();
  if (!reduction.LacksNan()) return ways;
  const bool is_plain = IsPlain(reduction, known.largest);
  if (!is_plain && (!known.largest.empty() || !MayBePlain(reduction))) return ways;
  if (is_plain) ways.clear();
  ways.emplace_back(spec, world, sizes, known.rows, true);
  return ways;
}

Cost CostOf(const DryRun& run, int rank, std::int64_t chunk) {
  Cost cost;
  cost.steps = run.Run(rank, chunk, [&](const Moves& moves) {
    for (const Moves::Message& message : moves.out) cost.bytes_sent += message.bytes;
    for (const Moves::Message& message : moves.in) cost.bytes_received += message.bytes;
    cost.exact = cost.exact && !moves.is_most;
  });
  // No rank has more steps than the first, a master of a whole group.
  if (rank != 0) cost.steps = run.Run(0, kOneChunk, [](const Moves&) {});
  return cost;
}

/// The larger of both numbers of bytes, exact where they are equal.
Cost MostOf(const Cost& a, const Cost& b) {
  const bool equal = a.bytes_sent == b.bytes_sent && a.bytes_received == b.bytes_received;
  return {a.steps, std::max(a.bytes_sent, b.bytes_sent),
          std::max(a.bytes_received, b.bytes_received), a.exact && b.exact && equal};
}

double TimeOf(const DryRun& run, double alpha, double beta) {
  std::int64_t steps = 0;
  std::int64_t bytes = 0;
  for (const Steps& transfer : StepsOfAll(run)) {
    steps += static_cast<std::int64_t>(transfer.size());
    for (const std::int64_t longest : transfer) bytes += longest;
  }
  return Guarded(
      [&] { return static_cast<double>(steps) * alpha + static_cast<double>(bytes) * beta; });
}

}  // namespace

Cost CostOf(const ReduceSpec& spec, int world, int rank, std::span<const std::int64_t> sizes,
            std::int64_t chunk, const KnownLayers& known) {
  const std::vector<DryRun> ways = WaysOf(spec, world, sizes, known);
  if (rank < 0 || rank >= world) {
    throw Error("rank must be 0…" + std::to_string(world - 1) + ", got " + std::to_string(rank));
  }
  if (chunk < 1) throw Error("chunk must be at least 1, got " + std::to_string(chunk));
  Cost cost = CostOf(ways.front(), rank, chunk);
  return ways.size() == 1 ? cost : MostOf(cost, CostOf(ways.back(), rank, chunk));
}

double TimeOf(const ReduceSpec& spec, int world, std::span<const std::int64_t> sizes, double alpha,
              double beta, const KnownLayers& known) {
  const std::vector<DryRun> ways = WaysOf(spec, world, sizes, known);
  if (!(alpha >= 0 && beta >= 0 && std::isfinite(alpha) && std::isfinite(beta))) {
    throw Error("alpha and beta must be finite and at least 0");
  }
  return Guarded([&] {
    double most = 0;
    for (const DryRun& run : ways) most = std::max(most, TimeOf(run, alpha, beta));
    return most;
  });
}

}  // namespace cpd
