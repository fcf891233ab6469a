// SPDX-License-Identifier: Apache-2.0
//
// Tests run-length encoding, a codec whose messages vary in size, in every exchange. Real ranks
// give the bits of virtual ranks with the same codec, of a reduction of packed values, and of a
// serial oracle. Tests also the messages that announce sizes, states, damaged bytes and lost ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cpd/comm/engine/link.h"
#include "cpd/oracle/reference.h"
#include "cpd/oracle/reference_sum.h"
#include "tests/testing/codec_ranks.h"
#include "tests/testing/expect_virtual.h"
#include "tests/testing/faulty_transports.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::all_reduce;
using testing::blank;
using testing::coded;
using testing::constant_runs;
using testing::describe;
using testing::expect_well;
using testing::Fate;
using testing::fate_of;
using testing::Flip;
using testing::FlippingTransport;
using testing::Hooked;
using testing::Layers;
using testing::on_ranks;
using testing::options_of;
using testing::Ranks;
using testing::RunLength;
using testing::same_layers;
using testing::sizes_of;
using testing::spec_of;
using testing::Transports;
using testing::views_of;
using testing::Way;
using testing::ways;

/// Expects that real ranks with the codec give the bits and reports of the virtual ranks. Both must
/// equal a reduction of packed values, except for the number of bytes in the report.
void expect_as_packed(const Reduce& packed, const Ranks& ranks, const CommOptions& options) {
  SCOPED_TRACE(describe(packed, ranks.size()) + ", chunk " + std::to_string(options.chunk));
  const Reduce spec = coded(packed);
  std::vector<TensorReport> reports;
  const Layers expected = testing::virtual_reduce(packed, ranks, &reports);
  std::vector<TensorReport> of_runs;
  EXPECT_TRUE(same_layers(expected, testing::virtual_reduce(spec, ranks, &of_runs)));
  for (std::size_t l = 0; l < reports.size(); ++l) reports[l].bytes = of_runs[l].bytes;
  const auto outcomes = all_reduce(spec, ranks, options);
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    EXPECT_TRUE(same_layers(expected, outcomes[r].out)) << "on rank " << r;
    testing::expect_same_report(reports, outcomes[r].report.layers, true);
  }
}

TEST(CodecExchanges, EqualVirtualRanks) {
  std::size_t pick = 0;
  for (const int world : {1, 2, 3, 7, 8}) {
    if (testing::kSanitized && world > 3) continue;
    const auto w = static_cast<std::size_t>(world);
    const Ranks ranks = testing::random_ranks(w, {0, 1, w + 1, 257, 5000}, w);
    for (const Way& way : ways(world)) {
      for (int specs = 0; specs < (testing::kSanitized ? 1 : 3); ++specs) {
        const std::int64_t chunk = std::array{700, 6000, 1 << 20}[pick % 3];
        expect_as_packed(spec_of(way, pick), ranks, options_of(chunk));
        ++pick;
      }
    }
  }
}

TEST(CodecExchanges, ManyRanks) {
  const Ranks ranks = testing::random_ranks(64, {700, 3, 65}, 4);
  for (const Way& way :
       {Way{Order::sequential, Exchange::owner, 0}, Way{Order::ring, Exchange::hierarchical, 10}}) {
    expect_as_packed(spec_of(way, 0), ranks, options_of(1 << 20));
    if (testing::kSanitized) return;
  }
}

TEST(CodecExchanges, NanAndInfinity) {
  Ranks ranks = testing::random_ranks(4, {9, 70}, 6);
  ranks[0][1][7] = std::nanf("");
  ranks[2][1][0] = INFINITY;
  ranks[1][1][5] = INFINITY;
  ranks[2][1][5] = -INFINITY;
  for (const Way& way : ways(4)) {
    for (const char* name : {"e5m2", "e2m1", "e4m3fn", "fp32"}) {
      Reduce spec = spec_of(way, 0);
      spec.format = spec.accumulator.format = spec.result = ParseFormat(name);
      expect_as_packed(spec, ranks, options_of(33));
    }
  }
}

