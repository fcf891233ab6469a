// SPDX-License-Identifier: Apache-2.0
//
// What the GPU's library runs for a product, by the conditions that it asks itself.
#include "cpd/backend/cuda.h"
#include "kernels/cuda/gemm_short.h"
#include "kernels/cuda/gemm_stochastic.h"
#include "kernels/cuda/gemm_units.h"

namespace cpd::cuda {

PathOnGpu PathOfProduct(const AccumulatorPlan& plan, bool given) {
  const SplitPlan& split = plan.sum.split;
  if (takes_wide(plan)) {
    const bool may_take_halves = split.half != Half::none;
    return {{.kind = split.kind, .half = split.half},
            may_take_halves ? "multiply_halves" : "multiply_wide"};
  }
  if (takes_units(plan)) return {{}, "multiply_units"};
  const bool draws = !plan.ends_in_kernel() && may_take_short_steps(plan.sum) && !given;
  return {{.kind = draws ? Split::stochastic : Split::none}, "multiply"};
}

}  // namespace cpd::cuda
