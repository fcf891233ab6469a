// SPDX-License-Identifier: Apache-2.0
//
// Tests all-reduces with NaN and infinities, and in formats that lack NaN, infinities, zero or the
// sign. Local ranks give the bits of the virtual ranks.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/testing/expect_virtual.h"
#include "tests/testing/faulty_transports.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::accumulators;
using testing::all_reduce;
using testing::describe;
using testing::expect_virtual;
using testing::formats;
using testing::Layers;
using testing::options_of;
using testing::Ranks;
using testing::sizes_of;
using testing::spec_of;
using testing::Way;
using testing::ways;

TEST(AllReduce, NanAndInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Ranks ranks = testing::random_ranks(4, {9, 40, 70, 1}, 6);
  ranks[0][1][7] = nan;
  ranks[3][1][39] = -nan;
  ranks[2][1][0] = infinity;
  ranks[1][2][5] = infinity;
  ranks[2][2][5] = -infinity;
  ranks[0][2][69] = -infinity;
  for (auto& rank : ranks) rank[3][0] = -0.0F;
  std::size_t pick = 0;
  for (const Way& way : ways(4)) {
    if (way.group == 1 || way.group == 3) continue;
    for (const Format& format : formats()) {
      if (testing::kSanitized && ++pick % 5 != 0) continue;
      Reduce spec = spec_of(way, 0);
      spec.format = spec.accumulator.format = spec.result = format;
      spec.aps = ++pick % 2 == 0 ? Aps::on : Aps::off;
      expect_virtual(spec, ranks, options_of(33));
      spec.result = kFp32;
      expect_virtual(spec, ranks, options_of(33));
    }
  }
}

TEST(AllReduce, NanThatNoInputShows) {
  Ranks ranks = testing::random_ranks(3, {50, 6}, 6);
  ranks[0][0][7] = 1e6F;  // infinite in e5m2
  ranks[2][0][7] = -1e6F;
  ranks[1][1][0] = ranks[2][1][0] = 3e38F;  // whose sum is infinite in binary32
  std::size_t pick = 0;
  for (const Way& way : ways(3)) {
    for (const char* sum : {"e5m2", "fp32", "e3m0"}) {
      Reduce spec = spec_of(way, 0);
      spec.format = ParseFormat("e5m2");
      spec.accumulator.format = ParseFormat(sum);
      spec.result = ParseFormat(++pick % 2 == 0 ? "e2m1" : "e3m0");
      expect_virtual(spec, ranks, options_of(1 << 20));
      spec.format = ParseFormat("e3m0");  // in which 1 * 512 is infinite
      spec.loss_scale = 512;
      expect_virtual(spec, ranks, options_of(1 << 20));
    }
  }
}

TEST(AllReduce, AnyThreeFormats) {
  std::vector<Format> all = formats();
  for (const char* name : {"e8m0", "e4m3", "e2m3", "binary8p3ue", "binary8p4uf", "binary8p4sf",
                           "binary8p3se", "e4m3fnuz", "e6m9", "e5m0", "e1m0"}) {
    all.push_back(ParseFormat(name));
  }
  Ranks ranks = testing::random_ranks(3, {60, 6}, 6);
  std::mt19937_64 generator(5);
  for (Layers& rank : ranks) {  // huge and tiny values, all finite
    for (int i = 0; i < 12; ++i)
      rank[0][generator() % 60] *= std::ldexp(1.0F, static_cast<int>(generator() % 200) - 100);
  }
  const std::vector<Way> all_ways = ways(3);
  for (int n = 0; n < (testing::kSanitized ? 60 : 1500); ++n) {
    const auto any = [&]() -> const Format& { return all[generator() % all.size()]; };
    const Way& way = all_ways[generator() % all_ways.size()];
    Reduce spec = spec_of(way, generator() % 1000);
    spec.format = any();
    spec.accumulator.format = any();
    if (spec.accumulator.inner) spec.accumulator.inner = any();
    spec.result = any();
    if (generator() % 4 == 0) spec.rounding.overflow = Overflow::saturate;
    if (generator() % 4 == 0) spec.accumulator.rounding.overflow = Overflow::saturate;
    expect_virtual(spec, ranks, options_of(1 << 20));
  }
}

