// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/levels_tile.h"
#include "kernels/cuda/thread_block.cuh"

namespace cpd::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    form_norms(const __grid_constant__ NormCall call, const float* x, float* norms) {
  __shared__ NormTile tile;
  norms_block(ThreadBlock(), call, x, norms, tile);
}
__global__ void __launch_bounds__(kThreads)
    round_to_levels(const __grid_constant__ LevelCall call, const float* x, float* y,
                    SegmentCounts* counts) {
  round_levels_block(ThreadBlock(), call, x, y, counts);
}
__global__ void __launch_bounds__(kThreads)
    encode_as_levels(const __grid_constant__ LevelCall call, const float* x, std::uint8_t* to) {
  __shared__ CodeTile tile;
  encode_levels_block(ThreadBlock(), call, x, to, tile);
}
__global__ void __launch_bounds__(kThreads)
    decode_from_levels(const __grid_constant__ LevelCall call, const std::uint8_t* from, float* y,
                       unsigned long long* damaged) {
  __shared__ CodeTile tile;
  decode_levels_block(ThreadBlock(), call, from, y, damaged, tile);
}

}  // namespace

int level_norms(const Launch& launch, const NormCall& call) {
  const std::int64_t buckets = (call.n + call.bucket - 1) / call.bucket;
  const std::int64_t at_once = call.bucket <= kTile ? kBucketsAtOnce : 1;
  return start_tiles(launch, form_norms, (buckets + at_once - 1) / at_once, call, call.x,
                     call.norms);
}

int round_levels(const Launch& launch, const LevelCall& call) {
  return start_tiles(launch, round_to_levels, tiles_of(call.n), call, call.x, call.y, call.counts);
}

int encode_levels(const Launch& launch, const LevelCall& call) {
  return start_tiles(launch, encode_as_levels, message_tiles(call.n, call.block), call, call.x,
                     call.to);
}

int decode_levels(const Launch& launch, const LevelCall& call) {
  return start_tiles(launch, decode_from_levels, message_tiles(call.n, call.block), call, call.from,
                     call.y, call.damaged);
}

}  // namespace cpd::cuda
