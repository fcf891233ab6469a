// SPDX-License-Identifier: Apache-2.0
//
// The arguments of kernels (operations.def).
#pragma once

#include <cstdint>

#include "cpd/numeric/draws/given_draws.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/spec/operation.h"

namespace cpd {

/// Elements after which codes of any width end on a byte and a new random word begins.
constexpr std::int64_t kBlock = 256;

/// CPU kernels implement add, mul and fma; GPU kernels also div and sqrt.
using Operation = soft::Operation;

/// Part of one matrix product, for Gemm: `rows` x `columns` sums take the next `count` values of k,
/// of which the first is number first_k. Operands are packed in panels of KernelTable::gemm_rows
/// rows of a and gemm_columns columns of b: value (i, k) of panel p is
/// a[(p * count + k) * gemm_rows + i] or b[(p * count + k) * gemm_columns + i]; +0 beyond the
/// operand's edge.
struct GemmBlock {
  std::int64_t rows = 0, columns = 0;
  std::int64_t first_k = 0, count = 0;
  bool last = false;  ///< no more values of k follow
  const float* a = nullptr;
  const float* b = nullptr;
  const PanelRange* a_range = nullptr;  ///< of each panel's groups of kRangeGroup values of k
  const PanelRange* b_range = nullptr;
  /// fixed_log (split.h) of each packed value, where GemmPlan::split uses them.
  const std::int32_t* a_logs = nullptr;
  const std::int32_t* b_logs = nullptr;
  /// Plane q of sum (i, j) is state[q * plane + i * state_columns + j]; rows and columns are padded
  /// to whole panels. Plane 0 is the sum; there are GemmPlan::planes of them.
  float* state = nullptr;
  std::int64_t plane = 0, state_columns = 0;
  /// Sum (i, j) is element number index + i * index_row + j of the result (for random bits).
  std::uint64_t index = 0, index_row = 0;
  /// The caller's random integers for a stochastic plan, whose element i of the result counts from
  /// sum (0, 0); the loop's first draw is number GemmPlan::first_draw (BlockFmaPlan::first_draw).
  GivenDraws given;
  /// The scales of a unit that has them: for group g of BlockFma::scale_block values of k (counted
  /// from first_k), that of a's row i is a_scale[g * scale_rows + i], that of b's column j
  /// b_scale[g * state_columns + j]; padded like the sums.
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  std::int64_t scale_rows = 0;
};

struct BlockFmaPlan;  // numeric/units/block_fma.h
template <class T>
struct FlagLimits;                       // numeric/round/flag_limits.h
struct FixedPlan;                        // numeric/sums/fixed_plan.h
struct HadamardPlan;                     // numeric/scaled/hadamard_plan.h
struct LevelPlan;                        // numeric/scaled/levels.h
struct Moments;                          // numeric/scaled/levels.h
struct OneBitRun;                        // numeric/scaled/one_bit.h
struct PowerBlocks;                      // numeric/scaled/power_blocks.h
struct PowerRun;                         // numeric/scaled/power_blocks.h
struct ScaledPlan;                       // numeric/scaled/scaled_plan.h
struct ScaledRun;                        // numeric/scaled/scaled_plan.h
enum class ElementRoute : std::uint8_t;  // numeric/scaled/scaled_plan.h

}  // namespace cpd
