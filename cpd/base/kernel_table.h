// SPDX-License-Identifier: Apache-2.0
//
// The functions of a CPU backend: loops over contiguous memory, compiled once per ISA. They make no
// decisions: every rounding is numeric/'s, every choice is in the plan. They neither allocate nor
// throw. `first` is the row-major index of element 0, which random bits depend on; it is a multiple
// of kBlock. A stochastic plan takes its integers from `random`, or, where that is null, from its
// seed and stream.
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

/// Of which the CPU's kernels compute add, mul and fma, a GPU's div and sqrt too.
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

/// The path of a product's tiles. Each tile takes the path while its values are within the path's
/// bounds, and the general one otherwise.
struct GemmPath {
  Split kind = Split::none;  ///< none: the general path
  Half half = Half::none;    ///< 16-bit lanes of kind `rounded`
  /// Of kind `exact`: whether a tile also takes the general path where a product is not a binary32
  /// number, for want of instructions that round to a given direction.
  bool wants_binary32 = false;
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

struct KernelTable {
  const char* name;
  int lanes;
  /// Kernel calls since the program started.
  std::uint64_t (*calls)();

  /// y[i] = round(x[i]); y may be x. `streaming`: y is not needed in cache.
  void (*round_f32)(const RoundPlan& plan, std::int64_t first, std::int64_t n, const float* x,
                    const std::uint32_t* random, float* y, bool streaming);
  void (*round_f64)(const RoundPlan& plan, std::int64_t first, std::int64_t n, const double* x,
                    const std::uint32_t* random, double* y);
  /// raised[i] = flags_of(limits, x[i], y[i]); returns whether any has kOpen.
  bool (*flags_f32)(const FlagLimits<float>& limits, std::int64_t n, const float* x, const float* y,
                    std::uint8_t* raised);
  bool (*flags_f64)(const FlagLimits<double>& limits, std::int64_t n, const double* x,
                    const double* y, std::uint8_t* raised);
  /// Rounds bf16's patterns, for a plan that is not wide and whose values bf16 holds.
  void (*round_bf16)(const RoundPlan& plan, std::int64_t first, std::int64_t n,
                     const std::uint16_t* x, const std::uint32_t* random, std::uint16_t* y);
  /// y[i] = x[i], bf16's patterns; a NaN keeps its bits.
  void (*widen_bf16)(std::int64_t n, const std::uint16_t* x, float* y);
  /// round_f32 of `rows` rows of n values, each array's rows its stride apart; `random` is null
  /// unless the mode is stochastic. y may be x.
  void (*round_rows)(const RoundPlan& plan, std::int64_t rows, std::int64_t n, const float* x,
                     std::int64_t x_stride, const std::uint32_t* random, std::int64_t random_stride,
                     float* y, std::int64_t y_stride, bool streaming);
  /// y[i] = round(x[i] * 2^shift), |shift| <= 600.
  void (*round_scaled)(const RoundPlan& plan, int shift, std::int64_t first, std::int64_t n,
                       const float* x, const std::uint32_t* random, float* y, bool streaming);

  /// Rounds x[i] * 2^shift (|shift| <= 600) and packs. Returns the least i whose NaN has no code,
  /// or -1.
  std::int64_t (*encode_f32)(const RoundPlan& plan, int shift, std::int64_t first, std::int64_t n,
                             const float* x, const std::uint32_t* random, std::uint8_t* packed,
                             bool streaming);
  std::int64_t (*encode_f64)(const RoundPlan& plan, std::int64_t first, std::int64_t n,
                             const double* x, const std::uint32_t* random, std::uint8_t* packed);
  void (*decode_f32)(const RoundPlan& plan, std::int64_t n, const std::uint8_t* packed, float* y,
                     bool streaming);
  /// y[i] = (value * 2^shift) / divisor, each rounded once to binary32; |shift| <= 600, divisor
  /// finite and not zero.
  void (*decode_scaled)(const RoundPlan& plan, int shift, float divisor, std::int64_t n,
                        const std::uint8_t* packed, float* y, bool streaming);

