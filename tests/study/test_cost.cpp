// SPDX-License-Identifier: Apache-2.0
//
// Tests the cost model against a simulation that lists every message of every step, value by value.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <map>
#include <numeric>

#include "cpd/spec/error.h"
#include "cpd/study/cost.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using Sizes = std::vector<std::int64_t>;

/// The layer and the slice of a value, and its index in the layer. Values that are neighbors in one
/// layer and one slice are packed together.
struct Value {
  int layer;
  std::int64_t index;
  int slice;
};
using Values = std::vector<Value>;

std::int64_t packed_bytes(const Values& values, int bits) {
  std::int64_t bytes = 0;
  std::int64_t run = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    ++run;
    const bool ends = i + 1 == values.size() || values[i + 1].layer != values[i].layer ||
                      values[i + 1].slice != values[i].slice ||
                      values[i + 1].index != values[i].index + 1;
    if (!ends) continue;
    bytes += (run * bits + 7) / 8;
    run = 0;
  }
  return bytes;
}

/// Divides the values of all layers into chunks of about `chunk` values. Returns the values as
/// [chunk][slice]. A slice has ceil(chunk / slices) values in each chunk, rounded up to a multiple
/// of 256. If `rotates` is true, entry s of a chunk holds slice (s - l) mod `slices` of layer l.
std::vector<std::vector<Values>> chunks_of(const Sizes& sizes, int slices, std::int64_t chunk,
                                           bool rotates) {
  const std::int64_t piece = ((chunk + slices - 1) / slices + 255) / 256 * 256;
  std::vector<std::vector<Values>> chunks;
  for (int run = 0; run < slices; ++run) {
    std::int64_t position = 0;
    for (std::size_t l = 0; l < sizes.size(); ++l) {
      int s = run;
      for (std::size_t back = 0; rotates && back < l; ++back) s = s == 0 ? slices - 1 : s - 1;
      std::int64_t begin = 0;
      for (int before = 0; before < s; ++before) {
        begin += sizes[l] / slices + (before < sizes[l] % slices ? 1 : 0);
      }
      const std::int64_t length = sizes[l] / slices + (s < sizes[l] % slices ? 1 : 0);
      for (std::int64_t i = begin; i < begin + length; ++i, ++position) {
        const auto c = static_cast<std::size_t>(position / piece);
        if (chunks.size() <= c)
          chunks.resize(c + 1, std::vector<Values>(static_cast<std::size_t>(slices)));
        chunks[c][static_cast<std::size_t>(run)].push_back({static_cast<int>(l), i, s});
      }
    }
  }
  return chunks;
}

/// Divides the values of a chunk among k members of a group. The first members get one value more
/// if necessary.
std::vector<Values> dealt(const std::vector<Values>& chunk, std::size_t k) {
  Values all;
  for (const Values& part : chunk) all.insert(all.end(), part.begin(), part.end());
  std::vector<Values> pieces(k);
  std::size_t at = 0;
  for (std::size_t m = 0; m < k; ++m) {
    const std::size_t length = all.size() / k + (m < all.size() % k ? 1 : 0);
    pieces[m].assign(all.begin() + static_cast<std::ptrdiff_t>(at),
                     all.begin() + static_cast<std::ptrdiff_t>(at + length));
    at += length;
  }
  return pieces;
}

struct SentMessage {
  int from, to;
  std::int64_t bytes;
};
using Step = std::vector<SentMessage>;

/// All messages of an all-reduce, by chunk and step, as the test computes them.
class Messages {
 public:
  Messages(const Reduce& spec, int world, const Sizes& sizes, std::int64_t chunk)
      : spec_(spec), world_(world) {
    const int units =
        spec.group_size == 0 ? world : (world + spec.group_size - 1) / spec.group_size;
    const int slices = spec.exchange == Exchange::gather         ? 1
                       : spec.exchange == Exchange::hierarchical ? units
                                                                 : world;
    const bool in_ring = spec.order == Order::ring && spec.group_size != world;
    const bool rotates = spec.exchange == Exchange::owner && !in_ring;
    for (const auto& parts : chunks_of(sizes, slices, chunk, rotates)) {
      steps_.emplace_back();
      switch (spec.exchange) {
        case Exchange::owner:
          owner(parts);
          break;
        case Exchange::gather:
          gather(parts[0]);
          break;
        case Exchange::ring:
          ring(parts, [](int unit) { return unit; });
          break;
        case Exchange::hierarchical:
          hierarchical(parts, units);
          break;
      }
    }
  }

