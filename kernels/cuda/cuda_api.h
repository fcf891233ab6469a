// SPDX-License-Identifier: Apache-2.0
//
// The interface of libcpd_cuda to libcpd: one table of functions, found by name when the library is
// loaded. Callers have checked the arguments. Every function queues its work on a stream and
// returns a cudaError_t as an int (0: queued); those that return a value through a pointer wait for
// it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "cpd/backend/kernel_table.h"
#include "cpd/base/product.h"
#include "cpd/base/tensor.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/scaled/block_layout.h"
#include "cpd/numeric/scaled/hadamard_plan.h"
#include "cpd/numeric/scaled/largest_limit.h"
#include "cpd/numeric/scaled/levels.h"
#include "cpd/numeric/scaled/scaled_plan.h"
#include "cpd/numeric/sums/fixed_plan.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/sums/fold_walk.h"
#include "cpd/numeric/sums/rounds.h"
#include "cpd/numeric/units/accumulator_plan.h"

namespace cpd::cuda {

/// A tensor's memory for a kernel: dimensions whose strides fit together are merged, so that a
/// contiguous tensor has one dimension of stride 1.
struct Strided {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int32_t rank = 1;
  std::array<std::int64_t, TensorView::kMaxRank> shape{};
  std::array<std::int64_t, TensorView::kMaxRank> stride{};
};

/// Seed and stream in device memory in place of the plan's (null): they are read when the kernel
/// runs, so that a captured CUDA graph takes new ones at each replay.
struct Key {
  const std::uint64_t* seed = nullptr;
  const std::uint64_t* stream = nullptr;
};

struct Launch {
  int device = 0;
  void* stream = nullptr;
};

/// A product and its accumulator; `key` replaces the plan's seed and stream, `random` (in device
/// memory) all draws.
struct GemmCall {
  MatrixProduct product;
  AccumulatorPlan plan;
  Key key;
  GivenDraws random;
};

/// A product of scaled operands; its first sum starts from product.c.
struct ScaledGemmCall : GemmCall {
  ProductScales scales;
};

/// Elementwise operations: out[i] = round(x[i] op y[i] (+ z[i])). `random` may have no data; no
/// operand of a quotient or square root is fp64.
struct ArithmeticCall {
  Operation op = Operation::add;
  std::int64_t n = 0;
  Strided x, y, z;  ///< y not for sqrt, z for fma alone
  Strided random;
  Strided out;
  RoundPlan plan;
  Key key;
};

/// An ordered sum of terms (numeric/sums/fold_walk.h), and its rounding to the result's format.
struct SumPlan {
  FoldOrder order;
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
  Key key;
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
struct HadamardCall {
  HadamardPlan plan;
  std::int64_t groups = 0, x_step = 0, out_step = 0;
  Strided x;    ///< the groups' first elements
  Strided out;  ///< the results' first elements
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
/// multiplier from which te forms blocks' scales. One cell, of scale 1, where there is no such
/// level.
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
  Key key;
  ScaleTables tables;
};

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
  ScaledPlan nearest;  ///< rounds elements to nearest-even, to compare candidates of `choose`
};

// --- reductions over ranks -----------------------------------------------------------------------

/// The kinds of memory that Api::allocate allocates.
enum class MemoryKind : std::uint8_t {
  pinned,  ///< on the host, accessible to kernels
  device,
  queued,  ///< on the device, allocated and released in stream order
};

/// The kind of a reduction's packed codes: contributions, results, planes of a running sum, or
/// binary32 values unchanged.
enum class Codes : std::uint8_t { wire, result, plane0, plane1, values };
constexpr int kCodes = 5;

/// Contiguous values of one layer.
struct ReduceSegment {
  std::int64_t layer = 0;
  std::int64_t size = 0;  ///< values of the whole layer
  std::int64_t begin = 0, count = 0;
  std::int64_t tile = 0;     ///< number of tiles in the segments before it (reduce_tile.h)
  const float* x = nullptr;  ///< value `begin` of this rank's layer
  float* out = nullptr;      ///< the memory of its result
  std::int32_t shift = 0;    ///< the layer's scale is 2^shift; -600 … 600
  float scale = 1;           ///< multiplies results, rounded once
  std::array<std::int64_t, kCodes> start{};  ///< the byte of a message at which its codes begin
};

enum class ReduceTask : std::uint8_t {
  pack,  ///< casts this rank's contributions and writes them to `to` as `to_codes`
  fold,  ///< sums from[r] of each rank (of group `unit` alone, if not -1, by member) to `to`
  hop,   ///< adds term k, from[1] (as from_codes), to the running sum from[0] (null for k = 0);
         ///< writes the new sum, or after the last term the result, to `to`
  transcode,  ///< converts from[0] (as from_codes) to `to` (as to_codes)
  unpack,     ///< writes from[0] (as from_codes) times 2^-shift, divided, to the segments' `out`
};

/// The work of one kernel of a reduction. Its pointers are to tables of the caller, on the host.
struct ReduceCall {
  ReduceTask task = ReduceTask::pack;
  Codes from_codes = Codes::wire, to_codes = Codes::wire;
  const ReduceSegment* segments = nullptr;
  std::int32_t segment_count = 0;
  std::int32_t from_count = 0;
  std::int64_t tiles = 0;  ///< tiles of all segments
  const std::uint8_t* const* from = nullptr;
  std::uint8_t* to = nullptr;

