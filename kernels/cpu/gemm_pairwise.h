// SPDX-License-Identifier: Apache-2.0
//
// Computes tiles of pairwise sums by the steps of a fast path: adds eight products pairwise in
// registers, and merges their sum (a tree) with the trees of earlier products, which are in memory.
// Only gemm.cpp may include this file: its functions are compiled for one ISA and must not be
// linked into other object files.
#pragma once

#include <cstdint>

#include "cpd/numeric/fast/choose.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "kernels/cpu/gemm_general.h"
#include "kernels/cpu/gemm_registers.h"
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

/// A tile of pairwise sums. The values of k are processed in groups of kRangeGroup values. If the
/// bound of a group's products is too large, the whole tile takes the general path for that group.
/// If the sum of several groups may overflow, only the one or two vectors of columns that contain
/// this sum take the general path. The fast path gives +0 for a tree whose products are all -0.
/// This changes a sum only if the sum starts from -0; tiles with such sums take the general path
/// for all k.
template <class Path, ProductKind kProducts>
class PairwiseTile {
 public:
  CPD_FN explicit PairwiseTile(const BoundedTile& bounded)
      : bounded_(bounded),
        block_(*bounded.block),
        fast_(bounded.plan->fast),
        tile_(bounded.tile),
        steps_(fast_) {}

  CPD_FN void run() {
    const std::int64_t whole = is_ordinary() ? block_.count / kRangeGroup * kRangeGroup : 0;
    for (std::int64_t k = 0; k < whole; k += kRangeGroup) add_group(k);
    if (whole < block_.count || block_.last) {
      general_steps(&bounded_, tile_, whole, block_.count - whole, block_.last);
    }
  }

 private:
  static constexpr int kLanes = Lanes<F>::count;
  static constexpr int kVectors = kGemmColumns / kLanes;
  /// The number of vectors of columns for which trees are built together. On AVX2, two vectors
  /// share each broadcast value of a. Other CPUs broadcast within an operation: one vector
  /// suffices, and its kRangeGroup values of b stay in registers.
  static constexpr int kTogether = kLanes == 8 ? 2 : 1;
  static constexpr bool kTakesLogs = !Path::kAnyValues && kProducts == ProductKind::any;
  static constexpr int kLevel = 3;  ///< the level of a group's tree
  static_assert(kRangeGroup == 1 << kLevel);

  /// The values of b at kRangeGroup successive k, for kSome vectors of columns, and the logarithms
  /// of these values.
  template <int kSome>
  struct Columns {
    F b[kRangeGroup][kSome];
    Signed<F> log_b[kRangeGroup][kSome];
  };
  template <int kSome>
  struct Nodes {
    F of[kSome];
  };

  /// Returns whether the fast path supports the tile. Its first k must be a multiple of
  /// kRangeGroup. No sum may be -0, unless the path supports all values (Path::kAnyValues).
  CPD_FN bool is_ordinary() const {
    if (block_.first_k % kRangeGroup != 0) return false;
    if constexpr (Path::kAnyValues) return true;
    Signed<F> odd{};
    for (std::int64_t i = 0; i < tile_.rows; ++i) {
      for (std::int64_t j = 0; j < tile_.columns; j += kLanes) {
        odd |= (Signed<F>)(load<Unsigned<F>>(at(i, j)) == splat<Unsigned<F>>(Pattern<F>::sign));
      }
    }
    return !any(odd);
  }

  CPD_FN void add_group(std::int64_t k) {
    if constexpr (!Path::kAnyValues) {
      if (!(sum_limit(fast_, bounded_.products(k, kRangeGroup)) >= 0)) {
        return general_steps(&bounded_, tile_, k, kRangeGroup);
      }
    }
    std::int64_t j = 0;
    for (; j + (kTogether - 1) * kLanes < tile_.columns; j += kTogether * kLanes) {
      add_columns<kTogether>(k, j);
    }
    if (kTogether > 1 && j < tile_.columns) add_columns<1>(k, j);
  }
  template <int kSome>
  CPD_FN void add_columns(std::int64_t k, std::int64_t j) {
    const Columns<kSome> columns = columns_of<kSome>(k, j);
    Nodes<kSome> rows[kGemmRows];
#pragma GCC unroll 1
    for (std::int64_t i = 0; i < tile_.rows; ++i) {
      rows[i] = tree_of(columns, k, i, 0, Depth<kLevel>{});
    }
    if (!climb(rows, k, at(0, j))) add_generally(k, j, kSome * kLanes);
  }
  template <int kSome>
  CPD_FN Columns<kSome> columns_of(std::int64_t k, std::int64_t j) const {
    Columns<kSome> columns;
    for (int i = 0; i < kRangeGroup; ++i) {
      for (int vector = 0; vector < kSome; ++vector) {
        const float* b = tile_.at.b + (k + i) * kGemmColumns + j + vector * kLanes;
        columns.b[i][vector] = load<F>(b);
        if constexpr (kTakesLogs) {
          columns.log_b[i][vector] = load<Signed<F>>(block_.b_logs + (b - block_.b)) +
                                     splat<Signed<F>>(steps_.template log_magnet<How::bounded>());
        }
      }
    }
    return columns;
  }

