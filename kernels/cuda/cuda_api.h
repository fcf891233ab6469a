// SPDX-License-Identifier: Apache-2.0
//
// What libcpd_cuda gives to libcpd: one table of functions, found by name when the library is
// loaded. Arguments are checked already. Every function queues its work on a stream and returns a
// cudaError_t as an int (0: queued); those that return a value through a pointer wait for it.
#pragma once

#include <array>
#include <cstdint>

#include "cpd/base/kernel_table.h"
#include "cpd/base/product.h"
#include "cpd/base/tensor.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/scaled/hadamard_plan.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/sums/fold_walk.h"
#include "cpd/numeric/sums/rounds.h"
#include "cpd/numeric/units/accumulator_plan.h"

namespace cpd::cuda {

/// A tensor's memory as a kernel walks it: dimensions that lie within one another are merged, so
/// that a contiguous tensor has one dimension of stride 1.
struct Strided {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int32_t rank = 1;
  std::array<std::int64_t, TensorView::kMaxRank> shape{};
  std::array<std::int64_t, TensorView::kMaxRank> stride{};
};

/// Where seed and stream lie in device memory, instead of in the plan: read when the kernel runs,
/// so that a captured CUDA graph takes new ones at each replay. Null: the plan's own.
struct Key {
  const std::uint64_t* seed = nullptr;
  const std::uint64_t* stream = nullptr;
};

struct Launch {
  int device = 0;
  void* stream = nullptr;
};

/// A product and its accumulator; `key` in place of the seed and stream in `plan`.
struct GemmCall {
  MatrixProduct product;
  AccumulatorPlan plan;
  Key key;
};

/// A product of scaled operands; product.c starts its first sum.
struct ScaledGemmCall : GemmCall {
  ProductScales scales;
};

/// One operation an element: out[i] = round(x[i] op y[i] (+ z[i])). `random` may have no data.
struct ArithmeticCall {
  Operation op = Operation::add;
  std::int64_t n = 0;
  Strided x, y, z;  ///< z: fma's
  Strided random;
  Strided out;
  RoundPlan plan;
  Key key;
};

/// An ordered sum of given terms (numeric/sums/fold_walk.h), and its rounding to the result's
/// format.
struct SumPlan {
  FoldOrder order;
  FoldPlan terms;       ///< takes terms
  FoldPlan sums;        ///< takes chunks' sums, and trees
  bool rounds = false;  ///< once more, to
  RoundPlan result;
};

/// A sum over a dimension: element i of out sums the `terms` elements of x from its i-th on, `step`
/// apart in memory.
struct SumCall {
  SumPlan plan;
  std::int64_t n = 0, terms = 0, step = 0;
  Strided x;  ///< the first terms
  Strided out;
  RoundPlan empty;  ///< how an empty sum, +0, is rounded
  Key key;
};

/// Hadamard transforms: group g has the plan.size elements from x's g-th on, x_step apart in
/// memory, and its result those from out's, out_step apart. out may be x.
struct HadamardCall {
  HadamardPlan plan;
  std::int64_t groups = 0, x_step = 0, out_step = 0;
  Strided x;    ///< the groups' first elements
  Strided out;  ///< likewise
};

// --- reductions over ranks -----------------------------------------------------------------------

/// Memory that Api::allocate gives.
enum class MemoryKind : std::uint8_t {
  pinned,  ///< on the host; kernels reach it there
  device,
  queued,  ///< on the device, taken and given back in the stream's order
};

/// What packed codes of a reduction hold: contributions, results, the planes of a running sum, or
/// binary32 values as they are.
enum class Codes : std::uint8_t { wire, result, plane0, plane1, values };
constexpr int kCodes = 5;

/// Neighbouring values of one layer.
struct ReduceSegment {
  std::int64_t layer = 0;
  std::int64_t size = 0;  ///< of the whole layer
  std::int64_t begin = 0, count = 0;
  std::int64_t tile = 0;     ///< how many tiles the segments before it have (reduce_tile.h)
  const float* x = nullptr;  ///< value `begin` of this rank's layer
  float* out = nullptr;      ///< where its result goes
  std::int32_t shift = 0;    ///< the layer's scale is 2^shift; -600 … 600
  std::array<std::int64_t, kCodes> start{};  ///< where its codes begin in a message, in bytes
};

enum class ReduceTask : std::uint8_t {
  pack,  ///< this rank's contributions, cast, go to `to` as `to_codes`
  fold,  ///< from[r] of each rank (of group `unit` alone, if not -1, by member); sums go to `to`
  hop,   ///< term k, from[1] (as from_codes), is added to the running sum from[0] (null for
         ///< k = 0); the new one, or after the last term the result, goes to `to`
  transcode,  ///< from[0] (as from_codes) goes to `to` (as to_codes)
  unpack,     ///< from[0] (as from_codes) times 2^-shift, divided, goes to the segments' `out`
};

/// What one kernel of a reduction does. The tables that it points to are the caller's, on the host.
struct ReduceCall {
  ReduceTask task = ReduceTask::pack;
  Codes from_codes = Codes::wire, to_codes = Codes::wire;
  const ReduceSegment* segments = nullptr;
  std::int32_t segment_count = 0;
  std::int32_t from_count = 0;
  std::int64_t tiles = 0;  ///< of all segments
  const std::uint8_t* const* from = nullptr;
  std::uint8_t* to = nullptr;

