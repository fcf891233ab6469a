// SPDX-License-Identifier: Apache-2.0
//
// Determines which kernel computes a product, by the same conditions as the kernels. libcpd
// compiles this host code too, because cpd.explain must name the kernel even if the CUDA library is
// not loaded. Only one source file of each library may include this file.
#pragma once

#include "cpd/backend/backend.h"
#include "kernels/cuda/gemm_registers.h"
#include "kernels/cuda/gemm_stochastic.h"
#include "kernels/cuda/gemm_units.h"

namespace cpd::cuda {

/// Returns the kernel that computes a product. For `multiply_halves`, the launch may still choose
/// `multiply_wide`, if the larger tiles of `multiply_halves` would leave multiprocessors idle.
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
