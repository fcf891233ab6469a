// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/engine/exchanges.h"

#include <algorithm>
#include <memory>

namespace cpd {
namespace {

std::size_t Index(std::int64_t i) { return static_cast<std::size_t>(i); }

Part Joined(const std::vector<Part>& parts) {
  Part all;
  for (const Part& part : parts) all.Add(part);
  return all;
}

/// Returns the part (a list of ranges of layers), cut into `pieces` parts of nearly equal length.
std::vector<Part> Pieces(const Part& part, std::int64_t pieces) {
  std::vector<Part> cut;
  cut.reserve(Index(pieces));
  for (std::int64_t s = 0; s < pieces; ++s) {
    cut.push_back(
        part.Cut(SliceBegin(part.count, pieces, s), SliceBegin(part.count, pieces, s + 1)));
  }
  return cut;
}

/// Returns the content of a message that holds the sum across ranks (or groups of ranks) after term
/// k: results after the last term, otherwise running sums.
Content SumOf(std::int64_t k, std::int64_t units) {
  return k + 1 == units ? Content::results : Content::running_sums;
}

}  // namespace

int Exchanges::Slices() const {
  switch (ops_.reduction().spec().exchange) {
    case Exchange::gather:
      return 1;
    case Exchange::hierarchical:
      return ops_.reduction().grouped() ? static_cast<int>(ops_.reduction().rounds().units) : 1;
    default:
      return size();
  }
}

Task Exchanges::Run(std::int64_t chunk, std::vector<Part> parts) {
  switch (ops_.reduction().spec().exchange) {
    case Exchange::gather:
      return Gather({chunk, 0}, std::move(parts[0]));
    case Exchange::ring:
      return Ring({chunk, 0}, std::move(parts));
    case Exchange::hierarchical:
      return Hierarchical({chunk, 0}, std::move(parts));
    default:
      return Owner({chunk, 0}, std::move(parts));
  }
}

void Exchanges::Enter(Phase phase, const Chunk& chunk) { link_.Enter(phase, chunk.number); }

Pending Exchanges::Start(Phase phase, Chunk& chunk, std::vector<Addressed> out,
                         std::vector<Addressed> in) {
  chunk.steps += static_cast<std::int64_t>(std::max(out.size(), in.size()));
  most_steps_ = std::max(most_steps_, chunk.steps);
  return link_.Start(phase, std::move(out), std::move(in));
}

Task Exchanges::Announce(Phase phase, Content content, const std::vector<Addressed>& out,
                         const std::vector<Addressed>& in) {
  if (ops_.is_fixed(content)) co_return;
  Pending sizes = link_.StartSizes(phase, out, in);
  co_await sizes;
  link_.TakeSizes(sizes, in);
}

/// The owner of a slice receives contributions from all ranks, adds them, and sends the result to
/// all ranks, to the root, or to no rank (reduce-scatter).
Task Exchanges::Owner(Chunk chunk, std::vector<Part> parts) {
  Enter(Phase::exchange, chunk);
  const Part& mine = parts[Index(rank())];
  const SharedMessage result = Take(Content::results, mine);
  {
    std::vector<Addressed> out;
    std::vector<Addressed> in;
    std::vector<SharedMessage> from(Index(size()));
    for (int step = 1; step < size(); ++step) {
      const int to = (rank() + step) % size();
      const int source = (rank() + size() - step) % size();
      out.push_back({to, Take(Content::contributions, parts[Index(to)])});
      ops_.Pack(parts[Index(to)], *out.back().message);
      from[Index(source)] = Take(Content::contributions, mine);
      in.push_back({source, from[Index(source)]});
    }
    co_await Announce(Phase::exchange, Content::contributions, out, in);
    Pending scatter = Start(Phase::exchange, chunk, std::move(out), std::move(in));
    co_await scatter;
    Enter(Phase::fold, chunk);
    ops_.Fold(mine, from, *result);
  }

  Enter(Phase::gather, chunk);
  const bool takes = delivery_ == Delivery::to_all || rank() == root_;
  std::vector<Addressed> out;
  std::vector<Addressed> in;
  std::vector<SharedMessage> results(Index(size()));
  for (int step = 1; step < size() && delivery_ != Delivery::scattered; ++step) {
    const int to = (rank() + step) % size();
    const int source = (rank() + size() - step) % size();
    if (delivery_ == Delivery::to_all || to == root_) out.push_back({to, result});
    if (!takes) continue;
    results[Index(source)] = Take(Content::results, parts[Index(source)]);
    in.push_back({source, results[Index(source)]});
  }
  co_await Announce(Phase::gather, Content::results, out, in);
  Pending gather = Start(Phase::gather, chunk, std::move(out), std::move(in));
  if (takes || delivery_ == Delivery::scattered) ops_.Unpack(mine, *result);
  co_await gather;
  for (int source = 0; source < size(); ++source) {
    if (results[Index(source)] == nullptr) continue;
    ops_.Unpack(parts[Index(source)], *results[Index(source)]);
  }
}

/// Every rank receives all contributions and adds them.
Task Exchanges::Gather(Chunk chunk, Part part) {
  Enter(Phase::exchange, chunk);
  const SharedMessage mine = Take(Content::contributions, part);
  ops_.Pack(part, *mine);
  std::vector<Addressed> out;
  std::vector<Addressed> in;
  std::vector<SharedMessage> from(Index(size()));
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() + size() - step) % size();
    from[Index(source)] = Take(Content::contributions, part);
    out.push_back({(rank() + step) % size(), mine});
    in.push_back({source, from[Index(source)]});
  }
  from[Index(rank())] = mine;
  co_await Announce(Phase::exchange, Content::contributions, out, in);
  Pending exchange = Start(Phase::exchange, chunk, std::move(out), std::move(in));
  co_await exchange;
  Enter(Phase::fold, chunk);
  const SharedMessage result = Take(Content::results, part);
  ops_.Fold(part, from, *result);
  Enter(Phase::gather, chunk);
  ops_.Unpack(part, *result);
}

