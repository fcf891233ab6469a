// SPDX-License-Identifier: Apache-2.0
//
// Generates the gradients that bench_all_reduce reduces, and checks the bits of the results.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/all_reduce_ranks.h"
#include "benchmarks/resnet50.h"
#include "cpd/base/tensor.h"
#include "cpd/comm/virtual.h"
#include "cpd/compress/codecs.h"
#include "cpd/ops/reduce.h"

namespace all_reduce {

using cpd::Reduce;
using cpd::TensorView;

// --- data ----------------------------------------------------------------------------------------

/// Generates the gradients of all ranks. Any rank can generate the gradients of any other rank.
class Gradients {
 public:
  explicit Gradients(std::uint64_t seed) : seed_(seed) {}

  /// Fills x with normally distributed values. Each layer has a standard deviation of its own.
  void Fill(int rank, std::size_t layer, std::span<float> x) {
    const std::vector<float>& pool = PoolOf(rank);
    const float scale = std::ldexp(1.0F, -static_cast<int>(Hash(layer, 1) % 12)) * 0.01F;
    std::size_t at = Hash(layer, 2) % pool.size();
    for (float& value : x) {
      value = scale * pool[at];
      at = at + 1 == pool.size() ? 0 : at + 1;
    }
  }

 private:
  [[nodiscard]] std::uint64_t Hash(std::uint64_t layer, std::uint64_t what) const {
    return std::mt19937_64(seed_ + 1'000'003 * layer + what)();
  }
  const std::vector<float>& PoolOf(int rank) {
    if (rank == pool_rank_) return pool_;
    pool_.resize(1'000'003);
    std::mt19937_64 engine(seed_ ^ (0x9E3779B97F4A7C15U * static_cast<std::uint64_t>(rank + 1)));
    std::normal_distribution<float> normal;
    for (float& value : pool_) value = normal(engine);
    pool_rank_ = rank;
    return pool_;
  }

  std::uint64_t seed_;
  int pool_rank_ = -1;
  std::vector<float> pool_;
};

/// Returns the sizes of ResNet-50's layers, or smaller sizes in about the same proportions with
/// about `values` values in all.
inline std::vector<std::int64_t> SizesFor(std::int64_t values) {
  std::vector<std::int64_t> sizes;
  for (const auto& [n, row] : resnet50::Tensors()) {
    const double share = static_cast<double>(values) / static_cast<double>(resnet50::kValues);
    const auto shrunk = static_cast<std::int64_t>(std::llround(static_cast<double>(n) * share));
    sizes.push_back(values >= resnet50::kValues ? n : std::max<std::int64_t>(1, shrunk));
  }
  return sizes;
}

/// Returns the number of rows of each layer of ResNet-50. A layer that was shrunk and cannot have
/// that number of rows has one row.
inline std::vector<std::int64_t> RowsFor(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> rows;
  for (const auto& [n, row] : resnet50::Tensors()) {
    const std::int64_t size = sizes.at(rows.size());
    rows.push_back(size % row == 0 ? row : size);
  }
  return rows;
}

/// The layers of this rank, stored one after the other.
struct Model {
  std::vector<std::int64_t> sizes;
  std::vector<float> x, out;
  std::vector<TensorView> x_views, out_views;

  Model(Gradients& gradients, int rank, std::vector<std::int64_t> given) : sizes(std::move(given)) {
    const auto total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    x.resize(static_cast<std::size_t>(total));
    out.resize(x.size());
    std::size_t at = 0;
    for (std::size_t l = 0; l < sizes.size(); ++l) {
      const auto n = static_cast<std::size_t>(sizes[l]);
      gradients.Fill(rank, l, std::span(x).subspan(at, n));
      x_views.push_back(cpd::View(std::span<const float>(x).subspan(at, n)));
      out_views.push_back(cpd::View(std::span<const float>(out).subspan(at, n)));
      at += n;
    }
  }
  [[nodiscard]] std::int64_t values() const { return static_cast<std::int64_t>(x.size()); }
  [[nodiscard]] std::uint32_t Checksum() const { return cpd::Crc32c(0, 4 * values(), out.data()); }
};

inline Reduce SpecOf(const char* format, cpd::Aps aps) {
  Reduce spec;
  spec.format = cpd::ParseFormat(format);
  spec.accumulator.format = spec.format;
  spec.result = spec.format;
  spec.aps = aps;
  return spec;
}

/// Returns the spec of an all-reduce whose contributions a codec encodes and whose sums are in
/// fp32.
inline Reduce SpecOfCodec(const char* text) {
  Reduce spec;
  spec.wire = cpd::MakeCodec(text);
  spec.format = spec.wire->format();
  return spec;
}

// --- bits ----------------------------------------------------------------------------------------

/// Selects layers that the virtual ranks also reduce: as many as fit into memory.
inline std::vector<std::int64_t> SomeOf(const std::vector<std::int64_t>& sizes) {
  std::int64_t left = 600'000;
  std::vector<std::int64_t> some;
  for (const std::int64_t n : sizes) {
    some.push_back(n <= left ? n : 0);
    left -= some.back();
  }
  return some;
}

inline void Contribute(cpd::VirtualReduce& reduce, Gradients& gradients, int rank,
                       const std::vector<std::int64_t>& sizes, bool observe) {
  std::vector<float> x;
  for (std::size_t l = 0; l < sizes.size(); ++l) {
    x.resize(static_cast<std::size_t>(sizes[l]));
    gradients.Fill(rank, l, x);
    if (observe) {
      reduce.Observe(static_cast<int>(l), cpd::View(x));
    } else {
      reduce.Contribute(static_cast<int>(l), cpd::View(x));
    }
  }
}

/// Returns whether this rank's result has the bits that virtual ranks compute, without residuals of
/// earlier calls. `rows`: the number of rows of each layer, or empty.
inline bool EqualsVirtualRanks(const Model& model, Gradients& gradients, const Reduce& spec,
                               std::span<const std::int64_t> rows) {
  const std::vector<std::int64_t> sizes = SomeOf(model.sizes);
  cpd::CodecStates states;
  cpd::VirtualReduce reduce(spec, World(), sizes, {.states = &states, .rows = rows});
  for (int r = 0; r < World() && reduce.wants_ranges(); ++r) {
    Contribute(reduce, gradients, r, sizes, true);
  }
  for (const int r : reduce.schedule()) {
    Contribute(reduce, gradients, r, sizes, false);
    reduce.EndRank();
  }
  bool same = true;
  std::vector<float> expected;
  for (std::size_t l = 0; l < sizes.size(); ++l) {
    if (sizes[l] == 0) continue;
    expected.resize(static_cast<std::size_t>(sizes[l]));
    reduce.Result(static_cast<int>(l), cpd::View(expected));
    same = same && std::memcmp(expected.data(), model.out_views[l].data, 4 * expected.size()) == 0;
  }
  return same;
}

/// Returns what is wrong with the ranks' results, or an empty text. All ranks must have the same
/// result, with the bits that virtual ranks compute.
inline std::string CheckBits(const Model& model, Gradients& gradients, const Reduce& spec,
                             std::span<const std::int64_t> rows) {
  const double hash = model.Checksum();
  const bool equal = Largest(hash) == -Largest(-hash);
  const bool right = AllSay(Rank() != 0 || EqualsVirtualRanks(model, gradients, spec, rows));
  if (!equal) return "the ranks' results differ";
  return right ? "" : "the result is not that of the virtual ranks";
}

}  // namespace all_reduce
