// SPDX-License-Identifier: Apache-2.0
//
// Sums over a dimension whose terms are contiguous in memory. Threads read cache lines together. In
// the general kernel sum_each, each thread reads its own terms.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fast_kernels.h"
#include "kernels/cuda/fold_tile.h"

namespace cpd::cuda {
namespace {

constexpr int kRows = 32;  ///< sums of a block of sum_rows, one a thread

/// Sums contiguous terms. A thread block reads tiles of its rows, with neighboring threads reading
/// neighboring terms. Then each thread adds the terms of its own row.
template <Rounding mode, class T, bool kGiven = false>
__global__ void __launch_bounds__(kRows) sum_rows(const __grid_constant__ SumCall call) {
  constexpr int kTerms = 128 / sizeof(T);  // a line of memory
  __shared__ T tile[kRows][kTerms + 1];    // a thread a bank
  __shared__ std::int64_t begins[kRows];
  const int thread = static_cast<int>(threadIdx.x);
  const Source source = source_of(call.plan.terms.round, call.key, {});
  const std::int64_t step = std::int64_t{gridDim.x} * kRows;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kRows; first < call.n; first += step) {
    const std::int64_t i = first + thread;
    const int rows = call.n - first < kRows ? static_cast<int>(call.n - first) : kRows;
    if (thread < rows) begins[thread] = offset_of(call.x, i);
    auto sum = sum_of_element<mode, T, kGiven>(call, source, thread < rows ? i : 0);
    __syncthreads();
    for (std::int64_t k = 0; k < call.terms; k += kTerms) {
      const int count = call.terms - k < kTerms ? static_cast<int>(call.terms - k) : kTerms;
      CPD_ROLLED for (int first = thread; first < rows * kTerms; first += kTermsAtOnce * kRows) {
        const auto row = [&](int j) { return (first + j * kRows) / kTerms; };
        const auto term = [&](int j) { return (first + j * kRows) % kTerms; };
        T some[kTermsAtOnce];
        load_together(
            call.x, [&](int j) { return row(j) < rows && term(j) < count; },
            [&](int j) { return begins[row(j)] + k + term(j); }, some);
        CPD_IN_REGISTERS for (int j = 0; j < kTermsAtOnce; ++j) {
          if (row(j) < rows) tile[row(j)][term(j)] = some[j];
        }
      }
      __syncthreads();
      if (thread < rows) sum.take(tile[thread], count);
      __syncthreads();
    }
    if (thread < rows) store_element(call.out, i, sum.end());
  }
}

bool sum_rows_applies(const SumCall& call) { return call.step == 1 && call.terms > 1; }
int start_sum_rows(const Launch& launch, const SumCall& call) {
  with_sum(call, [&]<Rounding mode, class T, bool kGiven>() {
    start_kernel(sum_rows<mode, T, kGiven>, blocks_for((call.n + kRows - 1) / kRows), kRows,
                 static_cast<cudaStream_t>(launch.stream), call);
  });
  return cudaGetLastError();
}
const FastKernel<sum> kSumRows(FastPath::sum_rows, sum_rows_applies, start_sum_rows);

}  // namespace
}  // namespace cpd::cuda
