// SPDX-License-Identifier: Apache-2.0
//
// The arguments of kernels (operations.def).
#pragma once

#include <cstdint>
#include <type_traits>

#include "cpd/base/product.h"
#include "cpd/base/tensor.h"
#include "cpd/numeric/draws/given_draws.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/scaled/block_layout.h"
#include "cpd/numeric/scaled/hadamard_plan.h"
#include "cpd/numeric/scaled/scaled_plan.h"
#include "cpd/numeric/sums/fixed_plan.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/numeric/sums/order.h"
#include "cpd/numeric/units/accumulator_plan.h"
#include "cpd/spec/operation.h"

namespace cpd {

/// Elements after which codes of any width end on a byte and a new random word begins.
constexpr std::int64_t kBlock = 256;

/// The index of a fault that no element has.
inline constexpr unsigned long long kNoFault = ~0ULL;

/// The operations of ArithmeticCall: add, mul, fma, div and sqrt.
using Operation = soft::Operation;

/// A tensor's memory for a call. Dimensions whose strides fit together are merged, so a contiguous
/// tensor has one dimension of stride 1. Shape and stride are set for dimensions below `rank`, if
/// there is data.
struct Strided {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int32_t rank = 1;
  std::int64_t shape[TensorView::kMaxRank];
  std::int64_t stride[TensorView::kMaxRank];