  std::int64_t unit = -1;
  std::int64_t k = 0;
  bool unscales = false;  ///< unpack: multiply and divide; else values are written unchanged
  float divisor = 1;

  RoundPlan cast;                       ///< casts contributions
  std::array<RoundPlan, kCodes> codes;  ///< the format of each kind of codes
  SumPlan group, across;
  Rounds rounds;
  std::int64_t world = 1, group_size = 0;  ///< 0: no groups
  /// Random streams (streams.h) of layer 0: for this rank's cast; for sums, and for their roundings
  /// to the result, at position 0.
  std::uint64_t cast_stream = 0, sum_stream = 0, result_stream = 0;
};

/// The counts over a segment of this rank's values.
struct SegmentCounts {
  unsigned long long non_finite = 0;   ///< NaN and Inf
  unsigned long long underflowed = 0;  ///< nonzero values that the cast rounds to zero
  unsigned long long zeros = 0;        ///< values that are zero after the cast
  std::uint32_t largest = 0;           ///< the bits of the largest finite |x|
};

constexpr int kMostRanks = 16;  ///< whose values are added in one pass over a layer's sums

/// A layer of virtual ranks, which contribute one after the other: the values of some ranks as they
/// enter, the running sums of one level, and its end. All memory is the device's.
struct VirtualCall {
  std::int64_t size = 0;
  /// The values of the next ranks, in a ring of one: terms, or where `casts`, x / divisor * 2^shift
  /// are cast to them.
  const float* x[kMostRanks] = {};
  int ranks = 1;
  bool casts = false;
  float divisor = 1;
  std::int32_t shift = 0;
  RoundPlan cast;
  std::uint64_t cast_stream[kMostRanks] = {};
  float* terms = nullptr;  ///< memory for one rank's terms
  /// The running sums in `planes`, `size` values each; the ranks' terms are numbers k, k + 1, … of
  /// `count`, or where visit is not negative the terms of that visit and the next ones.
  SumPlan plan;
  Rounds rounds;
  std::int64_t count = 0, k = 0, visit = -1;
  std::uint64_t sum_stream = 0, result_stream = 0;
  float* planes = nullptr;
  float scale = 1;  ///< multiplies the sums when they are finished, rounded once
};

/// A piece of a layer as levels of its buckets' norms (numeric/scaled/levels.h). All memory is the
/// device's.
struct LevelCall {
  LevelPlan plan;                 ///< without places of levels
  std::int64_t begin = 0, n = 0;  ///< of the layer: element i has the random integer begin + i
  std::int64_t before = 0;        ///< values of the piece's first bucket that come before it
  std::int32_t shift = 0;         ///< x and decoded values are multiplied by 2^shift
  float divisor = 1;              ///< of decoded values
  const float* norms = nullptr;   ///< of the piece's buckets; null: all have `norm`
  float norm = 1;
  /// A message: each `block` values on their own, with their buckets' norms first.
  std::int64_t block = 0;
  bool stores_norms = true;
};

/// What the norms of whole buckets are formed of.
struct NormCall {
  LevelNorm norm = LevelNorm::largest;
  double clip = 0;  ///< c of LevelNorm::clipped; 0: no clipping
  std::int64_t n = 0, bucket = 0;
  std::int32_t shift = 0;  ///< of x * 2^shift
};

/// A piece of a layer in a scaled format whose buckets, runs of neighbours, have one scale each.
/// All memory is the device's.
struct QuantizedCall {
  ScaledCall scaled;  ///< its plan and route alone
  /// A bucket's number multiplies values, and a code's value is divided by it (FP8 rows).
  bool inverted = false;
  std::int64_t begin = 0, n = 0;  ///< of the layer: element i has the random integer begin + i
  std::uint64_t stream = 0;       ///< of the random integers
  std::int64_t before = 0;        ///< values of the piece's first bucket that come before it
  std::int64_t bucket = 1, block = 0;
  std::int32_t shift = 0;         ///< x and decoded values are multiplied by 2^shift
  float divisor = 1;              ///< of decoded values
  const float* scale = nullptr;   ///< of the piece's buckets
  const float* factor = nullptr;  ///< by which their elements are multiplied (ElementScale)
};

/// A piece of a layer as signs of x * 2^shift + kept, and two means for each bucket. All memory is
/// the device's.
struct OneBitCall {
  std::int64_t n = 0;
  std::int64_t before = 0;  ///< values of the piece's first bucket that come before it
  std::int64_t bucket = 1, block = 0;
  bool words = false;            ///< the bits of each bucket fill 32-bit words in a message
  std::int32_t shift = 0;        ///< x and decoded values are multiplied by 2^shift
  float divisor = 1;             ///< of decoded values
  const float* means = nullptr;  ///< of the piece's buckets: of values >= 0, of the others
  const float* kept = nullptr;   ///< the residual
  float* next = nullptr;         ///< the next residual
};

/// The sum v = x * 2^shift + kept of n values, and what its decoded values leave of it. All memory
/// is the device's.
struct FeedbackCall {
  std::int64_t n = 0;
  std::int32_t shift = 0;
  const float* x = nullptr;
  const float* kept = nullptr;  ///< null: 0, and v is x * 2^shift
  float* v = nullptr;
};

/// What the search for the values of largest magnitude has counted and found; zeros at first.
struct TopKSearch {
  unsigned long long counts[kPatternDigits][kMostDigit + 1];
  LargestLimit limit;
  std::int64_t kept;      ///< how many values are kept
  std::uint32_t largest;  ///< the bits of the largest finite magnitude that is kept
};
/// Values above the limit, and with its pattern: those of a span of a layer's tiles, zeros at
/// first; then those of all spans before it.
struct TopKSpan {
  unsigned long long above, equal;
};
/// The values that a message keeps, and the bits of the codes of the gaps before them.
struct TopKPlaces {
  std::uint32_t kept, bits;
};

/// The k values of a layer whose magnitudes v = x + kept are largest, and every NaN and infinity:
/// how they become terms, and what is left of v. All memory is the device's.
struct TopKCall {
  std::int64_t n = 0, k = 0;
  const float* x = nullptr;
  const float* kept = nullptr;  ///< the residual; null: there is none, and v is x
  float* sum = nullptr;         ///< v, where there is a residual
  float* next = nullptr;        ///< the next residual, where there is one
  TopKSearch* search = nullptr;
  TopKSpan* spans = nullptr;  ///< one more than there are, whose counts are those of all
  std::int32_t span = 1;      ///< tiles of a span, a divisor of those of a block
  std::int64_t block = 0;     ///< values of a message
  std::int32_t shift = 0;     ///< terms are v * 2^shift, rounded
  /// The terms, by rank; null: the cast's.
  const float* terms = nullptr;
  float unit = 1;  ///< what the terms are multiples of
  RoundPlan cast;
  std::uint64_t stream = 0;

