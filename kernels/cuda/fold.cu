// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fast_kernels.h"
#include "kernels/cuda/fixed_sum.h"
#include "kernels/cuda/fold_tile.h"

namespace cpd::cuda {
namespace {

static_assert(sizeof(SumCall) <= 4000, "a kernel's parameters have at most 4096 bytes");

template <Rounding mode, class T, bool kGiven = false>
__global__ void __launch_bounds__(kThreads) sum_each(const __grid_constant__ SumCall call) {
  sum_elements<mode, T, kGiven>(call, std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                                std::int64_t{gridDim.x} * kThreads);
}

template <Rounding mode, class T>
__global__ void __launch_bounds__(kThreads)
    sum_each_fixed(const __grid_constant__ FixedSumCall call) {
  sum_fixed_elements<mode, T>(call, std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                              std::int64_t{gridDim.x} * kThreads);
}

}  // namespace

int sum_fixed(const Launch& launch, const FixedSumCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const unsigned blocks = blocks_for((call.n + kThreads - 1) / kThreads);
  with_mode(call.plan.end.mode, [&]<Rounding mode>() {
    if constexpr (mode != Rounding::stochastic) {  // which scheme fixed does not have
      const auto kernel =
          call.x.dtype == DType::f64 ? sum_each_fixed<mode, double> : sum_each_fixed<mode, float>;
      start_kernel(kernel, blocks, kThreads, stream, call);
    }
  });
  return cudaGetLastError();
}

int sum(const Launch& launch, const SumCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  if (const auto status = FastKernel<sum>::Start(launch, call)) return *status;
  with_sum(call, [&]<Rounding mode, class T, bool kGiven>() {
    start_kernel(sum_each<mode, T, kGiven>, blocks_for((call.n + kThreads - 1) / kThreads),
                 kThreads, static_cast<cudaStream_t>(launch.stream), call);
  });
  return cudaGetLastError();
}

}  // namespace cpd::cuda