/// The sum of slice s starts at rank s + 1, passes each rank and ends at rank s. The result then
/// goes around the ring once more.
Task Exchanges::Ring(Chunk chunk, std::vector<Part> parts) {
  Enter(Phase::exchange, chunk);
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  const auto part = [&](int back) -> const Part& {
    return parts[Index((rank() + 2 * size() - back) % size())];
  };
  // This rank adds term k to the sum of slice number rank - 1 - k. At k = 0 this starts the sum of
  // slice number rank - 1.
  SharedMessage state = Take(SumOf(0, size()), part(1));
  ops_.Hop(part(1), 0, nullptr, *state);
  for (int k = 1; k < size(); ++k) {
    const Part& arriving = part(1 + k);
    const std::vector<Addressed> out{{next, state}};
    const std::vector<Addressed> in{{previous, Take(Content::running_sums, arriving)}};
    co_await Announce(Phase::exchange, Content::running_sums, out, in);
    Pending hop = Start(Phase::exchange, chunk, out, in);
    co_await hop;
    if (k == 1) Enter(Phase::fold, chunk);
    state = Take(SumOf(k, size()), arriving);
    ops_.Hop(arriving, k, in[0].message.get(), *state);
  }

  Enter(Phase::gather, chunk);
  for (int back = 0; back < size(); ++back) {  // `state` is the result of slice rank - back
    if (back + 1 == size()) {
      ops_.Unpack(part(back), *state);
      break;
    }
    const std::vector<Addressed> out{{next, state}};
    const std::vector<Addressed> in{{previous, Take(Content::results, part(back + 1))}};
    co_await Announce(Phase::gather, Content::results, out, in);
    Pending hop = Start(Phase::gather, chunk, out, in);
    ops_.Unpack(part(back), *state);
    co_await hop;
    state = in[0].message;
  }
}

/// This rank's group of ranks, and the group's data for one chunk: the parts of the chunk that its
/// members sum, and memory for sums and results. The group's first member is its master.
struct Exchanges::Group {
  std::int64_t unit = 0, units = 1;
  std::int64_t first = 0, size = 1;  // ranks first … first + size - 1
  std::int64_t member = 0;           // this rank is first + member

  Part all;                       // all of the chunk's values
  std::vector<Part> subs;         // `all`, cut for the members
  SharedMessage sum;              // the group's sum of this member's sub-part
  std::shared_ptr<float> values;  // on the master: the group's sums, then the results

  [[nodiscard]] bool is_master() const { return member == 0; }
  [[nodiscard]] int rank_of(std::int64_t m) const { return static_cast<int>(first + m); }
  [[nodiscard]] const Part& mine() const { return subs[Index(member)]; }
  [[nodiscard]] float* values_of(std::int64_t m) const {
    return values.get() + SliceBegin(all.count, size, m);
  }
};