  CPD_FN const float* values() const { return kept == nullptr ? x : sum; }
};

/// Bytes in memory that is accessible to the device.
struct Bytes {
  const std::uint8_t* data = nullptr;
  std::int64_t count = 0;
};

/// A framework's own allocator, which gives stream-ordered memory in place of the library's pool.
struct Allocator {
  enum class Answer : std::uint8_t {
    given,
    not_mine,  ///< it does not serve this device and stream: the pool does
    none_left,
  };
  /// Sets *memory, for work on the stream, where it is given.
  Answer (*allocate)(int device, void* stream, std::int64_t bytes, void** memory);
  /// Releases its own memory in the order of work on that stream; false: it is another's.
  bool (*release)(void* memory);
};

struct Api {
  /// sizeof of RoundPlan, Strided, the calls and ReduceCall in the library's build.
  std::uint32_t plan_size;
  std::uint32_t strided_size;
  std::uint32_t call_size;
  std::uint32_t arithmetic_size;
  std::uint32_t sum_size;
  std::uint32_t fixed_size;
  std::uint32_t hadamard_size;
  std::uint32_t scales_size;
  std::uint32_t reduce_size;
  std::uint32_t virtual_size;
  std::uint32_t level_size;
  std::uint32_t quantized_size;
  std::uint32_t top_k_size;
  /// The meaning of an error and a remedy; of cudaErrorMemoryAllocation, also how many bytes this
  /// thread's last call of `allocate` lacked. The text is valid until the thread's next call.
  const char* (*describe)(int status);

