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

/// The number of elements in a block. At the end of each block, codes of any width end on a full
/// byte, and the next element begins a new random word.
constexpr std::int64_t kBlock = 256;

/// A value that stands for "no fault": no element has this index.
inline constexpr unsigned long long kNoFault = ~0ULL;

/// The operations of ArithmeticCall: add, mul, fma, div and sqrt.
using Operation = soft::Operation;

/// A tensor in memory, as kernels take it. Dimensions whose strides fit together are merged, so a
/// contiguous tensor has one dimension of stride 1. If `data` is not null, shape and stride are set
/// for dimensions 0 … rank - 1. If `data` is null, there is no tensor, and shape and stride may be
/// unset.
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

/// Returns a tensor of contiguous elements at `data`, for CPU kernels. The shape is not set,
/// because CPU kernels do not read the shape of a tensor of one dimension.
template <class T>
Strided Contiguous(const T* data, DType dtype = kTypeOf<T>) {
  Strided x;
  x.data = const_cast<T*>(data);
  x.dtype = dtype;
  x.stride[0] = 1;
  return x;
}
/// Returns a tensor at `data` of `rows` rows with `columns` contiguous elements each. Rows begin
/// `stride` elements apart.
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

/// Addresses of seed and stream in device memory. They replace the plan's seed and stream; null:
/// the plan's seed and stream are used. Kernels read the two values when they run, so a captured
/// CUDA graph uses new values at each replay.
struct DeviceKey {
  const std::uint64_t* seed = nullptr;
  const std::uint64_t* stream = nullptr;
};

struct ProductImages;  // backend/cpu/image_operand.h

/// A product and its accumulator. `key` replaces the plan's seed and stream. `random` replaces all
/// generated random integers. These integers are in device memory and begin with the integers of
/// the result's first element.
struct GemmCall {
  MatrixProduct product;
  AccumulatorPlan plan;
  DeviceKey key = {};
  GivenDraws random = {};
  const ProductImages* images = nullptr;  ///< on CPUs only
};

/// The arguments of a matrix product of scaled operands. If there is a `product.c`, it is the
/// initial value of the sum over the first block of k.
struct ScaledGemmCall : GemmCall {
  ProductScales scales = {};
};

/// A cast: out[i] = round(x[i] * 2^shift). out may be x. `random` has no data if the caller passes
/// no random integers.
///
/// CPU kernels require that x and out have one element type. The tensors are contiguous, or consist
/// of rows of contiguous elements. If fp32 or fp64 tensors consist of rows, `random` must have
/// data. If bf16 tensors consist of rows, `random` must have no data. Kernels round bf16 values
/// only if bf16 holds all values of the format and RoundPlan::wide is false. Only CPU kernels use
/// `first`, `shift` (fp32 only; |shift| <= 600) and `streaming`.
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

/// A cast to packed codes. Lowers *first_nan, unless it is null, to the lowest index (counted from
/// `first`) of a NaN that has no code. CPU kernels take contiguous fp32 and fp64. The members
/// `first`, `shift` and `streaming` have the same meaning as in CastCall.
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

/// Decodes packed codes: out = (value * 2^shift) / divisor. The product and the quotient are each
/// rounded once to binary32. CPU kernels write contiguous fp32. Only CPU kernels use `shift`
/// (|shift| <= 600), `divisor` (finite and not zero) and `streaming`.
struct DecodeCall {
  std::int64_t n = 0;
  const RoundPlan* plan = nullptr;
  const std::uint8_t* packed = nullptr;
  Strided out;
  int shift = 0;
  float divisor = 1;
  bool streaming = false;
};

/// Lowers *first to the lowest index of an integer that is not below `limit`.
struct FirstAboveCall {
  std::int64_t n = 0;
  Strided integers;
  std::uint32_t limit = 0;
  unsigned long long* first = nullptr;
};

/// Lowers *first to the lowest index of an element that is not a value of the plan's format, or
/// that is below zero if `negative` is false.
struct FirstOutsideCall {
  std::int64_t n = 0;
  Strided x;
  RoundPlan plan = {};
  bool negative = true;
  unsigned long long* first = nullptr;
};

/// The method by which a device computes a matrix product: the code path, the number of values that
/// its kernels compute at once, and the name of the kernel.
struct ProductPath {
  GemmPath path;
  int lanes;
  const char* kernel;
};

/// A binary32 product by a BLAS. If the library itself fails, a GPU's backend sets *error to a text
/// that names the library and stays valid; the CPU throws.
struct BlasCall {
  MatrixProduct product;
  const char** error = nullptr;
};

