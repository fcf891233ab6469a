// SPDX-License-Identifier: Apache-2.0
//
// Tests a communicator's calls other than AllReduce on every device, and the arguments that they
// refuse.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "cpd/comm/transport/fault.h"
#include "cpd/numeric/draws/streams.h"
#include "cpd/spec/presets.h"
#include "cpd/spec/purpose.h"
#include "tests/testing/device_transport.h"
#include "tests/testing/devices.h"
#include "tests/testing/expect_virtual.h"
#include "tests/testing/refusal.h"

namespace cpd {
namespace {

using testing::blank;
using testing::Copies;
using testing::describe;
using testing::expect_same_report;
using testing::expect_well;
using testing::formats;
using testing::Layers;
using testing::on_ranks;
using testing::options_of;
using testing::Ranks;
using testing::same_layers;
using testing::sizes_of;
using testing::spec_of;
using testing::views_of;
using testing::Way;
using testing::ways;

using CallsOnDevices = testing::RanksOnDevice;
INSTANTIATE_TEST_SUITE_P(Backends, CallsOnDevices, ::testing::ValuesIn(testing::Backends()),
                         testing::NameOf);

TEST_P(CallsOnDevices, Reduce) {
  std::size_t pick = 0;
  const Ranks ranks = testing::random_ranks(5, {100, 0, 3, 257}, 8);
  for (const Way& way : ways(5)) {
    if (way.exchange != Exchange::owner) continue;
    for (const int root : {0, 3, 4}) {
      if (!on_host() && !testing::is_chosen_on_cpu(++pick, 4)) continue;
      const Reduce spec = spec_of(way, 7);
      SCOPED_TRACE(describe(spec, 5));
      std::vector<TensorReport> reports;
      const Layers expected = testing::virtual_reduce(spec, ranks, &reports);
      Layers out = blank(sizes_of(ranks[0]));
      expect_well(on_ranks(Ends(5, pick % 2 == 1), options_of(50), [&](Communicator& comm) {
        Copies there = There();
        const auto x = views_of(ranks[static_cast<std::size_t>(comm.rank())], there);
        const auto to = comm.rank() == root ? views_of(out, there) : std::vector<TensorView>{};
        expect_same_report(reports, comm.Reduce(x, to, spec, root, true).layers, true);
        read_back(out, there);
        comm.Barrier();
      }));
      EXPECT_TRUE(same_layers(expected, out));
    }
  }
}

TEST_P(CallsOnDevices, ReduceScatter) {
  std::size_t pick = 0;
  for (const int world : {1, 4, 5}) {
    const Ranks ranks = testing::random_ranks(static_cast<std::size_t>(world), {100, 0, 3, 257}, 8);
    const auto sizes = sizes_of(ranks[0]);
    for (const Way& way : ways(world)) {
      if (way.exchange != Exchange::owner) continue;
      if (!on_host() && !testing::is_chosen_on_cpu(++pick, 4)) continue;
      const Reduce spec = spec_of(way, 4);
      SCOPED_TRACE(describe(spec, ranks.size()));
      std::vector<TensorReport> reports;
      const Layers whole = testing::virtual_reduce(spec, ranks, &reports);
      expect_well(on_ranks(Ends(world, pick % 2 == 1), options_of(50), [&](Communicator& comm) {
        std::vector<std::int64_t> mine;
        Layers expected;
        for (std::size_t l = 0; l < sizes.size(); ++l) {
          const std::int64_t begin = SliceBegin(sizes[l], world, comm.rank());
          const std::int64_t end = SliceBegin(sizes[l], world, comm.rank() + 1);
          mine.push_back(end - begin);
          expected.emplace_back(whole[l].begin() + begin, whole[l].begin() + end);
        }
        Layers out = blank(mine);
        Copies there = There();
        const auto x = views_of(ranks[static_cast<std::size_t>(comm.rank())], there);
        const ReduceReport report = comm.ReduceScatter(x, views_of(out, there), spec, true);
        read_back(out, there);
        expect_same_report(reports, report.layers, true);
        EXPECT_TRUE(same_layers(expected, out)) << "rank " << comm.rank();
      }));
    }
  }
}

TEST_P(CallsOnDevices, AllGather) {
  Ranks ranks = testing::random_ranks(4, {100, 0, 3, 257}, 8);
  ranks[1][0][5] = std::numeric_limits<float>::infinity();
  ranks[2][3][5] = std::numeric_limits<float>::quiet_NaN();
  for (const Format& format : formats()) {
    for (const Rounding mode : {Rounding::nearest_even, Rounding::toward_zero}) {
      RoundingOptions rounding;
      rounding.mode = mode;
      Layers expected(ranks[0].size());
      for (const Layers& rank : ranks) {
        for (std::size_t l = 0; l < rank.size(); ++l) {
          const auto y = testing::oracle_cast(rank[l], format, rounding);
          expected[l].insert(expected[l].end(), y.begin(), y.end());
        }
      }
      const bool on_device = mode == Rounding::toward_zero;
      expect_well(on_ranks(Ends(4, on_device), options_of(50), [&](Communicator& comm) {
        Layers out = blank(sizes_of(expected));
        Copies there = There();
        const auto x = views_of(ranks[static_cast<std::size_t>(comm.rank())], there);
        comm.AllGather(x, views_of(out, there), format, rounding);
        read_back(out, there);
        EXPECT_TRUE(same_layers(expected, out)) << ToString(format);
      }));
    }
  }
}

TEST(AllReduce, AllGatherRoundsByTheStreamsOfItsStep) {
  const Ranks ranks = testing::random_ranks(3, {200, 31}, 5);
  const Format e4m3 = ParseFormat("e4m3");
  for (const std::uint64_t step : {0, 5}) {
    const RoundingOptions rounding{.mode = Rounding::stochastic};
    Layers expected(2);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      for (std::size_t l = 0; l < expected.size(); ++l) {
        const RandomKey key{.seed = 7,
                            .stream = StreamOf(Purpose::wire, step, static_cast<std::int64_t>(l),
                                               static_cast<std::int64_t>(rank))};
        const std::vector<float>& x = ranks[rank][l];
        const auto random = testing::run_random_integers(rounding, x.size(), 0, key);
        const auto y = testing::oracle_cast(x, e4m3, rounding, &random);
        expected[l].insert(expected[l].end(), y.begin(), y.end());
      }
    }
    expect_well(on_ranks(3, options_of(50), [&](Communicator& comm) {
      Layers out = blank(sizes_of(expected));
      const auto x = views_of(ranks[static_cast<std::size_t>(comm.rank())]);
      comm.AllGather(x, views_of(out), e4m3, rounding, {.seed = 7, .step = step});
      EXPECT_TRUE(same_layers(expected, out)) << "step " << step;
    }));
  }
}

TEST(AllReduce, AllGatherBytes) {
  const std::vector<std::vector<std::size_t>> lengths{
      {0, 0, 0}, {1, 1, 1}, {0, 1, 5000}, {5000, 0, 7}};
  for (const auto& row : lengths) {
    std::vector<std::vector<std::uint8_t>> sent;
    for (const std::size_t length : row) {
      sent.emplace_back(length, static_cast<std::uint8_t>(0xA0 + sent.size()));
    }
    expect_well(on_ranks(3, options_of(50), [&](Communicator& comm) {
      EXPECT_EQ(comm.AllGatherBytes(sent[static_cast<std::size_t>(comm.rank())]), sent);
    }));
  }
}

TEST(AllReduce, RefusesMisuse) {
  EXPECT_REFUSAL("a group has at least 1 rank, got 0", LocalTransports(0));
  EXPECT_REFUSAL("a communicator needs a transport", Communicator(nullptr, options_of(8)));
  EXPECT_REFUSAL("only the link of a Breakable transport can be dropped",
                 Break(*LocalTransports(1)[0]));
  const auto dropped = Breakable(std::move(LocalTransports(1)[0]));
  Break(*dropped);
  EXPECT_REFUSAL("this rank's link is down", dropped->Subgroup(std::array{0}, 1));
  for (const CommOptions& bad :
       {options_of(0), options_of(-1), options_of(8, 0), options_of(8, -1)}) {
    EXPECT_THROW(Communicator(std::move(LocalTransports(1)[0]), bad), Error);
  }
  Communicator comm(std::move(LocalTransports(1)[0]), options_of(8));
  EXPECT_EQ(comm.rank(), 0);
  EXPECT_EQ(comm.size(), 1);
  const Layers x = {{1, 2, 3}};
  const Layers longer = {{1, 2, 3, 4}};
  const std::vector<double> doubles(3);
  const Reduce spec;
  EXPECT_THROW(comm.AllReduce(views_of(x), {}, spec), Error);
  EXPECT_THROW(comm.AllReduce(views_of(x), views_of(longer), spec), Error);
  EXPECT_THROW(comm.AllReduce(std::array{testing::view_of(doubles)}, views_of(x), spec), Error);
  TensorView strided = testing::view_of(longer[0]);
  strided.shape[0] = 2;
  strided.stride[0] = 2;
  EXPECT_THROW(comm.AllReduce(std::array{strided}, std::array{strided}, spec), Error);
  Reduce bad = spec;
  bad.loss_scale = 3;
  EXPECT_THROW(comm.AllReduce(views_of(x), views_of(x), bad), Error);
  bad = spec;
  bad.accumulator = Preset("h100-fp8");
  EXPECT_THROW(comm.AllReduce(views_of(x), views_of(x), bad), Error);
  bad = spec;
  bad.group_size = 2;
  EXPECT_THROW(comm.AllReduce(views_of(x), views_of(x), bad), Error);
  bad = spec;
  bad.exchange = Exchange::gather;
  EXPECT_THROW(comm.Reduce(views_of(x), views_of(x), bad, 0), Error);
  EXPECT_THROW(comm.ReduceScatter(views_of(x), views_of(x), bad), Error);
  EXPECT_REFUSAL("root must be 0…0, got -1", comm.Reduce(views_of(x), views_of(x), spec, -1));
  EXPECT_REFUSAL("root must be 0…0, got 1", comm.Reduce(views_of(x), {}, spec, 1));
  EXPECT_THROW(comm.AllGather(views_of(x), views_of(longer), kFp32, {}), Error);
  EXPECT_EQ(comm.broken(), "");
  EXPECT_EQ(x[0], (std::vector<float>{1, 2, 3}));
}

}  // namespace
}  // namespace cpd
