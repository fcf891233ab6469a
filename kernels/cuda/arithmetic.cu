// SPDX-License-Identifier: Apache-2.0
//
// Computes single operations on a GPU: in binary64, with one rounding for each element.
#include "kernels/cuda/arithmetic_elements.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fast_kernels.h"

namespace cpd::cuda {
namespace {

/// Computes the results of the call's operation (add, mul, …) for the elements of thread number
/// `thread` of `threads`. kAny: an operand has the type binary64.
template <Rounding mode, bool kAny>
CPD_FN void operate(const ArithmeticTask& call, std::int64_t thread, std::int64_t threads) {
  const Source source = source_of(call.rounding, call.key, call.random);
  const std::int64_t indices = indices_of(mode, call.rounding.random_bits, call.n);
  CPD_ROLLED for (std::int64_t at = thread; at < indices; at += threads) {
    for_elements<mode>(
        at, call.n, call.rounding, source,
        [&](std::int64_t i, std::uint32_t random) { operate_one<mode, kAny>(call, i, random); });
  }
}

template <Rounding mode, bool kAny>
__global__ void __launch_bounds__(kThreads)
    operate_elements(const __grid_constant__ ArithmeticTask call) {
  operate<mode, kAny>(call, std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                      std::int64_t{gridDim.x} * kThreads);
}

}  // namespace

int arithmetic(const Launch& launch, const ArithmeticCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  if (const auto status = FastKernel<arithmetic>::Start(launch, call)) return *status;
  const ArithmeticTask task{call, *call.plan};
  // The general kernel (kAny) is needed only if x or y is binary64. The other kernel also accepts
  // any binary64 z in x * y + z, because a product of binary32 values is exact in binary64.
  const bool any =
      call.x.dtype == DType::f64 || (call.op != Operation::sqrt && call.y.dtype == DType::f64);
  with_mode(task.rounding.mode, [&]<Rounding mode>() {
    start_kernel(any ? operate_elements<mode, true> : operate_elements<mode, false>,
                 blocks_for((call.n + 16 * kThreads - 1) / (16 * kThreads)), kThreads,
                 static_cast<cudaStream_t>(launch.stream), task);
  });
  return cudaGetLastError();
}

}  // namespace cpd::cuda