/// An elementwise operation: out[i] = round(x[i] op y[i] (+ z[i])). `random` has no data if the
/// caller passes no random integers. Division and square root do not accept fp64 operands. CPU
/// kernels take contiguous elements of one type, fp32 or fp64. `first` is the row-major index of
/// element 0, a multiple of kBlock.
struct ArithmeticCall {
  Operation op = Operation::add;
  std::int64_t n = 0;
  std::int64_t first = 0;
  Strided x, y, z;  ///< sqrt has no y; only fma has z
  Strided random;
  Strided out;
  const RoundPlan* plan = nullptr;
  DeviceKey key = {};
};

/// An ordered sum of terms (numeric/sums/order.h), and its rounding to the result's format.
struct SumPlan {
  SumOrder order;
  FoldPlan terms;       ///< adds terms
  FoldPlan sums;        ///< adds the sums of chunks and of trees
  bool rounds = false;  ///< the sum is rounded once more, by `result`
  RoundPlan result;
};

/// A sum over a dimension. Element i of out is the sum of `terms` elements, `step` apart in memory,
/// that begin at element i of x.
struct SumCall {
  SumPlan plan;
  std::int64_t n = 0, terms = 0, step = 0;
  Strided x;  ///< the first term of each sum
  Strided out;
  RoundPlan empty;  ///< rounds an empty sum, +0
  DeviceKey key = {};
  GivenDraws random;  ///< in device memory
};

/// A sum over a dimension as in SumCall, but computed in integers of a fixed width.
struct FixedSumCall {
  FixedPlan plan;
  std::int64_t n = 0, terms = 0, step = 0;
  Strided x;  ///< the first term of each sum
  Strided out;
};

/// Hadamard transforms of groups of elements. Group g has plan.size elements that begin at element
/// g of x and are x_step apart in memory. Its results begin at element g of out and are out_step
/// apart. out may be x.
///
/// CPU kernels take fp32, with the same strides in x and out. Either each group is contiguous, and
/// the groups follow one another in memory. Or the groups are the columns of matrices of plan.size
/// rows: a row has x.shape[1] contiguous elements, and rows begin x_step elements apart. Only CPU
/// kernels use `streaming`. CPU kernels do not read `inner`.
struct HadamardCall {
  const HadamardPlan* plan = nullptr;
  std::int64_t groups = 0, x_step = 0, out_step = 0;
  Strided x;               ///< the groups' first elements
  Strided out;             ///< the results' first elements
  bool streaming = false;  ///< out is not needed in cache; contiguous groups on CPUs only
  /// The groups that are transformed are interleaved in x, `inner` at a time: in row-major order, x
  /// has the first elements of `inner` groups, then their second elements, and so on. 1: groups are
  /// not interleaved. A CPU transforms interleaved groups together.
  std::int64_t inner = 1;
};

// --- scaled formats ------------------------------------------------------------------------------

/// Three arrays in device memory with one number for each block: its scale, the factor by which its
/// elements are divided or multiplied when they are encoded, and its outer scale.
struct ScaleTables {
  float* scale = nullptr;
  float* factor = nullptr;
  float* outer = nullptr;
};

/// For each cell (the elements that share an outer scale), in device memory: its largest magnitude,
/// its scale, and the multiplier by which blocks' scales are computed. A format without outer
/// scales has one cell of scale 1.
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
  Strided x;       ///< the input of a cast or an encoding
  Strided random;  ///< may have no data
  DeviceKey key = {};
  ScaleTables tables;
};

/// The maximum number of values in a block for which a cast compares candidates for the scale.
constexpr std::int64_t kMostChosen = std::int64_t{1} << 17;

/// A cast, an encoding or a decoding of a tensor in a scaled format, and the inputs from which
/// kernels compute the scales. `given` has the caller's scales of blocks, scales of cells (elements
/// that share an outer scale), and largest magnitudes: of cells, or of blocks if there are no outer
/// scales. All are in device memory. If a pointer is null, kernels compute its values from x.
struct ScalesCall {
  ScaledCall call;
  OuterTables cells;
  BlockLayout cell_layout;  ///< layout of the cells, if there are outer scales
  bool two_levels = false;
  struct Given {
    const float* blocks = nullptr;
    const float* cells = nullptr;
    const float* largest = nullptr;
  } given;
  ScaleChoice choose = ScaleChoice::none;
  /// The plan that rounds elements to nearest-even, to compare candidates for a scale. Set only if
  /// `choose` selects a comparison.
  ScaledPlan nearest;
  Strided out;                     ///< the result of a cast (may be x) or a decoding
  std::uint8_t* packed = nullptr;  ///< the codes of an encoding or a decoding
  /// If not null: an encoding lowers *first_nan to the lowest index of a NaN that has no code.
  /// Blocks whose scale is NaN do not count.
  unsigned long long* first_nan = nullptr;
  /// Only casts on a CPU use `indices`, `apart` and `holds`; all other calls ignore these members.
  const TensorView* indices = nullptr;  ///< strides of indices; null: x's row-major strides
  bool apart = false;                   ///< out is not multiplied by the outermost scales
  bool* holds = nullptr;  ///< set to whether out, contiguous bf16 or fp32, holds all values
};

