// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpd/numeric/sums/fixed_plan.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/numeric/sums/order.h"
#include "cpd/numeric/units/block_fma.h"

namespace cpd {

/// An accumulator as constants for the kernels of a matrix product. `sum` is the plan of the sum of
/// the products (if chunked: of one chunk), and `outer` the plan of the sum of the chunks' sums.
struct AccumulatorPlan {
  Scheme scheme = Scheme::sequential;
  FoldPlan first;          ///< rounds c, by draw 0 (the first random integer)
  GemmPlan sum;            ///< for all schemes but block_fma and fixed
  FoldPlan outer;          ///< for chunked
  std::int64_t chunk = 0;  ///< terms per chunk; 0: not chunked
  BlockFmaPlan unit;       ///< for block_fma
  FixedPlan fixed;         ///< for fixed, which rounds c itself
  int planes = 1;          ///< floats of state for each sum, without the chunks' outer sum

  /// Returns whether the kernel of the products rounds the finished sum into the accumulator's
  /// format.
  [[nodiscard]] constexpr bool ends_in_kernel() const {
    return scheme == Scheme::block_fma || scheme == Scheme::fixed;
  }
};

/// The scheme and formats of the sum to which each product is added. A chunked accumulator has one
/// such sum for each chunk, any other accumulator one for all products.
struct InnerSum {
  Scheme scheme;
  Format product, sum;
};
constexpr InnerSum inner_sum(const Accumulator& accumulator) {
  const bool chunked = accumulator.scheme == Scheme::chunked;
  return {chunked ? Scheme::sequential : accumulator.scheme,
          accumulator.product.value_or(accumulator.format),
          chunked ? accumulator.inner.value_or(accumulator.format) : accumulator.format};
}

/// Returns the plan of an accumulator. The plan may use the fast paths in the set `on`. `depth` is
/// the number of products of a sum, and `key` selects the random bits of the roundings.
constexpr AccumulatorPlan make_accumulator_plan(const Accumulator& accumulator, std::int64_t depth,
                                                const RandomKey& key = {}, FastPaths on = {}) {
  AccumulatorPlan plan;
  plan.scheme = accumulator.scheme;
  Format start = accumulator.format;
  RoundingOptions first = accumulator.rounding;
  if (accumulator.scheme == Scheme::block_fma) {
    const BlockFma unit = accumulator.unit.value_or(BlockFma{});
    plan.unit = make_block_fma_plan(accumulator, key);
    plan.planes = plan.unit.planes;
    if (unit.promote == 0) {
      start = unit.sum;
      first = RoundingOptions{};
      first.mode = unit.rounding;
    }
  } else if (accumulator.scheme == Scheme::fixed) {
    plan.fixed = make_fixed_plan(accumulator);
    plan.sum.exact_products = true;
    plan.planes = plan.fixed.planes;
  } else {
    const InnerSum inner = inner_sum(accumulator);
    plan.sum = make_gemm_plan(inner.scheme, inner.product, accumulator.exact_products, inner.sum,
                              accumulator.rounding, first_draw(accumulator.rounding), key, on);
    plan.planes = planes_of_sum(inner.scheme, depth);
    if (accumulator.scheme == Scheme::chunked) {
      plan.chunk = accumulator.chunk;
      plan.outer =
          make_fold_plan({start, Scheme::sequential, accumulator.rounding}, inner.sum, key, on);
    }
  }
  plan.first = make_fold_plan({start, Scheme::sequential, first}, kFp32, key, on);
  return plan;
}

}  // namespace cpd
