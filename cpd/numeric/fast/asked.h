// SPDX-License-Identifier: Apache-2.0
//
// The question that a fast path answers (applies): does it give the bits of this sum? A path that
// answers NoPath::has_one is exact within the bounds that its plan states (bounds.h).
#pragma once

#include <cstdint>

#include "cpd/numeric/fast/fast_path.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/format.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// Why a sum takes the general path.
enum class NoPath : std::uint8_t {
  has_one,
  other,           ///< the path is for other sums; another path says why
  mode,            ///< the rounding mode
  variant,         ///< variant B or C of stochastic rounding
  exact_products,  ///< exact products, which only a sequential sum adds in a fast path
  special_values,  ///< a format without sign, zero or subnormals, or beyond binary32's range
  grid,            ///< the products' least spacing is below the sums'
  precision,       ///< more significant bits than binary32 rounds twice, or exactly, by additions
  powers,          ///< a pairwise sum in a format of powers of two
  switched_off,    ///< CPD_FAST
};

/// One level of sums of products.
struct ProductsAsked {
  Scheme scheme = Scheme::sequential;  ///< sequential, kahan or pairwise
  Format product;
  bool exact_products = false;
  Format sum;
  RoundingOptions options;
  RoundPlan product_plan, sum_plan;
};

/// An ordered sum of terms, numbers of `terms_in`.
struct TermsAsked {
  Scheme scheme = Scheme::sequential;
  Format format;
  Format terms_in;
  RoundPlan round;

  /// Returns whether every term is a number of `format`, or of a coarser one.
  [[nodiscard]] constexpr bool are_known() const {
    return terms_in.precision() <= format.precision() &&
           terms_in.min_quantum_exponent() >= format.min_quantum_exponent();
  }
};

/// The answer of a path that rounds to nearest-even, for another mode.
constexpr NoPath no_nearest_even(Rounding mode) {
  return mode == Rounding::stochastic ? NoPath::other : NoPath::mode;
}

/// Answers for paths that take sums of terms alone, or of products alone.
struct OfTermsAlone {
  static constexpr bool kTakesProducts = false;
  static constexpr bool kStochastic = false;
  static constexpr NoPath applies(const ProductsAsked& /*asked*/) { return NoPath::other; }
};

/// A path, and why there is none.
struct FastChoice {
  FastPath path = FastPath::none;
  NoPath why = NoPath::mode;
};

}  // namespace cpd
