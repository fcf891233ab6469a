// SPDX-License-Identifier: Apache-2.0
//
// Reductions over virtual ranks, with which other ways of reducing are compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpd/comm/virtual.h"
#include "cpd/oracle/reference.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"

namespace cpd::testing {

using Layers = std::vector<std::vector<float>>;
using Ranks = std::vector<Layers>;

/// The seed and the step of every reduction, so that results can be compared.
inline constexpr TensorOptions kCall{.seed = 0x123456789ABCDEF0U, .step = 0x654321};

inline std::vector<std::int64_t> sizes_of(const Layers& layers) {
  std::vector<std::int64_t> sizes;
  for (const auto& layer : layers) sizes.push_back(static_cast<std::int64_t>(layer.size()));
  return sizes;
}

/// Returns the all-reduce over virtual ranks. `stays` is the argument of VirtualReduce::Contribute:
/// the layers remain unchanged until the result.
inline Layers virtual_reduce(const Reduce& spec, const Ranks& ranks,
                             std::vector<TensorReport>* reports = nullptr,
                             const TensorOptions& options = {}, bool stays = false) {
  const std::vector<std::int64_t> sizes = sizes_of(ranks[0]);
  VirtualReduce reduce(spec, static_cast<int>(ranks.size()), sizes, options);
  const int layers = static_cast<int>(sizes.size());
  const auto layer_of = [&](std::size_t r, int l) {
    return view_of(ranks[r][static_cast<std::size_t>(l)]);
  };
  if (reduce.wants_ranges()) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      for (int l = 0; l < layers; ++l) reduce.Observe(l, layer_of(r, l));
    }
  }
  for (const int r : reduce.schedule()) {
    for (int l = 0; l < layers; ++l) {
      reduce.Contribute(l, layer_of(static_cast<std::size_t>(r), l), stays);
    }
    reduce.EndRank();
  }
  Layers out;
  for (int l = 0; l < layers; ++l) {
    out.emplace_back(static_cast<std::size_t>(sizes[static_cast<std::size_t>(l)]));
    reduce.Result(l, view_of(out.back()));
    if (reports != nullptr) reports->push_back(reduce.report(l));
  }
  return out;
}

/// Returns a layer for each rank and size. The values lie in the middle of e5m2's range.
inline Ranks random_ranks(std::size_t world, const std::vector<std::size_t>& sizes,
                          std::uint64_t seed) {
  const reference::Spec spec = reference::spec_of(ParseFormat("e5m2"));
  Ranks ranks(world);
  for (std::size_t r = 0; r < world; ++r) {
    for (std::size_t l = 0; l < sizes.size(); ++l) {
      ranks[r].push_back(moderate_values(spec, sizes[l], seed + 100 * r + 7 * l + sizes[l]));
    }
  }
  return ranks;
}

}  // namespace cpd::testing
