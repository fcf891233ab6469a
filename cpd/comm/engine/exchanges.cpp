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

/// `pieces` parts of nearly equal length.
std::vector<Part> Pieces(const Part& part, std::int64_t pieces) {
  std::vector<Part> cut;
  cut.reserve(Index(pieces));
  for (std::int64_t s = 0; s < pieces; ++s) {
    cut.push_back(
        part.Cut(SliceBegin(part.count, pieces, s), SliceBegin(part.count, pieces, s + 1)));
  }
  return cut;
}

}  // namespace

int Exchanges::Slices() const {
  switch (work_.reduction().spec().exchange) {
    case Exchange::gather:
      return 1;
    case Exchange::hierarchical:
      return static_cast<int>(work_.reduction().rounds().units);
    default:
      return size();
  }
}

Task Exchanges::Run(std::int64_t chunk, std::vector<Part> parts) {
  switch (work_.reduction().spec().exchange) {
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

/// A slice's owner takes it from all, folds it, and gives the result to all (to the root, to
/// nobody).
Task Exchanges::Owner(Chunk chunk, std::vector<Part> parts) {
  Enter(Phase::exchange, chunk);
  const Part& mine = parts[Index(rank())];
  const SharedMessage result = link_.Take(work_.ResultBytes(mine));
  {
    std::vector<Addressed> out;
    std::vector<Addressed> in;
    std::vector<SharedMessage> from(Index(size()));
    for (int step = 1; step < size(); ++step) {
      const int to = (rank() + step) % size();
      const int source = (rank() + size() - step) % size();
      out.push_back({to, link_.Take(work_.WireBytes(parts[Index(to)]))});
      work_.Pack(parts[Index(to)], *out.back().message);
      from[Index(source)] = link_.Take(work_.WireBytes(mine));
      in.push_back({source, from[Index(source)]});
    }
    Pending scatter = Start(Phase::exchange, chunk, std::move(out), std::move(in));
    co_await scatter;
    Enter(Phase::fold, chunk);
    work_.Fold(mine, from, *result);
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
    results[Index(source)] = link_.Take(work_.ResultBytes(parts[Index(source)]));
    in.push_back({source, results[Index(source)]});
  }
  Pending gather = Start(Phase::gather, chunk, std::move(out), std::move(in));
  if (takes || delivery_ == Delivery::scattered) work_.Unpack(mine, *result);
  co_await gather;
  for (int source = 0; source < size(); ++source) {
    if (results[Index(source)] == nullptr) continue;
    work_.Unpack(parts[Index(source)], *results[Index(source)]);
  }
}

/// Everybody takes everything and folds it.
Task Exchanges::Gather(Chunk chunk, Part part) {
  Enter(Phase::exchange, chunk);
  const SharedMessage mine = link_.Take(work_.WireBytes(part));
  work_.Pack(part, *mine);
  std::vector<Addressed> out;
  std::vector<Addressed> in;
  std::vector<SharedMessage> from(Index(size()));
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() + size() - step) % size();
    from[Index(source)] = link_.Take(mine->bytes());
    out.push_back({(rank() + step) % size(), mine});
    in.push_back({source, from[Index(source)]});
  }
  from[Index(rank())] = mine;
  Pending exchange = Start(Phase::exchange, chunk, std::move(out), std::move(in));
  co_await exchange;
  Enter(Phase::fold, chunk);
  const SharedMessage result = link_.Take(work_.ResultBytes(part));
  work_.Fold(part, from, *result);
  Enter(Phase::gather, chunk);
  work_.Unpack(part, *result);
}

