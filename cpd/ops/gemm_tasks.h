// SPDX-License-Identifier: Apache-2.0
//
// A matrix product on the CPU, divided into blocks of sums, the threads' tasks.
#pragma once

#include <cstdint>
#include <span>

#include "cpd/base/product.h"
#include "cpd/numeric/draws/given_draws.h"
#include "cpd/numeric/units/accumulator_plan.h"
#include "cpd/ops/image_operand.h"

namespace cpd {

/// Images in place of a product's operands and of its result; null: those of MatrixProduct.
struct ProductImages {
  const ImageOperand* a = nullptr;
  const ImageOperand* b = nullptr;
  const ImageOperand* out = nullptr;
  /// The ends of the chunks of a chunked sum in ascending order; the last is the product's depth. A
  /// chunk without products is skipped. If the span is empty, every `chunk` products are a chunk.
  std::span<const std::int64_t> chunk_ends;
};

/// Where this thread explains: begins the explanation of a product of `depth` values of k. given:
/// whether the caller gives the random integers.
void NotePathOfProduct(const char* function, const Accumulator& accumulator, std::int64_t depth,
                       bool given, const TensorView& out);

/// Computes a MatrixProduct, its sums starting from product.c; kernels set the floating-point
/// environment themselves. `given`: the draws from the result's first element on. scales may be
/// null.
void RunProduct(const MatrixProduct& product, const AccumulatorPlan& plan, GivenDraws given,
                const ProductScales* scales, const ProductImages& images = {});

}  // namespace cpd