  /// out[i] = round(x[i] op y[i] (op z[i])); y and z are null where the operation has none.
  void (*arithmetic)(Operation op, const RoundPlan& plan, std::int64_t first, std::int64_t n,
                     const float* x, const float* y, const float* z, const std::uint32_t* random,
                     float* out);
  void (*arithmetic_f64)(Operation op, const RoundPlan& plan, std::int64_t first, std::int64_t n,
                         const double* x, const double* y, const double* z,
                         const std::uint32_t* random, double* out);
  /// out[i] = x[i] op y[i] (op z[i]) rounded to odd, in binary32, or NaN where that leaves a doubt;
  /// in binary64, of binary32 values. y and z are null where the operation has none.
  void (*to_odd_f32)(Operation op, std::int64_t n, const float* x, const float* y, const float* z,
                     float* out);
  void (*to_odd_f64)(Operation op, std::int64_t n, const double* x, const double* y,
                     const double* z, double* out);
  /// Does `count` >= 1 consecutive steps of an ordered sum per element, of terms[0][i],
  /// terms[1][i], … (FoldStep in ops/reduce.h). `starts`: the first step is sum = round(term) by
  /// draw number `draw`, with Kahan's compensation +0; any other is sum = round(sum + term), or
  /// Kahan's four operations, by the next draws. With count 1 the terms may be `sum`. `first` may
  /// be any number. `given`: the caller's random integers, of the first element.
  void (*fold)(const FoldPlan& plan, bool starts, std::int64_t draw, std::int64_t first,
               std::int64_t n, std::int64_t count, const float* const* terms, float* sum,
               float* compensation, GivenDraws given);
  /// fold for terms that are any binary64 values.
  void (*fold_f64)(const FoldPlan& plan, bool starts, std::int64_t draw, std::int64_t first,
                   std::int64_t n, std::int64_t count, const double* const* terms, double* sum,
                   double* compensation, GivenDraws given);
  /// The short path of fold's steps after the first, while sums stay within the format's range;
  /// `given`: whether the caller gives the random integers.
  Split (*fold_path)(const FoldPlan& plan, bool given);
  /// Largest finite |x[i]|; adds the number of NaN and Inf to *non_finite.
  float (*max_abs)(std::int64_t n, const float* x, std::int64_t* non_finite);

  /// largest[b] = the largest |x| of block b, of `run` values each; the last may be short. Compares
  /// bit patterns, so that Inf and, with_nan, NaN are larger than numbers.
  void (*block_max)(bool with_nan, std::int64_t run, std::int64_t n, const float* x,
                    float* largest);
  /// largest[i] = the largest |x[row * stride + i]|, compared as by block_max.
  void (*column_max)(bool with_nan, std::int64_t rows, std::int64_t stride, std::int64_t n,
                     const float* x, float* largest);
  /// Computes the second level's scales (outer_scale in scale_rules.h).
  void (*outer_scales)(const ScaledPlan& plan, std::int64_t n, const float* largest, float* scale,
                       float* encode);
  /// Computes the scales of n blocks from their outer scales. factor: what elements are multiplied
  /// by (ElementRoute::multiply) or divided by (divide); decode: the scales that they are decoded
  /// with. Returns whether a scale is outside the route's range (is_outside).
  bool (*block_scales)(const ScaledPlan& plan, ElementRoute route, double share, std::int64_t n,
                       const float* largest, const float* outer, const float* encode, float* scale,
                       float* factor, float* decode);
  /// Computes the factors of n blocks whose scales the caller has; returns as block_scales does.
  bool (*given_scales)(const ScaledPlan& plan, ElementRoute route, std::int64_t n,
                       const float* scale, const float* outer, float* factor);
  /// all[i] = each[i / run].
  void (*spread)(std::int64_t run, std::int64_t n, const float* each, float* all);
  /// Writes the values of x's elements. y may be x.
  void (*round_blocks)(const ScaledPlan& plan, ElementRoute route, const ScaledRun& run, float* y,
                       std::int64_t y_stride, bool streaming);
  /// round_blocks, rounded once more to nearest-even into bf16's patterns; returns whether bf16
  /// holds all values.
  bool (*round_blocks_bf16)(const ScaledPlan& plan, ElementRoute route, const ScaledRun& run,
                            std::uint16_t* y, std::int64_t y_stride);
  /// Packs the codes of one row's elements. A NaN without a code gives 0.
  void (*encode_blocks)(const ScaledPlan& plan, ElementRoute route, const ScaledRun& run,
                        std::uint8_t* packed, bool streaming);
  /// y[i] = x[i] * scale * outer of one row, rounded once; `wide`: ScaledPlan::wide_values. y may
  /// be x.
  void (*scale_blocks)(bool wide, const ScaledRun& run, float* y);

  /// Sizes of packed panels (GemmBlock).
  int gemm_rows, gemm_columns;
  /// Packs lines x count values of an operand: value (line, k) is
  /// x[line * line_stride + k * k_stride]. Writes panels of `width` lines (gemm_rows or
  /// gemm_columns; GemmBlock) to `packed`, their ranges to `range`, with least_bit only
  /// of panels whose values have at most `least_bits_within` significant bits, and their logarithms
  /// to `logs` unless it is null.
  void (*pack)(std::int64_t lines, std::int64_t count, const float* x, std::int64_t line_stride,
               std::int64_t k_stride, int width, int least_bits_within, float* packed,
               PanelRange* range, std::int32_t* logs);
  /// Adds the block's products to the sums.
  void (*gemm)(const GemmPlan& plan, const GemmBlock& block);
  /// The path of gemm's tiles; `given`: whether the caller gives the random integers.
  GemmPath (*gemm_path)(const GemmPlan& plan, bool given);
  /// gemm for Scheme::block_fma; block.count is a multiple of the unit's block but for the last,
  /// and 0 where a sum has no products at all.
  void (*block_fma)(const BlockFmaPlan& plan, const GemmBlock& block);
  /// gemm for Scheme::fixed: plane q of a sum holds bits 32 q … 32 q + 31 of its integer.
  void (*fixed)(const FixedPlan& plan, const GemmBlock& block);

