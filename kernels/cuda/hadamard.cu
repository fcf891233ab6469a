// SPDX-License-Identifier: Apache-2.0
//
// Hadamard transforms of groups of values on a GPU. A thread transforms one group at a time.
#include "cpd/numeric/scaled/hadamard_stages.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/strided.h"

namespace cpd::cuda {
namespace {

/// The argument of a kernel: a call, and a copy of the plan to which the call points on the host.
struct Task : HadamardCall {
  HadamardPlan constants;
};

/// Thread number `thread` transforms every `threads`-th group of kSize values. V is double if
/// constants.to_bf16, else float.
template <int kSize, class V>
CPD_FN void transform(const Task& call, std::int64_t thread, std::int64_t threads) {
  CPD_ROLLED for (std::int64_t g = thread; g < call.groups; g += threads) {
    const std::int64_t from = offset_of(call.x, g);
    const std::int64_t to = offset_of(call.out, g);
    V v[kSize];
    CPD_UNROLLED for (int i = 0; i < kSize; ++i) {
      v[i] = convert_value<V>(value_at(call.x.data, call.x.dtype, from + i * call.x_step));
    }
    hadamard<kSize, false>(v, call.constants);
    CPD_UNROLLED for (int i = 0; i < kSize; ++i) {
      set_value_at(call.out.data, call.out.dtype, to + i * call.out_step,
                   convert_value<float>(v[i]));
    }
  }
}

// --- kernels -----------------------------------------------------------------------------------

static_assert(sizeof(Task) <= 4000, "a kernel's parameters have at most 4096 bytes");

template <int kSize, class V>
__global__ void __launch_bounds__(kThreads) transform_groups(const __grid_constant__ Task call) {
  transform<kSize, V>(call, std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                      std::int64_t{gridDim.x} * kThreads);
}

}  // namespace

int hadamard(const Launch& launch, const HadamardCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const unsigned blocks = blocks_for((call.groups + kThreads - 1) / kThreads);
  const Task task{call, *call.plan};
  with_size(task.constants, [&]<int kSize>() {
    if (task.constants.to_bf16) {
      start_kernel(transform_groups<kSize, double>, blocks, kThreads, stream, task);
    } else {
      start_kernel(transform_groups<kSize, float>, blocks, kThreads, stream, task);
    }
  });
  return cudaGetLastError();
}

}  // namespace cpd::cuda
