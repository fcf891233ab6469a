// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fixed_sum.h"
#include "kernels/cuda/fold_tile.h"

namespace cpd::cuda {
namespace {

static_assert(sizeof(SumCall) <= 4000, "a kernel's parameters have at most 4096 bytes");

template <Rounding mode, class T, bool kGiven = false>
__global__ void __launch_bounds__(kThreads) sum_each(const __grid_constant__ SumCall call) {
  sum_elements<mode, T, kGiven>(call, std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                                std::int64_t{gridDim.x} * kThreads);
}

constexpr int kRows = 32;  ///< sums of a block of sum_rows, one a thread

/// Sums of terms that are neighbors in memory: a block reads tiles of its rows, neighboring
/// threads neighboring terms, and each thread adds those of its own row.
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

template <Rounding mode, class T>
__global__ void __launch_bounds__(kThreads)
    sum_each_fixed(const __grid_constant__ FixedSumCall call) {
  sum_fixed_elements<mode, T>(call, std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                              std::int64_t{gridDim.x} * kThreads);
}

}  // namespace

int sum_fixed(const Launch& launch, const FixedSumCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  const unsigned blocks = blocks_for((call.n + kThreads - 1) / kThreads);
  with_mode(call.plan.end.mode, [&]<Rounding mode>() {
    if constexpr (mode != Rounding::stochastic) {  // which scheme fixed does not have
      const auto kernel =
          call.x.dtype == DType::f64 ? sum_each_fixed<mode, double> : sum_each_fixed<mode, float>;
      start_kernel(kernel, blocks, kThreads, stream, call);
    }
  });
  return cudaGetLastError();
}

int sum(const Launch& launch, const SumCall& call) {
  const OnDevice on(launch.device);
  if (on.status() != cudaSuccess) return on.status();
  const bool by_rows = call.step == 1 && call.terms > 1;
  const int threads = by_rows ? kRows : kThreads;
  const auto start = [&]<Rounding mode, class T, bool kGiven>() {
    start_kernel(by_rows ? sum_rows<mode, T, kGiven> : sum_each<mode, T, kGiven>,
                 blocks_for((call.n + threads - 1) / threads), threads,
                 static_cast<cudaStream_t>(launch.stream), call);
  };
  const auto start_with = [&]<Rounding mode, bool kGiven>() {
    if (call.x.dtype == DType::f64) return start.template operator()<mode, double, kGiven>();
    start.template operator()<mode, float, kGiven>();
  };
  if (call.random.random != nullptr) {
    start_with.template operator()<Rounding::stochastic, true>();
  } else {
    with_mode(call.plan.terms.round.mode,
              [&]<Rounding mode>() { start_with.template operator()<mode, false>(); });
  }
  return cudaGetLastError();
}

}  // namespace cpd::cuda
