// SPDX-License-Identifier: Apache-2.0
//
// Tiles of pairwise sums by the short roundings: trees of eight products in registers, merged with
// the planes of finished trees. Included by gemm.cpp alone, as gemm_tile.h is.
#pragma once

#include <cstdint>

#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/numeric/sums/split.h"
#include "kernels/cpu/gemm_short.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

/// A tile of pairwise sums. A group of kRangeGroup values of k whose sums may leave the format
/// takes the general route: for all of the tile where its products' bound is too large, for one
/// vector where a sum higher in the tree is. A tree of products -0 is +0 here, which changes a sum
/// only where it starts from -0: such a tile takes the general route throughout.
template <Split kKind>
class TreeTile {
 public:
  CPD_FN explicit TreeTile(const BoundedTile& bounded)
      : bounded_(bounded),
        block_(*bounded.block),
        split_(bounded.plan->split),
        tile_(bounded.tile),
        product_(split_.man_product, split_.product_quantum, true),
        sum_(split_.man_sum, split_.sum_quantum, false) {}

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
  static constexpr int kLevel = 3;  ///< the level of a group's tree
  static_assert(kRangeGroup == 1 << kLevel);

  struct Column {
    F b[kRangeGroup];
    Signed<F> log_b[kRangeGroup];
  };

  /// Whether groups of k begin with the block's and no sum starts from -0.
  CPD_FN bool is_ordinary() const {
    if (block_.first_k % kRangeGroup != 0) return false;
    if constexpr (is_plain(kKind)) return true;
    Signed<F> odd{};
    for (std::int64_t i = 0; i < tile_.rows; ++i) {
      for (std::int64_t j = 0; j < tile_.columns; j += kLanes) {
        odd |= (Signed<F>)(load<Unsigned<F>>(at(i, j)) == splat<Unsigned<F>>(Pattern<F>::sign));
      }
    }
    return !any(odd);
  }

  CPD_FN void add_group(std::int64_t k) {
    if constexpr (!is_plain(kKind)) {
      if (!(sum_limit(split_, bounded_.products(k, kRangeGroup)) >= 0)) {
        return general_steps(&bounded_, tile_, k, kRangeGroup);
      }
    }
    for (std::int64_t j = 0; j < tile_.columns; j += kLanes) {
      const Column column = column_of(k, j);
#pragma GCC unroll 1
      for (std::int64_t i = 0; i < tile_.rows; ++i) {
        if (!climb(tree_of(column, k, i, 0, Depth<kLevel>{}), k, at(i, j))) add_generally(k, i, j);
      }
    }
  }
  CPD_FN Column column_of(std::int64_t k, std::int64_t j) const {
    Column column;
    const float* b = tile_.at.b + k * kGemmColumns + j;
    for (int i = 0; i < kRangeGroup; ++i, b += kGemmColumns) {
      column.b[i] = load<F>(b);
      if constexpr (kKind == Split::tree) {
        column.log_b[i] =
            load<Signed<F>>(block_.b_logs + (b - block_.b)) + splat<Signed<F>>(product_.magnet);
      }
    }
    return column;
  }

  /// The sum of the tree of 2^kDepth of a group's products from number `first` on.
  template <int kDepth>
  struct Depth {};
  template <int kDepth>
  CPD_FN F tree_of(const Column& column, std::int64_t k, std::int64_t row, int first,
                   Depth<kDepth>) const {
    const F low = tree_of(column, k, row, first, Depth<kDepth - 1>{});
    return add(low, tree_of(column, k, row, first + (1 << (kDepth - 1)), Depth<kDepth - 1>{}));
  }
  CPD_FN F tree_of(const Column& column, std::int64_t k, std::int64_t row, int number,
                   Depth<0>) const {
    const float* a = tile_.at.a + (k + number) * kGemmRows + row;
    if constexpr (is_plain(kKind)) {
      return splat<F>(*a) * column.b[number];
    } else {
      return split_product(splat<F>(*a), column.b[number],
                           splat<Signed<F>>(block_.a_logs[a - block_.a]), column.log_b[number],
                           product_);
    }
  }
  CPD_FN F add(F x, F y) const { return is_plain(kKind) ? x + y : split(x + y, sum_); }

  /// Merges a group's tree with the finished trees of equal size, level by level, and stores the
  /// result; returns false, and stores nothing, where a sum might leave the format.
  CPD_FN bool climb(F node, std::int64_t k, float* state) const {
    const std::int64_t number = block_.first_k + k;
    int level = kLevel;
    bool known = true;
    for (; (number >> level & 1) != 0; ++level) {
      node = add(load<F>(state + level * block_.plane), node);
      if constexpr (!is_plain(kKind)) {
        const auto size = bits_as<Unsigned<F>>(node) & splat<Unsigned<F>>(Pattern<F>::magnitude);
        known = known && all_at_most(bits_as<F>(size), split_.limit);
      }
    }
    if (known) store(state + level * block_.plane, node);
    return known;
  }

  CPD_FN void add_generally(std::int64_t k, std::int64_t i, std::int64_t j) const {
    Tile part = tile_;
    part.rows = 1;
    part.columns = least(kLanes, tile_.columns - j);
    part.at.a += i;
    part.at.b += j;
    part.at.state = at(i, j);
    general_steps(&bounded_, part, k, kRangeGroup);
  }

  CPD_FN float* at(std::int64_t i, std::int64_t j) const {
    return tile_.at.state + i * block_.state_columns + j;
  }

  const BoundedTile& bounded_;
  const GemmBlock& block_;
  const SplitPlan& split_;
  Tile tile_;
  SplitFormat<F> product_, sum_;
};

template <Split kKind>
CPD_BODY void tree_tile_body(const BoundedTile* bounded) {
  TreeTile<kKind>(*bounded).run();
}
template <Split kKind>
CPD_FN void tree_tile(const BoundedTile& bounded) {
  tree_tile_body<kKind>(&bounded);
}

}  // namespace
}  // namespace CPD_ISA
}  // namespace cpd