  [[nodiscard]] Cost cost(int rank) const {
    Cost cost;
    for (const auto& chunk : steps_) {
      cost.steps = std::max(cost.steps, static_cast<std::int64_t>(chunk.size()));
      for (const Step& step : chunk) {
        for (const SentMessage& sent : step) {
          cost.bytes_sent += sent.from == rank ? sent.bytes : 0;
          cost.bytes_received += sent.to == rank ? sent.bytes : 0;
        }
      }
    }
    return cost;
  }
  [[nodiscard]] double time(double alpha, double beta) const {
    double seconds = 0;
    for (const auto& chunk : steps_) {
      for (const Step& step : chunk) {
        std::int64_t longest = 0;
        for (const SentMessage& sent : step) longest = std::max(longest, sent.bytes);
        seconds += alpha + beta * static_cast<double>(longest);
      }
    }
    return seconds;
  }
  /// Returns how many steps have each triple of figures: the bytes of the longest message, the most
  /// messages that leave or reach one host, and the most messages within one host.
  [[nodiscard]] std::map<std::array<std::int64_t, 3>, std::int64_t> rounds(int per_host) const {
    std::map<std::array<std::int64_t, 3>, std::int64_t> rounds;
    for (const auto& chunk : steps_) {
      for (const Step& step : chunk) {
        std::int64_t longest = 0;
        std::map<int, std::int64_t> sent, received, stayed;
        for (const SentMessage& message : step) {
          longest = std::max(longest, message.bytes);
          const int from = message.from / per_host;
          const int to = message.to / per_host;
          ++(from == to ? stayed[from] : sent[from]);
          if (from != to) ++received[to];
        }
        const auto most = [](const std::map<int, std::int64_t>& counts) {
          std::int64_t found = 0;
          for (const auto& [host, count] : counts) found = std::max(found, count);
          return found;
        };
        ++rounds[{longest, std::max(most(sent), most(received)), most(stayed)}];
      }
    }
    return rounds;
  }

 private:
  [[nodiscard]] std::int64_t wire(const Values& v) const {
    return packed_bytes(v, spec_.format.bits());
  }
  [[nodiscard]] std::int64_t result(const Values& v) const {
    return packed_bytes(v, spec_.result.bits());
  }
  /// Returns the bytes of a running sum: the sum, and also Kahan's compensation or the sum of the
  /// current chunk of terms.
  [[nodiscard]] std::int64_t state(const Values& v) const {
    const Accumulator& a = spec_.accumulator;
    std::int64_t bytes = packed_bytes(v, a.format.bits());
    if (a.scheme == Scheme::kahan) bytes *= 2;
    if (a.scheme == Scheme::chunked) bytes += packed_bytes(v, a.inner.value_or(a.format).bits());
    return bytes;
  }
  Step& step() { return steps_.back().emplace_back(); }

  void owner(const std::vector<Values>& parts) {
    for (int distance = 1; distance < world_; ++distance) {
      Step& now = step();
      for (int r = 0; r < world_; ++r) {
        const int to = (r + distance) % world_;
        now.push_back({r, to, wire(parts[static_cast<std::size_t>(to)])});
      }
    }
    for (int distance = 1; distance < world_; ++distance) {
      Step& now = step();
      for (int r = 0; r < world_; ++r) {
        now.push_back({r, (r + distance) % world_, result(parts[static_cast<std::size_t>(r)])});
      }
    }
  }

  void gather(const Values& all) {
    for (int distance = 1; distance < world_; ++distance) {
      Step& now = step();
      for (int r = 0; r < world_; ++r) now.push_back({r, (r + distance) % world_, wire(all)});
    }
  }