/// Compares reductions that use the codec with sums that the oracle computes rank by rank, without
/// CPD's virtual ranks.
TEST(CodecExchanges, EqualASerialSum) {
  const Ranks ranks = testing::random_ranks(5, {300, 41}, 12);
  for (const char* name : {"e4m3", "e3m0", "fp16"}) {
    const reference::Spec format = reference::spec_of(ParseFormat(name));
    for (const Exchange exchange : {Exchange::owner, Exchange::gather}) {
      Reduce spec;
      spec.format = spec.accumulator.format = spec.result = ParseFormat(name);
      spec.exchange = exchange;
      Layers expected = blank(sizes_of(ranks[0]));
      for (std::size_t l = 0; l < expected.size(); ++l) {
        for (std::size_t i = 0; i < expected[l].size(); ++i) {
          std::vector<float> terms;
          for (const Layers& rank : ranks) terms.push_back(reference::cast(format, rank[l][i]));
          expected[l][i] = reference::sum_sequential(format, terms);
        }
      }
      for (const auto& outcome : all_reduce(coded(spec), ranks, options_of(90))) {
        EXPECT_TRUE(same_layers(expected, outcome.out)) << name;
      }
    }
  }
}

TEST(CodecExchanges, OtherCalls) {
  const Ranks ranks = testing::random_ranks(4, {100, 0, 3, 257}, 8);
  const Reduce packed = spec_of({Order::ring, Exchange::owner, 0}, 7);
  const Reduce spec = coded(packed);
  const Layers expected = testing::virtual_reduce(packed, ranks);
  Layers at_root = blank(sizes_of(ranks[0]));
  expect_well(on_ranks(4, options_of(50), [&](Communicator& comm) {
    const auto x = views_of(ranks[static_cast<std::size_t>(comm.rank())]);
    comm.Reduce(x, comm.rank() == 3 ? views_of(at_root) : std::vector<TensorView>{}, spec, 3);
    Layers slices;
    std::vector<std::int64_t> sizes;
    for (const auto& layer : expected) {
      const auto n = static_cast<std::int64_t>(layer.size());
      const std::int64_t begin = SliceBegin(n, 4, comm.rank());
      const std::int64_t end = SliceBegin(n, 4, comm.rank() + 1);
      sizes.push_back(end - begin);
      slices.emplace_back(layer.begin() + begin, layer.begin() + end);
    }
    Layers out = blank(sizes);
    comm.ReduceScatter(x, views_of(out), spec);
    EXPECT_TRUE(same_layers(slices, out)) << "rank " << comm.rank();
  }));
  EXPECT_TRUE(same_layers(expected, at_root));
}

TEST(CodecExchanges, LongRunsTakeFewBytes) {
  const Ranks ranks = constant_runs(4, 100000);
  for (const Way& way : ways(4)) {
    Reduce packed = spec_of(way, 0);
    packed.format = packed.accumulator.format = packed.result = ParseFormat("e4m3");
    packed.accumulator.inner.reset();
    SCOPED_TRACE(describe(packed, 4));
    const auto by_codec = all_reduce(coded(packed), ranks, options_of(1 << 20), false, false);
    const auto by_bytes = all_reduce(packed, ranks, options_of(1 << 20), false, false);
    for (std::size_t r = 0; r < 4; ++r) {
      const Traffic& few = by_codec[r].report.traffic;
      const Traffic& many = by_bytes[r].report.traffic;
      EXPECT_TRUE(same_layers(by_bytes[r].out, by_codec[r].out));
      EXPECT_LT(10 * few.bytes_sent, many.bytes_sent) << r;
      EXPECT_EQ(few.steps, many.steps) << "sizes ahead are no steps";
      // Each message of values follows a message that announces its size: a header and eight bytes.
      const std::int64_t ahead = few.messages - many.messages;
      EXPECT_GT(ahead, 0);
      EXPECT_EQ(few.header_bytes - many.header_bytes, ahead * (kHeaderBytes + 8));
    }
  }
}

// ---- tensors' numbers, and states
// -----------------------------------------------------------------

TEST(CodecExchanges, NumbersAreThoseOfPaddedCalls) {
  const Ranks ranks = testing::random_ranks(3, {100, 7, 300}, 8);
  const std::vector<std::int64_t> numbers{5, 0, 9};
  Ranks padded(3, Layers(10));
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t l = 0; l < 3; ++l) {
      padded[r][static_cast<std::size_t>(numbers[l])] = ranks[r][l];
    }
  }
  for (const Way& way : ways(3)) {
    for (const bool varies : {false, true}) {
      Reduce spec = spec_of(way, 2);
      spec.rounding.mode = spec.accumulator.rounding.mode = Rounding::stochastic;
      if (varies) spec = coded(spec);
      SCOPED_TRACE(describe(spec, 3));
      const Layers all = testing::virtual_reduce(spec, padded);
      const Layers expected{all[5], all[0], all[9]};
      EXPECT_FALSE(same_layers(testing::virtual_reduce(spec, ranks), expected));
      EXPECT_TRUE(same_layers(expected,
                              testing::virtual_reduce(spec, ranks, nullptr, {.numbers = numbers})));
      expect_well(on_ranks(3, options_of(64), [&](Communicator& comm) {
        Layers out = blank(sizes_of(ranks[0]));
        const auto x = views_of(ranks[static_cast<std::size_t>(comm.rank())]);
        comm.AllReduce(x, views_of(out), spec, true, {.numbers = numbers});
        EXPECT_TRUE(same_layers(expected, out));
      }));
    }
  }
}

