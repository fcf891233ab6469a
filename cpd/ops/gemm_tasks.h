// SPDX-License-Identifier: Apache-2.0
//
// A matrix product on the CPU: blocks of sums, one thread's tasks.
#pragma once

#include <cstdint>
#include <span>

#include "cpd/base/product.h"
#include "cpd/numeric/draws/given_draws.h"
#include "cpd/numeric/units/accumulator_plan.h"
#include "cpd/ops/image_operand.h"

namespace cpd {

/// What stands in place of a product's operands and of its result; null: those of MatrixProduct.
struct ProductImages {
  const ImageOperand* a = nullptr;
  const ImageOperand* b = nullptr;
  const ImageOperand* out = nullptr;
  /// Where each chunk of a chunked sum ends, ascending up to the product's depth; one without
  /// products is left out. Empty: every `chunk` products.
  std::span<const std::int64_t> chunk_ends;
};

/// The product of MatrixProduct, its sums from product.c on; the default floating-point environment
/// is the kernels' own affair. `given` from the result's first element on. scales may be null.
void RunProduct(const MatrixProduct& product, const AccumulatorPlan& plan, GivenDraws given,
                const ProductScales* scales, const ProductImages& images = {});

}  // namespace cpd