  std::int64_t unit = -1;
  std::int64_t k = 0;
  bool unscales = false;  ///< unpack: else values go out as they are
  float divisor = 1;

  RoundPlan cast;                       ///< of contributions
  std::array<RoundPlan, kCodes> codes;  ///< how they are coded
  SumPlan group, across;
  Rounds rounds;
  std::int64_t world = 1, group_size = 0;  ///< 0: no groups
  /// Random streams (streams.h) of layer 0: of this rank's cast; of sums and of their roundings to
  /// the result at position 0.
  std::uint64_t cast_stream = 0, sum_stream = 0, result_stream = 0;
};

/// What is counted in a segment of this rank's values.
struct SegmentCounts {
  unsigned long long non_finite = 0;   ///< NaN and Inf
  unsigned long long underflowed = 0;  ///< nonzero values that the cast turns into zero
  std::uint32_t largest = 0;           ///< the bits of the largest finite |x|
};

/// Bytes in memory that the device reaches.
struct Bytes {
  const std::uint8_t* data = nullptr;
  std::int64_t count = 0;
};

struct Api {
  /// sizeof of RoundPlan, Strided, the calls and ReduceCall as the library was built with.
  std::uint32_t plan_size;
  std::uint32_t strided_size;
  std::uint32_t call_size;
  std::uint32_t arithmetic_size;
  std::uint32_t sum_size;
  std::uint32_t hadamard_size;
  std::uint32_t reduce_size;
  /// What an error means and what helps against it: a text that stays until the thread asks again.
  const char* (*describe)(int status);

  /// out[i] = round(x[i]); `random` may be null. out may be x.
  int (*cast)(const Launch& launch, const RoundPlan& plan, const Key& key, std::int64_t n,
              const Strided& x, const Strided* random, const Strided& out);
  /// Rounds and packs. Where the format has no code for NaN it waits for the stream and sets
  /// *first_nan to the least index of one, or -1; elsewhere it sets -1 at once.
  int (*encode)(const Launch& launch, const RoundPlan& plan, const Key& key, std::int64_t n,
                const Strided& x, const Strided* random, std::uint8_t* packed,
                std::int64_t* first_nan);
  int (*decode)(const Launch& launch, const RoundPlan& plan, std::int64_t n,
                const std::uint8_t* packed, const Strided& out);
  /// The greatest of n integers; waits for it.
  int (*greatest)(const Launch& launch, std::int64_t n, const Strided& integers,
                  std::uint32_t* result);

  /// The product, which is not empty (but its depth may be 0).
  int (*gemm)(const Launch& launch, const GemmCall& call);
  int (*gemm_scaled)(const Launch& launch, const ScaledGemmCall& call);
  /// The least i whose x[i] is finite and not a value of the plan's format, or -1; waits for it.
  int (*first_outside)(const Launch& launch, const RoundPlan& plan, std::int64_t n,
                       const Strided& x, std::int64_t* first);
  /// The product by cuBLAS, all binary32. Sets *error, on failure, to what could not be done (a
  /// text that stays), if it was not a call to CUDA that failed.
  int (*blas)(const Launch& launch, const MatrixProduct& product, const char** error);

  /// Not empty, as also sum's result and hadamard's.
  int (*arithmetic)(const Launch& launch, const ArithmeticCall& call);
  int (*sum)(const Launch& launch, const SumCall& call);
  int (*hadamard)(const Launch& launch, const HadamardCall& call);

  int (*allocate)(const Launch& launch, MemoryKind kind, std::int64_t bytes, void** memory);
  int (*release)(const Launch& launch, MemoryKind kind, void* memory);
  /// Gives memory that is kept for later calls back to the device; waits for all of its work.
  int (*release_unused)(int device);
  /// Copies between host and device, either way; waits for it.
  int (*copy)(const Launch& launch, void* to, const void* from, std::int64_t bytes);
  /// A stream that waits for no other by itself.
  int (*open_stream)(int device, void** stream);
  int (*close_stream)(int device, void* stream);
  /// What is queued on `after` from now on waits for what is queued on the launch's stream.
  int (*order)(const Launch& launch, void* after);
  /// Waits for all that is queued on the stream.
  int (*wait)(const Launch& launch);
  int (*reduce)(const Launch& launch, const ReduceCall& call);
  /// Counts in each segment; underflowed only where `casts`. Waits for it.
  int (*count)(const Launch& launch, const ReduceCall& call, bool casts, SegmentCounts* counts);
  /// CRC-32C of each (Crc32c in ops/reduce.h); waits for it.
  int (*checksums)(const Launch& launch, int n, const Bytes* bytes, std::uint32_t* crcs);
};

}  // namespace cpd::cuda

extern "C" CPD_API const cpd::cuda::Api* cpd_cuda_api();
