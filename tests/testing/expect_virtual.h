// SPDX-License-Identifier: Apache-2.0
//
// Checks that a reduction whose ranks are threads has the same results, reports and bytes sent as
// the reduction over virtual ranks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cpd/study/cost.h"
#include "tests/testing/ranks.h"
#include "tests/testing/ways.h"

namespace cpd::testing {

struct Outcome {
  Layers out;
  ReduceReport report;
};

/// Runs an all-reduce on all ranks, with layers on the device, or on the host if the device is
/// null. Returns each rank's result.
inline std::vector<Outcome> all_reduce(Transports ends, const Accelerator* device,
                                       const Reduce& spec, const Ranks& ranks,
                                       const CommOptions& options, bool in_place = false,
                                       bool counts = true, const TensorOptions& call = {}) {
  std::vector<Outcome> outcomes(ranks.size());
  const auto fates = on_ranks(std::move(ends), options, [&](Communicator& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    Outcome& mine = outcomes[r];
    mine.out = in_place ? ranks[r] : blank(sizes_of(ranks[r]));
    Copies there(device);
    const std::vector<TensorView> out = views_of(mine.out, there);
    const std::vector<TensorView> x = in_place ? out : views_of(ranks[r], there);
    mine.report = comm.AllReduce(x, out, spec, counts, call);
    read_back(mine.out, there);
  });
  expect_well(fates);
  return outcomes;
}

inline std::vector<Outcome> all_reduce(const Reduce& spec, const Ranks& ranks,
                                       const CommOptions& options, bool in_place = false,
                                       bool counts = true, const TensorOptions& call = {}) {
  Transports ends = LocalTransports(static_cast<int>(ranks.size()));
  return all_reduce(std::move(ends), nullptr, spec, ranks, options, in_place, counts, call);
}

inline void expect_same_report(const std::vector<TensorReport>& expected,
                               const std::vector<TensorReport>& got, bool counts) {
  ASSERT_EQ(expected.size(), got.size());
  for (std::size_t l = 0; l < got.size(); ++l) {
    EXPECT_EQ(expected[l].shift, got[l].shift) << "layer " << l;
    EXPECT_EQ(counts ? expected[l].non_finite : 0, got[l].non_finite) << "layer " << l;
    EXPECT_EQ(counts ? expected[l].overflowed : 0, got[l].overflowed) << "layer " << l;
    EXPECT_EQ(counts ? expected[l].underflowed : 0, got[l].underflowed) << "layer " << l;
    EXPECT_EQ(counts ? expected[l].values : 0, got[l].values) << "layer " << l;
    EXPECT_EQ(counts ? expected[l].zeros : 0, got[l].zeros) << "layer " << l;
    EXPECT_EQ(counts ? expected[l].bytes : 0, got[l].bytes) << "layer " << l;
    EXPECT_EQ(counts ? expected[l].bits : std::vector<int>(), got[l].bits) << "layer " << l;
  }
}

/// Returns whether at least one of the spec's formats has no code for NaN.
inline bool lacks_nan(const Reduce& spec) {
  const Accumulator& a = spec.accumulator;
  if (spec.wire != nullptr && !spec.wire->has_nan()) return true;
  return !(spec.format.has_nan() && a.format.has_nan() && a.inner.value_or(a.format).has_nan() &&
           spec.result.has_nan());
}

/// Returns the spec with all formats replaced by binary32. Removes the codec if it cannot encode
/// NaN.
inline Reduce plain(Reduce spec) {
  if (spec.wire != nullptr && !spec.wire->has_nan()) spec.wire = nullptr;
  spec.format = spec.accumulator.format = spec.result = kFp32;
  spec.accumulator.inner.reset();
  return spec;
}

/// Compares each rank's bytes, and the largest number of steps, with the cost model. If a format
/// has no code for NaN, all values may be sent in binary32, and then have that many bytes.
inline void expect_traffic(const Reduce& spec, const std::vector<Outcome>& outcomes,
                           const std::vector<std::int64_t>& sizes, std::int64_t chunk) {
  const int world = static_cast<int>(outcomes.size());
  const std::vector<float> none(sizes.size());  // all is finite
  const auto is_of = [&](const Reduce& moved) {
    for (int r = 0; r < world; ++r) {
      const Traffic& traffic = outcomes[static_cast<std::size_t>(r)].report.traffic;
      const Cost cost = CostOf(moved, world, r, sizes, chunk, {.largest = none});
      if (traffic.bytes_sent != cost.bytes_sent) return false;
      if (traffic.bytes_received != cost.bytes_received) return false;
    }
    return true;
  };
  if (spec.wire == nullptr || spec.wire->is_fixed()) {
    EXPECT_TRUE(is_of(spec) || (lacks_nan(spec) && is_of(plain(spec))));
  }
  std::int64_t steps = 0;
  for (const Outcome& outcome : outcomes) {
    const Traffic& traffic = outcome.report.traffic;
    steps = std::max(steps, traffic.steps);
    if (world > 1) {
      EXPECT_GT(traffic.header_bytes, 0);
      EXPECT_GT(traffic.messages, 0);
    }
  }
  EXPECT_EQ(steps, CostOf(spec, world, 0, sizes, chunk).steps);
}

/// Returns the number of bytes that are copied to and from the host for a device's layer of n
/// values.
inline std::int64_t staged_bytes(const Reduce& spec, std::size_t n) {
  const bool is_staged = spec.wire != nullptr && spec.wire->kernels() != KernelSupport::all;
  return is_staged ? static_cast<std::int64_t>(8 * n) : 0;
}

inline void expect_virtual(Transports ends, const Accelerator* device, const Reduce& spec,
                           const Ranks& ranks, const CommOptions& options, bool in_place = false,
                           bool counts = true) {
  SCOPED_TRACE(describe(spec, ranks.size()) + ", chunk " + std::to_string(options.chunk) +
               " over " + ends[0]->name());
  std::vector<TensorReport> reports;
  const Layers expected = virtual_reduce(spec, ranks, &reports, kCall);
  const auto outcomes =
      all_reduce(std::move(ends), device, spec, ranks, options, in_place, counts, kCall);
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    EXPECT_TRUE(same_layers(expected, outcomes[r].out)) << "on rank " << r;
    expect_same_report(reports, outcomes[r].report.layers, counts);
    for (std::size_t l = 0; l < expected.size(); ++l) {
      const std::int64_t staged = device == nullptr ? 0 : staged_bytes(spec, expected[l].size());
      EXPECT_EQ(outcomes[r].report.layers[l].staged_bytes, staged) << "layer " << l;
    }
  }
  expect_traffic(spec, outcomes, sizes_of(ranks[0]), options.chunk);
}

inline void expect_virtual(const Reduce& spec, const Ranks& ranks, const CommOptions& options,
                           bool in_place = false, bool counts = true) {
  Transports ends = LocalTransports(static_cast<int>(ranks.size()));
  expect_virtual(std::move(ends), nullptr, spec, ranks, options, in_place, counts);
}

}  // namespace cpd::testing