TEST(CodecExchanges, StatesGoFromCallToCall) {
  const Ranks ranks = testing::random_ranks(3, {100, 7, 300}, 8);
  for (const Way& way : ways(3)) {
    const Reduce spec = coded(spec_of(way, 2), true);
    SCOPED_TRACE(describe(spec, 3));
    CodecStates states;
    std::vector<Layers> expected;
    for (int call = 0; call < 3; ++call) {
      expected.push_back(testing::virtual_reduce(spec, ranks, nullptr, {.states = &states}));
    }
    EXPECT_FALSE(same_layers(expected[0], expected[1]));
    expect_well(on_ranks(3, options_of(64), [&](Communicator& comm) {
      CodecStates own;
      const auto x = views_of(ranks[static_cast<std::size_t>(comm.rank())]);
      for (const Layers& sum : expected) {
        Layers out = blank(sizes_of(ranks[0]));
        comm.AllReduce(x, views_of(out), spec, true, {.states = &own});
        EXPECT_TRUE(same_layers(sum, out)) << "rank " << comm.rank();
      }
      Layers out = blank(sizes_of(ranks[0]));
      comm.AllReduce(x, views_of(out), spec);  // which keeps nothing
      EXPECT_TRUE(same_layers(expected[0], out));
    }));
  }
}

/// Gives a rank states that belong to another number of ranks or to another rank. Every rank throws
/// an error that says so, even if only one rank has the wrong states.
TEST(CodecExchanges, ForeignStatesAreRefused) {
  const Ranks ranks = testing::random_ranks(3, {50}, 8);
  const Reduce spec = coded(spec_of(ways(3)[0], 0), true);
  CodecStates states;
  testing::virtual_reduce(spec, ranks, nullptr, {.states = &states});
  const Ranks two(ranks.begin(), ranks.begin() + 2);
  EXPECT_THROW(testing::virtual_reduce(spec, two, nullptr, {.states = &states}), Error);
  expect_well(on_ranks(3, options_of(64), [&](Communicator& comm) {
    const auto x = views_of(ranks[static_cast<std::size_t>(comm.rank())]);
    Layers out = blank(sizes_of(ranks[0]));
    CodecStates own;
    const TensorOptions layers{.states = comm.rank() == 1 ? &states : &own};
    EXPECT_THROW(comm.AllReduce(x, views_of(out), spec, false, layers), std::exception);
    comm.AllReduce(x, views_of(out), spec, false, {.states = &own});
  }));
}

/// Rounding errors of one call are added to the values of the next call. The oracle alone computes
/// the expected results.
TEST(CodecExchanges, FeedbackEqualsASerialSum) {
  const Ranks ranks = testing::random_ranks(3, {50}, 8);
  Reduce spec;
  spec.format = ParseFormat("e4m3");
  spec = coded(spec, true);
  const reference::Spec format = reference::spec_of(spec.format);
  Ranks lost(3, Layers(1, std::vector<float>(50)));
  CodecStates states;
  for (int call = 0; call < 4; ++call) {
    Layers expected(1, std::vector<float>(50));
    for (std::size_t i = 0; i < 50; ++i) {
      std::vector<float> terms;
      for (std::size_t r = 0; r < 3; ++r) {
        const float sent = ranks[r][0][i] + lost[r][0][i];
        terms.push_back(reference::cast(format, sent));
        lost[r][0][i] = sent - terms.back();
      }
      expected[0][i] = reference::sum_sequential(reference::spec_of(kFp32), terms);
    }
    EXPECT_TRUE(
        same_layers(expected, testing::virtual_reduce(spec, ranks, nullptr, {.states = &states})));
  }
}

// ---- refusals, damage, lost ranks
// ----------------------------------------------------------------

