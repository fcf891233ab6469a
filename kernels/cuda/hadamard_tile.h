// SPDX-License-Identifier: Apache-2.0
//
// Hadamard transforms on a GPU: one group a thread. For host and device, so that tests run it on
// the CPU.
#pragma once

#include "cpd/numeric/scaled/hadamard_stages.h"
#include "kernels/cuda/strided.h"

namespace cpd::cuda {

/// The groups of thread number `thread` of `threads`. V: double for plan.to_bf16, else float.
template <int kSize, class V>
CPD_FN void transform(const HadamardCall& call, std::int64_t thread, std::int64_t threads) {
  CPD_ROLLED for (std::int64_t g = thread; g < call.groups; g += threads) {
    const std::int64_t from = offset_of(call.x, g);
    const std::int64_t to = offset_of(call.out, g);
    V v[kSize];
    CPD_UNROLLED for (int i = 0; i < kSize; ++i) {
      v[i] = convert_value<V>(value_at(call.x.data, call.x.dtype, from + i * call.x_step));
    }
    hadamard<kSize, false>(v, call.plan);
    CPD_UNROLLED for (int i = 0; i < kSize; ++i) {
      set_value_at(call.out.data, call.out.dtype, to + i * call.out_step,
                   convert_value<float>(v[i]));
    }
  }
}

}  // namespace cpd::cuda
