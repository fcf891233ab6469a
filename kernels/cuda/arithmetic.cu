// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/arithmetic_tile.h"
#include "kernels/cuda/device.cuh"

namespace cpd::cuda {
namespace {

static_assert(sizeof(ArithmeticCall) <= 4000, "a kernel's parameters have at most 4096 bytes");

template <Rounding mode, bool kAny>
__global__ void __launch_bounds__(kThreads)
    operate_elements(const __grid_constant__ ArithmeticCall call) {
  operate<mode, kAny>(call, std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                      std::int64_t{gridDim.x} * kThreads);
}

template <class R, DType type>
__global__ void __launch_bounds__(kThreads)
    operate_all_packs(const __grid_constant__ ArithmeticCall call) {
  operate_packs<R, type>(call, std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                         std::int64_t{gridDim.x} * kThreads);
}

}  // namespace

int arithmetic(const Launch& launch, const ArithmeticCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const unsigned blocks = blocks_for((call.n + 16 * kThreads - 1) / (16 * kThreads));
  if (takes_packs(call)) {
    with_short_rule(call.plan, [&]<class R>() {
      with_pack_type(call.x.dtype, [&]<DType type>() {
        start_kernel(operate_all_packs<R, type>, blocks, kThreads, stream, call);
      });
    });
    return cudaGetLastError();
  }
  // z of binary64 may be any number: beside it the product of binary32 values is exact.
  const bool any =
      call.x.dtype == DType::f64 || (call.op != Operation::sqrt && call.y.dtype == DType::f64);
  with_mode(call.plan.mode, [&]<Rounding mode>() {
    start_kernel(any ? operate_elements<mode, true> : operate_elements<mode, false>, blocks,
                 kThreads, stream, call);
  });
  return cudaGetLastError();
}

}  // namespace cpd::cuda