TEST(CodecExchanges, RefusesMisuse) {
  Communicator comm(std::move(LocalTransports(1)[0]), options_of(8));
  const Layers x = {{1, 2, 3}};
  Layers out = blank({3});
  const Reduce spec;
  for (const std::vector<std::int64_t>& numbers :
       {std::vector<std::int64_t>{1, 2}, {-1}, {1 << 16}}) {
    EXPECT_THROW(comm.AllReduce(views_of(x), views_of(out), spec, false, {.numbers = numbers}),
                 Error);
  }
  const Layers two = {{1}, {2}};
  const std::vector<std::int64_t> twice{4, 4};
  EXPECT_THROW(comm.AllReduce(views_of(two), views_of(two), spec, false, {.numbers = twice}),
               Error);
  EXPECT_EQ(comm.broken(), "");
}

TEST(CodecExchanges, OtherCodecsAndNumbersAreMismatches) {
  const Layers x = {{1, 2, 3}, {4}};
  const std::vector<std::int64_t> numbers{3, 4};
  for (const bool numbered : {false, true}) {
    std::vector<std::string> heard(3);
    expect_well(on_ranks(3, options_of(50, 20), [&](Communicator& comm) {
      Reduce spec = coded({});
      if (!numbered && comm.rank() == 2) spec.wire = nullptr;
      TensorOptions layers;
      if (numbered && comm.rank() == 2) layers.numbers = numbers;
      Layers out = blank(sizes_of(x));
      const Fate fate =
          fate_of([&] { comm.AllReduce(views_of(x), views_of(out), spec, false, layers); });
      EXPECT_EQ(fate.kind, Fate::Kind::mismatch) << fate;
      heard[static_cast<std::size_t>(comm.rank())] = fate.what;
      EXPECT_TRUE(same_layers(blank(sizes_of(x)), out));
      comm.Barrier();
    }));
    EXPECT_EQ(heard[0],
              numbered ? "the ranks do not agree: tensors' numbers is 0, 1, … on rank 0 and 3-4 on "
                         "rank 2"
                       : "the ranks do not agree: wire is codec " + coded({}).wire->text() +
                             " on rank 0 "
                             "and format fp32 on rank 2");
    EXPECT_EQ(heard[1], heard[0]);
    EXPECT_EQ(heard[2], heard[0]);
  }
}

/// Changes one bit in each message of rank 1 in turn, also in messages that announce sizes. The
/// receiver must detect the change.
TEST(CodecExchanges, ChangedBytesAreFound) {
  const Ranks ranks = testing::random_ranks(3, {70, 5}, 3);
  for (const Way& way :
       {Way{Order::sequential, Exchange::owner, 0}, Way{Order::tree, Exchange::gather, 0},
        Way{Order::ring, Exchange::ring, 0}, Way{Order::ring, Exchange::hierarchical, 2}}) {
    const Reduce spec = coded(spec_of(way, 0));
    SCOPED_TRACE(describe(spec, 3));
    for (std::int64_t message = 0, bit = 1;; ++message, bit = bit * 37 % 1009) {
      SCOPED_TRACE("message " + std::to_string(message));
      Flip flip;
      flip.message = message;
      flip.bit = bit;
      Transports transports = LocalTransports(3);
      transports[1] = std::make_unique<FlippingTransport>(std::move(transports[1]), flip);
      const auto fates =
          on_ranks(std::move(transports), options_of(64, 1), [&](Communicator& comm) {
            Layers out = blank(sizes_of(ranks[0]));
            const auto x = views_of(ranks[static_cast<std::size_t>(comm.rank())]);
            comm.AllReduce(x, views_of(out), spec);
          });
      if (!flip.done) {
        expect_well(fates);
        EXPECT_GE(message, 6);
        break;
      }
      EXPECT_EQ(fates[1].kind, Fate::Kind::corrupt) << fates[1];
      for (const std::size_t r : {0U, 2U}) {
        const bool ended = fates[r].kind == Fate::Kind::well || fates[r].kind == Fate::Kind::lost;
        EXPECT_TRUE(ended) << fates[r];
      }
    }
  }
}