/// Slice s begins at rank s + 1 and ends at rank s, whose result then goes around once more.
Task Exchanges::Ring(Chunk chunk, std::vector<Part> parts) {
  Enter(Phase::exchange, chunk);
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  const auto part = [&](int back) -> const Part& {
    return parts[Index((rank() + 2 * size() - back) % size())];
  };
  const auto bytes = [&](int k, const Part& of) {
    return k + 1 == size() ? work_.ResultBytes(of) : work_.StateBytes(of);
  };
  // Term k of slice rank - 1 - k is this rank's; k = 0 of its neighbour's slice, which it begins.
  SharedMessage state = link_.Take(bytes(0, part(1)));
  work_.Hop(part(1), 0, nullptr, *state);
  for (int k = 1; k < size(); ++k) {
    const Part& arriving = part(1 + k);
    const SharedMessage before = link_.Take(work_.StateBytes(arriving));
    Pending hop = Start(Phase::exchange, chunk, {{next, state}}, {{previous, before}});
    co_await hop;
    if (k == 1) Enter(Phase::fold, chunk);
    state = link_.Take(bytes(k, arriving));
    work_.Hop(arriving, k, before.get(), *state);
  }

  Enter(Phase::gather, chunk);
  for (int back = 0; back < size(); ++back) {  // `state` is the result of slice rank - back
    if (back + 1 == size()) {
      work_.Unpack(part(back), *state);
      break;
    }
    const SharedMessage following = link_.Take(work_.ResultBytes(part(back + 1)));
    Pending hop = Start(Phase::gather, chunk, {{next, state}}, {{previous, following}});
    work_.Unpack(part(back), *state);
    co_await hop;
    state = following;
  }
}

/// A group and this rank's place in it; masters stand in a ring.
struct Exchanges::Group {
  std::int64_t unit = 0, units = 1;
  std::int64_t first = 0, size = 1;  // its ranks
  std::int64_t member = 0;

  [[nodiscard]] bool is_master() const { return member == 0; }
  [[nodiscard]] int rank_of(std::int64_t m) const { return static_cast<int>(first + m); }
};

Exchanges::Group Exchanges::OwnGroup() const {
  const Reduction& reduction = work_.reduction();
  Group group;
  group.units = reduction.rounds().units;
  group.unit = rank() / reduction.spec().group_size;
  group.first = reduction.group_begin(group.unit);
  group.size = reduction.group_size(group.unit);
  group.member = rank() - group.first;
  return group;
}

