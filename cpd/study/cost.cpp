// SPDX-License-Identifier: Apache-2.0
#include "cpd/study/cost.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cpd/base/guarded.h"
#include "cpd/comm/engine/layout.h"
#include "cpd/comm/reduction.h"
#include "cpd/numeric/error.h"

namespace cpd {
namespace {

constexpr std::int64_t kOneChunk = std::int64_t{1} << 60;

/// Bytes of contributions, of running sums and of results.
struct Widths {
  int wire, result;
  std::vector<int> planes;

  [[nodiscard]] std::int64_t Wire(const Part& part) const { return part.Bytes(wire); }
  [[nodiscard]] std::int64_t Result(const Part& part) const { return part.Bytes(result); }
  [[nodiscard]] std::int64_t State(const Part& part) const {
    std::int64_t bytes = 0;
    for (const int bits : planes) bytes += part.Bytes(bits);
    return bytes;
  }
};

Widths WidthsOf(const Reduction& reduction) {
  Widths widths{reduction.spec().format.bits(), reduction.spec().result.bits(), {}};
  const Level level = reduction.Across(0);
  for (int q = 0; q < level.planes(); ++q) widths.planes.push_back(level.plane_format(q).bits());
  return widths;
}

template <class Bytes>
std::int64_t SumOf(const std::vector<Part>& parts, const Bytes& bytes) {
  std::int64_t sum = 0;
  for (const Part& part : parts) sum += bytes(part);
  return sum;
}

/// A chunk's pieces for the members of a group.
std::vector<Part> SubParts(const std::vector<Part>& parts, std::int64_t members) {
  Part all;
  for (const Part& part : parts) all.Add(part);
  std::vector<Part> subs;
  subs.reserve(static_cast<std::size_t>(members));
  for (std::int64_t m = 0; m < members; ++m) {
    subs.push_back(
        all.Cut(SliceBegin(all.count, members, m), SliceBegin(all.count, members, m + 1)));
  }
  return subs;
}

/// Counts what one rank moves.
class Counter {
 public:
  Counter(const Reduction& reduction, int rank)
      : reduction_(reduction), widths_(WidthsOf(reduction)), rank_(rank) {}

  void Add(const std::vector<Part>& parts) {
    switch (reduction_.spec().exchange) {
      case Exchange::gather:
        return Both((reduction_.world() - 1) * widths_.Wire(parts[0]));
      case Exchange::ring:
        return Ring(parts, rank_, reduction_.world());
      case Exchange::hierarchical:
        return Hierarchical(parts);
      default:
        return Owner(parts);
    }
  }
  [[nodiscard]] const Cost& cost() const { return cost_; }

 private:
  void Both(std::int64_t bytes) {
    cost_.bytes_sent += bytes;
    cost_.bytes_received += bytes;
  }

  /// Contributions to each slice's owner, results from there.
  void Owner(const std::vector<Part>& parts) {
    const std::int64_t others = reduction_.world() - 1;
    const Part& mine = parts[static_cast<std::size_t>(rank_)];
    const auto wire = [&](const Part& part) { return widths_.Wire(part); };
    const auto result = [&](const Part& part) { return widths_.Result(part); };
    cost_.bytes_sent += SumOf(parts, wire) - wire(mine) + others * result(mine);
    cost_.bytes_received += others * wire(mine) + SumOf(parts, result) - result(mine);
  }

  /// Member `at` of a ring passes on the state of every slice but its own, which it ends, and the
  /// result of every slice but its successor's, which comes to it last.
  void Ring(const std::vector<Part>& parts, std::int64_t at, std::int64_t members) {
    if (members == 1) return;
    const auto part = [&](std::int64_t s) -> const Part& {
      return parts[static_cast<std::size_t>((s + members) % members)];
    };
    const std::int64_t state = SumOf(parts, [&](const Part& p) { return widths_.State(p); });
    const std::int64_t result = SumOf(parts, [&](const Part& p) { return widths_.Result(p); });
    cost_.bytes_sent += state - widths_.State(part(at)) + result - widths_.Result(part(at + 1));
    cost_.bytes_received += state - widths_.State(part(at - 1)) + result - widths_.Result(part(at));
  }

  /// In the group: contributions to each sub-part's owner, its sum to the master, the result from
  /// the master, then to and from the other members. The masters form a ring.
  void Hierarchical(const std::vector<Part>& parts) {
    const std::int64_t unit = rank_ / reduction_.spec().group_size;
    const std::int64_t members = reduction_.group_size(unit);
    const std::int64_t member = rank_ - reduction_.group_begin(unit);
    const std::vector<Part> subs = SubParts(parts, members);
    const Part& mine = subs[static_cast<std::size_t>(member)];
    const auto result = [&](const Part& part) { return widths_.Result(part); };
    const std::int64_t theirs = SumOf(subs, result) - result(mine);
    const std::int64_t wire = SumOf(subs, [&](const Part& part) { return widths_.Wire(part); });
    cost_.bytes_sent += wire - widths_.Wire(mine) + (members - 1) * result(mine);
    cost_.bytes_received += (members - 1) * widths_.Wire(mine) + theirs;
    Both(member == 0 ? theirs : result(mine));
    if (member == 0) Ring(parts, unit, reduction_.rounds().units);
  }