  /// In a ring, the sum of slice s goes from member s + 1 to member s, which sends the result.
  template <class RankOf>
  void ring(const std::vector<Values>& parts, const RankOf& rank_of) {
    const int members = static_cast<int>(parts.size());
    for (const bool results : {false, true}) {
      for (int hop = 1; hop < members; ++hop) {
        Step& now = step();
        for (int s = 0; s < members; ++s) {
          const int from = s + hop - (results ? 1 : 0);
          const Values& part = parts[static_cast<std::size_t>(s)];
          now.push_back({rank_of(from % members), rank_of((from + 1) % members),
                         results ? result(part) : state(part)});
        }
      }
    }
  }

  void hierarchical(const std::vector<Values>& parts, int units) {
    const int k = std::min(spec_.group_size, world_);
    const auto members = [&](int unit) { return std::min(k, world_ - unit * k); };
    const auto pieces = [&](int unit) {
      return dealt(parts, static_cast<std::size_t>(members(unit)));
    };
    // Every member of a group sends contributions, or `results`, to every other member.
    const auto exchange = [&](bool results) {
      for (int distance = 1; distance < k; ++distance) {
        Step& now = step();
        for (int unit = 0; unit < units; ++unit) {
          const auto dealt_here = pieces(unit);
          for (int m = 0; distance < members(unit) && m < members(unit); ++m) {
            const int to = (m + distance) % members(unit);
            const auto piece = static_cast<std::size_t>(results ? m : to);
            now.push_back({unit * k + m, unit * k + to,
                           results ? result(dealt_here[piece]) : wire(dealt_here[piece])});
          }
        }
      }
    };
    const auto master = [&](bool to_master) {
      for (int m = 1; m < k; ++m) {
        Step& now = step();
        for (int unit = 0; unit < units; ++unit) {
          if (m >= members(unit)) continue;
          const int member = unit * k + m;
          const std::int64_t bytes = result(pieces(unit)[static_cast<std::size_t>(m)]);
          now.push_back(to_master ? SentMessage{member, unit * k, bytes}
                                  : SentMessage{unit * k, member, bytes});
        }
      }
    };
    exchange(false);
    master(true);
    ring(parts, [&](int unit) { return unit * k; });
    master(false);
    exchange(true);
  }

  Reduce spec_;
  int world_;
  std::vector<std::vector<Step>> steps_;  // [chunk][step]
};

Reduce spec_of(Exchange exchange, int group_size) {
  Reduce spec;
  spec.order = Order::ring;
  spec.exchange = exchange;
  spec.group_size = group_size;
  spec.format = spec.accumulator.format = spec.result = ParseFormat("e4m3");
  return spec;
}

void expect_counted(const Reduce& spec, int world, const Sizes& sizes) {
  const std::vector<float> zeros(sizes.size());
  const KnownLayers small{.largest = zeros};  // so that nothing overflows
  for (const std::int64_t chunk : {1, 700, 1 << 20}) {
    SCOPED_TRACE(ToString(spec.exchange) + ", W = " + std::to_string(world) + ", groups of " +
                 std::to_string(spec.group_size) + ", chunk " + std::to_string(chunk) + ", " +
                 ToString(spec.format) + " -> " + ToString(spec.accumulator) + " -> " +
                 ToString(spec.result));
    const Messages messages(spec, world, sizes, chunk);
    for (int rank = 0; rank < world; ++rank) {
      const Cost expected = messages.cost(rank);
      const Cost cost = CostOf(spec, world, rank, sizes, chunk, small);
      EXPECT_EQ(cost.steps, expected.steps) << rank;
      EXPECT_EQ(cost.bytes_sent, expected.bytes_sent) << rank;
      EXPECT_EQ(cost.bytes_received, expected.bytes_received) << rank;
    }
  }
  const Messages whole(spec, world, sizes, 1 << 20);
  EXPECT_NEAR(TimeOf(spec, world, sizes, 3, 0.25, small), whole.time(3, 0.25), 1e-9);
  for (const int per_host : {1, 2, 3, 4, 5, 8, 100}) {
    std::map<std::array<std::int64_t, 3>, std::int64_t> rounds;
    for (const Round& round : RoundsOf(spec, world, sizes, per_host, small)) {
      rounds[{round.bytes, round.across, round.within}] += round.steps;
    }
    EXPECT_EQ(rounds, whole.rounds(per_host)) << per_host << " ranks a host, W = " << world << ", "
                                              << ToString(spec.exchange) << spec.group_size;
  }
}