/// Bytes that arrive without a transmission error, but that the codec cannot decode, are reported
/// as Corrupt.
TEST(CodecExchanges, DamagedBytesAreCorrupt) {
  const Ranks ranks = testing::random_ranks(3, {70, 5000}, 3);
  for (const Way& way :
       {Way{Order::sequential, Exchange::owner, 0}, Way{Order::tree, Exchange::gather, 0},
        Way{Order::ring, Exchange::hierarchical, 2}}) {
    Reduce spec = spec_of(way, 0);
    const auto codec = std::make_shared<RunLength>(spec.format, spec.rounding);
    // Damages rank 0's contributions to layer 1. A range of values belongs to rank 0 if the low 20
    // bits of its random stream number are 0.
    codec->damages = [](const Piece& piece) {
      return piece.layer == 1 && piece.key.stream != 0 && (piece.key.stream & 0xFFFFFU) == 0;
    };
    spec.wire = codec;
    SCOPED_TRACE(describe(spec, 3));
    std::atomic<int> found = 0;
    const auto fates = on_ranks(3, options_of(1 << 20, 1), [&](Communicator& comm) {
      Layers out = blank(sizes_of(ranks[0]));
      const auto x = views_of(ranks[static_cast<std::size_t>(comm.rank())]);
      const Fate fate = fate_of([&] { comm.AllReduce(x, views_of(out), spec); });
      EXPECT_NE(comm.broken(), "");
      if (fate.kind == Fate::Kind::lost) return;
      EXPECT_EQ(fate.kind, Fate::Kind::corrupt) << fate;
      ++found;
      const bool own = fate.what.starts_with("this rank's own message is damaged");
      const bool named =
          fate.what.starts_with("a message from rank 0 is damaged: tensor 1, values");
      EXPECT_TRUE(own || named) << fate;
      EXPECT_NE(fate.what.find("a run of nothing"), std::string::npos) << fate;
    });
    expect_well(fates);
    EXPECT_GE(found, 1);
  }
}

TEST(CodecExchanges, LostRanksAreNamed) {
  const Ranks ranks = testing::random_ranks(4, {5000, 9}, 3);
  struct Loss {
    Way way;
    Phase phase;
    int victim;
    std::int64_t chunk;
  };
  for (const Loss& loss : {Loss{{Order::sequential, Exchange::owner, 0}, Phase::exchange, 1, 0},
                           Loss{{Order::sequential, Exchange::owner, 0}, Phase::gather, 2, 4},
                           Loss{{Order::tree, Exchange::gather, 2}, Phase::fold, 2, 3},
                           Loss{{Order::ring, Exchange::ring, 0}, Phase::exchange, 2, 1},
                           Loss{{Order::ring, Exchange::hierarchical, 2}, Phase::fold, 0, 1},
                           Loss{{Order::ring, Exchange::hierarchical, 2}, Phase::gather, 3, 0}}) {
    const Reduce spec = coded(spec_of(loss.way, 2), true);
    SCOPED_TRACE(describe(spec, 4) + ", " + ToString(loss.phase));
    const Hooked hook([&](Phase phase, std::int64_t chunk, Transport& transport) {
      if (phase != loss.phase || chunk != loss.chunk || transport.rank() != loss.victim) return;
      if (transport.size() == 4) Break(transport);
    });
    Transports transports;
    for (auto& one : LocalTransports(4)) transports.push_back(Breakable(std::move(one)));
    std::vector<int> survivors;
    Ranks left;
    for (int r = 0; r < 4; ++r) {
      if (r == loss.victim) continue;
      survivors.push_back(r);
      left.push_back(ranks[static_cast<std::size_t>(r)]);
    }
    const Layers expected = testing::virtual_reduce(spec, left);
    expect_well(on_ranks(std::move(transports), options_of(100, 0.5), [&](Communicator& comm) {
      const auto x = views_of(ranks[static_cast<std::size_t>(comm.rank())]);
      Layers out = blank(sizes_of(ranks[0]));
      CodecStates states;
      const TensorOptions layers{.states = &states};
      const Fate fate = fate_of([&] { comm.AllReduce(x, views_of(out), spec, false, layers); });
      EXPECT_EQ(fate.kind, Fate::Kind::lost) << fate;
      if (comm.rank() == loss.victim) return;
      EXPECT_EQ(fate.lost, std::vector<int>{loss.victim}) << fate;
      // The reduction that failed has not changed the states. In the group of the surviving ranks
      // the ranks are renumbered, so a rank whose number changed needs fresh states.
      CodecStates fresh;
      Communicator rest = comm.Subgroup(survivors);
      rest.AllReduce(x, views_of(out), spec, false,
                     {.states = rest.rank() == comm.rank() ? &states : &fresh});
      EXPECT_TRUE(same_layers(expected, out)) << "rank " << comm.rank();
    }));
  }
}

}  // namespace
}  // namespace cpd
