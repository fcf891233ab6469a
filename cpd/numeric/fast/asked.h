// SPDX-License-Identifier: Apache-2.0
//
// The question that each fast path answers (`applies`): does the path give the bits of this sum? A
// path answers NoPath::has_one for yes. The path is then exact for values within the bounds that
// its plan states (bounds.h).
#pragma once

#include <cstdint>

#include "cpd/numeric/fast/fast_path.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/format.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// The reason why a fast path does not take a sum; `has_one` means that the path takes the sum.
enum class NoPath : std::uint8_t {
  has_one,
  other,           ///< the path is for other sums; another path gives the reason
  mode,            ///< the rounding mode
  variant,         ///< variant B or C of stochastic rounding
  exact_products,  ///< exact products, which only a sequential sum adds in a fast path
  special_values,  ///< a format without sign, zero or subnormals, or beyond binary32's range
  grid,            ///< the products' least spacing is below the sums'
  /// The format has too many significant bits: binary32 can neither hold the sums exactly nor round
  /// them twice without an error.
  precision,
  powers,        ///< a pairwise sum in a format of powers of two
  switched_off,  ///< the path is switched off by CPD_FAST
};

/// Describes a sum of products, whose products and partial sums are rounded.
struct ProductsAsked {
  Scheme scheme = Scheme::sequential;  ///< sequential, kahan or pairwise
  Format product;
  bool exact_products = false;
  Format sum;
  RoundingOptions options;
  RoundPlan product_plan, sum_plan;
};

/// Describes an ordered sum of terms. The terms are numbers of the format `terms_in`.
struct TermsAsked {
  Scheme scheme = Scheme::sequential;
  Format format;
  Format terms_in;
  RoundPlan round;

  /// Returns whether `format` contains every term. This is so if `terms_in` has at most as many
  /// significant bits as `format`, and the smallest spacing of numbers in `terms_in` is not below
  /// the smallest spacing in `format`.
  [[nodiscard]] constexpr bool are_known() const {
    return terms_in.precision() <= format.precision() &&
           terms_in.min_quantum_exponent() >= format.min_quantum_exponent();
  }
};

/// Returns the reason why a path that rounds to nearest-even does not take a sum with another
/// rounding mode. The reason is NoPath::mode, or NoPath::other for mode stochastic, which the path
/// `stochastic` serves.
constexpr NoPath no_nearest_even(Rounding mode) {
  return mode == Rounding::stochastic ? NoPath::other : NoPath::mode;
}

/// The base class of fast paths that add terms but not products. Such a path refuses every sum of
/// products, with the reason NoPath::other.
struct OfTermsAlone {
  static constexpr bool kTakesProducts = false;
  static constexpr bool kStochastic = false;
  static constexpr NoPath applies(const ProductsAsked& /*asked*/) { return NoPath::other; }
};

/// The fast path of a sum. If no fast path takes the sum, `path` is FastPath::none, and `why` is
/// the reason.
struct FastChoice {
  FastPath path = FastPath::none;
  NoPath why = NoPath::mode;
};

}  // namespace cpd
