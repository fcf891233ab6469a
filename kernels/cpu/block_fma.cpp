// SPDX-License-Identifier: Apache-2.0
//
// Matrix products by the arithmetic of a matrix unit (numeric/units/block_fma.h). Operands are
// packed in panels: groups of rows of a or of columns of b. A tile is one panel of a times one
// vector of columns of b. A block is plan.block consecutive k, whose products the unit adds at
// once. Each block is read twice: to find the greatest exponent E of each sum, and to add the
// products, which are cut to multiples of 2^(E - F), where F is plan.fraction_bits. Blocks are
// computed in binary32 lanes if that is exact (block_fits_binary32, end_block32), else in binary64
// lanes.
//
// Number of vector operations for one multiply-accumulate of a row and a vector of columns: 2 + 6 /
// rows for E, 4 for the product, and for the block's end about 25 / block in binary32 or 2 * 35 /
// block in binary64. With 8 rows that makes about 7 + 25 / block; an fp32 GEMM needs 1.

#include "cpd/numeric/units/block_fma.h"

#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/numeric/units/block_adders.h"
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using I = Signed<F>;

using std::int32_t;
using std::int64_t;
using std::uint32_t;
using std::uint64_t;

constexpr int kLanes = Lanes<F>::count;
constexpr int kRows = kGemmRows;
constexpr int64_t kMostK = 256;  ///< values of k whose exponents are stored

/// The least and the greatest exponent among the nonzero values of an operand.
struct Range {
  int32_t least = 4096;
  int32_t greatest = kNoExponent;
};

/// Returns the range of the exponents of n values. Also stores the exponents unless `exponents` is
/// null.
CPD_FN Range exponents_of(const float* x, int64_t n, int emin, int32_t* exponents) {
  I low = splat<I>(4096);
  I high = splat<I>(kNoExponent);
  const auto take = [&](F values) {
    const I e = exponent_from(values, emin);
    low = min(low, select(e < splat<I>(-1024), splat<I>(4096), e));
    high = max(high, e);
    return e;
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const I e = take(load<F>(x + i));
    if (exponents != nullptr) store(exponents + i, e);
  }
  if (i < n) {
    const auto rest = static_cast<std::size_t>(n - i);
    float values[kLanes] = {};
    int32_t out[kLanes];
    __builtin_memcpy(values, x + i, rest * sizeof(float));
    store(out, take(load<F>(values)));
    if (exponents != nullptr) __builtin_memcpy(exponents + i, out, rest * sizeof(int32_t));
  }
  int32_t lows[kLanes];
  int32_t highs[kLanes];
  store(lows, low);
  store(highs, high);
  Range range;
  for (int lane = 0; lane < kLanes; ++lane) {
    range.least = min(range.least, lows[lane]);
    range.greatest = max(range.greatest, highs[lane]);
  }
  return range;
}

/// The operands of one block, and the sums of the tile to which the block's products are added.
struct Step {
  const float* a;           ///< a's panel from the block's first k on
  const float* b;           ///< b's panel from the block's first k and the tile's first column on
  const int32_t* exponent;  ///< the exponents of a
  int64_t count;
  float* sum;  ///< the unit's sums
  int64_t sum_row;
  const float* a_scale;               ///< from the tile's first row and the block's first k on
  const float* b_scale;               ///< from the tile's first column on; both null: all are 1
  int64_t scale_rows, scale_columns;  ///< distance from one group of k to the next
};

/// Stores, for each sum of the tile, the greatest exponent E among its products in the block and,
/// if plan.aligns_addend, the sum itself. E is at least plan.min_exponent.
CPD_FN void greatest_exponents(const BlockFmaPlan& plan, const Step& step, int32_t (*e)[kLanes]) {
  I most[kRows];
  for (int row = 0; row < kRows; ++row) {
    most[row] = splat<I>(plan.min_exponent);
    if (plan.aligns_addend) {
      const F sum = load<F>(step.sum + row * step.sum_row);
      most[row] = max(most[row], exponent_from(sum, plan.emin_sum));
    }
  }
  for (int64_t k = 0; k < step.count; ++k) {
    const I b = exponent_from(load<F>(step.b + k * kGemmColumns), plan.emin_b);
    const int32_t* a = step.exponent + k * kRows;
    for (int row = 0; row < kRows; ++row) most[row] = max(most[row], splat<I>(a[row]) + b);
  }
  for (int row = 0; row < kRows; ++row) store(e[row], most[row]);
}

