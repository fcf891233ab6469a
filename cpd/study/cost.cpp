// SPDX-License-Identifier: Apache-2.0
#include "cpd/study/cost.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cpd/base/guarded.h"
#include "cpd/spec/error.h"
#include "cpd/study/dry_run.h"

namespace cpd {
namespace {

constexpr std::int64_t kOneChunk = std::int64_t{1} << 60;

/// One step of a transfer, with the size of its longest message.
struct Step {
  std::int64_t bytes = 0;
  int peer = 0;          ///< of the rank that makes the transfer
  bool is_star = false;  ///< between masters and one member each, not of all ranks at once
};
using Steps = std::vector<Step>;

/// Computes the steps of all ranks' transfers from the transfers of one rank. If a rank exchanges
/// slices with all other ranks, or around a ring, the ranks send different slices in each step.
/// Some rank sends the longest slice, so each step is as long as the longest slice. In a ring each
/// transfer is one step, and after one turn a rank has sent all slices. Between a master and its
/// members each step moves one message.
class Rotations {
 public:
  explicit Rotations(int slices) : turn_(std::max(slices - 1, 1)) {}

  void Add(const Moves& moves) {
    const bool is_hop = moves.out.size() == 1 && moves.in.size() == 1;
    if (!is_hop || hops_ == turn_) EndTurn();
    transfers_.push_back(StepsOf(moves));
    hops_ += is_hop ? 1 : 0;
  }
  [[nodiscard]] std::vector<Steps> Take() {
    EndTurn();
    return std::move(transfers_);
  }

 private:
  static Steps StepsOf(const Moves& moves) {
    const bool is_star = moves.out.empty() || moves.in.empty();
    Steps steps;
    for (const Moves::Message& message :
         moves.in.size() > moves.out.size() ? moves.in : moves.out) {
      steps.push_back({message.bytes, message.peer, is_star});
    }
    if (is_star) return steps;
    std::int64_t longest = 0;
    for (const auto* messages : {&moves.out, &moves.in}) {
      for (const Moves::Message& message : *messages) longest = std::max(longest, message.bytes);
    }
    for (Step& step : steps) step.bytes = longest;
    return steps;
  }

  /// Ends a turn of a ring. Sets the size of each hop (transfer to the next rank) in the turn to
  /// the size of the longest hop.
  void EndTurn() {
    std::int64_t longest = 0;
    const auto begin = transfers_.end() - hops_;
    for (auto hop = begin; hop != transfers_.end(); ++hop)
      longest = std::max(longest, hop->front().bytes);
    for (auto hop = begin; hop != transfers_.end(); ++hop) hop->front().bytes = longest;
    hops_ = 0;
  }

  int turn_;
  std::vector<Steps> transfers_;
  int hops_ = 0;
};

std::vector<Steps> StepsOf(const DryRun& run, int rank) {
  Rotations rotations(run.slices());
  run.Run(rank, kOneChunk, [&](const Moves& moves) { rotations.Add(moves); });
  return rotations.Take();
}

/// Returns the steps of an exchange, each with the longest message of any rank. A group's first
/// rank takes part in all transfers of its members. All groups but the last have the size of the
/// first, so the first and the last group suffice.
std::vector<Steps> StepsOfAll(const DryRun& run) {
  const Reduction& reduction = run.reduction();
  if (!reduction.grouped()) return StepsOf(run, 0);
  const std::int64_t last = reduction.rounds().units - 1;
  std::vector<Steps> all = StepsOf(run, 0);
  if (reduction.group_size(last) == reduction.group_size(0)) return all;
  const std::vector<Steps> in_last = StepsOf(run, static_cast<int>(reduction.group_begin(last)));
  for (std::size_t t = 0; t < all.size(); ++t) {
    for (std::size_t i = 0; i < in_last[t].size(); ++i) {
      all[t][i].bytes = std::max(all[t][i].bytes, in_last[t][i].bytes);
    }
  }
  return all;
}

/// The largest message counts of any host in one step. `across` counts messages that leave or reach
/// a host; `within` counts messages between ranks of one host.
struct Crossings {
  std::int64_t across = 0, within = 0;
};

/// The placement of ranks on hosts (rank r is on host r / per_host) and the message counts of
/// steps.
class Hosts {
 public:
  Hosts(const Reduction& reduction, std::int64_t world, std::int64_t per_host)
      : world_(world),
        per_host_(per_host),
        group_(reduction.spec().exchange == Exchange::hierarchical && reduction.grouped()
                   ? reduction.group_size(0)
                   : world) {}
  /// Constructs the placement of `world` ranks, for steps in which all ranks form one group.
  Hosts(std::int64_t world, std::int64_t per_host)
      : world_(world), per_host_(per_host), group_(world) {}