  const Reduction& reduction_;
  Widths widths_;
  int rank_;
  Cost cost_;
};

int SlicesOf(const Reduction& reduction) {
  switch (reduction.spec().exchange) {
    case Exchange::gather:
      return 1;
    case Exchange::hierarchical:
      return static_cast<int>(reduction.rounds().units);
    default:
      return reduction.world();
  }
}

/// The most members that a group has.
std::int64_t MembersOf(const Reduction& reduction) { return reduction.group_size(0); }

std::int64_t StepsOf(const Reduction& reduction) {
  const std::int64_t world = reduction.world();
  switch (reduction.spec().exchange) {
    case Exchange::gather:
      return world - 1;
    case Exchange::hierarchical:
      return 4 * (MembersOf(reduction) - 1) + 2 * (reduction.rounds().units - 1);
    default:
      return 2 * (world - 1);
  }
}

/// Bytes of the longest messages of the steps inside groups, of which the last may be short: in
/// each step of an exchange every piece moves, in each step to or from a master one.
std::int64_t LongestInGroups(const Reduction& reduction, const Widths& widths,
                             const std::vector<Part>& parts) {
  const std::int64_t members = MembersOf(reduction);
  const std::int64_t last = reduction.group_size(reduction.rounds().units - 1);
  std::int64_t bytes = 0;
  std::vector<std::int64_t> exchanged(static_cast<std::size_t>(members));
  std::vector<std::int64_t> collected(static_cast<std::size_t>(members));
  for (const std::int64_t size : {members, last}) {
    const std::vector<Part> subs = SubParts(parts, size);
    std::int64_t wire = 0;
    std::int64_t result = 0;
    for (const Part& sub : subs) {
      wire = std::max(wire, widths.Wire(sub));
      result = std::max(result, widths.Result(sub));
    }
    for (std::size_t step = 1; step < subs.size(); ++step) {
      exchanged[step] = std::max(exchanged[step], wire + result);
      collected[step] = std::max(collected[step], widths.Result(subs[step]));
    }
  }
  for (std::size_t step = 1; step < exchanged.size(); ++step) {
    bytes += exchanged[step] + 2 * collected[step];
  }
  return bytes;
}

/// Bytes of the longest messages of all steps together; the first slice is the longest.
std::int64_t LongestBytes(const Reduction& reduction, const std::vector<Part>& parts) {
  const Widths widths = WidthsOf(reduction);
  const Part& longest = parts[0];
  const auto hops = [&](std::int64_t members) {
    return (members - 1) * (widths.State(longest) + widths.Result(longest));
  };
  const std::int64_t world = reduction.world();
  switch (reduction.spec().exchange) {
    case Exchange::gather:
      return (world - 1) * widths.Wire(longest);
    case Exchange::ring:
      return hops(world);
    case Exchange::hierarchical:
      return LongestInGroups(reduction, widths, parts) + hops(reduction.rounds().units);
    default:
      return (world - 1) * (widths.Wire(longest) + widths.Result(longest));
  }
}

Reduction Checked(const ReduceSpec& spec, int world, std::span<const std::int64_t> sizes) {
  std::int64_t values = 0;
  bool fits = true;
  for (const std::int64_t size : sizes) {
    if (size < 0) throw Error("a layer's size must be at least 0, got " + std::to_string(size));
    fits = fits && !__builtin_add_overflow(values, size, &values);
  }
  constexpr std::int64_t kBytes = 64;  // more than a value and its share of headers ever are
  std::int64_t bytes = 0;
  if (!fits || __builtin_mul_overflow(values, kBytes * std::max(world, 1), &bytes)) {
    throw Error("layers must have fewer than 2^57 values over all ranks together");
  }
  return {spec, world, static_cast<std::int64_t>(sizes.size())};
}

}  // namespace

Cost CostOf(const ReduceSpec& spec, int world, int rank, std::span<const std::int64_t> sizes,
            std::int64_t chunk) {
  const Reduction reduction = Checked(spec, world, sizes);
  if (rank < 0 || rank >= world) {
    throw Error("rank must be 0…" + std::to_string(world - 1) + ", got " + std::to_string(rank));
  }
  if (chunk < 1) throw Error("chunk must be at least 1, got " + std::to_string(chunk));
  Counter counter(reduction, rank);
  Layout layout(sizes, SlicesOf(reduction), chunk);
  const bool moves = !layout.done();
  while (!layout.done()) counter.Add(layout.Next());
  Cost cost = counter.cost();
  cost.steps = moves ? StepsOf(reduction) : 0;
  return cost;
}

double TimeOf(const ReduceSpec& spec, int world, std::span<const std::int64_t> sizes, double alpha,
              double beta) {
  const Reduction reduction = Checked(spec, world, sizes);
  if (!(alpha >= 0 && beta >= 0 && std::isfinite(alpha) && std::isfinite(beta))) {
    throw Error("alpha and beta must be finite and at least 0");
  }
  Layout layout(sizes, SlicesOf(reduction), kOneChunk);
  if (layout.done()) return 0;
  const std::int64_t bytes = LongestBytes(reduction, layout.Next());
  return Guarded([&] {
    return static_cast<double>(StepsOf(reduction)) * alpha + static_cast<double>(bytes) * beta;
  });
}

}  // namespace cpd