/// Two casts of one tensor, in two layouts of blocks. Neither result may be x.
struct CastBothCall {
  const ScalesCall& rows;
  const ScalesCall& columns;
};

// --- parts of operations, for the CPU ------------------------------------------------------------

/// `count` >= 1 consecutive additions to an ordered sum, for each of n elements: terms[0][i],
/// terms[1][i], … (FoldStep in ops/reduce.h).
///
/// If `starts` is set, the first addition is sum = round(term), and sets Kahan's compensation to
/// +0. Every other addition is sum = round(sum + term), or the four operations of Kahan's scheme.
/// For stochastic rounding, each element has a sequence of random integers. The first rounding of
/// this call uses the integer with index `draw`, and each later rounding uses the next integer. If
/// count is 1, terms[0] may point to the same memory as `sum`. For fp64 terms, the kernel ignores
/// what the plan assumes about the terms' format.
struct FoldCall {
  DType dtype = DType::f32;  ///< of terms and sums: fp32 or fp64
  bool starts = false;
  const FoldPlan* plan = nullptr;
  std::int64_t draw = 0;
  std::int64_t first = 0;  ///< the index of element 0, any
  std::int64_t n = 0, count = 1;
  const void* terms = nullptr;  ///< pointers to each term's elements
  void* sum = nullptr;
  void* compensation = nullptr;  ///< only for Kahan's scheme
  GivenDraws given = {};         ///< the caller's random integers, from element 0 on
};

/// Computes raised[i] = flags_of(limits, x[i], y[i]).
struct FlagsCall {
  DType dtype = DType::f32;  ///< of x and y: fp32 or fp64
  std::int64_t n = 0;
  const void* x = nullptr;
  const void* y = nullptr;
  const void* limits = nullptr;  ///< FlagLimits of float or double (numeric/round/flag_limits.h)
  std::uint8_t* raised = nullptr;
};

/// The work of one kernel call of a matrix product: adds the products of `count` values of k, from
/// first_k on, to `rows` x `columns` sums. Operands are packed in panels of KernelTable::gemm_rows
/// rows of a, or gemm_columns columns of b. Value (i, k) of panel p is a[(p * count + k) *
/// gemm_rows + i] or b[(p * count + k) * gemm_columns + i]. Values beyond the operand's edge are
/// +0.
struct GemmBlock {
  std::int64_t rows = 0, columns = 0;
  std::int64_t first_k = 0, count = 0;
  bool last = false;  ///< no more values of k follow
  const float* a = nullptr;
  const float* b = nullptr;
  const PanelRange* a_range = nullptr;  ///< of kRangeGroup values of k in each panel
  const PanelRange* b_range = nullptr;
  /// The logarithm of each packed value as a fixed-point number (fixed_log, veltkamp_rounding.h).
  /// Only set if FastPlan::takes_logs is true.
  const std::int32_t* a_logs = nullptr;
  const std::int32_t* b_logs = nullptr;
  /// The state of the sums: GemmPlan::planes planes (arrays of one value for each sum). Plane 0
  /// holds the sums. The value of plane q for sum (i, j) is state[q * plane + i * state_columns +
  /// j]. Rows and columns are padded to whole panels.
  float* state = nullptr;
  std::int64_t plane = 0, state_columns = 0;
  /// The number of sum (i, j) in the result is index + i * index_row + j. This number selects the
  /// sum's random bits.
  std::uint64_t index = 0, index_row = 0;
  /// The caller's random integers for stochastic rounding. Each sum has a sequence of integers;
  /// `given` begins with the sequence of sum (0, 0). The first product of a sum uses integer number
  /// GemmPlan::first_draw (or BlockFmaPlan::first_draw) of its sequence.
  GivenDraws given;
  /// The operands' scales, for a matrix unit that multiplies by scales. Group g consists of
  /// BlockFma::scale_block values of k, counted from first_k. In group g, row i of a has the scale
  /// a_scale[g * scale_rows + i], and column j of b has the scale b_scale[g * state_columns + j].
  /// Like `state`, both arrays are padded to whole panels.
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
