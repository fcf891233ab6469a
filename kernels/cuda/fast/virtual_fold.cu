// SPDX-License-Identifier: Apache-2.0
//
// Sums over up to sixteen virtual ranks in one pass. A thread reads a running sum once, casts the
// values of the ranks, adds them by fast steps (numeric/sums/fast_sum.h), and writes the sum once.
// The general path casts each rank in one kernel and adds it in another.
#include "cpd/numeric/sums/fast_sum.h"
#include "kernels/cuda/fast_kernels.h"
#include "kernels/cuda/virtual_tile.cuh"

namespace cpd::cuda {
namespace {

constexpr int kRanksAtOnce = 4;  ///< whose values are read before the first of them is added

/// Stores in `terms` what `count` ranks, from rank `first` on, add to the sum of value i. If
/// call.casts, casts the ranks' values to these terms and counts in `lost` the values that become
/// zero or are not finite.
CPD_FN void cast_ranks(const VirtualCall& call, std::int64_t i, int first, int count, float* terms,
                       LossCounts& lost) {
  float x[kRanksAtOnce];
  for (int q = 0; q < kRanksAtOnce; ++q) x[q] = q < count ? call.x[first + q][i] : 0.0F;
  if (!call.casts) {
    for (int q = 0; q < kRanksAtOnce; ++q) terms[q] = x[q];
    return;
  }
  const auto cast = [&]<Form form>() {
    using R = Rule<Rounding::nearest_even, form>;
    for (int q = 0; q < kRanksAtOnce; ++q) {
      x[q] = entering(call, x[q]);
      terms[q] = round<R>(shifted_in_binary32(x[q], call.shift), 0U, call.cast);
    }
  };
  if (call.cast.form == Form::addition) {
    cast.template operator()<Form::addition>();
  } else {
    cast.template operator()<Form::general>();
  }
  for (int q = 0; q < kRanksAtOnce; ++q) {
    if (q < count) lost.take(x[q], terms[q]);
  }
}

/// Adds the terms of the call's ranks to the sum of value i, by the steps of the general path. The
/// first rank's term is term number k of the sum.
CPD_CALL void fold_terms(const VirtualCall& call, std::int64_t i, std::int64_t k) {
  CPD_ROLLED for (int rank = 0; rank < call.ranks; ++rank) {
    float term = call.x[rank][i];
    if (call.casts) {
      term = cast_shifted<Rounding::nearest_even>(entering(call, term), call.shift, 0U, call.cast);
    }
    take_term<Rounding::nearest_even>(call, i, k + rank, term);
  }
}

/// Adds the terms of the call's ranks to the sum of value i in registers. If this may have given a
/// wrong sum, starts again from the sum in memory and adds the terms by fold_terms.
template <class Path, Scheme scheme>
CPD_FN void fold_short(const VirtualCall& call, std::int64_t i, LossCounts& lost) {
  constexpr bool kKahan = scheme == Scheme::kahan;
  const std::int64_t k = term_of(call, i);
  float sum = 0;
  float compensation = 0;
  if (k > 0) {
    sum = call.planes[i];
    if constexpr (kKahan) compensation = call.planes[call.size + i];
  }
  FastSums<Path, float> steps(call.plan.terms);
  CPD_ROLLED for (int first = 0; first < call.ranks; first += kRanksAtOnce) {
    const int count = call.ranks - first < kRanksAtOnce ? call.ranks - first : kRanksAtOnce;
    float terms[kRanksAtOnce];
    cast_ranks(call, i, first, count, terms, lost);
    for (int q = 0; q < kRanksAtOnce; ++q) {
      if (q >= count) continue;
      if (q == 0 && first == 0 && k == 0) {
        sum = first_sum<Rounding::nearest_even>(call.plan, terms[0]);
      } else if constexpr (kKahan) {
        steps.add(terms[q], sum, compensation);
      } else {
        steps.add(terms[q], sum);
      }
    }
  }
  if (k < 0) return;
  if (!steps.is_good() || !(sum - sum == 0)) return fold_terms(call, i, k);
  const bool ends = k + call.ranks == call.count;
  call.planes[i] =
      ends && call.plan.rounds ? last_sum<Rounding::nearest_even>(call.plan, sum) : sum;
  if (kKahan && !ends) call.planes[call.size + i] = compensation;
}

/// Adds the terms of the call's ranks to the running sums of all values. If call.casts, casts the
/// ranks' values to terms first and, unless `counts` is null, counts the values that become zero or
/// are not finite.
template <class Path>
__global__ void __launch_bounds__(kThreads)
    fold_short_of(const __grid_constant__ VirtualCall call, SegmentCounts* counts) {
  const ThreadBlock block;
  for_tiles_of(block, call.size, [&](std::int64_t begin, int count) {
    block.each([&](int thread) {
      LossCounts lost;
      const bool is_kahan = call.plan.order.scheme == Scheme::kahan;
      CPD_ROLLED for (int j = thread; j < count; j += kThreads) {
        if (is_kahan) {
          fold_short<Path, Scheme::kahan>(call, begin + j, lost);
        } else {
          fold_short<Path, Scheme::sequential>(call, begin + j, lost);
        }
      }
      if (counts != nullptr) lost.add_to(block, *counts);
    });
  });
}

/// Returns whether this kernel supports the sum over virtual ranks that `call` describes. All
/// roundings must be to nearest-even, and binary32 must suffice for casts. The sum must be
/// sequential or Kahan's, with a fast path.
bool virtual_fold_applies(const VirtualCall& call) {
  const Scheme scheme = call.plan.order.scheme;
  const bool casts = !call.casts || (call.cast.mode == Rounding::nearest_even &&
                                     casts_in_binary32(call.cast, call.shift));
  return casts && call.plan.terms.round.mode == Rounding::nearest_even &&
         (scheme == Scheme::sequential || scheme == Scheme::kahan) &&
         with_fast_sums(call.plan.terms.path, []<class /*Path*/>() {});
}
int start_virtual_fold(const Launch& launch, const VirtualCall& call) {
  int status = cudaSuccess;
  with_fast_sums(call.plan.terms.path, [&]<class Path>() {
    status = start_tiles(launch, fold_short_of<Path>, tiles_of(call.size), call, call.counts);
  });
  return status;
}
const FastKernel<fold_ranks> kVirtualFold(FastPath::virtual_fold, virtual_fold_applies,
                                          start_virtual_fold);

}  // namespace
}  // namespace cpd::cuda
