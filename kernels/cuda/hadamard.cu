// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/hadamard_tile.h"

namespace cpd::cuda {
namespace {

static_assert(sizeof(HadamardCall) <= 4000, "a kernel's parameters have at most 4096 bytes");

template <int kSize, class V>
__global__ void __launch_bounds__(kThreads)
    transform_groups(const __grid_constant__ HadamardCall call) {
  transform<kSize, V>(call, std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                      std::int64_t{gridDim.x} * kThreads);
}

}  // namespace

int hadamard(const Launch& launch, const HadamardCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const unsigned blocks = blocks_for((call.groups + kThreads - 1) / kThreads);
  with_size(call.plan, [&]<int kSize>() {
    if (call.plan.to_bf16) {
      start_kernel(transform_groups<kSize, double>, blocks, kThreads, stream, call);
    } else {
      start_kernel(transform_groups<kSize, float>, blocks, kThreads, stream, call);
    }
  });
  return cudaGetLastError();
}

}  // namespace cpd::cuda
