// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gemm_short.h"
#include "kernels/cuda/multiply.cuh"

namespace cpd::cuda {
namespace {

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

int first_outside(const Launch& launch, const RoundPlan& plan, bool negative, std::int64_t n,
                  const Strided& x, unsigned long long* first) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  start_kernel(find_outside, blocks_for((n + kThreads - 1) / kThreads), kThreads,
               static_cast<cudaStream_t>(launch.stream), plan, negative, n, x, first);
  return cudaGetLastError();
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
      start_kernel(multiply_wide<kind>, blocks(kWide), kWideThreads, stream, call);
    });
  } else {
    with_sum(call.plan, [&]<class Sum>() {
      start_kernel(multiply<Sum, GemmCall>, blocks(kSide), kSums, stream, call);
    });
  }
  return cudaGetLastError();
}

}  // namespace cpd::cuda
