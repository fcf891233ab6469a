// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/gemm_scaled.h"
#include "kernels/cuda/multiply.cuh"

namespace cpd::cuda {

int gemm_scaled(const Launch& launch, const ScaledGemmCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>(tile_count(call.product, call.product.batch(), kSide), 1LL << 30));
  with_sum(call.plan, [&]<class Sum>() {
    start_kernel(multiply<ScaledSum<Sum>, ScaledGemmCall>, blocks, kSums, stream, call);
  });
  return cudaGetLastError();
}

}  // namespace cpd::cuda