/// Adds up the block's products, each cut to a multiple of 2^(E - F) (F: plan.fraction_bits), in
/// each row of the tile, for one vector V of columns from column `lane` on. `units` receives the
/// totals divided by 2^(E - F).
template <class V>
CPD_FN void sum_products(const BlockFmaPlan& plan, const Step& step, int lane,
                         const int32_t (*e)[kLanes], Units<V>* units) {
  V scale[kRows];
  for (int row = 0; row < kRows; ++row) {
    scale[row] = alignment<V>(load_i32<V>(e[row] + lane), plan);
    units[row] = Units<V>{};
  }
  for (int64_t k = 0; k < step.count; ++k) {
    const V b = load_f32<V>(step.b + k * kGemmColumns + lane);
    const float* a = step.a + k * kRows;
    for (int row = 0; row < kRows; ++row) {
      units[row] = units[row] + aligned_product(splat<V>(a[row]), b, scale[row]);
    }
  }
}

/// Adds the block's totals (`units` times 2^(E - F), F: plan.fraction_bits) to one vector D of sums
/// in a row of the tile, from column `lane` on. Rounds the results and stores them.
template <class R>
CPD_FN void end_row(const BlockFmaPlan& plan, const Step& step, int row, int lane,
                    const int32_t (*e)[kLanes], D units) {
  float* sum = step.sum + row * step.sum_row + lane;
  store_f32(sum, end_block<R>(units, load_f32<D>(sum), load_i32<D>(e[row] + lane), plan));
}

/// Adds the totals of a block's products (`units` times 2^(E - F), F: plan.fraction_bits) to all
/// sums of a row of the tile. Rounds the sums and stores them.
template <class R>
CPD_FN void end_row(const BlockFmaPlan& plan, const Step& step, int row, const int32_t (*e)[kLanes],
                    const int32_t* units) {
  for (int lane = 0; lane < kLanes; lane += Lanes<D>::count) {
    end_row<R>(plan, step, row, lane, e, convert<D>(load_i32<D>(units + lane)));
  }
}

/// Adds the totals of a block's products (`units` times 2^(E - F)) to the sums of each row of the
/// tile, in binary32 lanes by end_block32. Returns a bit mask of the rows for which end_block32 may
/// be wrong; their sums do not change.
CPD_FN unsigned end_rows32(const BlockFmaPlan& plan, const Step& step, const int32_t (*e)[kLanes],
                           const I* units) {
  unsigned wide_rows = 0;
  for (int row = 0; row < kRows; ++row) {
    float* at = step.sum + row * step.sum_row;
    const F sum = load<F>(at);
    decltype(sum == sum) wide{};
    const F ended = end_block32(units[row], sum, load<I>(e[row]), plan, wide);
    if (any(wide)) {
      wide_rows |= 1U << row;
    } else {
      store(at, ended);
    }
  }
  return wide_rows;
}

/// Adds the products of one block to the sums of a tile. Computes them in binary32 lanes, which the
/// caller must know to be exact (block_fits_binary32).
template <class R>
CPD_FN void add_block32(const BlockFmaPlan& plan, const Step& step) {
  alignas(64) int32_t e[kRows][kLanes];
  I units[kRows];
  greatest_exponents(plan, step, e);
  sum_products<F>(plan, step, 0, e, units);
  unsigned rows = (1U << kRows) - 1;
  if (plan.ends_in_binary32) rows = end_rows32(plan, step, e, units);
  if (rows == 0) return;
  alignas(64) int32_t whole[kRows][kLanes];
  for (int row = 0; row < kRows; ++row) store(whole[row], units[row]);
  for (int row = 0; row < kRows; ++row) {
    if ((rows >> row & 1) != 0) end_row<R>(plan, step, row, e, whole[row]);
  }
}

/// Adds the products of one block to the sums of a tile, in binary64 lanes.
template <class R>
CPD_FN void add_block64(const BlockFmaPlan& plan, const Step& step) {
  alignas(64) int32_t e[kRows][kLanes];
  greatest_exponents(plan, step, e);
  for (int lane = 0; lane < kLanes; lane += Lanes<D>::count) {
    D units[kRows];
    sum_products<D>(plan, step, lane, e, units);
    for (int row = 0; row < kRows; ++row) end_row<R>(plan, step, row, lane, e, units[row]);
  }
}