TEST(AllReduce, FormatsWithoutZero) {
  Ranks ranks = testing::random_ranks(3, {60, 6}, 6);
  for (Layers& rank : ranks) {
    for (auto& layer : rank) {
      for (float& x : layer) x = std::fabs(x);
    }
  }
  for (const Way& way : ways(3)) {
    for (const Accumulator& accumulator : accumulators(way, ParseFormat("e8m0"))) {
      Reduce spec = spec_of(way, 0);
      spec.format = spec.result = ParseFormat("e4m3");
      spec.accumulator = accumulator;
      if (accumulator.inner) spec.accumulator.inner = accumulator.format;
      expect_virtual(spec, ranks, options_of(1 << 20));
    }
  }
}

TEST(AllReduce, FiniteValuesTravelAtTheirWidth) {
  const Ranks ranks = testing::random_ranks(4, {400, 6}, 6);
  for (const Way& way : ways(4)) {
    for (const char* name : {"e3m0", "e2m1", "e4m3"}) {
      Reduce spec = spec_of(way, 0);
      spec.format = spec.accumulator.format = spec.result = ParseFormat(name);
      spec.aps = Aps::on;
      SCOPED_TRACE(describe(spec, 4));
      const auto outcomes = all_reduce(spec, ranks, options_of(300));
      for (int r = 0; r < 4; ++r) {
        const Traffic& traffic = outcomes[static_cast<std::size_t>(r)].report.traffic;
        const Cost cost = CostOf(spec, 4, r, sizes_of(ranks[0]), 300);
        EXPECT_EQ(traffic.bytes_sent, cost.bytes_sent) << r;
        EXPECT_EQ(traffic.bytes_received, cost.bytes_received) << r;
      }
    }
  }
}

#ifdef M_PERTURB
/// A transport that records the messages of its rank.
class Recording final : public testing::FlippingTransport {
 public:
  Recording(std::unique_ptr<Transport> inner, testing::Flip& none, std::vector<std::uint8_t>& sent)
      : FlippingTransport(std::move(inner), none), sent_(sent) {}
  std::unique_ptr<Transfer> Start(std::span<const Outgoing> out, std::span<const Incoming> in,
                                  int tag) override {
    for (const Outgoing& message : out) {
      const auto* from = static_cast<const std::uint8_t*>(message.data);
      sent_.insert(sent_.end(), from, from + message.bytes);
    }
    return FlippingTransport::Start(out, in, tag);
  }

 private:
  std::vector<std::uint8_t>& sent_;
};

/// Returns the bytes that each rank sends if all newly allocated memory is filled with the byte
/// `filled_with`.
std::vector<std::vector<std::uint8_t>> sent_of(const Reduce& spec, const Ranks& ranks,
                                               int filled_with) {
  std::vector<std::vector<std::uint8_t>> sent(ranks.size());
  testing::Transports transports = LocalTransports(static_cast<int>(ranks.size()));
  testing::Flip none;
  none.message = -1;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    transports[r] = std::make_unique<Recording>(std::move(transports[r]), none, sent[r]);
  }
  mallopt(M_PERTURB, filled_with);
  testing::expect_well(
      testing::on_ranks(std::move(transports), options_of(64), [&](Communicator& comm) {
        const Layers& x = ranks[static_cast<std::size_t>(comm.rank())];
        Layers out = testing::blank(sizes_of(x));
        comm.AllReduce(testing::views_of(x), testing::views_of(out), spec);
      }));
  mallopt(M_PERTURB, 0);
  return sent;
}

/// A running sum may have several planes, such as the sum and its compensation. A plane that no
/// term has reached yet is sent as zeros, so the message never contains old memory.
TEST(AllReduce, MessagesHoldNothingOfOtherMemory) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer has memory of its own";
  const Ranks ranks = testing::random_ranks(5, {40, 300}, 6);
  for (const Scheme scheme : {Scheme::sequential, Scheme::kahan, Scheme::chunked}) {
    Reduce spec;
    spec.order = Order::ring;
    spec.exchange = Exchange::ring;
    spec.accumulator.scheme = scheme;
    if (scheme == Scheme::chunked) spec.accumulator.chunk = 2;
    EXPECT_EQ(sent_of(spec, ranks, 0x11), sent_of(spec, ranks, 0x66)) << ToString(scheme);
  }
}
#endif

}  // namespace
}  // namespace cpd