  /// Returns the message counts of one step of rank 0, including the messages of all other ranks
  /// that take part in the step.
  Crossings Of(const Step& step) {
    if (step.peer >= group_) return Counted(masters_, step.peer, [&] { return OfMasters(); });
    if (step.is_star) return Counted(stars_, step.peer, [&] { return OfStar(step.peer); });
    return Counted(rotations_, step.peer, [&] { return OfRotation(step.peer); });
  }

 private:
  using Known = std::map<int, Crossings>;

  template <typename Count>
  static Crossings Counted(Known& known, int peer, const Count& count) {
    const auto found = known.find(peer);
    return found != known.end() ? found->second : known.emplace(peer, count()).first->second;
  }

  /// Counts the messages of a step in which every rank sends to the rank `by` ranks later in its
  /// group, modulo the group's size. Without groups, all ranks are one group.
  [[nodiscard]] Crossings OfRotation(std::int64_t by) const {
    if (group_ == world_ && per_host_ >= world_) return {0, world_};
    if (world_ % group_ == 0 && world_ >= per_host_ && per_host_ % group_ == 0) {
      return {0, per_host_};
    }
    if (world_ % group_ == 0 && (group_ == world_ || group_ % per_host_ == 0)) {
      // Hosts with per_host ranks have the most messages. (The last host may have fewer ranks.)
      const std::int64_t stay = std::max<std::int64_t>(per_host_ - by, 0) +
                                std::max<std::int64_t>(per_host_ - (group_ - by), 0);
      return {per_host_ - stay, stay};
    }
    Count count(*this);
    for (std::int64_t rank = 0; rank < world_; ++rank) {
      const std::int64_t first = rank / group_ * group_;
      const std::int64_t size = std::min(group_, world_ - first);
      if (by < size) count.Add(rank, first + (rank - first + by) % size);
    }
    return count.most();
  }
  /// Counts the messages between each master and member number `member` of its group.
  [[nodiscard]] Crossings OfStar(std::int64_t member) const {
    Count count(*this);
    for (std::int64_t first = 0; first + member < world_; first += group_) {
      count.Add(first + member, first);
    }
    return count.most();
  }
  /// Counts the messages of a step in which each master sends to the next master.
  [[nodiscard]] Crossings OfMasters() const {
    Count count(*this);
    for (std::int64_t first = 0; first < world_; first += group_) {
      count.Add(first, first + group_ < world_ ? first + group_ : 0);
    }
    return count.most();
  }

  /// Counts the messages of an all-reduce's step that leave, reach or stay within each host.
  class Count {
   public:
    explicit Count(const Hosts& hosts)
        : per_host_(hosts.per_host_),
          sent_(static_cast<std::size_t>((hosts.world_ - 1) / per_host_ + 1)),
          received_(sent_.size()),
          stayed_(sent_.size()) {}

    void Add(std::int64_t from, std::int64_t to) {
      const auto source = static_cast<std::size_t>(from / per_host_);
      const auto target = static_cast<std::size_t>(to / per_host_);
      if (source == target) {
        ++stayed_[source];
      } else {
        ++sent_[source];
        ++received_[target];
      }
    }
    [[nodiscard]] Crossings most() const {
      return {std::max(std::ranges::max(sent_), std::ranges::max(received_)),
              std::ranges::max(stayed_)};
    }