// --- units with scales ---------------------------------------------------------------------------

/// The operands of neighboring sums of one row, one sum in each lane of V: a(k) returns a's value
/// in all lanes, b(k) returns b's values. V must be binary64 lanes.
template <class V>
struct PlainOperands {
  const Step& step;
  int64_t row, lane;

  CPD_FN V a(int k) const { return splat<V>(static_cast<double>(step.a[k * kRows + row])); }
  CPD_FN V b(int k) const { return load_f32<V>(step.b + k * kGemmColumns + lane); }
};

/// The operands of neighboring sums of one row (PlainOperands), and the scales by which
/// add_scaled_block multiplies these operands.
struct ScaledOperands : PlainOperands<D> {
  int32_t scale_block;

  CPD_FN D a_scale(int k) const {
    if (step.a_scale == nullptr) return splat<D>(1.0);
    const float scale = step.a_scale[k / scale_block * step.scale_rows + row];
    return splat<D>(static_cast<double>(scale));
  }
  CPD_FN D b_scale(int k) const {
    if (step.b_scale == nullptr) return splat<D>(1.0);
    return load_f32<D>(step.b_scale + k / scale_block * step.scale_columns + lane);
  }
};

/// Adds the products of one block to the sums of a tile, for matrix units that take scales.
template <class R>
CPD_FN void add_block_of_scaled(const BlockFmaPlan& plan, const Step& step) {
  for (int row = 0; row < kRows; ++row) {
    for (int lane = 0; lane < kLanes; lane += Lanes<D>::count) {
      float* sum = step.sum + row * step.sum_row + lane;
      const ScaledOperands operands{{step, row, lane}, plan.scale_block};
      const auto count = static_cast<int>(step.count);
      store_f32(sum, add_scaled_block<R>(plan, operands, count, load_f32<D>(sum)));
    }
  }
}

// --- other adders --------------------------------------------------------------------------------

/// Adds the products of one block to one vector D of sums and rounds each result once
/// (Adder::exact). A sum is computed again alone if binary64 does not represent its partial sums.
template <class R>
CPD_FN void add_exact_block(const BlockFmaPlan& plan, const PlainOperands<D>& x, int count,
                            float* sum) {
  constexpr int kWide = Lanes<D>::count;
  D lost{};
  const D before = load_f32<D>(sum);
  const D after = add_in_binary64<R>(plan, x, count, before, lost);
  double losses[kWide];
  double starts[kWide];
  store(losses, lost);
  store(starts, before);
  store_f32(sum, after);
  for (int lane = 0; lane < kWide; ++lane) {
    if (losses[lane] == 0) continue;
    const PlainOperands<double> one{x.step, x.row, x.lane + lane};
    sum[lane] = static_cast<float>(add_exactly<R>(plan, one, count, starts[lane]));
  }
}

/// Adds the products of one block to the sums of a tile by plan.adder, which must not be
/// Adder::aligned. Computes in binary64 lanes.
template <class R>
CPD_FN void add_block_with_adder(const BlockFmaPlan& plan, const Step& step) {
  const auto count = static_cast<int>(step.count);
  for (int row = 0; row < kRows; ++row) {
    for (int lane = 0; lane < kLanes; lane += Lanes<D>::count) {
      float* sum = step.sum + row * step.sum_row + lane;
      const PlainOperands<D> x{step, row, lane};
      if (plan.adder == Adder::exact) {
        add_exact_block<R>(plan, x, count, sum);
      } else if (plan.adder == Adder::flushed_pairs) {
        store_f32(sum, add_flushed_pairs<R>(plan, x, count, load_f32<D>(sum)));
      } else {
        const bool halves = plan.adder == Adder::two_steps_even;
        store_f32(sum, add_in_two_steps<R>(plan, x, count, load_f32<D>(sum), halves));
      }
    }
  }
}

// --- promotion and the result --------------------------------------------------------------------

/// Selects the rule that rounds into the accumulator's format, and passes it to `run` as a template
/// argument: run.operator()<Rule<…>>(). The compiler then makes a loop for each rule.
template <class Run>
CPD_FN void with_promotion_rule(const BlockFmaPlan& plan, Run run) {
  with_mode(plan.promoted.mode, [&]<Rounding mode>() {
    if (!is_simple(plan.promoted.form)) {
      run.template operator()<Rule<mode, Form::general>>();
    } else {
      run.template operator()<Rule<mode, Form::simple>>();
    }
  });
}

