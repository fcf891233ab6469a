// SPDX-License-Identifier: Apache-2.0
//
// A matrix product on the CPU: blocks of sums, one thread's tasks.
#pragma once

#include <cstdint>

#include "cpd/base/product.h"
#include "cpd/numeric/accumulator_plan.h"
#include "cpd/numeric/given_draws.h"

namespace cpd {

/// One operand's scales, broadcast to the product. Strides: row_stride from one group of lines
/// (rows of a, columns of b) to the next, column_stride from one block of k to the next.
struct ScaleGrid {
  ProductOperand at{};  ///< fp32; no data: every scale is 1
  std::int64_t lines = 1, block = 1;
};
struct ScaleGrids {
  ScaleGrid a, b;
};

/// What a product's sums are multiplied by: with add_scaled of numeric/scaled_sum.h,
///   total = start; for each of `sums` blocks of k: total = add_scaled(total, of_sums, its sum);
///   result = add_scaled(c, factors, total).
struct ProductScales {
  std::int64_t sums = 0;   ///< how many blocks of k there are
  std::int64_t block = 0;  ///< values of k of each but the last
  std::int64_t draws = 0;  ///< random integers that the roundings of such a block take
  float start = 0;
  ScaleGrids of_sums, factors;
  ScaleGrids in_unit;  ///< of a matrix unit that takes scales
  ProductOperand c{};  ///< no data: -0
};

/// The product of MatrixProduct, its sums from product.c on; the default floating-point environment
/// is the kernels' own affair. `given` from the result's first element on. scales may be null.
void RunProduct(const MatrixProduct& product, const AccumulatorPlan& plan, GivenDraws given,
                const ProductScales* scales);

}  // namespace cpd