Exchanges::Group Exchanges::OwnGroup(const std::vector<Part>& parts) const {
  const Reduction& reduction = ops_.reduction();
  Group group;
  if (reduction.grouped()) {
    group.units = reduction.rounds().units;
    group.unit = rank() / reduction.spec().group_size;
    group.first = reduction.group_begin(group.unit);
    group.size = reduction.group_size(group.unit);
  } else {
    group.size = size();
  }
  group.member = rank() - group.first;
  group.all = Joined(parts);
  group.subs = Pieces(group.all, group.size);
  if (group.is_master()) group.values = ops_.Allocate(group.all.count);
  return group;
}

/// In each group every member sums one share of the values, and the group's master collects these
/// sums. The masters form a ring that adds the groups' sums. Each master then sends the results to
/// its members. If one group holds all ranks, there is no ring.
Task Exchanges::Hierarchical(Chunk chunk, std::vector<Part> parts) {
  Enter(Phase::exchange, chunk);
  Group group = OwnGroup(parts);
  co_await SumInGroup(chunk, group);
  co_await CollectSums(chunk, group);
  if (group.units > 1) co_await RingOfMasters(chunk, group, parts);
  Enter(Phase::gather, chunk);
  co_await ShareResults(chunk, group);
}

/// Members of a group exchange contributions. Each member receives the contributions to its share
/// of the values.
Task Exchanges::SumInGroup(Chunk& chunk, Group& group) {
  std::vector<Addressed> out;
  std::vector<Addressed> in;
  std::vector<SharedMessage> from(Index(group.size));
  for (std::int64_t m = 0; m < group.size; ++m) {
    if (m == group.member) continue;
    const Part& theirs = group.subs[Index(m)];
    out.push_back({group.rank_of(m), Take(Content::contributions, theirs)});
    ops_.Pack(theirs, *out.back().message);
    from[Index(m)] = Take(Content::contributions, group.mine());
    in.push_back({group.rank_of(m), from[Index(m)]});
  }
  co_await Announce(Phase::exchange, Content::contributions, out, in);
  Pending exchange = Start(Phase::exchange, chunk, std::move(out), std::move(in));
  co_await exchange;
  Enter(Phase::fold, chunk);
  group.sum = Take(Content::results, group.mine());
  if (group.units > 1) {
    ops_.FoldGroup(group.mine(), from, *group.sum);
  } else {
    ops_.Fold(group.mine(), from, *group.sum);
  }
}

/// Members send the sums of their shares of the values to the group's master.
Task Exchanges::CollectSums(Chunk& chunk, Group& group) {
  std::vector<Addressed> out;
  std::vector<Addressed> in;
  for (std::int64_t m = 1; m < group.size && group.is_master(); ++m) {
    in.push_back({group.rank_of(m), Take(Content::results, group.subs[Index(m)])});
  }
  if (!group.is_master()) out.push_back({group.rank_of(0), group.sum});
  co_await Announce(Phase::exchange, Content::results, out, in);
  Pending collect = Start(Phase::exchange, chunk, std::move(out), in);
  co_await collect;
  if (!group.is_master()) co_return;
  ops_.LoadResults(group.mine(), *group.sum, group.values.get());
  for (const auto& [peer, message] : in) {
    const std::int64_t m = peer - group.first;
    ops_.LoadResults(group.subs[Index(m)], *message, group.values_of(m));
  }
}