  /// out[i] = round(x[i]); `random` may be null. out may be x.
  int (*cast)(const Launch& launch, const RoundPlan& plan, const Key& key, std::int64_t n,
              const Strided& x, const Strided* random, const Strided& out);
  /// Rounds and packs; lowers *first_nan, unless it is null, to the least index of a NaN.
  int (*encode)(const Launch& launch, const RoundPlan& plan, const Key& key, std::int64_t n,
                const Strided& x, const Strided* random, std::uint8_t* packed,
                unsigned long long* first_nan);
  int (*decode)(const Launch& launch, const RoundPlan& plan, std::int64_t n,
                const std::uint8_t* packed, const Strided& out);
  /// Lowers *first to the least index of an integer that is not below `limit`.
  int (*first_above)(const Launch& launch, std::int64_t n, const Strided& integers,
                     std::uint32_t limit, unsigned long long* first);

  /// Computes a product, which is not empty (but its depth may be 0).
  int (*gemm)(const Launch& launch, const GemmCall& call);
  int (*gemm_scaled)(const Launch& launch, const ScaledGemmCall& call);
  /// Lowers *first to the least i whose x[i] is not a value of the plan's format, or unless
  /// `negative` is below zero.
  int (*first_outside)(const Launch& launch, const RoundPlan& plan, bool negative, std::int64_t n,
                       const Strided& x, unsigned long long* first);
  /// Computes a binary32 product by cuBLAS. On a failure that is not of a call to CUDA, sets *error
  /// to a text that remains valid.
  int (*blas)(const Launch& launch, const MatrixProduct& product, const char** error);

  /// For arithmetic, sum and hadamard: the result is not empty.
  int (*arithmetic)(const Launch& launch, const ArithmeticCall& call);
  int (*sum)(const Launch& launch, const SumCall& call);
  int (*sum_fixed)(const Launch& launch, const FixedSumCall& call);
  int (*hadamard)(const Launch& launch, const HadamardCall& call);

  /// out[i] = the value of x[i] in the scaled format; out may be x.
  int (*cast_scaled)(const Launch& launch, const ScalesCall& call, const Strided& out);
  /// cast_scaled of one tensor in two layouts of blocks, by one kernel where `columns` has short
  /// blocks of a column and `rows` those of as many values of a row. Neither result may be x.
  int (*cast_both)(const Launch& launch, const ScalesCall& rows, const Strided& by_rows,
                   const ScalesCall& columns, const Strided& by_columns);
  /// Packs the codes of elements; *first_nan as for encode, of NaN in blocks whose scale is none.
  /// Fills the tables of the call and of its cells.
  int (*encode_scaled)(const Launch& launch, const ScalesCall& call, std::uint8_t* packed,
                       unsigned long long* first_nan);
  int (*decode_scaled)(const Launch& launch, const ScalesCall& call, const std::uint8_t* packed,
                       const Strided& out);

