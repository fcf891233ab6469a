// SPDX-License-Identifier: Apache-2.0
//
// Reductions whose contributions are encoded as run lengths, and the check that every transport
// must pass for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpd/comm/all_reduce.h"
#include "tests/testing/bits.h"
#include "tests/testing/reduce.h"
#include "tests/testing/run_length_codec.h"

namespace cpd::testing {

/// Returns the spec with a codec that encodes the ranks' contributions as run lengths. The decoded
/// values equal the cast values.
inline Reduce coded(Reduce spec, bool feeds_back = false) {
  spec.wire = std::make_shared<RunLength>(spec.format, spec.rounding, feeds_back);
  return spec;
}

/// Returns one layer for each rank. Each layer consists of three long runs of equal values.
inline Ranks constant_runs(std::size_t world, std::size_t n) {
  Ranks ranks(world, Layers(1, std::vector<float>(n, 1)));
  for (std::size_t r = 0; r < world; ++r) {
    auto& layer = ranks[r][0];
    std::fill_n(layer.begin() + static_cast<std::ptrdiff_t>(n / 3), n / 3, 0.5F);
    std::fill_n(layer.begin() + static_cast<std::ptrdiff_t>(n / 2), n / 5, static_cast<float>(r));
  }
  return ranks;
}

/// Checks on each rank of a group that every exchange gives the bits of the virtual ranks. Later
/// calls use the codec states of earlier calls. All ranks must call this function.
inline void check_codec(Communicator& comm) {
  const auto world = static_cast<std::size_t>(comm.size());
  const Ranks ranks = random_ranks(world, {1, 0, 257, 5000}, 17);
  for (const cpd::Exchange exchange : {cpd::Exchange::owner, cpd::Exchange::gather,
                                       cpd::Exchange::ring, cpd::Exchange::hierarchical}) {
    Reduce spec;
    spec.format = spec.result = spec.accumulator.format = ParseFormat("e4m3");
    spec.accumulator.scheme = Scheme::kahan;
    spec.rounding.mode = Rounding::stochastic;
    spec.aps = Aps::on;
    spec.order = Order::ring;
    spec.exchange = exchange;
    spec.group_size = exchange == cpd::Exchange::hierarchical ? std::min(2, comm.size()) : 0;
    for (const bool feeds_back : {false, true}) {
      spec = coded(spec, feeds_back);
      CodecStates of_all;
      CodecStates own;
      for (int call = 0; call < 2; ++call) {
        const Layers expected = virtual_reduce(
            spec, ranks, nullptr,
            {.seed = 7, .step = static_cast<std::uint64_t>(call), .states = &of_all});
        Layers out = ranks[static_cast<std::size_t>(comm.rank())];
        std::vector<TensorView> views;
        for (const auto& layer : out) views.push_back(view_of(layer));
        comm.AllReduce(views, views, spec, false,
                       {.seed = 7, .step = static_cast<std::uint64_t>(call), .states = &own});
        for (std::size_t l = 0; l < out.size(); ++l) {
          EXPECT_TRUE(
              bits_equal(std::span<const float>(expected[l]), std::span<const float>(out[l])))
              << ToString(exchange) << ", layer " << l << ", call " << call;
        }
      }
    }
  }
}

}  // namespace cpd::testing