/// The masters add the groups' sums around a ring, as the exchange `ring` does among ranks. The
/// other members take part with empty transfers, which keeps transfer numbers equal on all ranks.
Task Exchanges::RingOfMasters(Chunk& chunk, Group& group, const std::vector<Part>& parts) {
  const std::int64_t units = group.units;
  const auto slice = [&](std::int64_t back) {
    return Index((group.unit + 2 * units - back) % units);
  };
  const auto to = [&](std::int64_t unit, SharedMessage message) {
    std::vector<Addressed> messages;
    if (!group.is_master()) return messages;
    const std::int64_t master = ops_.reduction().group_begin((unit + units) % units);
    messages.push_back({static_cast<int>(master), std::move(message)});
    return messages;
  };
  const auto arriving = [&](Content content, std::int64_t back) {
    return group.is_master() ? Take(content, parts[slice(back)]) : nullptr;
  };
  std::vector<float*> values(Index(units), group.values.get());
  for (std::int64_t s = 1; s < units && group.is_master(); ++s) {
    values[Index(s)] = values[Index(s - 1)] + parts[Index(s - 1)].count;
  }
  const auto hop = [&](std::int64_t k, const Message* before) {
    const Part& part = parts[slice(1 + k)];
    SharedMessage after = Take(SumOf(k, units), part);
    ops_.HopValues(part, k, before, values[slice(1 + k)], *after);
    return after;
  };

  SharedMessage state = group.is_master() ? hop(0, nullptr) : nullptr;
  for (std::int64_t k = 1; k < units; ++k) {
    const SharedMessage before = arriving(Content::running_sums, 1 + k);
    const std::vector<Addressed> out = to(group.unit + 1, state);
    const std::vector<Addressed> in = to(group.unit - 1, before);
    co_await Announce(Phase::exchange, Content::running_sums, out, in);
    Pending pending = Start(Phase::exchange, chunk, out, in);
    co_await pending;
    if (group.is_master()) state = hop(k, before.get());
  }
  for (std::int64_t back = 0; back < units; ++back) {
    if (group.is_master()) {
      ops_.LoadResults(parts[slice(back)], *state, values[slice(back)]);
    }
    if (back + 1 == units) break;
    const SharedMessage following = arriving(Content::results, back + 1);
    const std::vector<Addressed> out = to(group.unit + 1, state);
    const std::vector<Addressed> in = to(group.unit - 1, following);
    co_await Announce(Phase::exchange, Content::results, out, in);
    Pending pending = Start(Phase::exchange, chunk, out, in);
    co_await pending;
    state = following;
  }
}

/// The group's master sends each member the results of the member's share of the values. Members
/// then exchange these results.
Task Exchanges::ShareResults(Chunk& chunk, Group& group) {
  std::vector<SharedMessage> results(Index(group.size));
  for (std::int64_t m = 0; m < group.size; ++m) {
    results[Index(m)] = Take(Content::results, group.subs[Index(m)]);
    if (!group.is_master()) continue;
    ops_.StoreResults(group.subs[Index(m)], group.values_of(m), *results[Index(m)]);
  }
  const SharedMessage& mine = results[Index(group.member)];
  {
    std::vector<Addressed> out;
    std::vector<Addressed> in;
    for (std::int64_t m = 1; m < group.size && group.is_master(); ++m) {
      out.push_back({group.rank_of(m), results[Index(m)]});
    }
    if (!group.is_master()) in.push_back({group.rank_of(0), mine});
    co_await Announce(Phase::gather, Content::results, out, in);
    Pending scatter = Start(Phase::gather, chunk, std::move(out), std::move(in));
    co_await scatter;
  }
  std::vector<Addressed> out;
  std::vector<Addressed> in;
  for (std::int64_t m = 0; m < group.size; ++m) {
    if (m == group.member) continue;
    out.push_back({group.rank_of(m), mine});
    in.push_back({group.rank_of(m), results[Index(m)]});
  }
  co_await Announce(Phase::gather, Content::results, out, in);
  Pending exchange = Start(Phase::gather, chunk, std::move(out), std::move(in));
  co_await exchange;
  for (std::int64_t m = 0; m < group.size; ++m) {
    ops_.Unpack(group.subs[Index(m)], *results[Index(m)]);
  }
}

Task Exchanges::AllGather(std::int64_t number, Part part,
                          const std::vector<std::vector<std::int64_t>>& offsets) {
  Chunk chunk{number, 0};
  Enter(Phase::exchange, chunk);
  std::vector<SharedMessage> from(Index(size()));
  for (SharedMessage& message : from) message = Take(Content::contributions, part);
  ops_.Pack(part, *from[Index(rank())]);
  std::vector<Addressed> out;
  std::vector<Addressed> in;
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() + size() - step) % size();
    out.push_back({(rank() + step) % size(), from[Index(rank())]});
    in.push_back({source, from[Index(source)]});
  }
  co_await Announce(Phase::exchange, Content::contributions, out, in);
  Pending exchange = Start(Phase::exchange, chunk, std::move(out), std::move(in));
  co_await exchange;
  for (int source = 0; source < size(); ++source) {
    ops_.UnpackWire(part, *from[Index(source)], offsets[Index(source)]);
  }
}

}  // namespace cpd
