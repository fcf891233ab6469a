// SPDX-License-Identifier: Apache-2.0
//
// Tiles of the path `veltkamp` in lanes of 16 bits (half_lanes.h), one vector for a row's columns:
// 8 operations for as many sums as binary32 has in two vectors, at 7 each. Included by gemm.cpp
// alone, where CPD_HALF_LANES names a header with the lanes H.
#pragma once

#include "cpd/numeric/fast/veltkamp.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "kernels/cpu/gemm_registers.h"
#include CPD_HALF_LANES

namespace cpd {
inline namespace CPD_ISA {
namespace {

static_assert(Lanes<H>::count == kGemmColumns);

constexpr std::int64_t kMostHalves = 128;  ///< values of k of a block, at most

/// Returns whether products of the panel's values are numbers of the lanes, with a bit to spare
/// (split_short), if its values are.
CPD_FN bool are_half_wide(const PanelRange& range) {
  return significant_bits(range.fraction) <= Lanes<H>::mantissa / 2;
}

/// Returns whether x, kGemmColumns values, are numbers of the lanes, which then are `halves`.
CPD_FN bool are_halves(const float* x, H& halves) {
  float back[kGemmColumns];
  halves = load_f32<H>(x);
  store_f32(back, halves);
  Signed<F> differ{};
  for (int j = 0; j < kGemmColumns; j += Lanes<F>::count) {
    differ |= ~(load<F>(x + j) == load<F>(back + j));
  }
  return !any(differ);
}

/// A panel of b in the lanes, which many tiles share.
struct HalfPanel {
  bool is_held = false;  ///< whether the lanes hold it; else `values` are undefined
  H values[kMostHalves];

  /// That from column `first` on.
  CPD_FN void take(const GemmBlock& block, std::int64_t first) {
    const float* b = block.b + first * block.count;
    is_held = block.count <= kMostHalves &&
              are_half_wide(block.b_range[first / kGemmColumns * groups_of(block)]);
    for (std::int64_t k = 0; is_held && k < block.count; ++k) {
      is_held = are_halves(b + k * kGemmColumns, values[k]);
    }
  }
};

/// A panel of a: one lane for each of its values.
struct HalfRows {
  Scalar<H> values[kMostHalves * kGemmRows];

  /// Returns whether the lanes hold them.
  CPD_FN bool take(const GemmBlock& block, const float* a, const PanelRange& range) {
    if (!are_half_wide(range)) return false;
    const std::int64_t n = block.count * kGemmRows;
    for (std::int64_t i = 0; i < n; i += kGemmColumns) {
      float padded[kGemmColumns] = {};
      __builtin_memcpy(padded, a + i, static_cast<std::size_t>(least(n - i, kGemmColumns)) * 4);
      H halves;
      if (!are_halves(padded, halves)) return false;
      store(values + i, halves);
    }
    return true;
  }
};

/// The sums of kRows rows, in registers.
template <int kRows>
class HalfTile {
 public:
  /// `rows` begins at the first of the tile's rows.
  CPD_FN HalfTile(const BoundedTile& bounded, const Tile& tile, const HalfPanel& columns,
                  const Scalar<H>* rows)
      : bounded_(bounded),
        block_(*bounded.block),
        fast_(bounded.plan->fast),
        state_(tile.at.state),
        columns_(columns),
        rows_(rows),
        product_(fast_.man_product, fast_.product_quantum, false),
        sum_(fast_.man_sum, fast_.sum_quantum, false) {}

  /// Adds the values of k from k on, as long as nothing can overflow, and returns the next one.
  CPD_FN std::int64_t run(std::int64_t k) {
    if (has_negative_zero()) return k;
    H sums[kRows];
    for (int i = 0; i < kRows; ++i) sums[i] = load_f32<H>(row(i));
    const std::int64_t first = k;
    for (std::int64_t taken = -1; k < block_.count && taken != 0; k += taken) {
      taken = advance(sums, k);
    }
    for (int i = 0; k != first && i < kRows; ++i) store_f32(row(i), sums[i]);
    return k;
  }

 private:
  [[nodiscard]] CPD_FN float* row(int i) const { return state_ + i * block_.state_columns; }
  [[nodiscard]] CPD_FN bool has_negative_zero() const {
    Signed<F> found{};
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kGemmColumns; j += Lanes<F>::count) {
        found |= (Signed<F>)(load<Unsigned<F>>(row(i) + j) == splat<Unsigned<F>>(Pattern<F>::sign));
      }
    }
    return any(found);
  }

  /// Adds a few values of k, if nothing can overflow; returns how many.
  CPD_FN std::int64_t advance(H (&sums)[kRows], std::int64_t k) const {
    const std::int64_t left = block_.count - k;
    if (k == 0 && are_at_most(sums, sum_limit(fast_, bounded_.all_products()))) {
      steps(sums, 0, left);
      return left;
    }
    const std::int64_t count = least(left, fast_.steps);
    if (!are_at_most(sums, sum_limit(fast_, bounded_.products(k, count)))) return 0;
    steps(sums, k, count);
    return count;
  }
  /// Returns whether all magnitudes are; false with a NaN.
  CPD_FN static bool are_at_most(const H (&sums)[kRows], float limit) {
    H most = larger_magnitude(sums[0], sums[kRows - 1]);
    for (int i = 1; i + 1 < kRows; ++i) most = larger_magnitude(most, sums[i]);
    float lanes[kGemmColumns];
    store_f32(lanes, most);
    bool all = true;
    for (int j = 0; j < kGemmColumns; j += Lanes<F>::count) {
      all = all && all_at_most(load<F>(lanes + j), limit);
    }
    return all;
  }
  CPD_FN void steps(H (&sums)[kRows], std::int64_t k, std::int64_t count) const {
    for (const std::int64_t end = k + count; k < end; ++k) {
      const H b = columns_.values[k];
      for (int i = 0; i < kRows; ++i) {
        const H product = splat<H>(rows_[k * kGemmRows + i]) * b;
        sums[i] = split(sums[i] + split_short(product, product_), sum_);
      }
    }
  }

  const BoundedTile& bounded_;
  const GemmBlock& block_;
  const FastPlan& fast_;
  float* state_;
  const HalfPanel& columns_;
  const Scalar<H>* rows_;
  SplitFormat<H> product_, sum_;
};

template <int kRows>
CPD_BODY std::int64_t half_steps(const BoundedTile* bounded, const Tile* tile,
                                 const HalfPanel* columns, const Scalar<H>* rows, std::int64_t k) {
  return HalfTile<kRows>(*bounded, *tile, *columns, rows).run(k);
}
template <int kRows>
CPD_FN void half_some_rows(const BoundedTile& bounded, const HalfPanel& columns,
                           const HalfRows& rows, std::int64_t first) {
  const Tile part = rows_of(*bounded.block, bounded.tile, first, kRows);
  fast_rows<Veltkamp, Scheme::sequential, kRows, kVectorsOfPanel>(
      bounded, part, [&](std::int64_t k) {
        return half_steps<kRows>(&bounded, &part, &columns, rows.values + first, k);
      });
}

/// Computes a tile in lanes of 16 bits; false, and nothing is done, where these do not hold the
/// operands, or would be half empty.
CPD_FN bool half_tile(const BoundedTile& bounded, const HalfPanel& columns) {
  if (!columns.is_held || bounded.tile.columns <= Lanes<F>::count) return false;
  HalfRows rows;
  if (!rows.take(*bounded.block, bounded.tile.at.a, *bounded.a)) return false;
  if (bounded.tile.rows > 2) {
    half_some_rows<kGemmRows>(bounded, columns, rows, 0);
  } else {
    for (std::int64_t i = 0; i < bounded.tile.rows; ++i) {
      half_some_rows<1>(bounded, columns, rows, i);
    }
  }
  return true;
}

}  // namespace
}  // namespace CPD_ISA
}  // namespace cpd