  /// Returns the pairwise sums of 2^kDepth products of a row, one sum for each column. The first
  /// product is at k + first.
  template <int kDepth>
  struct Depth {};
  template <int kDepth, int kSome>
  CPD_FN Nodes<kSome> tree_of(const Columns<kSome>& columns, std::int64_t k, std::int64_t row,
                              int first, Depth<kDepth>) const {
    Nodes<kSome> low = tree_of(columns, k, row, first, Depth<kDepth - 1>{});
    const Nodes<kSome> high =
        tree_of(columns, k, row, first + (1 << (kDepth - 1)), Depth<kDepth - 1>{});
    for (int j = 0; j < kSome; ++j) low.of[j] = add(low.of[j], high.of[j]);
    return low;
  }
  template <int kSome>
  CPD_FN Nodes<kSome> tree_of(const Columns<kSome>& columns, std::int64_t k, std::int64_t row,
                              int number, Depth<0>) const {
    const float* a = tile_.at.a + (k + number) * kGemmRows + row;
    Nodes<kSome> products;
    Seen<F> seen;
    for (int j = 0; j < kSome; ++j) {
      LogOperands<F> x{splat<F>(*a), columns.b[number][j], {}, {}};
      if constexpr (kTakesLogs) {
        x.log_a = splat<Signed<F>>(block_.a_logs[a - block_.a]);
        x.log_b = columns.log_b[number][j];
      }
      products.of[j] = steps_.template product<How::bounded, kProducts>(x, seen);
    }
    return products;
  }
  CPD_FN F add(F x, F y) const {
    Seen<F> seen;
    return steps_.template sum<How::bounded>(x + y, seen);
  }

  /// Merges the trees of a group of k (`rows`) with the trees in memory: while an earlier tree of
  /// equal size exists, adds this tree. Stores the results. Returns false and stores nothing if a
  /// sum might overflow the format.
  template <int kSome>
  CPD_FN bool climb(Nodes<kSome> (&rows)[kGemmRows], std::int64_t k, float* state) const {
    using I = Signed<F>;
    const std::int64_t number = block_.first_k + k;
    float* plane = state + kLevel * block_.plane;
    I largest{};  // patterns, where NaN exceeds all numbers
    for (int level = kLevel; (number >> level & 1) != 0; ++level, plane += block_.plane) {
      for_nodes(rows, plane, [&](F& node, float* finished) {
        node = add(load<F>(finished), node);
        largest = max(largest, bits_as<I>(node) & splat<I>(Pattern<F>::magnitude));
      });
    }
    if constexpr (!Path::kAnyValues) {
      if (!all_at_most(bits_as<F>(largest), fast_.limit)) return false;
    }
    for_nodes(rows, plane, [](F node, float* finished) { store(finished, node); });
    return true;
  }
  /// Calls visit(node, address) for each vector of trees (partial sums of pairwise sums) in `rows`.
  /// `plane` holds the trees of one size of all sums, and `address` points there to the trees of
  /// the vector's sums.
  template <int kSome, class Visit>
  CPD_FN void for_nodes(Nodes<kSome> (&rows)[kGemmRows], float* plane, Visit visit) const {
    for (std::int64_t i = 0; i < tile_.rows; ++i) {
      for (int j = 0; j < kSome; ++j) {
        visit(rows[i].of[j], plane + i * block_.state_columns + j * kLanes);
      }
    }
  }

  CPD_FN void add_generally(std::int64_t k, std::int64_t j, std::int64_t columns) const {
    Tile part = tile_;
    part.columns = least(columns, tile_.columns - j);
    part.at.b += j;
    part.at.state = at(0, j);
    general_steps(&bounded_, part, k, kRangeGroup);
  }

  CPD_FN float* at(std::int64_t i, std::int64_t j) const {
    return tile_.at.state + i * block_.state_columns + j;
  }

  const BoundedTile& bounded_;
  const GemmBlock& block_;
  const FastPlan& fast_;
  Tile tile_;
  ProductSteps<Path, F> steps_;
};

template <class Path, ProductKind kProducts>
CPD_BODY void pairwise_tile_body(const BoundedTile* bounded) {
  PairwiseTile<Path, kProducts>(*bounded).run();
}
template <class Path, ProductKind kProducts = ProductKind::any>
CPD_FN void pairwise_tile(const BoundedTile& bounded) {
  pairwise_tile_body<Path, kProducts>(&bounded);
}

}  // namespace
}  // namespace CPD_ISA
}  // namespace cpd
