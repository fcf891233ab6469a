// SPDX-License-Identifier: Apache-2.0
//
// Computes matrix products by the general path, which supports every scheme, format and rounding,
// with or without scales.
#include <algorithm>

#include "kernels/cuda/block_fma.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fixed_sum.h"
#include "kernels/cuda/gemm_general.h"
#include "kernels/cuda/gemm_scaled.h"

namespace cpd::cuda {
namespace {

/// Extends `shared`, the bounds of all operands of a tile, so that it also covers `mine`, the
/// bounds of the operands that this thread has read. Every thread of a warp must call it.
CPD_DEVICE void join(const TileRange& mine, TileRange& shared) {
  constexpr unsigned kAll = 0xFFFFFFFFU;
  const unsigned largest = __reduce_max_sync(kAll, mine.largest);
  const unsigned smallest = __reduce_min_sync(kAll, mine.smallest);
  const unsigned fraction = __reduce_or_sync(kAll, mine.fraction);
  if (threadIdx.x % 32 == 0) {
    atomicMax(&shared.largest, largest);
    atomicMin(&shared.smallest, smallest);
    atomicOr(&shared.fraction, fraction);
  }
}

/// Calls run.operator()<Sum>() with the class that computes the plan's sums.
template <class Run>
void with_sum(const AccumulatorPlan& plan, Run run) {
  if (plan.scheme == Scheme::fixed) {
    return with_mode(plan.fixed.end.mode, [&]<Rounding mode>() {
      if constexpr (mode != Rounding::stochastic) run.template operator()<FixedSum<mode>>();
    });
  }
  const bool is_unit = plan.scheme == Scheme::block_fma;
  with_mode((is_unit ? plan.unit.promoted : plan.first.round).mode, [&]<Rounding mode>() {
    switch (plan.scheme) {
      case Scheme::kahan:
        return run.template operator()<OrderedSum<mode, Scheme::kahan>>();
      case Scheme::pairwise:
        return run.template operator()<OrderedSum<mode, Scheme::pairwise>>();
      case Scheme::block_fma:
        return run.template operator()<UnitSum<mode>>();
      default:
        return run.template operator()<OrderedSum<mode, Scheme::sequential>>();
    }
  });
}

template <class Sum>
__global__ void __launch_bounds__(kTileSums) multiply(const __grid_constant__ ScaledGemmCall call) {
  __shared__ TileMemory memory;
  const MatrixProduct& product = call.product;
  const int thread = static_cast<int>(threadIdx.x);
  const int step = step_of(call.plan);
  const std::int64_t tiles = tile_count(product, product.batch(), kSide);
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    TileThread<ScaledSum<Sum>> sum(call, tile, thread);
    if (thread < 4) memory.ranges[thread / 2][thread % 2] = TileRange::none();
    __syncthreads();
    int turn = 0;
    for (std::int64_t k = 0; k < product.depth; turn = 1 - turn) {
      const int count = values_in_step(call, k, step);
      TileRange a;
      TileRange b;
      sum.load(memory, k, count, a, b);
      join(a, memory.ranges[turn][0]);
      join(b, memory.ranges[turn][1]);
      __syncthreads();
      if (thread < 2) memory.ranges[1 - turn][thread] = TileRange::none();
      sum.add(memory, k, count, memory.ranges[turn]);
      k += count;
      __syncthreads();
    }
    sum.store();
  }
}

}  // namespace

int product_scaled(const Launch& launch, const ScaledGemmCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>(tile_count(call.product, call.product.batch(), kSide), 1LL << 30));
  with_sum(call.plan,
           [&]<class Sum>() { start_kernel(multiply<Sum>, blocks, kTileSums, stream, call); });
  return cudaGetLastError();
}

}  // namespace cpd::cuda
