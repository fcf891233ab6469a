// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/thread_block.cuh"
#include "kernels/cuda/virtual_tile.h"

namespace cpd::cuda {
namespace {

template <Rounding mode>
__global__ void __launch_bounds__(kThreads)
    cast_terms_of(const __grid_constant__ VirtualCall call, SegmentCounts* counts) {
  cast_terms_block<mode>(ThreadBlock(), call, counts);
}
template <Rounding mode>
__global__ void __launch_bounds__(kThreads)
    take_terms_of(const __grid_constant__ VirtualCall call) {
  take_terms_block<mode>(ThreadBlock(), call);
}
template <Split kind>
__global__ void __launch_bounds__(kThreads)
    fold_short_of(const __grid_constant__ VirtualCall call, SegmentCounts* counts) {
  fold_short_block<kind>(ThreadBlock(), call, counts);
}
__global__ void __launch_bounds__(kThreads)
    finish_sums_of(const __grid_constant__ VirtualCall call, float* out, SegmentCounts* counts) {
  finish_sums_block(ThreadBlock(), call, out, counts);
}

int take_terms(const Launch& launch, const VirtualCall& call) {
  int status = cudaSuccess;
  with_mode(call.plan.terms.round.mode, [&]<Rounding mode>() {
    status = start_tiles(launch, take_terms_of<mode>, tiles_of(call.size), call);
  });
  return status;
}

/// Rank `rank` of the call alone, whose contributions are in call.terms.
VirtualCall cast_call(const VirtualCall& call, int rank) {
  VirtualCall one = call;
  one.ranks = 1;
  one.casts = false;
  one.x[0] = call.terms;
  one.k += rank;
  if (call.visit >= 0) one.visit += rank;
  return one;
}

/// fold_ranks, each cast and each addition on its own.
int fold_one_by_one(const Launch& launch, const VirtualCall& call) {
  if (!call.casts) return take_terms(launch, call);
  VirtualCall from = call;
  for (int rank = 0; rank < call.ranks; ++rank) {
    from.x[0] = call.x[rank];
    from.cast_stream[0] = call.cast_stream[rank];
    const int status = cast_terms(launch, from);
    if (status != cudaSuccess) return status;
    const int taken = take_terms(launch, cast_call(call, rank));
    if (taken != cudaSuccess) return taken;
  }
  return cudaSuccess;
}

}  // namespace

int cast_terms(const Launch& launch, const VirtualCall& call) {
  int status = cudaSuccess;
  with_mode(call.cast.mode, [&]<Rounding mode>() {
    status = start_tiles(launch, cast_terms_of<mode>, tiles_of(call.size), call, call.counts);
  });
  return status;
}

int fold_ranks(const Launch& launch, const VirtualCall& call) {
  if (!has_short_steps(call)) return fold_one_by_one(launch, call);
  int status = cudaSuccess;
  with_short_kind(call.plan.terms.kind, [&]<Split kind>() {
    status = start_tiles(launch, fold_short_of<kind>, tiles_of(call.size), call, call.counts);
  });
  return status;
}

int finish_sums(const Launch& launch, const VirtualCall& call) {
  return start_tiles(launch, finish_sums_of, tiles_of(call.size), call, call.out, call.counts);
}

}  // namespace cpd::cuda
