// SPDX-License-Identifier: Apache-2.0
//
// A matrix product on the CPU: blocks of sums, one thread's tasks.
#pragma once

#include <cstdint>

#include "cpd/base/product.h"
#include "cpd/numeric/accumulator_plan.h"
#include "cpd/numeric/given_draws.h"

namespace cpd {

/// The product of MatrixProduct, its sums from product.c on; the default floating-point environment
/// is the kernels' own affair. `given` from the result's first element on. scales may be null.
void RunProduct(const MatrixProduct& product, const AccumulatorPlan& plan, GivenDraws given,
                const ProductScales* scales);

}  // namespace cpd
