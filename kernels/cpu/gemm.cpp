// SPDX-License-Identifier: Apache-2.0
//
// Matrix products: loops over the tiles of a block, and the path of each tile. The arithmetic is in
// cpd/numeric. With CPD_HALF_LANES, a header of lanes of 16 bits, this is the path of plans that
// may take these (FastPlan::half) instead.

#include "cpd/numeric/sums/gemm_plan.h"
#include "kernels/cpu/gemm_general.h"
#include "kernels/cpu/gemm_pairwise.h"
#include "kernels/cpu/gemm_registers.h"
#include "kernels/cpu/gemm_stochastic.h"
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

#if defined(CPD_HALF_LANES)

using Columns = HalfPanel;

CPD_FN void run_tile(const BoundedTile& bounded, const Columns& columns) {
  if (are_narrow(bounded)) {
    register_tile<Veltkamp, Scheme::sequential, Products::narrow>(bounded);
  } else if (!half_tile(bounded, columns)) {
    register_tile<Veltkamp, Scheme::sequential, Products::any>(bounded);
  }
}

#else

/// Computes a tile by a fast path that needs no random integers.
template <class Path, Products kProducts>
CPD_FN void tile_of(const BoundedTile& bounded) {
  constexpr bool kFuses = Path::kAddsExact || (Path::kAnyValues && kProducts == Products::exact);
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
    return bounded.plan->exact_products ? tile_of<Path, Products::exact>(bounded)
                                        : tile_of<Path, Products::any>(bounded);
  } else {
    if (are_narrow(bounded)) return tile_of<Path, Products::narrow>(bounded);
    if constexpr (Path::kAddsExact) {
      if (often_fits(bounded)) return tile_of<Path, Products::exact>(bounded);
    }
    tile_of<Path, Products::any>(bounded);
  }
}

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
  path.path = plan.fast.path;
  if (!kHasDirectedRounding<F>) {
    with_path(path.path, [&]<class Path>() {
      if constexpr (Path::kTakesProducts) path.wants_binary32 = Path::kAddsExact;
    });
  }
#if defined(CPD_HAS_AVX512FP16)
  const bool takes_halves = plan.fast.half == Half::fp16 && __builtin_cpu_supports("avx512fp16");
  if (takes_halves) path.half = Half::fp16;
#endif
  return path;
}

/// The path of a tile, before its bounds.
CPD_FN FastPath path_of_tile(const BoundedTile& bounded) {
  const GemmPath path = path_of(*bounded.plan, bounded.block->given.random != nullptr);
  return path.wants_binary32 && !products_are_exact(bounded) ? FastPath::none : path.path;
}

/// The state that the tiles of a panel of columns share: nothing.
struct Columns {
  CPD_FN void take(const GemmBlock& /*block*/, int64_t /*first*/) {}
};

CPD_FN void run_tile(const BoundedTile& bounded, const Columns& /*columns*/) {
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
/// The sums of a plan whose FastPlan::half is fp16, within a kernel's environment.
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
