// SPDX-License-Identifier: Apache-2.0
//
// Tests that reductions over local ranks (threads) give the bits of the virtual ranks, and that the
// cost model predicts their messages and bytes.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/testing/expect_virtual.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::accumulators;
using testing::blank;
using testing::describe;
using testing::expect_virtual;
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

TEST(AllReduce, EqualsVirtualRanks) {
  std::size_t pick = 0;
  for (const int world : {1, 2, 3, 7, 8, 16}) {
    if (testing::kSanitized && world > 3 && world != 7) continue;
    const auto w = static_cast<std::size_t>(world);
    const Ranks ranks = testing::random_ranks(w, {0, 1, w - 1, w, w + 1, 255, 256, 257, 5000}, w);
    for (const Way& way : ways(world)) {
      for (int specs = 0; specs < (testing::kSanitized ? 1 : 5); ++specs) {
        const std::int64_t chunk = std::array{700, 6000, 1 << 20}[pick % 3];
        expect_virtual(spec_of(way, pick), ranks, options_of(chunk), pick % 5 == 0, pick % 4 != 0);
        ++pick;
      }
    }
  }
}

TEST(AllReduce, EveryFormatAndSum) {
  for (const int world : {3, 5}) {
    const Ranks ranks = testing::random_ranks(static_cast<std::size_t>(world), {13, 40, 3}, 9);
    std::size_t pick = 0;
    for (const Way& way : ways(world)) {
      if (way.group != 0 && way.group != 3) continue;
      for (const Format& format : formats()) {
        for (const Accumulator& accumulator : accumulators(way, format)) {
          if (testing::kSanitized && ++pick % 9 != 0) continue;
          Reduce spec = spec_of(way, 0);
          spec.format = spec.result = format;
          spec.accumulator = accumulator;
          expect_virtual(spec, ranks, options_of(16));
        }
      }
    }
  }
}

TEST(AllReduce, SmallChunksAndManyLayers) {
  std::vector<std::size_t> sizes;
  for (std::size_t l = 0; l < 60; ++l) sizes.push_back(l * l % 23);
  const Ranks ranks = testing::random_ranks(4, sizes, 2);
  std::size_t pick = 3;
  for (const Way& way : ways(4)) {
    for (const std::int64_t chunk : {1, 2, 7, 64, 300}) {
      ++pick;
      if (testing::kSanitized && pick % 5 != 0) continue;
      expect_virtual(spec_of(way, pick), ranks, options_of(chunk));
    }
  }
}

TEST(AllReduce, ManyRanks) {
  const Ranks ranks = testing::random_ranks(64, {700, 3, 65}, 4);
  std::size_t pick = 0;
  for (const Way& way :
       {Way{Order::sequential, Exchange::owner, 0}, Way{Order::tree, Exchange::owner, 8},
        Way{Order::ring, Exchange::ring, 0}, Way{Order::ring, Exchange::hierarchical, 8},
        Way{Order::ring, Exchange::hierarchical, 10}}) {
    if (testing::kSanitized && ++pick > 2) continue;
    expect_virtual(spec_of(way, 0), ranks, options_of(1 << 20));
  }
  if (testing::kSanitized) return;
  expect_virtual(spec_of({Order::ring, Exchange::hierarchical, 16}, 0),
                 testing::random_ranks(256, {300}, 5), options_of(1 << 20));
}

TEST(AllReduce, NothingToReduce) {
  for (const int world : {1, 3}) {
    const auto w = static_cast<std::size_t>(world);
    for (const Way& way : ways(world)) {
      expect_virtual(spec_of(way, 1), Ranks(w), options_of(64));
      expect_virtual(spec_of(way, 1), Ranks(w, Layers(3)), options_of(64));
      expect_virtual(spec_of(way, 1), Ranks(w, {{}, {1, -2, 3}, {}}), options_of(64));
    }
  }
}

TEST(AllReduce, InPlaceAndCallsInARow) {
  const Ranks ranks = testing::random_ranks(3, {100, 7, 1000}, 8);
  for (const Way& way : ways(3)) {
    const Reduce spec = spec_of(way, 2);
    SCOPED_TRACE(describe(spec, 3));
    Ranks expected = ranks;
    for (int call = 0; call < 3; ++call) {
      expected = Ranks(3, testing::virtual_reduce(spec, expected));
    }
    Ranks values = ranks;
    expect_well(on_ranks(3, options_of(90), [&](Communicator& comm) {
      const auto views = views_of(values[static_cast<std::size_t>(comm.rank())]);
      for (int call = 0; call < 3; ++call) comm.AllReduce(views, views, spec);
      comm.Barrier();
      EXPECT_EQ(comm.broken(), "");
    }));
    for (const Layers& rank : values) EXPECT_TRUE(same_layers(expected[0], rank));
  }
}

TEST(AllReduce, Subgroups) {
  const Ranks ranks = testing::random_ranks(6, {50, 3}, 3);
  const Reduce spec = spec_of({Order::ring, Exchange::owner, 0}, 0);
  expect_well(on_ranks(6, options_of(20), [&](Communicator& comm) {
    const bool even = comm.rank() % 2 == 0;
    const std::array evens = {0, 2, 4};
    const std::array odds = {1, 3, 5};
    Communicator half = comm.Subgroup(even ? evens : odds);
    EXPECT_EQ(half.size(), 3);
    EXPECT_EQ(half.rank(), comm.rank() / 2);
    Ranks mine;
    for (const int r : even ? evens : odds) mine.push_back(ranks[static_cast<std::size_t>(r)]);
    Layers out = blank(sizes_of(mine[0]));
    half.AllReduce(views_of(ranks[static_cast<std::size_t>(comm.rank())]), views_of(out), spec);
    EXPECT_TRUE(same_layers(testing::virtual_reduce(spec, mine), out));
    comm.Barrier();
    const std::array without = {1 - comm.rank() % 2};
    EXPECT_THROW(static_cast<void>(comm.Subgroup(without)), Error);
    const std::array descending = {5, 4, 3, 2, 1, 0};
    EXPECT_THROW(static_cast<void>(comm.Subgroup(descending)), Error);
  }));
}

}  // namespace
}  // namespace cpd