/// Returns one random integer for each lane: lane l has integer number plan.first_draw + draw of
/// element (i, j + l). Generates the integers or, if the call has random integers, reads them;
/// lanes beyond the edge of the result are then 0.
template <class R>
CPD_FN Unsigned<D> draw_of(const BlockFmaPlan& plan, const GemmBlock& block, int64_t i, int64_t j,
                           uint64_t draw) {
  if constexpr (R::mode == Rounding::stochastic) {
    const auto element = i * static_cast<int64_t>(block.index_row) + j;
    if (block.given.random != nullptr) {
      const int64_t lanes = i < block.rows ? block.columns - j : 0;
      return TakenDraws<D>(block.given.from(element), lanes, plan.first_draw + draw).next();
    }
    const RoundPlan& into = plan.promoted;
    FoldDraws<typename Narrow<D>::U32> draws(into.random_bits, into.seed, into.stream,
                                             block.index + static_cast<uint64_t>(element),
                                             plan.first_draw + draw);
    return convert<Unsigned<D>>(draws.next());
  } else {
    return Unsigned<D>{};
  }
}

/// Rounds a tile's sums into the accumulator's format. With promotion, a tile has two sums for each
/// element. The matrix unit's sum is then added to the accumulator's sum (plane 0), which is
/// rounded, and the matrix unit's sum becomes +0.
CPD_BODY void promote(const BlockFmaPlan* plan, const GemmBlock* block, int64_t row, int64_t column,
                      uint64_t draw) {
  const bool adds = plan->promote > 0;
  with_promotion_rule(*plan, [&]<class R>() {
    for (int64_t i = row; i < row + kRows; ++i) {
      for (int64_t j = column; j < column + kLanes; j += Lanes<D>::count) {
        float* sum = block->state + i * block->state_columns + j;
        const Unsigned<D> random = draw_of<R>(*plan, *block, i, j, draw);
        D exact = load_f32<D>(sum);
        if (adds) {
          float* unit = sum + block->plane;
          exact = exact_sum(exact, load_f32<D>(unit), R::is_down(plan->promoted));
          store_f32(unit, D{});
        }
        store_f32(sum, round<R>(exact, random, plan->promoted));
      }
    }
  });
}

// --- the loops -----------------------------------------------------------------------------------

/// Adds the products of `count` consecutive k to the sums of one tile, block by block.
template <class AddBlock>
CPD_FN void add_blocks(const BlockFmaPlan& plan, Step step, int64_t count, AddBlock add_block) {
  for (int64_t k = 0; k < count; k += step.count) {
    step.count = least(plan.block, count - k);
    add_block(step);
    step.a += step.count * kRows;
    step.b += step.count * kGemmColumns;
    step.exponent += step.count * kRows;
    if (step.a_scale != nullptr) {
      const int64_t groups = step.count / plan.scale_block;
      step.a_scale += groups * step.scale_rows;
      step.b_scale += groups * step.scale_columns;
    }
  }
}

CPD_BODY void add_binary32(const BlockFmaPlan* shared, const Step* step, int64_t count) {
  const BlockFmaPlan plan = *shared;
  with_sum_rule(plan, [&]<class R>() {
    add_blocks(plan, *step, count, [&](const Step& block) { add_block32<R>(plan, block); });
  });
}
CPD_BODY void add_binary64(const BlockFmaPlan* shared, const Step* step, int64_t count) {
  const BlockFmaPlan plan = *shared;
  with_sum_rule(plan, [&]<class R>() {
    add_blocks(plan, *step, count, [&](const Step& block) { add_block64<R>(plan, block); });
  });
}

CPD_BODY void add_scaled_products(const BlockFmaPlan* shared, const Step* step, int64_t count) {
  const BlockFmaPlan plan = *shared;
  with_sum_rule(plan, [&]<class R>() {
    add_blocks(plan, *step, count, [&](const Step& block) { add_block_of_scaled<R>(plan, block); });
  });
}

CPD_BODY void add_other_products(const BlockFmaPlan* shared, const Step* step, int64_t count) {
  const BlockFmaPlan plan = *shared;
  with_sum_rule(plan, [&]<class R>() {
    add_blocks(plan, *step, count,
               [&](const Step& block) { add_block_with_adder<R>(plan, block); });
  });
}