TEST(Cost, EqualsTheMessagesCounted) {
  const Sizes sizes = {0, 1, 3, 2100, 17, 8, 640};
  for (const int world : {1, 2, 3, 7, 8}) {
    for (const auto& [exchange, group] :
         std::vector<std::pair<Exchange, int>>{{Exchange::owner, 0},
                                               {Exchange::owner, 3},
                                               {Exchange::gather, 0},
                                               {Exchange::ring, 0},
                                               {Exchange::hierarchical, 1},
                                               {Exchange::hierarchical, 2},
                                               {Exchange::hierarchical, 3},
                                               {Exchange::hierarchical, 8}}) {
      if (group > world) continue;
      Reduce spec = spec_of(exchange, group);
      expect_counted(spec, world, sizes);
      if (exchange == Exchange::owner) {
        spec.order = group == 0 ? Order::sequential : Order::tree;
        expect_counted(spec, world, sizes);
        spec.order = Order::ring;
      }
      spec.format = ParseFormat("e2m1");
      spec.result = ParseFormat("e3m2");
      for (const Scheme scheme : {Scheme::sequential, Scheme::kahan, Scheme::chunked}) {
        spec.accumulator.scheme = scheme;
        spec.accumulator.format = ParseFormat("e5m7");
        if (scheme == Scheme::chunked) spec.accumulator.inner = ParseFormat("e4m6");
        expect_counted(spec, world, sizes);
      }
    }
  }
}

/// The owner of a layer's first slice follows from the layer's number, not from its position in the
/// call. So a rank's cost of a call with all layers is the sum of its costs of single calls.
TEST(Cost, NumbersOfLayersChooseOwners) {
  Reduce spec;
  const Sizes sizes(10, 1);
  for (int rank = 0; rank < 4; ++rank) {
    std::int64_t apart = 0;
    for (std::int64_t l = 0; l < 10; ++l) {
      const KnownLayers one{.numbers = {&l, 1}};
      apart += CostOf(spec, 4, rank, Sizes{1}, 1 << 20, one).bytes_sent;
    }
    const std::int64_t owned = (10 - rank + 3) / 4;  // a sum goes to three, other values to owners
    EXPECT_EQ(apart, 4 * (3 * owned + 10 - owned)) << rank;
    EXPECT_EQ(CostOf(spec, 4, rank, sizes, 1 << 20).bytes_sent, apart) << rank;
  }
}

TEST(Cost, RoundsOfNoHosts) {
  EXPECT_THROW((void)RoundsOf(spec_of(Exchange::owner, 0), 2, Sizes{4}, 0), Error);
  EXPECT_TRUE(RoundsOf(spec_of(Exchange::owner, 0), 1, Sizes{4}, 1).empty());
}