/// In each group every member sums a sub-part, which go to the master; the masters form a ring;
/// each master scatters the result and its members exchange what they got.
Task Exchanges::Hierarchical(Chunk chunk, std::vector<Part> parts) {
  Enter(Phase::exchange, chunk);
  const Group group = OwnGroup();
  const Part all = Joined(parts);
  const std::vector<Part> subs = Pieces(all, group.size);
  const Part& mine = subs[Index(group.member)];
  const std::shared_ptr<float> values = group.is_master() ? work_.Room(all.count) : nullptr;
  const auto sub_values = [&](std::int64_t m) {
    return values.get() + SliceBegin(all.count, group.size, m);
  };

  SharedMessage sum = link_.Take(work_.ResultBytes(mine));
  {
    std::vector<Addressed> out;
    std::vector<Addressed> in;
    std::vector<SharedMessage> from(Index(group.size));
    for (std::int64_t m = 0; m < group.size; ++m) {
      if (m == group.member) continue;
      out.push_back({group.rank_of(m), link_.Take(work_.WireBytes(subs[Index(m)]))});
      work_.Pack(subs[Index(m)], *out.back().message);
      from[Index(m)] = link_.Take(work_.WireBytes(mine));
      in.push_back({group.rank_of(m), from[Index(m)]});
    }
    Pending exchange = Start(Phase::exchange, chunk, std::move(out), std::move(in));
    co_await exchange;
    Enter(Phase::fold, chunk);
    work_.FoldGroup(mine, from, *sum);
  }
  {
    std::vector<Addressed> out;
    std::vector<Addressed> in;
    for (std::int64_t m = 1; m < group.size && group.is_master(); ++m) {
      in.push_back({group.rank_of(m), link_.Take(work_.ResultBytes(subs[Index(m)]))});
    }
    if (!group.is_master()) out.push_back({group.rank_of(0), sum});
    std::vector<Addressed> sums = in;
    Pending collect = Start(Phase::exchange, chunk, std::move(out), std::move(in));
    co_await collect;
    if (group.is_master()) {
      work_.LoadResults(mine, *sum, values.get());
      for (const auto& [peer, message] : sums) {
        const std::int64_t m = peer - group.first;
        work_.LoadResults(subs[Index(m)], *message, sub_values(m));
      }
    }
  }

  // The masters' ring, as in Ring; the others keep step.
  const std::int64_t units = group.units;
  const auto master = [&](std::int64_t unit) {
    return static_cast<int>(work_.reduction().group_begin((unit + units) % units));
  };
  const auto slice = [&](std::int64_t back) {
    return Index((group.unit + 2 * units - back) % units);
  };
  std::vector<std::int64_t> starts(Index(units));
  for (std::int64_t s = 1; s < units; ++s) {
    starts[Index(s)] = starts[Index(s - 1)] + parts[Index(s - 1)].count;
  }
  const auto hop = [&](std::int64_t k, const Message* before) {
    const Part& part = parts[slice(1 + k)];
    const bool last = k + 1 == units;
    SharedMessage after = link_.Take(last ? work_.ResultBytes(part) : work_.StateBytes(part));
    work_.HopValues(part, k, before, values.get() + starts[slice(1 + k)], *after);
    return after;
  };
  const auto messages = [&](const SharedMessage& message, std::int64_t unit) {
    return group.is_master() ? std::vector<Addressed>{{master(unit), message}}
                             : std::vector<Addressed>{};
  };
  SharedMessage state = group.is_master() ? hop(0, nullptr) : nullptr;
  for (std::int64_t k = 1; k < units; ++k) {
    SharedMessage before;
    if (group.is_master()) before = link_.Take(work_.StateBytes(parts[slice(1 + k)]));
    Pending pending = Start(Phase::exchange, chunk, messages(state, group.unit + 1),
                            messages(before, group.unit - 1));
    co_await pending;
    if (group.is_master()) state = hop(k, before.get());
  }
  for (std::int64_t back = 0; back < units; ++back) {
    if (group.is_master()) {
      work_.LoadResults(parts[slice(back)], *state, values.get() + starts[slice(back)]);
    }
    if (back + 1 == units) break;
    SharedMessage following;
    if (group.is_master()) following = link_.Take(work_.ResultBytes(parts[slice(back + 1)]));
    Pending pending = Start(Phase::exchange, chunk, messages(state, group.unit + 1),
                            messages(following, group.unit - 1));
    co_await pending;
    state = following;
  }

  Enter(Phase::gather, chunk);
  std::vector<SharedMessage> results(Index(group.size));
  for (std::int64_t m = 0; m < group.size; ++m) {
    results[Index(m)] = link_.Take(work_.ResultBytes(subs[Index(m)]));
    if (!group.is_master()) continue;
    work_.StoreResults(subs[Index(m)], sub_values(m), *results[Index(m)]);
  }
  {
    std::vector<Addressed> out;
    std::vector<Addressed> in;
    for (std::int64_t m = 1; m < group.size && group.is_master(); ++m) {
      out.push_back({group.rank_of(m), results[Index(m)]});
    }
    if (!group.is_master()) in.push_back({group.rank_of(0), results[Index(group.member)]});
    Pending scatter = Start(Phase::gather, chunk, std::move(out), std::move(in));
    co_await scatter;
  }
  std::vector<Addressed> out;
  std::vector<Addressed> in;
  for (std::int64_t m = 0; m < group.size; ++m) {
    if (m == group.member) continue;
    out.push_back({group.rank_of(m), results[Index(group.member)]});
    in.push_back({group.rank_of(m), results[Index(m)]});
  }
  Pending exchange = Start(Phase::gather, chunk, std::move(out), std::move(in));
  co_await exchange;
  for (std::int64_t m = 0; m < group.size; ++m) {
    work_.Unpack(subs[Index(m)], *results[Index(m)]);
  }
}

Task Exchanges::AllGather(std::int64_t number, Part part,
                          const std::vector<std::vector<std::int64_t>>& offsets) {
  Chunk chunk{number, 0};
  Enter(Phase::exchange, chunk);
  std::vector<SharedMessage> from(Index(size()));
  for (SharedMessage& message : from) message = link_.Take(work_.WireBytes(part));
  work_.Pack(part, *from[Index(rank())]);
  std::vector<Addressed> out;
  std::vector<Addressed> in;
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() + size() - step) % size();
    out.push_back({(rank() + step) % size(), from[Index(rank())]});
    in.push_back({source, from[Index(source)]});
  }
  Pending exchange = Start(Phase::exchange, chunk, std::move(out), std::move(in));
  co_await exchange;
  for (int source = 0; source < size(); ++source) {
    work_.UnpackWire(part, *from[Index(source)], offsets[Index(source)]);
  }
}

}  // namespace cpd
