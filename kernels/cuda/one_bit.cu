// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/one_bit_tile.h"
#include "kernels/cuda/thread_block.cuh"

namespace cpd::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    form_means(const __grid_constant__ OneBitCall call, const float* x, float* means) {
  one_bit_means_block(ThreadBlock(), call, x, means);
}
__global__ void __launch_bounds__(kThreads)
    round_to_means(const __grid_constant__ OneBitCall call, const float* x, float* y,
                   SegmentCounts* counts) {
  round_one_bit_block(ThreadBlock(), call, x, y, counts);
}
__global__ void __launch_bounds__(kThreads)
    encode_as_bits(const __grid_constant__ OneBitCall call, const float* x, std::uint8_t* to) {
  encode_one_bit_block(ThreadBlock(), call, x, to);
}
__global__ void __launch_bounds__(kThreads)
    decode_from_bits(const __grid_constant__ OneBitCall call, const std::uint8_t* from, float* y) {
  decode_one_bit_block(ThreadBlock(), call, from, y);
}
__global__ void __launch_bounds__(kThreads) add_kept(const __grid_constant__ FeedbackCall call) {
  add_residual_block(ThreadBlock(), call);
}
__global__ void __launch_bounds__(kThreads)
    keep_errors(const __grid_constant__ FeedbackCall call, const float* decoded, float* next,
                SegmentCounts* counts) {
  take_errors_block(ThreadBlock(), call, decoded, next, counts);
}

}  // namespace

int one_bit_means(const Launch& launch, const OneBitCall& call) {
  const std::int64_t buckets = (call.n + call.bucket - 1) / call.bucket;
  return start_tiles(launch, form_means, (buckets + kThreads - 1) / kThreads, call, call.x,
                     call.means);
}

int round_one_bit(const Launch& launch, const OneBitCall& call) {
  return start_tiles(launch, round_to_means, tiles_of(call.n), call, call.x, call.y, call.counts);
}

int encode_one_bit(const Launch& launch, const OneBitCall& call) {
  return start_tiles(launch, encode_as_bits, tiles_of(call.n), call, call.x, call.to);
}

int decode_one_bit(const Launch& launch, const OneBitCall& call) {
  return start_tiles(launch, decode_from_bits, tiles_of(call.n), call, call.from, call.y);
}

int add_residual(const Launch& launch, const FeedbackCall& call) {
  return start_tiles(launch, add_kept, tiles_of(call.n), call);
}

int take_errors(const Launch& launch, const FeedbackCall& call) {
  return start_tiles(launch, keep_errors, tiles_of(call.n), call, call.decoded, call.next,
                     call.counts);
}

}  // namespace cpd::cuda
