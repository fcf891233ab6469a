// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/block_fma.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gemm_short.h"
#include "kernels/cuda/gemm_tile.h"

namespace cpd::cuda {
namespace {

/// Joins the threads' ranges; every thread of a warp takes part.
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

/// Calls run.operator()<Sum>() with the class that sums as `plan` says.
template <class Run>
void with_sum(const AccumulatorPlan& plan, Run run) {
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
__global__ void __launch_bounds__(kSums) multiply(const __grid_constant__ GemmCall call) {
  __shared__ TileMemory memory;
  const MatrixProduct& product = call.product;
  const int thread = static_cast<int>(threadIdx.x);
  const int step = step_of(call.plan);
  const std::int64_t tiles = tile_count(product, product.batch(), kSide);
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    TileThread<Sum> sum(call, tile, thread);
    if (thread < 4) memory.ranges[thread / 2][thread % 2] = TileRange::none();
    __syncthreads();
    int turn = 0;
    for (std::int64_t k = 0; k < product.depth; k += step, turn = 1 - turn) {
      const std::int64_t left = product.depth - k;
      const int count = left < step ? static_cast<int>(left) : step;
      TileRange a;
      TileRange b;
      sum.load(memory, k, count, a, b);
      join(a, memory.ranges[turn][0]);
      join(b, memory.ranges[turn][1]);
      __syncthreads();
      if (thread < 2) memory.ranges[1 - turn][thread] = TileRange::none();
      sum.add(memory, k, count, memory.ranges[turn]);
      __syncthreads();
    }
    sum.store();
  }
}

template <Split kKind>
__global__ void __launch_bounds__(kWideThreads, 2)
    multiply_wide(const __grid_constant__ GemmCall call) {
  __shared__ WideMemory memory;
  const MatrixProduct& product = call.product;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t tiles = tile_count(product, product.batch(), kWide);
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    PatchSums sums;
    WideThread<kKind> patch(call, tile, thread, sums);
    for (std::int64_t k = 0; k < product.depth; k += kWideDepth) {
      const std::int64_t left = product.depth - k;
      const int count = left < kWideDepth ? static_cast<int>(left) : kWideDepth;
      patch.load(memory, k, count);
      __syncthreads();
      patch.bound(memory);
      __syncthreads();
      patch.add(memory, k, count);
      __syncthreads();
    }
    patch.store();
  }
}

__global__ void __launch_bounds__(kThreads)
    find_outside(const __grid_constant__ RoundPlan plan, std::int64_t n,
                 const __grid_constant__ Strided x, unsigned long long* first) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    const auto value = load_element<double>(x, i);
    const double rounded = round<Rounding::nearest_even>(value, std::uint64_t{0}, plan);
    const bool outside = value != value ? !plan.has_nan : rounded != value;
    if (outside) atomicMin(first, static_cast<unsigned long long>(i));
  }
}

}  // namespace

int first_outside(const Launch& launch, const RoundPlan& plan, std::int64_t n, const Strided& x,
                  std::int64_t* first) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  constexpr unsigned long long kNone = ~0ULL;
  Result<unsigned long long> result(stream, kNone);
  if (result.status() != cudaSuccess) return result.status();
  find_outside<<<blocks_for((n + kThreads - 1) / kThreads), kThreads, 0, stream>>>(plan, n, x,
                                                                                   result.memory());
  const cudaError_t queued = cudaGetLastError();
  if (queued != cudaSuccess) return queued;
  unsigned long long found = kNone;
  const cudaError_t status = result.read(&found);
  *first = found == kNone ? -1 : static_cast<std::int64_t>(found);
  return status;
}

int gemm(const Launch& launch, const GemmCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const std::int64_t batch = call.product.batch();
  const auto blocks = [&](int side) {
    return static_cast<unsigned>(
        std::min<std::int64_t>(tile_count(call.product, batch, side), 1LL << 30));
  };
  if (takes_wide(call.plan)) {
    with_split(call.plan.sum.split.kind, [&]<Split kind>() {
      multiply_wide<kind><<<blocks(kWide), kWideThreads, 0, stream>>>(call);
    });
  } else {
    with_sum(call.plan,
             [&]<class Sum>() { multiply<Sum><<<blocks(kSide), kSums, 0, stream>>>(call); });
  }
  return cudaGetLastError();
}

}  // namespace cpd::cuda
