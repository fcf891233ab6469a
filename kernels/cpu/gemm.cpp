// SPDX-License-Identifier: Apache-2.0
//
// Matrix products: loops over the tiles of a block, and the route of each tile. The arithmetic is
// in cpd/numeric. With CPD_HALF_LANES, a header of lanes of 16 bits, this is the route of plans
// that may take these (SplitPlan::half) instead.

#include "cpd/numeric/sums/gemm_plan.h"
#include "kernels/cpu/gemm_short.h"
#include "kernels/cpu/gemm_stochastic.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/gemm_tree.h"
#include "kernels/cpu/table.h"
#if defined(CPD_HALF_LANES)
#include "kernels/cpu/gemm_halves.h"
#endif

namespace cpd {
#if defined(CPD_HAS_AVX512FP16)
namespace avx512fp16 {
void gemm_in_halves(const GemmPlan& plan, const GemmBlock& block);
}
#endif
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint64_t;

[[maybe_unused]] CPD_FN void rounded_tile(const BoundedTile& bounded) {
  return are_narrow(bounded) ? split_tile<Split::rounded, Products::narrow>(bounded)
                             : split_tile<Split::rounded>(bounded);
}

#if defined(CPD_HALF_LANES)

using Columns = HalfPanel;

CPD_FN void run_tile(const BoundedTile& bounded, const Columns& columns) {
  if (are_narrow(bounded) || !half_tile(bounded, columns)) rounded_tile(bounded);
}

#else

/// Returns whether all the tile's products are binary32 numbers.
CPD_FN bool products_are_exact(const BoundedTile& bounded) {
  if (significant_bits(bounded.a->fraction) + significant_bits(bounded.b->fraction) > 24) {
    return false;
  }
  return bounded.least_bit() >= 0x1p-149F;
}

/// The path of a plan's tiles.
CPD_FN GemmPath path_of(const GemmPlan& plan, bool given) {
  GemmPath path;
  if (Lanes<F>::count == 1 || given) return path;
  path.kind = plan.split.kind;
  path.wants_binary32 = path.kind == Split::exact && !kHasDirectedRounding<F>;
#if defined(CPD_HAS_AVX512FP16)
  const bool takes_halves = plan.split.half == Half::fp16 && __builtin_cpu_supports("avx512fp16");
  if (takes_halves) path.half = Half::fp16;
#endif
  return path;
}

/// The path of a tile, before its bounds.
[[maybe_unused]] CPD_FN Split split_of(const BoundedTile& bounded) {
  const GemmPath path = path_of(*bounded.plan, bounded.block->given.random != nullptr);
  return path.wants_binary32 && !products_are_exact(bounded) ? Split::none : path.kind;
}

/// The state that the tiles of a panel of columns share: nothing.
struct Columns {
  CPD_FN void take(const GemmBlock& /*block*/, int64_t /*first*/) {}
};

CPD_FN void run_tile(const BoundedTile& bounded, const Columns& /*columns*/) {
  const GemmPlan& plan = *bounded.plan;
  if constexpr (Lanes<F>::count > 1) {
    switch (split_of(bounded)) {
      case Split::plain:
        return plan.exact_products ? split_tile<Split::plain, Products::exact>(bounded)
                                   : split_tile<Split::plain>(bounded);
      case Split::plain_kahan:
        return split_tile<Split::plain_kahan>(bounded);
      case Split::plain_tree:
        return tree_tile<Split::plain_tree>(bounded);
      case Split::rounded:
        return rounded_tile(bounded);
      case Split::exact:
        if (are_narrow(bounded)) return split_tile<Split::exact, Products::narrow>(bounded);
        return often_fits(bounded) ? split_tile<Split::exact, Products::exact>(bounded)
                                   : split_tile<Split::exact>(bounded);
      case Split::kahan:
        return are_narrow(bounded) ? split_tile<Split::kahan, Products::narrow>(bounded)
                                   : split_tile<Split::kahan>(bounded);
      case Split::tree:
        return are_narrow(bounded) ? tree_tile<Split::tree, Products::narrow>(bounded)
                                   : tree_tile<Split::tree>(bounded);
      case Split::stochastic:
        return stochastic_tile(bounded);
      default:  // none, or a kind of sums of terms
        break;
    }
  }
  CPD_TOOK(Split::none);
  if (bounded.block->given.random != nullptr) {
    return given_tile(plan, *bounded.block, bounded.tile);
  }
  general_tile(plan, *bounded.block, bounded.tile, bounded.binary32);
}

#endif

constexpr int64_t kRowsInCache = 128;  ///< rows of a that stay in cache over all of b's panels

/// Computes the tile of the row panel at row i and the column panel at column j, which is
/// `columns`.
CPD_FN void gemm_tile(const GemmPlan& plan, const GemmBlock& block, int64_t i, int64_t j,
                      const Columns& columns) {
  const PanelRange* a = block.a_range + i / kGemmRows * groups_of(block);
  const PanelRange* b = block.b_range + j / kGemmColumns * groups_of(block);
  const auto element = i * static_cast<int64_t>(block.index_row) + j;
  const Place at{block.a + i * block.count, block.b + j * block.count,
                 block.state + i * block.state_columns + j,
                 block.index + static_cast<uint64_t>(element), block.given.from(element)};
  const Tile tile{block.rows - i < kGemmRows ? block.rows - i : kGemmRows,
                  block.columns - j < kGemmColumns ? block.columns - j : kGemmColumns, at};
  run_tile({&plan, &block, tile, a, b, fits_binary32(plan, a->fraction, b->fraction)}, columns);
}

/// Computes all tiles of a block.
CPD_FN void gemm_tiles(const GemmPlan& plan, const GemmBlock& block) {
  Columns columns;
  for (int64_t first = 0; first < block.rows; first += kRowsInCache) {
    const int64_t end = first + kRowsInCache < block.rows ? first + kRowsInCache : block.rows;
    for (int64_t j = 0; j < block.columns; j += kGemmColumns) {
      columns.take(block, j);
      for (int64_t i = first; i < end; i += kGemmRows) gemm_tile(plan, block, i, j, columns);
    }
  }
}

}  // namespace

#if defined(CPD_HALF_LANES)
/// The sums of a plan whose SplitPlan::half is fp16, within a kernel's environment.
void gemm_in_halves(const GemmPlan& plan, const GemmBlock& block) { gemm_tiles(plan, block); }
#else
void gemm(const GemmPlan& plan, const GemmBlock& block) {
#if defined(CPD_HAS_AVX512FP16)
  if (path_of(plan, block.given.random != nullptr).half == Half::fp16) {
    return avx512fp16::gemm_in_halves(plan, block);
  }
#endif
  gemm_tiles(plan, block);
}

GemmPath gemm_path(const GemmPlan& plan, bool given) { return path_of(plan, given); }
#endif

}  // namespace CPD_ISA
}  // namespace cpd