  /// Row-major without gaps.
  [[nodiscard]] bool is_contiguous() const { return rank == 1 && stride[0] == 1; }
};

template <class T>
constexpr DType kTypeOf = std::is_same_v<T, float>    ? DType::f32
                          : std::is_same_v<T, double> ? DType::f64
                                                      : DType::u32;

/// Neighboring elements for CPU kernels, which do not read the shape and the stride of one
/// dimension.
template <class T>
Strided Contiguous(const T* data, DType dtype = kTypeOf<T>) {
  Strided x;
  x.data = const_cast<T*>(data);
  x.dtype = dtype;
  x.stride[0] = 1;
  return x;
}
/// `rows` rows of `columns` neighboring elements, `stride` apart.
template <class T>
Strided Rows(const T* data, std::int64_t rows, std::int64_t columns, std::int64_t stride,
             DType dtype = kTypeOf<T>) {
  Strided x = Contiguous(data, dtype);
  x.rank = 2;
  x.shape[0] = rows;
  x.shape[1] = columns;
  x.stride[0] = stride;
  x.stride[1] = 1;
  return x;
}

/// Seed and stream in device memory in place of the plan's (null): they are read when the kernel
/// runs, so that a captured CUDA graph takes new ones at each replay.
struct DeviceKey {
  const std::uint64_t* seed = nullptr;
  const std::uint64_t* stream = nullptr;
};

struct ProductImages;  // backend/cpu/image_operand.h

/// A product and its accumulator; `key` replaces the plan's seed and stream, `random` (in device
/// memory, from the result's first element on) all draws.
struct GemmCall {
  MatrixProduct product;
  AccumulatorPlan plan;
  DeviceKey key = {};
  GivenDraws random = {};
  const ProductImages* images = nullptr;  ///< on CPUs only
};

/// A product of scaled operands; its first sum starts from product.c.
struct ScaledGemmCall : GemmCall {
  ProductScales scales = {};
};

/// A cast: out[i] = round(x[i] * 2^shift); out may be x. `random` may have no data.
///
/// CPU kernels take x and out of one element type, either contiguous or as rows of x, random and
/// out. For rows the random integers are given (none for bf16). Kernels round bf16 into formats
/// whose values bf16 holds, by plans that are not wide. Only CPU kernels have `first`, `shift` (of
/// fp32; |shift| <= 600) and `streaming`.
struct CastCall {
  std::int64_t n = 0;
  std::int64_t first = 0;  ///< the row-major index of element 0; a multiple of kBlock
  Strided x;
  Strided random;
  Strided out;
  const RoundPlan* plan = nullptr;
  int shift = 0;
  bool streaming = false;  ///< out is not needed in cache
  DeviceKey key = {};
};

/// A cast to packed codes. Lowers *first_nan, unless it is null, to the least index (counted from
/// `first`) of a NaN without a code. CPU kernels take contiguous fp32 and fp64; `first`, `shift`
/// and `streaming` as of CastCall.
struct EncodeCall {
  std::int64_t n = 0;
  std::int64_t first = 0;
  Strided x;
  Strided random;
  const RoundPlan* plan = nullptr;
  int shift = 0;
  bool streaming = false;
  DeviceKey key = {};
  std::uint8_t* packed = nullptr;
  unsigned long long* first_nan = nullptr;
};

/// The values of packed codes: (value * 2^shift) / divisor, each rounded once to binary32. CPU
/// kernels write contiguous fp32. Only they have `shift` (|shift| <= 600), `divisor` (finite and
/// not zero) and `streaming`.
struct DecodeCall {
  std::int64_t n = 0;
  const RoundPlan* plan = nullptr;
  const std::uint8_t* packed = nullptr;
  Strided out;
  int shift = 0;
  float divisor = 1;
  bool streaming = false;
};

/// Lowers *first to the least index of an integer that is not below `limit`.
struct FirstAboveCall {
  std::int64_t n = 0;
  Strided integers;
  std::uint32_t limit = 0;
  unsigned long long* first = nullptr;
};

/// Lowers *first to the least index of an element that is not a value of the plan's format, or
/// unless `negative` is below zero.
struct FirstOutsideCall {
  std::int64_t n = 0;
  Strided x;
  RoundPlan plan = {};
  bool negative = true;
  unsigned long long* first = nullptr;
};

/// The path of a product, the numbers that its kernels compute at once, and its kernel.
struct ProductPath {
  GemmPath path;
  int lanes;
  const char* kernel;
};

/// A binary32 product by a BLAS. On a failure of the library itself, sets *error to a text that
/// names it and remains valid; CPUs throw.
struct BlasCall {
  MatrixProduct product;
  const char** error = nullptr;
};

/// Elementwise operations: out[i] = round(x[i] op y[i] (+ z[i])). `random` may have no data; no
/// operand of a quotient or square root is fp64. CPU kernels take contiguous elements of one type,
/// fp32 or fp64, and `first` as of CastCall.
struct ArithmeticCall {
  Operation op = Operation::add;
  std::int64_t n = 0;
  std::int64_t first = 0;
  Strided x, y, z;  ///< y not for sqrt, z for fma alone
  Strided random;
  Strided out;
  const RoundPlan* plan = nullptr;
  DeviceKey key = {};
};

/// An ordered sum of terms (numeric/sums/order.h), and its rounding to the result's format.
struct SumPlan {
  SumOrder order;
  FoldPlan terms;       ///< adds terms
  FoldPlan sums;        ///< adds chunks' sums, and trees
  bool rounds = false;  ///< the sum is rounded once more, by `result`
  RoundPlan result;
};

/// A sum over a dimension: element i of out is the sum of `terms` elements in memory, `step` apart,
/// from element i of x on.
struct SumCall {
  SumPlan plan;
  std::int64_t n = 0, terms = 0, step = 0;
  Strided x;  ///< the first term of each sum
  Strided out;
  RoundPlan empty;  ///< rounds an empty sum, +0
  DeviceKey key = {};
  GivenDraws random;  ///< in device memory
};

/// SumCall in integers of a fixed width.
struct FixedSumCall {
  FixedPlan plan;
  std::int64_t n = 0, terms = 0, step = 0;
  Strided x;  ///< the first term of each sum
  Strided out;
};

/// Hadamard transforms: group g is the plan.size elements in memory, x_step apart, from element g
/// of x on; its result those, out_step apart, from element g of out on. out may be x.
///
/// CPU kernels take fp32 with equal strides of x and out: contiguous groups, one after the other,
/// or rows of first elements (x.shape[1] neighboring columns, x_step apart). Only they have
/// `streaming`, and do not read `inner`.
struct HadamardCall {
  const HadamardPlan* plan = nullptr;
  std::int64_t groups = 0, x_step = 0, out_step = 0;
  Strided x;               ///< the groups' first elements
  Strided out;             ///< the results' first elements
  bool streaming = false;  ///< out is not needed in cache; contiguous groups on CPUs only
  /// The number of neighboring groups whose elements alternate in row-major order: a CPU takes them
  /// together.
  std::int64_t inner = 1;
};

// --- scaled formats ------------------------------------------------------------------------------

/// For each block, in device memory: its scale, the factor of its elements (ElementScale), and the
/// second level's scale.
struct ScaleTables {
  float* scale = nullptr;
  float* factor = nullptr;
  float* outer = nullptr;
};

/// For each cell of the second level, in device memory: its largest magnitude, its scale, and the
/// multiplier from which te computes blocks' scales. Without a second level there is one cell, of
/// scale 1.
struct OuterTables {
  float* largest = nullptr;
  float* scale = nullptr;
  float* encode = nullptr;
};

/// A tensor of n elements in a scaled format.
struct ScaledCall {
  ScaledPlan plan;
  ElementRoute route = ElementRoute::wide;
  bool given = false;  ///< the blocks' scales are a caller's
  BlockLayout layout;
  OuterCells cells;
  std::int64_t n = 0;
  Strided x;       ///< of a cast and an encoding
  Strided random;  ///< may have no data
  DeviceKey key = {};
  ScaleTables tables;
};

/// The most values of a block for which a cast chooses between candidate scales.
constexpr std::int64_t kMostChosen = std::int64_t{1} << 17;

/// A call, and the making of its tables, which kernels may do without. Those that are null in
/// `given` are formed from x; all are in device memory: scales of blocks, of cells, and largest
/// magnitudes of the outermost level.
struct ScalesCall {
  ScaledCall call;
  OuterTables cells;
  BlockLayout cell_layout;  ///< the second level's, where there is one
  bool two_levels = false;
  struct Given {
    const float* blocks = nullptr;
    const float* cells = nullptr;
    const float* largest = nullptr;
  } given;
  ScaleChoice choose = ScaleChoice::none;
  /// Rounds elements to nearest-even, to compare candidates; set where `choose` is not none.
  ScaledPlan nearest;
  Strided out;                     ///< of a cast, which may be x, and of a decoding
  std::uint8_t* packed = nullptr;  ///< codes of an encoding and a decoding
  /// Of an encoding, unless null: lowered to the least index of a NaN in a block with a scale.
  unsigned long long* first_nan = nullptr;
  /// Only a CPU's casts take the next three.
  const TensorView* indices = nullptr;  ///< strides of elements' indices, null: x's row-major ones
  bool apart = false;                   ///< the values lack the outermost level's scales
  bool* holds = nullptr;  ///< set to whether out, contiguous bf16 or fp32, holds all values
};

/// Two casts of one tensor in two layouts of blocks. Neither result may be x.
struct CastBothCall {
  const ScalesCall& rows;
  const ScalesCall& columns;
};

// --- parts of operations, for the CPU ------------------------------------------------------------

/// `count` >= 1 consecutive steps of an ordered sum per element, of terms[0][i], terms[1][i], …
/// (FoldStep in ops/reduce.h). `starts`: the first step is sum = round(term) by draw number `draw`,
/// with Kahan's compensation +0; any other is sum = round(sum + term), or Kahan's four operations,
/// by the next draws. With count 1 the terms may be `sum`. Of fp64 the plan's assumption on the
/// terms' format does not count.
struct FoldCall {
  DType dtype = DType::f32;  ///< of terms and sums: fp32 or fp64
  bool starts = false;
  const FoldPlan* plan = nullptr;
  std::int64_t draw = 0;
  std::int64_t first = 0;  ///< the index of element 0, any
  std::int64_t n = 0, count = 1;
  const void* terms = nullptr;  ///< pointers to each term's elements
  void* sum = nullptr;
  void* compensation = nullptr;  ///< for Kahan alone
  GivenDraws given = {};         ///< the caller's random integers, of the first element
};

/// raised[i] = flags_of(limits, x[i], y[i]).
struct FlagsCall {
  DType dtype = DType::f32;  ///< of x and y: fp32 or fp64
  std::int64_t n = 0;
  const void* x = nullptr;
  const void* y = nullptr;
  const void* limits = nullptr;  ///< FlagLimits of float or double (numeric/round/flag_limits.h)
  std::uint8_t* raised = nullptr;
};

/// Part of one matrix product, for Gemm: `rows` x `columns` sums take the next `count` values of k,
/// starting with number first_k. Operands are packed in panels of KernelTable::gemm_rows rows of a
/// and gemm_columns columns of b. Value (i, k) of panel p is a[(p * count + k) * gemm_rows + i] or
/// b[(p * count + k) * gemm_columns + i], and +0 beyond the operand's edge.
struct GemmBlock {
  std::int64_t rows = 0, columns = 0;
  std::int64_t first_k = 0, count = 0;
  bool last = false;  ///< no more values of k follow
  const float* a = nullptr;
  const float* b = nullptr;
  const PanelRange* a_range = nullptr;  ///< of each panel's groups of kRangeGroup values of k
  const PanelRange* b_range = nullptr;
  /// fixed_log (veltkamp_rounding.h) of each packed value, where FastPlan::takes_logs.
  const std::int32_t* a_logs = nullptr;
  const std::int32_t* b_logs = nullptr;
  /// Plane q of sum (i, j) is state[q * plane + i * state_columns + j]; rows and columns are padded
  /// to whole panels. Plane 0 is the sum; there are GemmPlan::planes of them.
  float* state = nullptr;
  std::int64_t plane = 0, state_columns = 0;
  /// Sum (i, j) is element number index + i * index_row + j of the result (for random bits).
  std::uint64_t index = 0, index_row = 0;
  /// The caller's random integers for a stochastic plan. Element i of the result counts from sum
  /// (0, 0). The loop's first draw is number GemmPlan::first_draw (BlockFmaPlan::first_draw).
  GivenDraws given;
  /// The scales of a unit that takes scales. Group g has BlockFma::scale_block values of k, counted
  /// from first_k. The scale of a's row i is a_scale[g * scale_rows + i], the scale of b's column j
  /// is b_scale[g * state_columns + j]. Padded like the sums.
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
  std::int64_t scale_rows = 0;
};

struct BlockFmaPlan;                     // numeric/units/block_fma.h
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
