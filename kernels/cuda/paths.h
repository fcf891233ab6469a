// SPDX-License-Identifier: Apache-2.0
//
// Which kernel computes a product, by the conditions that the kernels ask. Host code, which libcpd
// compiles, too: a thread explains without the CUDA library. One source of each library includes
// it.
#pragma once

#include "cpd/backend/backend.h"
#include "kernels/cuda/gemm_registers.h"
#include "kernels/cuda/gemm_stochastic.h"
#include "kernels/cuda/gemm_units.h"

namespace cpd::cuda {

/// A kernel `multiply_halves` is replaced by `multiply_wide` where the device's processors would be
/// left idle.
inline ProductPath path_of_product(const AccumulatorPlan& plan, bool given) {
  constexpr int kLanes = 32;
  const FastPlan& fast = plan.sum.fast;
  if (takes_wide(plan)) {
    const bool may_take_halves = fast.half != Half::none;
    return {{.path = fast.path, .half = fast.half},
            kLanes,
            may_take_halves ? "multiply_halves" : "multiply_wide"};
  }
  if (takes_units(plan)) return {{}, kLanes, "multiply_units"};
  const bool draws = !plan.ends_in_kernel() && may_take_short_steps(plan.sum) && !given;
  return {{.path = draws ? plan.sum.fast.path : FastPath::none}, kLanes, "multiply"};
}

}  // namespace cpd::cuda