/// Points step.a_scale and step.b_scale to the scales of the tile at (row, column), from k on.
/// Leaves them null if the operands have no scales.
CPD_FN void set_scales(const BlockFmaPlan& plan, const GemmBlock& block, int64_t row,
                       int64_t column, int64_t k, Step& step) {
  if (block.a_scale == nullptr) return;
  const int64_t group = k / plan.scale_block;
  step.scale_rows = block.scale_rows;
  step.scale_columns = block.state_columns;
  step.a_scale = block.a_scale + group * step.scale_rows + row;
  step.b_scale = block.b_scale + group * step.scale_columns + column;
}

/// Returns how many of the next `left` products are added together, from first_k on: whole blocks,
/// at most kMostK products, and none after the next addition to the accumulator's sum.
CPD_FN int64_t stretch(const BlockFmaPlan& plan, int64_t first_k, int64_t left) {
  int64_t count = kMostK / plan.block * plan.block;
  if (plan.promote > 0) count = least(count, plan.promote - first_k % plan.promote);
  return least(count, left);
}

/// Computes the sums of one panel of a and one panel of b. (A panel is a group of rows of a or of
/// columns of b that is packed together.)
CPD_FN void multiply_panels(const BlockFmaPlan& plan, const GemmBlock& block, int64_t row,
                            int64_t column, Range b_range) {
  alignas(64) int32_t exponent[kMostK * kRows];
  const float* a = block.a + row * block.count;
  const float* b = block.b + column * block.count;
  const int64_t unit_plane = plan.promote > 0 ? block.plane : 0;
  for (int64_t k = 0; k < block.count;) {
    const int64_t first_k = block.first_k + k;
    const int64_t count = stretch(plan, first_k, block.count - k);
    const Range a_range = exponents_of(a + k * kRows, count * kRows, plan.emin_a, exponent);
    const bool narrow =
        block_fits_binary32(plan, a_range.least, a_range.greatest, b_range.least, b_range.greatest);
    k += count;
    const bool is_end = block.last && k == block.count;
    const bool promotes = plan.promote > 0 && (first_k + count) % plan.promote == 0;
    for (int64_t j = 0; j < kGemmColumns; j += kLanes) {
      Step step{a + (k - count) * kRows,
                b + (k - count) * kGemmColumns + j,
                exponent,
                0,
                block.state + unit_plane + row * block.state_columns + column + j,
                block.state_columns,
                nullptr,
                nullptr,
                0,
                0};
      if (plan.takes_scales) {
        set_scales(plan, block, row, column + j, k - count, step);
        add_scaled_products(&plan, &step, count);
      } else if (plan.adder != Adder::aligned) {
        add_other_products(&plan, &step, count);
      } else {
        narrow ? add_binary32(&plan, &step, count) : add_binary64(&plan, &step, count);
      }
      if (promotes || is_end) {
        const int64_t draw = plan.promote > 0 ? (first_k + count - 1) / plan.promote : 0;
        promote(&plan, &block, row, column + j, static_cast<uint64_t>(draw));
      }
    }
  }
}

/// Finishes the sums of a matrix product with k = 0, which consist of c alone. If the matrix unit's
/// sums are not added to an accumulator (no promotion), rounds c into the accumulator's format.
/// Otherwise does nothing.
CPD_FN void end_empty(const BlockFmaPlan& plan, const GemmBlock& block) {
  if (plan.promote > 0) return;
  for (int64_t row = 0; row < block.rows; row += kRows) {
    for (int64_t column = 0; column < block.columns; column += kLanes) {
      promote(&plan, &block, row, column, 0);
    }
  }
}

}  // namespace

void block_fma(const BlockFmaPlan& plan, const GemmBlock& block) {
  if (block.count == 0) return end_empty(plan, block);
  for (int64_t column = 0; column < block.columns; column += kGemmColumns) {
    const float* b = block.b + column * block.count;
    const Range b_range = exponents_of(b, block.count * kGemmColumns, plan.emin_b, nullptr);
    for (int64_t row = 0; row < block.rows; row += kRows) {
      multiply_panels(plan, block, row, column, b_range);
    }
  }
}

}  // namespace CPD_ISA
}  // namespace cpd
