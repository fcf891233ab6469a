// SPDX-License-Identifier: Apache-2.0
//
// Adds a virtual rank's value to a running sum in GPU memory: reads the sum, adds the value as the
// sum's next term, and writes the sum.
#pragma once

#include "kernels/cuda/reduce_tile.cuh"
#include "kernels/cuda/thread_block.cuh"

namespace cpd::cuda {

/// Returns x / divisor, rounded to binary32: a rank's value before its cast.
inline CPD_CALL float divided(float x, float divisor) { return unscaled(x, 0, divisor); }
CPD_FN float entering(const VirtualCall& call, float x) {
  return call.divisor == 1 ? x : divided(x, call.divisor);
}

/// Returns the number of the term that the call's first rank adds to the sum of value i, or -1 if
/// the call adds no term to this sum. -1 occurs only in order `ring`: a call then has a single rank
/// and adds its terms to some slices of the tensor only.
CPD_FN std::int64_t term_of(const VirtualCall& call, std::int64_t i) {
  if (call.visit < 0) return call.k;
  if (call.rounds.order != Order::ring) return call.visit;
  return call.rounds.term(call.visit, call.rounds.slice_of(call.size, i));
}

/// Returns the number of planes (running values) of a sum that hold numbers after k terms.
CPD_FN int planes_after(const VirtualCall& call, std::int64_t k) {
  const Scheme scheme = call.plan.order.scheme;
  return scheme == Scheme::pairwise ? open_trees(k) : planes_of_sum(scheme, call.count);
}

/// Adds `term`, which is term number k, to the running sum of value i in memory. The last term also
/// ends the sum, which is then rounded to the result.
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

}  // namespace cpd::cuda
