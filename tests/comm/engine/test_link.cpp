// SPDX-License-Identifier: Apache-2.0
//
// Tests messages between ranks: a receiver detects changed bytes, and memory is not freed while a
// transport may still write to it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpd/comm/engine/link.h"
#include "tests/testing/faulty_transports.h"
#include "tests/testing/ranks.h"
#include "tests/testing/ways.h"

namespace cpd {
namespace {

using testing::Begun;
using testing::blank;
using testing::describe;
using testing::expect_well;
using testing::Fate;
using testing::fate_of;
using testing::Flip;
using testing::FlippingTransport;
using testing::Layers;
using testing::on_ranks;
using testing::options_of;
using testing::OutOfMemory;
using testing::Ranks;
using testing::same_layers;
using testing::sizes_of;
using testing::spec_of;
using testing::Transports;
using testing::views_of;
using testing::Way;

// ---- two ends
// ------------------------------------------------------------------------------------

/// Runs work(link) on one thread for each rank. Returns how the work ended on each rank.
std::vector<Fate> on_links(Transports transports, const std::function<void(Link&)>& work) {
  std::vector<Fate> fates(transports.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < transports.size(); ++r) {
    threads.emplace_back([&, r] {
      Link link(*transports[r], 1);
      fates[r] = fate_of([&] { work(link); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return fates;
}

SharedMessage filled(Link& link, std::int64_t bytes, int seed) {
  SharedMessage message = link.Take(bytes);
  for (std::int64_t i = 0; i < bytes; ++i) {
    message->payload()[i] = static_cast<std::uint8_t>(seed + 31 * i);
  }
  return message;
}

TEST(Link, MovesAndCounts) {
  expect_well(on_links(LocalTransports(2), [](Link& link) {
    const int peer = 1 - link.transport().rank();
    for (const std::int64_t bytes : {0, 1, 5000}) {
      link.traffic() = {};
      const SharedMessage in = link.Take(bytes);
      Pending pending =
          link.Start(Phase::exchange, {{peer, filled(link, bytes, 1 - peer)}}, {{peer, in}});
      link.Wait(pending);
      if (bytes == 0) {
        EXPECT_EQ(link.traffic().messages, 0);
        continue;
      }
      EXPECT_EQ(in->source(), peer);
      EXPECT_EQ(in->payload()[bytes - 1], filled(link, bytes, peer)->payload()[bytes - 1]);
      EXPECT_EQ(link.traffic().messages, 1);
      EXPECT_EQ(link.traffic().bytes_sent, bytes);
      EXPECT_EQ(link.traffic().bytes_received, bytes);
      EXPECT_EQ(link.traffic().header_bytes, kHeaderBytes);
    }
  }));
}

TEST(Link, GathersAndTakesTheLargest) {
  for (const int world : {1, 2, 3, 7}) {
    expect_well(on_links(LocalTransports(world), [&](Link& link) {
      const auto rank = static_cast<std::uint32_t>(link.transport().rank());
      const std::vector<std::uint8_t> own{static_cast<std::uint8_t>(rank), 9};
      const auto all = link.AllGather(Phase::handshake, own);
      ASSERT_EQ(all.size(), 2 * static_cast<std::size_t>(world));
      for (std::size_t r = 0; r < all.size() / 2; ++r) EXPECT_EQ(all[2 * r], r);
      std::vector<std::uint32_t> numbers{rank, 0xFF000000U - rank, 0};
      link.Max(Phase::exponents, numbers);
      const auto last = static_cast<std::uint32_t>(world - 1);
      EXPECT_EQ(numbers, (std::vector<std::uint32_t>{last, 0xFF000000U, 0}));
    }));
  }
}

TEST(Link, SizesTravelAhead) {
  expect_well(on_links(LocalTransports(2), [](Link& link) {
    const int rank = link.transport().rank();
    const int peer = 1 - rank;
    const std::vector<Addressed> out{{peer, filled(link, 10 + rank, rank)}};
    const std::vector<Addressed> in{{peer, link.Take(5000)}};
    Pending sizes = link.StartSizes(Phase::exchange, out, in);
    link.Wait(sizes);
    link.TakeSizes(sizes, in);
    EXPECT_EQ(in[0].message->bytes(), 10 + peer);
    EXPECT_EQ(link.traffic().bytes_sent, 0);
    EXPECT_EQ(link.traffic().header_bytes, kHeaderBytes + 8);
    Pending pending = link.Start(Phase::exchange, out, in);
    link.Wait(pending);
    EXPECT_EQ(in[0].message->payload()[9], filled(link, 10, peer)->payload()[9]);
  }));
}

TEST(Link, SizesBeyondTheMostAreCorrupt) {
  const auto fates = on_links(LocalTransports(2), [](Link& link) {
    const int peer = 1 - link.transport().rank();
    const std::vector<Addressed> out{{peer, filled(link, 300, 1)}};
    const std::vector<Addressed> in{{peer, link.Take(299)}};
    Pending sizes = link.StartSizes(Phase::gather, out, in);
    link.Wait(sizes);
    link.TakeSizes(sizes, in);
  });
  for (const Fate& fate : fates) {
    EXPECT_EQ(fate.kind, Fate::Kind::corrupt) << fate;
    EXPECT_NE(fate.what.find("announces a message of 300 bytes in phase gather, of which at most "
                             "299 can be"),
              std::string::npos)
        << fate;
  }
}

/// Expects that at least one rank reports that the headers differ. The other rank must report that
/// the headers differ, or that the first rank has failed.
void expect_other_header(const std::vector<Fate>& fates) {
  const auto is_corrupt = [](const Fate& fate) { return fate.kind == Fate::Kind::corrupt; };
  EXPECT_TRUE(std::ranges::any_of(fates, is_corrupt)) << fates[0] << ", " << fates[1];
  for (const Fate& fate : fates) {
    if (fate.kind == Fate::Kind::lost) continue;  // it has heard of the other first
    EXPECT_EQ(fate.kind, Fate::Kind::corrupt) << fate;
    EXPECT_NE(fate.what.find("phase or number"), std::string::npos) << fate;
  }
}

TEST(Link, AnotherPhaseIsCorrupt) {
  const auto fates = on_links(LocalTransports(2), [](Link& link) {
    const int rank = link.transport().rank();
    const SharedMessage in = link.Take(8);
    Pending pending = link.Start(rank == 0 ? Phase::fold : Phase::gather,
                                 {{1 - rank, filled(link, 8, 1)}}, {{1 - rank, in}});
    link.Wait(pending);
  });
  expect_other_header(fates);
}

TEST(Link, AnotherMessagesNumberIsCorrupt) {
  const auto fates = on_links(LocalTransports(2), [](Link& link) {
    const int rank = link.transport().rank();
    // Makes kTags calls on rank 1 only. Tags repeat after kTags calls, so both ranks now use the
    // same tag in different calls.
    for (int i = 0; rank == 1 && i < kTags; ++i) link.Start(Phase::exchange, {}, {});
    const SharedMessage in = link.Take(8);
    Pending pending =
        link.Start(Phase::exchange, {{1 - rank, filled(link, 8, 1)}}, {{1 - rank, in}});
    link.Wait(pending);
  });
  expect_other_header(fates);
}

// ---- damage, and memory
// --------------------------------------------------------------------------

/// Expects that rank 1 receives a changed message and reports it. Every other rank must give up
/// too, unless it had already finished. Returns false if no message was changed.
bool expect_corrupt(const Reduce& spec, const Ranks& ranks, Flip& flip) {
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

TEST(Link, ChangedBytesAreFound) {
  const Ranks ranks = testing::random_ranks(3, {70, 5}, 3);
  for (const Way& way :
       {Way{Order::sequential, Exchange::owner, 0}, Way{Order::tree, Exchange::gather, 0},
        Way{Order::ring, Exchange::ring, 0}, Way{Order::ring, Exchange::hierarchical, 2}}) {
    Reduce spec = spec_of(way, 0);
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

/// A transport of rank 1 in a group of three ranks. Every message fails. If `answers` is true,
/// Alarms() reports the alarms of ranks 0 and 1, but only at its fifth call after rank 1's own
/// alarm. Alarms() never reports rank 2. If `answers` is false, Alarms() reports no alarm.
class LateAlarms final : public Transport {
 public:
  explicit LateAlarms(bool answers) : answers_(answers) {}
  [[nodiscard]] std::string name() const override { return "late alarms"; }
  [[nodiscard]] int rank() const override { return 1; }
  [[nodiscard]] int size() const override { return 3; }
  [[nodiscard]] int ranks_on_host() const override { return 1; }
  std::unique_ptr<Transfer> Start(std::span<const Outgoing> /*out*/,
                                  std::span<const Incoming> /*in*/, int /*tag*/) override {
    throw TransportError("the connection is closed", -1);
  }
  void RaiseAlarm() noexcept override { asked_ = 0; }
  [[nodiscard]] std::vector<bool> Alarms() override {
    if (!answers_) return {};
    if (asked_ < 0) return {false, false, false};
    return ++asked_ < 5 ? std::vector<bool>() : std::vector<bool>{true, true, false};
  }
  std::unique_ptr<Transport> Subgroup(std::span<const int> /*ranks*/, double /*timeout*/) override {
    return nullptr;
  }
  [[noreturn]] void Abort(const std::string& /*reason*/) noexcept override { std::abort(); }

 private:
  bool answers_;
  int asked_ = -1;  ///< questions since the alarm
};

TEST(Link, AnAnswerAboutAlarmsMayBeLate) {
  const std::vector<std::uint8_t> own{1};
  for (const bool answers : {true, false}) {
    LateAlarms transport(answers);
    Link link(transport, 1);
    link.CheckAlarms(Phase::handshake);
    const Fate fate = fate_of([&] { link.AllGather(Phase::handshake, own); });
    EXPECT_EQ(fate.kind, Fate::Kind::lost) << fate;
    EXPECT_EQ(fate.lost, answers ? std::vector<int>{2} : std::vector<int>()) << fate;
  }
}

TEST(StartedMessages, KeepTheirMemoryWhereStartingFails) {
  Begun begun;
  {
    std::vector<std::unique_ptr<Transport>> ends = LocalTransports(2);
    Communicator comm(std::make_unique<OutOfMemory>(std::move(ends[0]), begun),
                      options_of(1 << 20));
    EXPECT_THROW(comm.Barrier(), std::bad_alloc);
    EXPECT_NE(comm.broken(), "");
    EXPECT_TRUE(ends[1]->Alarms()[0]) << "the other rank is told";
  }
  // The transport may still write to the memory of messages whose receiving has begun. New
  // allocations must not overlap that memory.
  ASSERT_FALSE(begun.messages.empty());
  std::vector<std::unique_ptr<std::uint8_t[]>> blocks;
  for (int i = 0; i < 2000; ++i) {
    for (const std::size_t bytes : {1152U, 1088U, 500U, 100U}) {
      blocks.emplace_back(new std::uint8_t[bytes]);
      const std::uint8_t* block = blocks.back().get();
      for (const Incoming& message : begun.messages) {
        const auto* room = static_cast<const std::uint8_t*>(message.data);
        const bool apart = block + bytes <= room || room + message.bytes <= block;
        ASSERT_TRUE(apart) << "memory of a started message was given away";
      }
    }
  }
  for (const Incoming& message : begun.messages) {  // and it is there, which a sanitizer checks
    std::fill_n(static_cast<std::uint8_t*>(message.data), message.bytes, std::uint8_t{7});
  }
}

}  // namespace
}  // namespace cpd