TEST(Cost, PublishedSteps) {
  const auto steps = [](Exchange exchange, int world, int group) {
    return CostOf(spec_of(exchange, group), world, 0, Sizes{100'000}, 1 << 20).steps;
  };
  EXPECT_EQ(steps(Exchange::hierarchical, 128, 16), 74);
  EXPECT_EQ(steps(Exchange::hierarchical, 256, 16), 90);
  EXPECT_EQ(steps(Exchange::ring, 256, 0), 510);
  EXPECT_EQ(steps(Exchange::owner, 256, 0), 510);
  EXPECT_EQ(steps(Exchange::gather, 256, 0), 255);
  for (const int k : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    EXPECT_EQ(steps(Exchange::hierarchical, 256, k), 4 * (k - 1) + 2 * (256 / k - 1));
  }
}

/// The cost of an exchange, a row of cpd/comm/README.md's table: steps, and bytes that a rank
/// sends.
struct Row {
  std::int64_t steps, bytes;
};

/// Returns the cost of an exchange by the table's formulas, for W ranks and n values. b, s and r
/// are the bytes of a contribution, a running sum and a result. A group has k ranks, and its first
/// rank is the master.
Row row_of(Exchange exchange, std::int64_t w, std::int64_t k, bool is_master, std::int64_t n,
           std::int64_t b, std::int64_t s, std::int64_t r) {
  const std::int64_t u = w / k;
  switch (exchange) {
    case Exchange::gather:
      return {w - 1, (w - 1) * n * b};
    case Exchange::ring:
      return {2 * (w - 1), (w - 1) * n / w * (s + r)};
    case Exchange::hierarchical: {
      const std::int64_t bytes = is_master
                                     ? (k - 1) * n / k * (b + 2 * r) + (u - 1) * n / u * (s + r)
                                     : (k - 1) * n / k * (b + r) + n / k * r;
      return {4 * (k - 1) + 2 * (u - 1), bytes};
    }
    default:
      return {2 * (w - 1), (w - 1) * n / w * (b + r)};
  }
}

TEST(Cost, IsTheTableOfTheReadme) {
  const std::vector<std::pair<int, int>> ranks_and_groups = {
      {2, 1}, {4, 2}, {6, 3}, {8, 8}, {16, 4}};
  for (const auto& [w, k] : ranks_and_groups) {
    const std::int64_t n = std::int64_t{16} * w * k;  // every slice alike, in whole bytes
    for (const auto& [wire, sum, result] :
         {std::array{"e4m3", "e4m3", "e4m3"}, std::array{"e4m3", "fp32", "bf16"}}) {
      for (const Exchange exchange :
           {Exchange::owner, Exchange::gather, Exchange::ring, Exchange::hierarchical}) {
        Reduce spec = spec_of(exchange, exchange == Exchange::hierarchical ? k : 0);
        spec.format = ParseFormat(wire);
        spec.accumulator.format = ParseFormat(sum);
        spec.result = ParseFormat(result);
        SCOPED_TRACE(ToString(exchange) + ", W = " + std::to_string(w) +
                     ", k = " + std::to_string(k) + ", " + wire + " " + sum + " " + result);
        const Messages messages(spec, w, {n}, 1 << 20);
        for (int rank = 0; rank < w; ++rank) {
          const Row row = row_of(exchange, w, k, rank % k == 0, n, spec.format.bits() / 8,
                                 spec.accumulator.format.bits() / 8, spec.result.bits() / 8);
          const Cost counted = messages.cost(rank);
          EXPECT_EQ(counted.steps, row.steps) << rank;
          EXPECT_EQ(counted.bytes_sent, row.bytes) << rank;
          EXPECT_EQ(counted.bytes_received, row.bytes) << rank;
          const Cost cost = CostOf(spec, w, rank, Sizes{n}, 1 << 20);
          EXPECT_EQ(cost.steps, row.steps) << rank;
          EXPECT_EQ(cost.bytes_sent, row.bytes) << rank;
        }
      }
    }
  }
}

TEST(Cost, ClosedForms) {
  const std::int64_t n = 16 * 10'000;  // every slice alike, in whole bytes
  const std::int64_t w = 16;
  const auto sent = [&](Exchange exchange, int group, int rank) {
    return CostOf(spec_of(exchange, group), 16, rank, Sizes{n}, 1 << 20).bytes_sent;
  };
  EXPECT_EQ(sent(Exchange::owner, 0, 3), 2 * (w - 1) * n / w);
  EXPECT_EQ(sent(Exchange::ring, 0, 3), 2 * (w - 1) * n / w);
  EXPECT_EQ(sent(Exchange::gather, 0, 3), (w - 1) * n);
  // Groups have k = 4 members. A master sends 3 (k - 1) / k n bytes in its group, 2 (U - 1) / U n
  // in the ring of U = 4 masters. Another member sends its master n / k bytes of the sum, and the
  // group 2 (k - 1) / k n bytes.
  EXPECT_EQ(sent(Exchange::hierarchical, 4, 8), 3 * 3 * n / 4 + 2 * 3 * n / 4);
  EXPECT_EQ(sent(Exchange::hierarchical, 4, 9), 2 * 3 * n / 4 + n / 4);
  const double alpha = 1e-5;
  const double beta = 1e-9;
  const auto time = [&](Exchange exchange, int group) {
    return TimeOf(spec_of(exchange, group), 16, Sizes{n}, alpha, beta);
  };
  const auto count = static_cast<double>(n);
  EXPECT_DOUBLE_EQ(time(Exchange::owner, 0), 30 * alpha + beta * 2 * 15 * count / 16);
  EXPECT_DOUBLE_EQ(time(Exchange::gather, 0), 15 * alpha + beta * 15 * count);
  EXPECT_DOUBLE_EQ(time(Exchange::hierarchical, 4),
                   18 * alpha + beta * (4 * 3 * count / 4 + 2 * 3 * count / 4));
}

struct Large {
  Exchange exchange;
  Order order;
  int group_size;
};

std::vector<Large> large_cases() {
  std::vector<Large> cases{{Exchange::ring, Order::ring, 0}};
  for (const int group_size : {1, 16, 256, 1000, 65'536}) {
    cases.push_back({Exchange::hierarchical, Order::ring, group_size});
  }
  for (const Order order : {Order::sequential, Order::ring, Order::tree}) {
    for (const int group_size : {0, 1, 16, 256, 1000, 65'536}) {
      cases.push_back({Exchange::owner, order, group_size});
      cases.push_back({Exchange::gather, order, group_size});
    }
  }
  return cases;
}

/// An all-reduce's steps and the sum of the bytes of each step's longest message. The formulas for
/// w ranks and n values are worked out by hand.
struct ByHand {
  std::int64_t steps, bytes;
};
ByHand by_hand(const Large& one, std::int64_t w, std::int64_t n) {
  if (one.exchange == Exchange::gather) return {w - 1, (w - 1) * n};
  if (one.exchange != Exchange::hierarchical) return {2 * (w - 1), 2 * (w - 1) * (n / w)};
  const std::int64_t k = one.group_size;
  const auto length = [](std::int64_t values, std::int64_t parts, std::int64_t part) {
    return values / parts + (part < values % parts ? 1 : 0);
  };
  const std::int64_t units = (w + k - 1) / k;
  const std::int64_t last = w - (units - 1) * k;
  ByHand hand{4 * (k - 1) + 2 * (units - 1), 2 * (units - 1) * length(n, units, 0)};
  for (std::int64_t m = 1; m < k; ++m) {  // pieces of the last group are longer
    const std::int64_t members = m < last ? last : k;
    hand.bytes += 2 * length(n, members, 0) + 2 * length(n, members, m);
  }
  return hand;
}

TEST(Cost, OfManyRanks) {
  constexpr int kWorld = 65'536;
  constexpr std::int64_t kValues = std::int64_t{1} << 24;
  double slowest = 0;
  for (const Large& one : testing::thinned(large_cases())) {
    Reduce spec = spec_of(one.exchange, one.group_size);
    spec.order = one.order;
    const std::string name = ToString(one.exchange) + ", order " + ToString(one.order) +
                             ", groups of " + std::to_string(one.group_size);
    SCOPED_TRACE(name);
    const ByHand hand = by_hand(one, kWorld, kValues);
    const std::clock_t begin = std::clock();  // of this process: others may be busy
    const Cost cost = CostOf(spec, kWorld, kWorld - 1, Sizes{kValues}, kValues);
    const double time = TimeOf(spec, kWorld, Sizes{kValues}, 1, 0x1p-10);
    const double took = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    EXPECT_EQ(cost.steps, hand.steps);
    EXPECT_EQ(time, static_cast<double>(hand.steps) + 0x1p-10 * static_cast<double>(hand.bytes));
    EXPECT_TRUE(one.exchange == Exchange::hierarchical || cost.bytes_sent == hand.bytes);
    std::printf("%-50s %6.3f s\n", name.c_str(), took);
    slowest = std::max(slowest, took);
  }
  EXPECT_LT(slowest, testing::kSanitized ? 120 : 12);  // seconds of a processor
}

TEST(Cost, NanWithoutACodeTakesBinary32) {
  Reduce spec;
  spec.format = spec.accumulator.format = spec.result = ParseFormat("e3m0");
  spec.exchange = Exchange::gather;
  const auto cost = [&](std::vector<float> largest) {
    return CostOf(spec, 2, 0, Sizes{100}, 1 << 20, {.largest = largest});
  };
  EXPECT_EQ(cost({1}).bytes_sent, 50);
  EXPECT_EQ(cost({1000}).bytes_sent, 400);
  EXPECT_EQ(cost({std::numeric_limits<float>::infinity()}).bytes_sent, 400);
  EXPECT_TRUE(cost({1000}).exact);
  EXPECT_EQ(cost({}).bytes_sent, 400);
  EXPECT_FALSE(cost({}).exact);
  EXPECT_EQ(TimeOf(spec, 2, Sizes{100}, 0, 1, {}), 400);
  EXPECT_THROW(cost({1, 2}), Error);
  EXPECT_THROW(cost({-1}), Error);
  const std::vector<float> one = {1};
  EXPECT_THROW(CostOf(spec, 2, 0, Sizes{100, 100}, 1 << 20, {.largest = one}), Error);
  spec.aps = Aps::on;
  EXPECT_EQ(cost({}).bytes_sent, 50);
  EXPECT_TRUE(cost({}).exact);
  spec.aps = Aps::off;  // e2m1 has no infinity: finite values saturate, others take binary32
  spec.format = spec.accumulator.format = spec.result = ParseFormat("e2m1");
  EXPECT_EQ(cost({1e30F}).bytes_sent, 50);
  EXPECT_EQ(cost({std::numeric_limits<float>::infinity()}).bytes_sent, 400);
}

TEST(Cost, ChunksCostNothingWhereCodesAreBytes) {
  for (const Exchange exchange : {Exchange::owner, Exchange::ring}) {
    const Reduce spec = spec_of(exchange, 0);
    const Sizes sizes = {12'345, 1, 999};
    EXPECT_EQ(CostOf(spec, 5, 2, sizes, 1).bytes_sent,
              CostOf(spec, 5, 2, sizes, 1 << 20).bytes_sent);
  }
}

TEST(Cost, OfNothing) {
  for (const Sizes& sizes : {Sizes{}, Sizes{0, 0}}) {
    const Cost cost = CostOf(spec_of(Exchange::owner, 0), 4, 0, sizes, 64);
    EXPECT_EQ(cost.steps, 0);
    EXPECT_EQ(cost.bytes_sent, 0);
    EXPECT_EQ(TimeOf(spec_of(Exchange::owner, 0), 4, sizes, 1, 1), 0);
  }
  EXPECT_EQ(TimeOf(spec_of(Exchange::ring, 0), 1, Sizes{10}, 1, 1), 0);
}

TEST(Cost, RefusesMisuse) {
  const Reduce spec;
  const Sizes sizes = {10};
  EXPECT_THROW(CostOf(spec, 0, 0, sizes, 1), Error);
  EXPECT_THROW(CostOf(spec, 2, 2, sizes, 1), Error);
  EXPECT_THROW(CostOf(spec, 2, -1, sizes, 1), Error);
  EXPECT_THROW(CostOf(spec, 2, 0, sizes, 0), Error);
  EXPECT_THROW(CostOf(spec, 2, 0, Sizes{-1}, 1), Error);
  EXPECT_THROW(TimeOf(spec, 2, sizes, -1, 0), Error);
  EXPECT_THROW(TimeOf(spec, 2, sizes, 0, std::numeric_limits<double>::quiet_NaN()), Error);
  Reduce bad = spec_of(Exchange::ring, 0);
  bad.order = Order::tree;
  EXPECT_THROW(CostOf(bad, 2, 0, sizes, 1), Error);
}

}  // namespace
}  // namespace cpd
