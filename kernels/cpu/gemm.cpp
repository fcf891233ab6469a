// SPDX-License-Identifier: Apache-2.0
//
// Matrix products: computes the sums of a block tile by tile, each by a fast path or by the general
// path. The arithmetic is in cpd/numeric. If CPD_HALF_LANES names a header with lanes of 16-bit
// floats, this file is compiled for plans that allow such lanes (FastPlan::half).

#include "cpd/numeric/sums/gemm_plan.h"
#include "kernels/cpu/gemm_general.h"
#include "kernels/cpu/gemm_pairwise.h"
#include "kernels/cpu/gemm_registers.h"
#include "kernels/cpu/gemm_stochastic.h"
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint64_t;

/// Computes the sums of one tile of a product by the fast path Path, which needs no random
/// integers.
template <class Path, ProductKind kProducts>
CPD_FN void tile_of(const BoundedTile& bounded) {
  constexpr bool kFuses = Path::kAddsExact || (Path::kAnyValues && kProducts == ProductKind::exact);
  if constexpr (!kFuses) {
    switch (bounded.plan->scheme) {
      case Scheme::kahan:
        return register_tile<Path, Scheme::kahan, kProducts>(bounded);
      case Scheme::pairwise:
        return pairwise_tile<Path, kProducts>(bounded);
      default:
        break;
    }
  }
  register_tile<Path, Scheme::sequential, kProducts>(bounded);
}
template <class Path>
CPD_FN void fast_tile(const BoundedTile& bounded) {
  if constexpr (Path::kStochastic) {
    stochastic_tile(bounded);
  } else if constexpr (Path::kAnyValues) {
    return bounded.plan->exact_products ? tile_of<Path, ProductKind::exact>(bounded)
                                        : tile_of<Path, ProductKind::any>(bounded);
  } else {
    if (are_narrow(bounded)) return tile_of<Path, ProductKind::narrow>(bounded);
    if constexpr (Path::kAddsExact) {
      if (often_fits(bounded)) return tile_of<Path, ProductKind::exact>(bounded);
    }
    tile_of<Path, ProductKind::any>(bounded);
  }
}

/// Returns whether all products of the tile are exact in binary32.
CPD_FN bool products_are_exact(const BoundedTile& bounded) {
  if (significant_bits(bounded.a->fraction) + significant_bits(bounded.b->fraction) > 24) {
    return false;
  }
  return bounded.least_bit() >= 0x1p-149F;
}

/// Returns the code path (the method of computation) for the tiles of a plan. `given`: the caller
/// gives the random integers, which excludes fast paths.
CPD_FN GemmPath path_of(const GemmPlan& plan, bool given) {
  GemmPath path;
  if (Lanes<F>::count == 1 || given) return path;
  path.path = plan.fast.path;
  path.wants_binary32 = plan.fast.adds_exact && !kHasDirectedRounding<F>;
  return path;
}

/// Returns the fast path for a tile, or FastPath::none for the general path. A fast path that needs
/// exact products is returned only if the bounds of the tile's values show that they are exact.
CPD_FN FastPath path_of_tile(const BoundedTile& bounded) {
  const GemmPath path = path_of(*bounded.plan, bounded.block->given.random != nullptr);
  return path.wants_binary32 && !products_are_exact(bounded) ? FastPath::none : path.path;
}

CPD_FN void run_tile(const BoundedTile& bounded) {
  const FastPath path = path_of_tile(bounded);
  CPD_TOOK(path);
  bool taken = false;
  if constexpr (Lanes<F>::count > 1) {
    with_path(path, [&]<class Path>() {
      if constexpr (Path::kTakesProducts) {
        fast_tile<Path>(bounded);
        taken = true;
      }
    });
  }
  if (taken) return;
  if (bounded.block->given.random != nullptr) {
    return given_tile(*bounded.plan, *bounded.block, bounded.tile);
  }
  general_tile(*bounded.plan, *bounded.block, bounded.tile, bounded.binary32);
}

constexpr int64_t kRowsInCache = 128;  ///< rows of a that stay in cache over all of b's panels

/// Computes the tile of sums at row i and column j of the product, from one panel (packed rows) of
/// a and one panel (packed columns) of b.
CPD_FN void gemm_tile(const GemmPlan& plan, const GemmBlock& block, int64_t i, int64_t j) {
  const PanelRange* a = block.a_range + i / kGemmRows * groups_of(block);
  const PanelRange* b = block.b_range + j / kGemmColumns * groups_of(block);
  const auto element = i * static_cast<int64_t>(block.index_row) + j;
  const Place at{block.a + i * block.count, block.b + j * block.count,
                 block.state + i * block.state_columns + j,
                 block.index + static_cast<uint64_t>(element), block.given.from(element)};
  const Tile tile{block.rows - i < kGemmRows ? block.rows - i : kGemmRows,
                  block.columns - j < kGemmColumns ? block.columns - j : kGemmColumns, at};
  run_tile({&plan, &block, tile, a, b, fits_binary32(plan, a->fraction, b->fraction)});
}

}  // namespace

/// Computes all tiles of a block.
void gemm(const GemmPlan& plan, const GemmBlock& block) {
  for (int64_t first = 0; first < block.rows; first += kRowsInCache) {
    const int64_t end = first + kRowsInCache < block.rows ? first + kRowsInCache : block.rows;
    for (int64_t j = 0; j < block.columns; j += kGemmColumns) {
      for (int64_t i = first; i < end; i += kGemmRows) gemm_tile(plan, block, i, j);
    }
  }
}

GemmPath gemm_path(const GemmPlan& plan, bool given) { return path_of(plan, given); }

}  // namespace CPD_ISA
}  // namespace cpd
