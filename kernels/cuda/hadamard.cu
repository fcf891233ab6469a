// SPDX-License-Identifier: Apache-2.0
//
// Hadamard transforms on a GPU: one group a thread.
#include "cpd/numeric/scaled/hadamard_stages.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/strided.h"

namespace cpd::cuda {
namespace {

/// The groups of thread number `thread` of `threads`. V: double for plan.to_bf16, else float.
template <int kSize, class V>
CPD_FN void transform(const HadamardCall& call, std::int64_t thread, std::int64_t threads) {
  CPD_ROLLED for (std::int64_t g = thread; g < call.groups; g += threads) {
    const std::int64_t from = offset_of(call.x, g);
    const std::int64_t to = offset_of(call.out, g);
    V v[kSize];
    CPD_UNROLLED for (int i = 0; i < kSize; ++i) {
      v[i] = convert_value<V>(value_at(call.x.data, call.x.dtype, from + i * call.x_step));
    }
    hadamard<kSize, false>(v, call.plan);
    CPD_UNROLLED for (int i = 0; i < kSize; ++i) {
      set_value_at(call.out.data, call.out.dtype, to + i * call.out_step,
                   convert_value<float>(v[i]));
    }
  }
}

// --- kernels -----------------------------------------------------------------------------------

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
