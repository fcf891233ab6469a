// SPDX-License-Identifier: Apache-2.0
//
// Sums over virtual ranks on a GPU by the general path: casts each rank's values and then adds them
// to the running sums.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fast_kernels.h"
#include "kernels/cuda/virtual_tile.cuh"

namespace cpd::cuda {
namespace {

// --- kernels -----------------------------------------------------------------------------------

/// Casts the values of the call's first rank to terms (call.terms). Unless `counts` is null, counts
/// the values that are not finite, become zero, or are zero afterwards (LossCounts).
template <Rounding mode>
__global__ void __launch_bounds__(kThreads)
    cast_terms_of(const __grid_constant__ VirtualCall call, SegmentCounts* counts) {
  const ThreadBlock block;
  for_tiles_of(block, call.size, [&](std::int64_t begin, int count) {
    block.each([&](int thread) {
      LossCounts lost;
      CPD_ROLLED for (int j = thread; j < count; j += kThreads) {
        const std::int64_t i = begin + j;
        const float x = entering(call, call.x[0][i]);
        const float term = cast_shifted<mode>(
            x, call.shift, element_draw<mode>(call.cast, call.cast_stream[0], i), call.cast);
        call.terms[i] = term;
        lost.take(x, term);
      }
      if (counts != nullptr) lost.add_to(block, *counts);
    });
  });
}
/// Adds one rank's terms, which must be in call.x[0], to the running sums of all values.
template <Rounding mode>
__global__ void __launch_bounds__(kThreads)
    take_terms_of(const __grid_constant__ VirtualCall call) {
  const ThreadBlock block;
  for_tiles_of(block, call.size, [&](std::int64_t begin, int count) {
    block.each([&](int thread) {
      CPD_ROLLED for (int j = thread; j < count; j += kThreads) {
        const std::int64_t k = term_of(call, begin + j);
        if (k >= 0) take_term<mode>(call, begin + j, k, call.x[0][begin + j]);
      }
    });
  });
}
__global__ void __launch_bounds__(kThreads)
    finish_sums_of(const __grid_constant__ VirtualCall call, float* out, SegmentCounts* counts) {
  const ThreadBlock block;
  for_tiles_of(block, call.size, [&](std::int64_t begin, int count) {
    block.each([&](int thread) {
      std::uint32_t non_finite = 0;
      CPD_ROLLED for (int j = thread; j < count; j += kThreads) {
        const float value = unscaled(call.planes[begin + j] * call.scale, call.shift, call.divisor);
        const std::uint32_t size = bits_as<std::uint32_t>(value) & Pattern<float>::magnitude;
        if (size >= Pattern<float>::infinity) ++non_finite;
        out[begin + j] = value;
      }
      block.add(&counts->non_finite, non_finite);
    });
  });
}

int take_terms(const Launch& launch, const VirtualCall& call) {
  int status = cudaSuccess;
  with_mode(call.plan.terms.round.mode, [&]<Rounding mode>() {
    status = start_tiles(launch, take_terms_of<mode>, tiles_of(call.size), call);
  });
  return status;
}

/// Returns a call that adds only the terms of rank number `rank` of `call`. cast_terms must have
/// stored these terms in call.terms.
VirtualCall cast_call(const VirtualCall& call, int rank) {
  VirtualCall one = call;
  one.ranks = 1;
  one.casts = false;
  one.x[0] = call.terms;
  one.k += rank;
  if (call.visit >= 0) one.visit += rank;
  return one;
}

/// Does the work of fold_ranks with separate kernels for each cast and each addition.
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
  if (const auto status = FastKernel<fold_ranks>::Start(launch, call)) return *status;
  return fold_one_by_one(launch, call);
}

int finish_sums(const Launch& launch, const VirtualCall& call) {
  return start_tiles(launch, finish_sums_of, tiles_of(call.size), call, call.out, call.counts);
}

}  // namespace cpd::cuda
