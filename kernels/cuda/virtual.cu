// SPDX-License-Identifier: Apache-2.0
//
// The sums of virtual ranks on a GPU. A running sum is read, some ranks' terms are
// added to it, and it is written.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/reduce_tile.cuh"
#include "kernels/cuda/thread_block.cuh"

namespace cpd::cuda {
namespace {

/// A rank's value as it enters the reduction.
CPD_CALL float divided(float x, float divisor) { return unscaled(x, 0, divisor); }
CPD_FN float entering(const VirtualCall& call, float x) {
  return call.divisor == 1 ? x : divided(x, call.divisor);
}

/// The number of the first rank's term in the sum of value i; -1: it has none there, as ranks of a
/// ring, of which a call has one.
CPD_FN std::int64_t term_of(const VirtualCall& call, std::int64_t i) {
  if (call.visit < 0) return call.k;
  if (call.rounds.order != Order::ring) return call.visit;
  return call.rounds.term(call.visit, call.rounds.slice_of(call.size, i));
}

/// How many planes of a running sum hold numbers after k terms.
CPD_FN int planes_after(const VirtualCall& call, std::int64_t k) {
  const Scheme scheme = call.plan.order.scheme;
  return scheme == Scheme::pairwise ? open_trees(k) : planes_of_sum(scheme, call.count);
}

/// Adds term k to the running sum of value i.
template <Rounding mode>
CPD_CALL void take_term(const VirtualCall& call, std::int64_t i, std::int64_t k, float term) {
  auto sum = sum_from<mode>(call.plan, call.sum_stream, i, k);
  const int before = k > 0 ? planes_after(call, k) : 0;
  CPD_ROLLED for (int q = 0; q < before; ++q) sum.plane(q) = call.planes[q * call.size + i];
  sum.take(term);
  if (k + 1 == call.count) {
    call.planes[i] = result_of_sum(sum, call.plan, call.result_stream, i);
    return;
  }
  const int after = planes_after(call, k + 1);
  CPD_ROLLED for (int q = 0; q < after; ++q) call.planes[q * call.size + i] = sum.plane(q);
}

// --- short steps ---------------------------------------------------------------------------------

/// Returns whether fold_short_of adds the call's ranks: all roundings to nearest-even, sums by
/// short steps.
CPD_FN bool has_short_steps(const VirtualCall& call) {
  const Scheme scheme = call.plan.order.scheme;
  const bool casts = !call.casts || (call.cast.mode == Rounding::nearest_even &&
                                     casts_in_binary32(call.cast, call.shift));
  return casts && call.plan.terms.round.mode == Rounding::nearest_even &&
         (scheme == Scheme::sequential || scheme == Scheme::kahan) &&
         with_fast_sums(call.plan.terms.path, []<class /*Path*/>() {});
}

constexpr int kRanksAtOnce = 4;  ///< whose values are read before the first of them is added

/// Reads value i of ranks `first` … `first` + count - 1, casts them where the call does, and counts
/// losses of the cast.
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

/// Adds the ranks' terms to the sum of value i, the first as number k, by the general steps.
CPD_CALL void fold_terms(const VirtualCall& call, std::int64_t i, std::int64_t k) {
  CPD_ROLLED for (int rank = 0; rank < call.ranks; ++rank) {
    float term = call.x[rank][i];
    if (call.casts) {
      term = cast_scaled<Rounding::nearest_even>(entering(call, term), call.shift, 0U, call.cast);
    }
    take_term<Rounding::nearest_even>(call, i, k + rank, term);
  }
}

/// Adds the ranks' terms to the sum of value i, whose planes are in registers; what a short step
/// does not give is computed again from the planes in memory.
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

// --- results -------------------------------------------------------------------------------------

// --- kernels -----------------------------------------------------------------------------------

/// The contributions of the call's first rank; counts losses unless `counts` is null.
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
        const float term = cast_scaled<mode>(
            x, call.shift, element_draw<mode>(call.cast, call.cast_stream[0], i), call.cast);
        call.terms[i] = term;
        lost.take(x, term);
      }
      if (counts != nullptr) lost.add_to(block, *counts);
    });
  });
}
/// Adds the values of the call's first rank, which are terms.
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
/// Adds the values of the call's ranks, cast where it says so, to the running sums; counts losses
/// unless `counts` is null.
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
  with_fast_sums(call.plan.terms.path, [&]<class Path>() {
    status = start_tiles(launch, fold_short_of<Path>, tiles_of(call.size), call, call.counts);
  });
  return status;
}

int finish_sums(const Launch& launch, const VirtualCall& call) {
  return start_tiles(launch, finish_sums_of, tiles_of(call.size), call, call.out, call.counts);
}

}  // namespace cpd::cuda