   private:
    std::int64_t per_host_;
    std::vector<std::int64_t> sent_, received_, stayed_;
  };

  std::int64_t world_, per_host_, group_;
  Known rotations_, stars_, masters_;
};

/// The value used for a layer's largest magnitude if the caller does not know it: the largest
/// binary32 number below 2^96.
constexpr float kUnknown = 0x1.fffffep95F;

void CheckHost(std::int64_t per_host) {
  if (per_host >= 1) return;
  throw Error("ranks of a host must be at least 1, got " + std::to_string(per_host));
}

void CheckLargest(std::span<const float> largest, std::size_t layers) {
  if (!largest.empty() && largest.size() != layers) {
    throw Error("there are " + std::to_string(layers) + " tensors but " +
                std::to_string(largest.size()) + " largest magnitudes");
  }
  const auto wrong = std::ranges::find_if(largest, [](float value) { return value < 0; });
  if (wrong == largest.end()) return;
  throw Error("a largest magnitude must be at least 0, got " + std::to_string(*wrong));
}

/// Returns whether all values are sent in binary32, given the layers' largest magnitudes. The
/// format must lack a code for NaN (Reduction::LacksNan).
bool IsPlain(const Reduction& reduction, std::span<const float> largest) {
  const bool finite = std::ranges::all_of(largest, [](float x) { return std::isfinite(x); });
  return !finite || reduction.MayMeetNan(largest);
}

bool MayBePlain(const Reduction& reduction) {
  // The largest magnitudes are unknown, so tests whether the largest possible magnitude may give
  // NaN. With APS, every layer is scaled to the same binade, so only the significand of its largest
  // magnitude has an effect. So with APS, also tests 256 significands and the binary32 numbers next
  // to them.
  std::vector<float> largest{kUnknown};
  for (int k = 0; k < 256 && reduction.spec().aps != Aps::off; ++k) {
    const float x = 1 + static_cast<float>(k) / 256;
    largest.insert(largest.end(), {x, std::nextafter(x, 2.0F), std::nextafter(x, 0.0F)});
  }
  return reduction.MayMeetNan(largest);
}

/// Returns a dry run for each form in which values may be sent: packed, in binary32, or both forms
/// if the form depends on unknown values.
std::vector<DryRun> WaysOf(const Reduce& spec, int world, std::span<const std::int64_t> sizes,
                           const KnownLayers& known) {
  CheckLargest(known.largest, sizes.size());
  std::vector<DryRun> ways;
  const TensorOptions layers{.numbers = known.numbers, .rows = known.rows};
  ways.emplace_back(spec, world, sizes, layers);
  const Reduction& reduction = ways[0].reduction();
  if (!reduction.LacksNan()) return ways;
  const bool is_plain = IsPlain(reduction, known.largest);
  if (!is_plain && (!known.largest.empty() || !MayBePlain(reduction))) return ways;
  if (is_plain) ways.clear();
  ways.emplace_back(spec, world, sizes, layers, true);
  return ways;
}

Cost CostOf(const DryRun& run, int rank, std::int64_t chunk) {
  Cost cost;
  cost.steps = run.Run(rank, chunk, [&](const Moves& moves) {
    for (const Moves::Message& message : moves.out) cost.bytes_sent += message.bytes;
    for (const Moves::Message& message : moves.in) cost.bytes_received += message.bytes;
    cost.exact = cost.exact && !moves.is_most;
  });
  // cost.steps is the number of steps of rank 0. No rank has more, because rank 0 is the master of
  // a group of full size.
  if (rank != 0) cost.steps = run.Run(0, kOneChunk, [](const Moves&) {});
  return cost;
}

/// Returns the larger bytes_sent and the larger bytes_received of two costs. The result is exact if
/// both costs are exact and have equal bytes.
Cost MostOf(const Cost& a, const Cost& b) {
  const bool equal = a.bytes_sent == b.bytes_sent && a.bytes_received == b.bytes_received;
  return {a.steps, std::max(a.bytes_sent, b.bytes_sent),
          std::max(a.bytes_received, b.bytes_received), a.exact && b.exact && equal};
}

std::vector<Round> RoundsOf(std::span<const Steps> transfers, Hosts hosts) {
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::int64_t> counts;
  for (const Steps& transfer : transfers) {
    for (const Step& step : transfer) {
      const auto [across, within] = hosts.Of(step);
      ++counts[{step.bytes, across, within}];
    }
  }
  std::vector<Round> rounds;
  for (const auto& [key, steps] : counts) {
    const auto [bytes, across, within] = key;
    rounds.push_back({steps, bytes, across, within});
  }
  return rounds;
}

double TimeOf(const DryRun& run, double alpha, double beta) {
  std::int64_t steps = 0;
  std::int64_t bytes = 0;
  for (const Steps& transfer : StepsOfAll(run)) {
    steps += static_cast<std::int64_t>(transfer.size());
    for (const Step& step : transfer) bytes += step.bytes;
  }
  return Guarded(
      [&] { return static_cast<double>(steps) * alpha + static_cast<double>(bytes) * beta; });
}

}  // namespace

Cost CostOf(const Reduce& spec, int world, int rank, std::span<const std::int64_t> sizes,
            std::int64_t chunk, const KnownLayers& known) {
  const std::vector<DryRun> ways = WaysOf(spec, world, sizes, known);
  if (rank < 0 || rank >= world) {
    throw Error("rank must be 0…" + std::to_string(world - 1) + ", got " + std::to_string(rank));
  }
  if (chunk < 1) throw Error("chunk must be at least 1, got " + std::to_string(chunk));
  Cost cost = CostOf(ways.front(), rank, chunk);
  return ways.size() == 1 ? cost : MostOf(cost, CostOf(ways.back(), rank, chunk));
}

std::vector<Round> RoundsOf(const Reduce& spec, int world, std::span<const std::int64_t> sizes,
                            std::int64_t per_host, const KnownLayers& known) {
  const std::vector<DryRun> ways = WaysOf(spec, world, sizes, known);
  CheckHost(per_host);
  return Guarded([&] {
    std::vector<Round> most;
    std::int64_t most_bytes = -1;
    for (const DryRun& run : ways) {
      std::int64_t bytes = 0;
      std::vector<Round> rounds =
          RoundsOf(StepsOfAll(run), Hosts(run.reduction(), world, per_host));
      for (const Round& round : rounds) bytes += round.steps * round.bytes;
      if (bytes > most_bytes) most = std::move(rounds);
      most_bytes = std::max(most_bytes, bytes);
    }
    return most;
  });
}

std::vector<Round> AgreementOf(const Reduce& spec, int world, std::span<const std::int64_t> sizes,
                               std::int64_t per_host, const KnownLayers& known) {
  CheckHost(per_host);
  const Reduction reduction(spec, world, sizes, {.numbers = known.numbers, .rows = known.rows});
  const auto layers = static_cast<std::int64_t>(sizes.size());
  std::vector<std::int64_t> messages;  // bytes of what is agreed on, one after the other
  if (reduction.wants_largest()) messages.push_back(4 * (layers + 1));
  if (reduction.measured() == Measured::shared) messages.push_back(4 * layers);
  std::vector<Steps> transfers;
  for (const std::int64_t bytes : messages) {
    for (int distance = 1; distance < world && layers > 0; distance *= 2) {
      transfers.push_back({{.bytes = bytes, .peer = distance}});
    }
  }
  return RoundsOf(transfers, Hosts(world, per_host));
}

double TimeOf(const Reduce& spec, int world, std::span<const std::int64_t> sizes, double alpha,
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