  /// Has `allocate` ask the allocator at `place` for queued memory, whenever there is one.
  void (*use_allocator_at)(const std::atomic<const Allocator*>& place);
  /// Where no memory is left, releases what the pool keeps and tries once more (while a graph is
  /// captured, it does not), before cudaErrorMemoryAllocation is returned.
  int (*allocate)(const Launch& launch, MemoryKind kind, std::int64_t bytes, void** memory);
  int (*release)(const Launch& launch, MemoryKind kind, void* memory);
  /// Releases memory that is kept for later calls; waits for all of the device's work.
  int (*release_unused)(int device);
  /// Copies between host and device, in either direction, and waits.
  int (*copy)(const Launch& launch, void* to, const void* from, std::int64_t bytes);
  /// Makes bytes in device memory zero.
  int (*clear)(const Launch& launch, void* memory, std::int64_t bytes);
  /// Creates a stream that does not wait for any other by itself.
  int (*open_stream)(int device, void** stream);
  int (*close_stream)(int device, void* stream);
  /// Makes work queued on `after` from now on wait for work already queued on the launch's stream.
  int (*order)(const Launch& launch, void* after);
  /// Waits for all work queued on the stream.
  int (*wait)(const Launch& launch);
  int (*reduce)(const Launch& launch, const ReduceCall& call);
  /// Casts a virtual rank's values to terms; adds to *counts, in device memory, unless it is null.
  int (*cast_terms)(const Launch& launch, const VirtualCall& call, SegmentCounts* counts);
  /// Adds ranks' values, which are cast first where `casts`, to the running sums; after the last
  /// ones plane 0 has the level's results. Adds losses of casts to *counts, unless it is null.
  int (*fold_ranks)(const Launch& launch, const VirtualCall& call, SegmentCounts* counts);
  /// out[i] = plane 0 times 2^-shift, divided; adds its NaN and infinities to *counts.
  int (*finish_sums)(const Launch& launch, const VirtualCall& call, float* out,
                     SegmentCounts* counts);
  /// Counts in each segment (underflowed and zeros only where `casts`) and waits.
  int (*count)(const Launch& launch, const ReduceCall& call, bool casts, SegmentCounts* counts);
  /// Writes the norm of each bucket of x.
  int (*level_norms)(const Launch& launch, const NormCall& call, const float* x, float* norms);
  /// y[i] = the value of x[i]'s code; adds what is lost to *counts, unless it is null. y may be x.
  int (*round_levels)(const Launch& launch, const LevelCall& call, const float* x, float* y,
                      SegmentCounts* counts);
  int (*encode_levels)(const Launch& launch, const LevelCall& call, const float* x,
                       std::uint8_t* to);
  /// Lowers *damaged to the least index of a value whose norm is negative or infinite.
  int (*decode_levels)(const Launch& launch, const LevelCall& call, const std::uint8_t* from,
                       float* y, unsigned long long* damaged);
  /// Writes the scale and the factor of each bucket of call.n values, from a bucket's beginning on.
  int (*bucket_scales)(const Launch& launch, const QuantizedCall& call, const float* x,
                       float* scale, float* factor);
  /// round_quantized … decode_quantized and round_one_bit … decode_one_bit: as for levels.
  int (*round_quantized)(const Launch& launch, const QuantizedCall& call, const float* x, float* y,
                         SegmentCounts* counts);
  int (*encode_quantized)(const Launch& launch, const QuantizedCall& call, const float* x,
                          std::uint8_t* to);
  /// Lowers *damaged to the least index of a value whose scale is none.
  int (*decode_quantized)(const Launch& launch, const QuantizedCall& call, const std::uint8_t* from,
                          float* y, unsigned long long* damaged);
  /// Writes two means for each bucket of call.n values, from a bucket's beginning on.
  int (*one_bit_means)(const Launch& launch, const OneBitCall& call, const float* x, float* means);
  /// Both write the next residual, too.
  int (*round_one_bit)(const Launch& launch, const OneBitCall& call, const float* x, float* y,
                       SegmentCounts* counts);
  int (*encode_one_bit)(const Launch& launch, const OneBitCall& call, const float* x,
                        std::uint8_t* to);
  int (*decode_one_bit)(const Launch& launch, const OneBitCall& call, const std::uint8_t* from,
                        float* y);
  /// Writes v.
  int (*add_residual)(const Launch& launch, const FeedbackCall& call);
  /// Writes next[i] = v[i] - decoded[i], or 0 where that is not finite; adds what is lost of x to
  /// *counts, unless it is null.
  int (*take_errors)(const Launch& launch, const FeedbackCall& call, const float* decoded,
                     float* next, SegmentCounts* counts);
  /// Writes v, the limit of the values that are kept, and the counts of spans.
  int (*select_top_k)(const Launch& launch, const TopKCall& call);
  /// After it: writes terms and the next residual; adds what is lost of x to *counts, unless it is
  /// null. y may be x where there is no residual.
  int (*round_top_k)(const Launch& launch, const TopKCall& call, float* y, SegmentCounts* counts);
  /// After select_top_k: writes the values that are kept, by index; what each message keeps.
  int (*gather_top_k)(const Launch& launch, const TopKCall& call, float* values);
  int (*count_top_k)(const Launch& launch, const TopKCall& call, TopKPlaces* places);
  /// Computes the CRC-32C of each of n Bytes (Crc32c in ops/reduce.h) and waits.
  int (*checksums)(const Launch& launch, int n, const Bytes* bytes, std::uint32_t* crcs);
};

}  // namespace cpd::cuda

extern "C" CPD_API const cpd::cuda::Api* cpd_cuda_api();
