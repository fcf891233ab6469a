// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/thread_block.cuh"
#include "kernels/cuda/top_k_tile.h"

namespace cpd::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    count_digits(const __grid_constant__ TopKCall call, int digit) {
  __shared__ std::uint32_t bins[kMostDigit + 1];
  count_digits_block(ThreadBlock(), call, digit, bins);
}
__global__ void __launch_bounds__(kThreads)
    find_digit(const __grid_constant__ TopKCall call, int digit) {
  __shared__ std::int64_t sums[2][kThreads];
  find_digit_block(ThreadBlock(), call, digit, sums);
}
__global__ void __launch_bounds__(kThreads) count_spans(const __grid_constant__ TopKCall call) {
  count_spans_block(ThreadBlock(), call);
}
__global__ void __launch_bounds__(kThreads) sum_spans(const __grid_constant__ TopKCall call) {
  __shared__ TopKSpan sums[2][kThreads];
  sum_spans_block(ThreadBlock(), call, sums);
}
template <Rounding mode>
__global__ void __launch_bounds__(kThreads)
    round_kept(const __grid_constant__ TopKCall call, float* y, SegmentCounts* counts) {
  __shared__ TopKTile tile;
  round_top_k_block<mode>(ThreadBlock(), call, y, counts, tile);
}
__global__ void __launch_bounds__(kThreads)
    place_terms(const __grid_constant__ TopKCall call, float* y, SegmentCounts* counts) {
  __shared__ TopKTile tile;
  place_top_k_block(ThreadBlock(), call, y, counts, tile);
}
__global__ void __launch_bounds__(kThreads)
    gather_kept(const __grid_constant__ TopKCall call, float* values) {
  __shared__ TopKTile tile;
  gather_top_k_block(ThreadBlock(), call, values, tile);
}
__global__ void __launch_bounds__(kThreads)
    count_places(const __grid_constant__ TopKCall call, TopKPlaces* places) {
  __shared__ TopKTile tile;
  count_places_block(ThreadBlock(), call, places, tile);
}

}  // namespace

int select_top_k(const Launch& launch, const TopKCall& call) {
  int status = cudaSuccess;
  const auto start = [&](auto kernel, std::int64_t blocks, const auto&... more) {
    if (status == cudaSuccess) status = start_tiles(launch, kernel, blocks, call, more...);
  };
  for (int digit = 0; digit < kPatternDigits; ++digit) {
    start(count_digits, tiles_of(call.n), digit);
    start(find_digit, 1, digit);
  }
  start(count_spans, spans_of(call));
  start(sum_spans, 1);
  return status;
}

int round_top_k(const Launch& launch, const TopKCall& call) {
  if (call.terms != nullptr) {
    return start_tiles(launch, place_terms, spans_of(call), call, call.y, call.counts);
  }
  int status = cudaSuccess;
  with_mode(call.cast.mode, [&]<Rounding mode>() {
    status = start_tiles(launch, round_kept<mode>, spans_of(call), call, call.y, call.counts);
  });
  return status;
}

int gather_top_k(const Launch& launch, const TopKCall& call) {
  return start_tiles(launch, gather_kept, spans_of(call), call, call.gathered);
}

int count_top_k(const Launch& launch, const TopKCall& call) {
  return start_tiles(launch, count_places, (call.n + call.block - 1) / call.block, call,
                     call.places);
}

}  // namespace cpd::cuda