  /// total = add_scaled(total, a_scale, b_scale, sum) and sum = +0 (numeric/scaled/scaled_sum.h)
  /// for rows x columns sums, rows `stride` apart; columns is a multiple of gemm_columns. a_scale
  /// has a scale for each row, b_scale for each column.
  void (*add_scaled_sums)(std::int64_t rows, std::int64_t columns, std::int64_t stride,
                          const float* a_scale, const float* b_scale, float* sum, float* total);

  /// Writes the indices i, ascending, of values v[i] whose pattern & mask is at least `least`, to
  /// `places`, which can hold n < 2^32 of them, and returns how many. v[i] is x[i], or where `y` is
  /// not null x[i] + r[i], which is written to y[i]; y may be r.
  std::int64_t (*find_large)(std::uint32_t mask, std::uint32_t least, std::int64_t n,
                             const float* x, const float* r, float* y, std::uint32_t* places);

  void (*random_integers)(int random_bits, std::uint64_t seed, std::uint64_t stream,
                          std::int64_t first, std::int64_t n, std::uint32_t* out);
  /// to[c * to_stride + r] = from[r * from_stride + c] for r < rows, c < columns.
  void (*transpose)(std::int64_t rows, std::int64_t columns, const std::uint32_t* from,
                    std::int64_t from_stride, std::uint32_t* to, std::int64_t to_stride);
  /// Transforms groups of plan.size values (spec/hadamard.h). Value i of column j of group g is
  /// x[(g * plan.size + i) * stride + j], j < count <= stride, and its result has that index in y,
  /// which may be x. With stride 1 a group's values, and the groups, are contiguous. `streaming`: y
  /// is not needed in cache; stride 1 only.
  void (*hadamard)(const HadamardPlan& plan, std::int64_t groups, std::int64_t count,
                   std::int64_t stride, const float* x, float* y, bool streaming);
  /// 1-bit SGD (numeric/scaled/one_bit.h): writes for each bucket the two means of the values of x
  /// + residual that the run has, first that of values >= 0; NaN where a value is NaN or Inf.
  void (*one_bit_means)(const OneBitRun& run, const float* x, const float* residual, float* means);
  /// Sets the bits of values >= 0 of x + residual, the first value's the lowest, in bytes that are
  /// 0; next[i]: the error of value i, or residual[i] where the means are NaN.
  void (*one_bit_encode)(const OneBitRun& run, const float* x, const float* residual,
                         const float* means, std::uint8_t* bits, float* next);
  /// y[i] = the mean that its bit selects.
  void (*one_bit_decode)(const OneBitRun& run, const std::uint8_t* bits, const float* means,
                         float* y);
  /// CRC-32C of n more bytes (Crc32c in ops/reduce.h).
  std::uint32_t (*crc32c)(std::uint32_t crc, std::int64_t n, const std::uint8_t* data);
  /// Packs the codes of x's levels (numeric/scaled/levels.h). x[0] is element number `first` of its
  /// layer, any, and number `before` of its bucket, whose norm is norms[0]; `random`: from x[0] on.
  void (*encode_levels)(const LevelPlan& plan, std::int64_t first, std::int64_t before,
                        std::int64_t n, const float* x, const float* norms,
                        const std::uint32_t* random, std::uint8_t* packed);
  /// y[i] = (value * 2^shift) / divisor, each rounded once to binary32; NaN is 0x7FC00000;
  /// |shift| <= 126, divisor finite and not zero.
  void (*decode_levels)(const LevelPlan& plan, int shift, float divisor, std::int64_t before,
                        std::int64_t n, const std::uint8_t* packed, const float* norms, float* y);
  /// Computes the moments of n values about `mean` (numeric/scaled/levels.h).
  void (*moments)(std::int64_t n, const float* x, double mean, Moments* result);
  /// Casts a run's blocks into bf16 from the first on, some at a time, while all of these are usual
  /// (is_usual); returns how many of the n were cast. y may be x.
  std::int64_t (*cast_power_blocks)(const PowerBlocks& blocks, const PowerRun& run);
};

}  // namespace cpd
