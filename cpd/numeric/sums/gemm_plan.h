// SPDX-License-Identifier: Apache-2.0
//
// The plan of a sum of products: its roundings, and the fast path that computes the sum exactly.
#pragma once

#include <cstdint>

#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/fast/choose.h"
#include "cpd/numeric/lanes/isa.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/format.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// The roundings of a sum of products. (A chunked sum has two plans: a GemmPlan within a chunk, and
/// a FoldPlan over the chunks.)
struct GemmPlan {
  Scheme scheme = Scheme::sequential;  ///< sequential, kahan or pairwise
  bool exact_products = false;
  RoundPlan product;  ///< rounds products, unless exact_products
  RoundPlan sum;
  /// A product that is rounded may first be formed in binary32 if the significant bits of its two
  /// operands add up to at most this number. 0: no product may.
  int product_bits = 0;
  bool sum_in_binary32 = false;  ///< rounded products may be added in binary32 (see FoldPlan)
  FastPlan fast;
  /// The number of the first random integer (draw, philox.h) that the sum of the products a(k) *
  /// b(k) uses. order.h defines the numbers of the later random integers.
  std::uint64_t first_draw = 0;
};

/// Returns the number of the first random integer that the sum of the products uses. Integer 0
/// rounds the addend c. The products begin with the next block of four random words.
constexpr std::uint64_t first_draw(const RoundingOptions& options) {
  return 4 * static_cast<std::uint64_t>(draws_per_word(options.random_bits));
}

/// Returns whether a product of at most 24 bits may be formed in binary32 and then rounded into
/// `target`. This holds for rounding to nearest if bits below 2^-149, which binary32 loses, are far
/// below half the least spacing of `target`.
constexpr bool product_fits_binary32(const Format& target, Rounding mode) {
  return is_nearest(mode) && target.min_quantum_exponent() >= -120;
}

/// Returns whether binary32 lanes may form the products of two operands, and the products' sums.
/// Each argument is the bitwise or of the fraction bits of one operand's values.
CPD_FN constexpr bool fits_binary32(const GemmPlan& plan, std::uint32_t a_fraction,
                                    std::uint32_t b_fraction) {
  return plan.sum_in_binary32 &&
         significant_bits(a_fraction) + significant_bits(b_fraction) <= plan.product_bits;
}

/// Returns the plan of a sum of products that is not chunked. Products are rounded into `product`
/// (or are exact) and summed in `sum`. The plan may use the fast paths in the set `on`.
constexpr GemmPlan make_gemm_plan(Scheme scheme, const Format& product, bool exact_products,
                                  const Format& sum, const RoundingOptions& options,
                                  std::uint64_t first_draw, const RandomKey& key = {},
                                  FastPaths on = {}) {
  GemmPlan plan;
  plan.scheme = scheme;
  plan.exact_products = exact_products;
  plan.product = make_plan(product, options, key);
  plan.sum = make_plan(sum, options, key);
  plan.first_draw = first_draw;
  plan.fast =
      make_fast_plan({scheme, product, exact_products, sum, options, plan.product, plan.sum}, on);
  if (exact_products) return plan;
  if (!plan.product.wide && product_fits_binary32(product, options.mode)) plan.product_bits = 24;
  plan.sum_in_binary32 =
      !plan.sum.wide &&
      sum_is_exact_in_binary32(sum.precision(), product.precision(), sum, options.mode);
  return plan;
}

/// The fast path of a matrix product's tiles. A tile takes the fast path while its values are
/// within the path's bounds, and the general path otherwise.
struct GemmPath {
  FastPath path = FastPath::none;
  Half half = Half::none;  ///< 16-bit lanes of the path `veltkamp`
  /// True: the fast path requires that all products of a tile are binary32 numbers. This applies to
  /// paths that add exact products (kAddsExact) in lanes without instructions for directed
  /// rounding.
  bool wants_binary32 = false;
};

}  // namespace cpd
