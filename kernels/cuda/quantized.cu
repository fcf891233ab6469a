// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/quantized_tile.h"
#include "kernels/cuda/thread_block.cuh"

namespace cpd::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    form_bucket_scales(const __grid_constant__ QuantizedCall call, const float* x, float* scale,
                       float* factor) {
  __shared__ LargestTile tile;
  bucket_scales_block(ThreadBlock(), call, x, scale, factor, tile);
}
template <Rounding mode>
__global__ void __launch_bounds__(kThreads)
    round_by_buckets(const __grid_constant__ QuantizedCall call, const float* x, float* y,
                     SegmentCounts* counts) {
  round_quantized_block<mode>(ThreadBlock(), call, x, y, counts);
}
template <Rounding mode>
__global__ void __launch_bounds__(kThreads)
    encode_by_buckets(const __grid_constant__ QuantizedCall call, const float* x,
                      std::uint8_t* to) {
  __shared__ CodeTile tile;
  encode_quantized_block<mode>(ThreadBlock(), call, x, to, tile);
}
__global__ void __launch_bounds__(kThreads)
    decode_by_buckets(const __grid_constant__ QuantizedCall call, const std::uint8_t* from,
                      float* y, unsigned long long* damaged) {
  __shared__ CodeTile tile;
  decode_quantized_block(ThreadBlock(), call, from, y, damaged, tile);
}

bool draws(const QuantizedCall& call) {
  return call.scaled.plan.element.mode == Rounding::stochastic;
}

}  // namespace

int bucket_scales(const Launch& launch, const QuantizedCall& call) {
  return start_tiles(launch, form_bucket_scales, tiles_of(call.n), call, call.x, call.scale,
                     call.factor);
}

int round_quantized(const Launch& launch, const QuantizedCall& call) {
  const auto kernel = draws(call) ? round_by_buckets<Rounding::stochastic>
                                  : round_by_buckets<Rounding::nearest_even>;
  return start_tiles(launch, kernel, tiles_of(call.n), call, call.x, call.y, call.counts);
}

int encode_quantized(const Launch& launch, const QuantizedCall& call) {
  const auto kernel = draws(call) ? encode_by_buckets<Rounding::stochastic>
                                  : encode_by_buckets<Rounding::nearest_even>;
  return start_tiles(launch, kernel, message_tiles(call.n, call.block), call, call.x, call.to);
}

int decode_quantized(const Launch& launch, const QuantizedCall& call) {
  return start_tiles(launch, decode_by_buckets, message_tiles(call.n, call.block), call, call.from,
                     call.y, call.damaged);
}

}  // namespace cpd::cuda
