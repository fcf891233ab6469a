// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gemm_halves.h"
#include "kernels/cuda/gemm_registers.h"
#include "kernels/cuda/gemm_scaled.h"
#include "kernels/cuda/gemm_stochastic.h"
#include "kernels/cuda/gemm_units.h"
#include "kernels/cuda/paths.h"

namespace cpd::cuda {
namespace {

/// Calls run(k, count) for consecutive ranges of kWideDepth values of k.
template <class Run>
CPD_DEVICE void for_depth(const GemmCall& call, Run run) {
  const std::int64_t depth = call.product.depth;
  for (std::int64_t k = 0; k < depth; k += kWideDepth) {
    run(k, depth - k < kWideDepth ? static_cast<int>(depth - k) : kWideDepth);
  }
}

template <class Path, Scheme kScheme>
CPD_DEVICE void add_wide(WideThread<Path, kScheme>& patch, WideMemory& memory, std::int64_t k,
                         int count, ChunkCount& chunk) {
  patch.load(memory, k, count);
  __syncthreads();
  patch.bound(memory);
  __syncthreads();
  patch.add(memory, k, count, chunk);
  __syncthreads();
}

template <class Path, Scheme kScheme>
__global__ void __launch_bounds__(kWideThreads, 2)
    multiply_wide(const __grid_constant__ GemmCall call) {
  __shared__ WideMemory memory;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t tiles = tile_count(call.product, call.product.batch(), kWide);
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    PatchSums sums;
    WideThread<Path, kScheme> patch(call, place_of(call.product, tile, kWide), thread, sums);
    ChunkCount chunk(call);
    patch.begin();
    patch.read_sums();
    for_depth(call, [&](std::int64_t k, int count) { add_wide(patch, memory, k, count, chunk); });
    patch.write_sums();
    patch.store();
  }
}

/// Adds the products at k … k + count - 1 to the thread's sums, which must be in memory. Computes
/// in binary32, one quarter of the tile after the other. Used for operands that 16-bit lanes do not
/// represent.
__device__ __noinline__ void add_quarters(const GemmCall& call, const TilePlace& place,
                                          PatchSums* sums, WideMemory& memory, std::int64_t k,
                                          int count, ChunkCount& chunk) {
  const ChunkCount before = chunk;
  for (int quarter = 0; quarter < kQuarters; ++quarter) {
    WideThread<Veltkamp, Scheme::sequential> patch(call, quarter_of(place, quarter),
                                                   static_cast<int>(threadIdx.x), sums[quarter]);
    chunk = before;
    patch.read_sums();
    add_wide(patch, memory, k, count, chunk);
    patch.write_sums();
  }
}

template <Half kHalf>
__global__ void __launch_bounds__(kWideThreads, 2)
    multiply_halves(const __grid_constant__ GemmCall call) {
  __shared__ HalvesOrWide memory;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t tiles = tile_count(call.product, call.product.batch(), kHalvesSide);
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    PatchSums sums[kQuarters];
    const TilePlace place = place_of(call.product, tile, kHalvesSide);
    const auto quarter = [&](int i) {
      return WideThread<Veltkamp, Scheme::sequential>(call, quarter_of(place, i), thread, sums[i]);
    };
    HalvesThread<kHalf> patch(call, place, thread, sums);
    ChunkCount chunk(call);
    CPD_ROLLED for (int i = 0; i < kQuarters; ++i) quarter(i).begin();
    patch.read_sums();
    for_depth(call, [&](std::int64_t k, int count) {
      const bool held = patch.load(memory.halves, k, count);
      if (__syncthreads_and(held) != 0) {
        patch.bound(memory.halves);
        __syncthreads();
        patch.add(memory.halves, k, count, chunk);
        __syncthreads();
      } else {
        patch.write_sums();
        add_quarters(call, place, sums, memory.wide, k, count, chunk);
        patch.read_sums();
      }
    });
    patch.write_sums();
    CPD_ROLLED for (int i = 0; i < kQuarters; ++i) quarter(i).store();
  }
}

template <bool kShort>
__global__ void __launch_bounds__(kWideThreads, 2)
    multiply_units(const __grid_constant__ GemmCall call) {
  __shared__ UnitMemory memory;
  const int thread = static_cast<int>(threadIdx.x);
  const int step = step_of(call.plan, kWideDepth);
  const std::int64_t tiles = tile_count(call.product, call.product.batch(), kWide);
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    UnitPatch sums;
    UnitThread<kShort> patch(call, place_of(call.product, tile, kWide), thread, sums);
    patch.begin();
    for (std::int64_t k = 0; k < call.product.depth; k += step) {
      const int count = values_in_step(call, k, step);
      patch.load(memory, k, count);
      __syncthreads();
      patch.add(memory, k, count);
      __syncthreads();
    }
    patch.store();
  }
}

__global__ void __launch_bounds__(kThreads)
    find_outside(const __grid_constant__ RoundPlan plan, bool negative, std::int64_t n,
                 const __grid_constant__ Strided x, unsigned long long* first) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    const auto value = load_element<double>(x, i);
    const double rounded = round<Rounding::nearest_even>(value, std::uint64_t{0}, plan);
    const bool outside = value != value ? !plan.has_nan : rounded != value;
    if (outside || (value < 0 && !negative)) atomicMin(first, static_cast<unsigned long long>(i));
  }
}

}  // namespace

int first_outside(const Launch& launch, const FirstOutsideCall& call) {
  const auto& [n, x, plan, negative, first] = call;
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  start_kernel(find_outside, blocks_for((n + kThreads - 1) / kThreads), kThreads,
               static_cast<cudaStream_t>(launch.stream), plan, negative, n, x, first);
  return cudaGetLastError();
}

ProductPath product_path(const AccumulatorPlan& plan, bool given) {
  return path_of_product(plan, given);
}

int product(const Launch& launch, const GemmCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const std::int64_t batch = call.product.batch();
  const auto blocks = [&](int side) {
    return static_cast<unsigned>(
        std::min<std::int64_t>(tile_count(call.product, batch, side), 1LL << 30));
  };
  if (takes_wide(call.plan) && takes_halves(call, processors())) {
    const Half half = call.plan.sum.fast.half;
    start_kernel(half == Half::bf16 ? multiply_halves<Half::bf16> : multiply_halves<Half::fp16>,
                 blocks(kHalvesSide), kWideThreads, stream, call);
  } else if (takes_wide(call.plan)) {
    with_wide(call.plan.sum, [&]<class Path, Scheme kScheme>() {
      start_kernel(multiply_wide<Path, kScheme>, blocks(kWide), kWideThreads, stream, call);
    });
  } else if (takes_units(call.plan)) {
    start_kernel(call.plan.unit.ends_in_binary32 ? multiply_units<true> : multiply_units<false>,
                 blocks(kWide), kWideThreads, stream, call);
  } else {
    return product_scaled(launch, without_scales(call));
  }
  return cudaGetLastError();
}

}  // namespace cpd::cuda
