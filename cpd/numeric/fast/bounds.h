// SPDX-License-Identifier: Apache-2.0
//
// The bounds on operands and sums within which a fast path for sums of products is exact, and what
// the path does with values beyond the bounds.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "cpd/numeric/fast/asked.h"
#include "cpd/numeric/fast/stochastic_format.h"
#include "cpd/numeric/lanes/generic.h"
#include "cpd/numeric/lanes/isa.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/spec/format.h"

namespace cpd {

/// The number of successive values of k for which the bounds on operands are computed together: one
/// group.
constexpr int kRangeGroup = 8;
/// The number of products that Kahan's sum adds between two checks of its bound, which grows with
/// every product. The number divides kRangeGroup.
constexpr int kShortSteps = 2;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Bounds on the values of one panel (rows of a or columns of b that are packed together), for one
/// group of kRangeGroup successive values of k. A NaN counts as the largest value.
struct PanelRange {
  float largest = 0;  ///< max |x|
  float total = 0;    ///< for operand b: the sum over k of max |x| at that k
  /// The bitwise or of the fraction bits of all values in the panel (packed rows of a or columns of
  /// b). Stored only in the entry of the panel's first group.
  std::uint32_t fraction = 0;
  /// One entry for every two successive values of k: a power of two that divides all values at
  /// these k. 0 if the fast path does not need this number.
  float least_bit[kRangeGroup / 2] = {};
};

/// Returns the number of significant bits, 1…24, that suffices for every value of a set. `fraction`
/// is the bitwise or of the fraction bits of all values.
CPD_FN constexpr int significant_bits(std::uint32_t fraction) {
  int bits = 24;
  for (; bits > 1 && (fraction & 1) == 0; --bits) fraction >>= 1;
  return bits;
}

/// Returns a power of two that divides every value x of a set. `smallest` is the pattern of the
/// least nonzero |x|, and `fraction` is the bitwise or of the values' fraction bits.
CPD_FN constexpr double least_bit(std::uint32_t smallest, std::uint32_t fraction) {
  const int exponent = static_cast<int>(smallest >> 23 & 0xFF);
  return exact_power((exponent == 0 ? 1 : exponent) - 127 - (significant_bits(fraction) - 1));
}

/// The types of 16-bit lanes (kernels/cuda/halves.h).
enum class Half : std::uint8_t { none, fp16, bf16 };

/// The constants of the fast path `stochastic`. Binary32 lanes suffice while no value exceeds
/// 2^100. If `steady`, one check rules out overflow for 64 steps (in Kahan's sum: 24): no value of
/// these steps exceeds `limit` if the old sum plus all products of the steps is at most limit /
/// kSteadyGrowth.
struct StochasticPlan {
  bool fits_binary32 = false;
  bool in_binary32 = false;  ///< fits_binary32, and the formats' largest values are below 2^100
  /// The number of low bits of the random integer R that do not change the rounded result. Binary32
  /// lanes may omit these bits if binary32 holds a tile's products exactly. 0 if every bit has an
  /// effect, or if binary32 does not suffice.
  std::int32_t spare_bits = 0;
  bool on_grid = false;  ///< rounded products are multiples of the sum's least spacing
  bool steady = false;
  float limit = 0;
  StochasticFormat product, sum;
};
constexpr float kSteadyGrowth = 64;

/// The fast path of a sum of products, and the bounds on operands and sums within which the path is
/// exact.
struct FastPlan {
  FastPath path = FastPath::none;
  std::int32_t man_product = 0, man_sum = 0;
  double product_quantum = 0, sum_quantum = 0;  ///< least spacings
  bool keeps_negative_zero = false;             ///< the sum's format has -0
  /// The path checks the bounds and then adds `steps` rounded products without another check. Let s
  /// be the largest |sum|, c the largest |compensation| (of Kahan's sum), and p = |a||b| *
  /// product_growth + product_least an upper bound of |rounded product|. No result leaves the
  /// format if the sum of p is at most product_limit, and s * of_sum + c * of_compensation + (the
  /// sum of p) * of_products <= limit.
  std::int32_t steps = kShortSteps;
  float limit = 0, of_sum = 1, of_compensation = 0, of_products = 0;
  float product_growth = 1, product_least = 0;  ///< product_least is at least product_quantum
  float product_limit = 0;
  /// True for formats without mantissa bits. Ties then need the guarded roundings of
  /// veltkamp_rounding.h, which check for overflow.
  bool guarded = false;
  bool saturates = false;   ///< results beyond the limits are the formats' largest values
  bool takes_logs = false;  ///< the steps use the operands' logarithms (fixed_log)
  bool adds_exact = false;  ///< a product and a sum are rounded once together
  /// Packing computes PanelRange::least_bit, a power of two that divides all values of an operand,
  /// only if these values have at most this number of significant bits. The least_bit of a, times
  /// the least_bit of b, divides all products and their exact sums, and so limits the bits that the
  /// sums need. With more significant bits, products have too many bits for the path's steps
  /// anyway.
  std::int32_t least_bits_within = 0;
  Half half = Half::none;  ///< the 16-bit lanes that are exact within the same bounds too, if any
  StochasticPlan stochastic;
};

// --- what the bounds are for ---------------------------------------------------------------------

/// The way in which the steps of a fast path exclude, detect or saturate overflow.
enum class How : std::uint8_t {
  bounded,     ///< no result can overflow
  fits,        ///< no result can overflow, and exact sums are binary32 numbers
  parts,       ///< no result can overflow, and sums are below parts_limit
  guarded,     ///< overflows are detected afterwards
  saturating,  ///< overflows saturate
};
constexpr bool is_guarded(How how) { return how == How::guarded || how == How::saturating; }

/// Facts about a tile's products that follow from the tile's operands.
enum class ProductKind : std::uint8_t {
  any,
  exact,   ///< binary32 numbers; sums of exact products often are, too
  narrow,  ///< numbers of the products' format, which need no rounding
  few,     ///< numbers of so few bits that split_short can round them
};

// --- limits --------------------------------------------------------------------------------------

/// Returns an upper bound of the sum of the magnitudes of `count` rounded products. sum_ab is the
/// sum of |a||b| before rounding. Returns infinity if largest_b is NaN or above 2^100, because the
/// fast paths do not support such values. Returns NaN if a value of a is NaN.
CPD_FN constexpr float bound_products(const FastPlan& plan, float sum_ab, int count,
                                      float largest_b) {
  if (!(largest_b <= 0x1p100F)) return kInfinity;
  return sum_ab * plan.product_growth + static_cast<float>(count) * plan.product_least;
}
/// Returns a limit on s * of_sum + c * of_compensation: up to this limit, adding a group of
/// products cannot overflow. s bounds |sum|, and c bounds |compensation|; FastPlan has the
/// coefficients. `products` is the result of bound_products for the group. A negative result means
/// that no sum is small enough.
CPD_FN constexpr float sum_limit(const FastPlan& plan, float products) {
  return products <= plan.product_limit ? plan.limit - products * plan.of_products : -1.0F;
}
/// Returns the limit on |sum| below which binary32 holds the sum of `sum` and a group of exact
/// products without rounding. `products` is the result of bound_products. Each product is a
/// multiple of the power of two `least_bit`.
CPD_FN constexpr float exact_limit(const FastPlan& plan, float products, float least_bit) {
  const auto quantum = static_cast<float>(plan.sum_quantum);
  const float last = least_bit < quantum ? least_bit : quantum;
  return 0x1p24F * last - products * plan.of_products;
}

/// Returns whether split_fma_in_parts, which rounds s + a * b (veltkamp_rounding.h), supports exact
/// products a * b of up to `bits` significant bits.
CPD_FN constexpr bool adds_in_parts(const FastPlan& plan, int bits) {
  return bits + plan.man_sum <= 22;
}
/// Returns the largest |sum| to which split_fma_in_parts can add a group of products. `products` is
/// the result of bound_products for the group. A negative result means that no sum is small enough.
CPD_FN constexpr float parts_limit(const FastPlan& plan, float products) {
  const auto quantum = static_cast<float>(plan.sum_quantum);
  return products <= 0x1p22F * quantum ? 0x1p42F * quantum - products * plan.of_products : -1.0F;
}

// --- the bounds of Veltkamp's roundings ----------------------------------------------------------

/// The bound below which the magnet of every value is finite. The magnet is 2^(23 - man) times the
/// value; adding and subtracting it rounds the value.
constexpr float kMostWithMagnets = 0x1p100F;

/// Returns whether magnets (numbers whose addition rounds, veltkamp_rounding.h) can round into a
/// format. The format must have subnormals, zero and signs, and the least magnet must be a binary32
/// number.
constexpr bool takes_magnets(const Format& format, const RoundPlan& plan) {
  const bool grid = format.is_signed && format.subnormals && format.has_zero() && format.max() > 0;
  const int magnet = 24 + format.min_quantum_exponent();
  return grid && !plan.wide && magnet > -126 && magnet < 127;
}

/// Returns whether an overflow gives the largest finite value.
constexpr bool saturates(const RoundPlan& plan) {
  return !plan.overflow_is_nan && plan.overflow_value == plan.max_value;
}

/// Returns whether Veltkamp's roundings can add the terms of a sum. The mode must be nearest-even.
/// The format must have at most 11 significant bits, and takes_magnets must return true.
constexpr bool takes_veltkamp(const TermsAsked& asked) {
  return asked.round.mode == Rounding::nearest_even && asked.format != kFp32 &&
         takes_magnets(asked.format, asked.round) && asked.format.precision() <= 11;
}
/// Returns whether the roundings of powers_of_two.h, which use integer operations, support a sum.
/// The format must have -0 and no mantissa bits, and takes_veltkamp must return true.
constexpr bool takes_powers(const TermsAsked& asked) {
  return takes_veltkamp(asked) && asked.format.man == 0 && asked.round.keeps_negative_zero;
}

/// Returns the largest binary32 number that rounding to nearest, to man + 1 significant bits, maps
/// to `max`.
constexpr float most_rounded_to(float max, int man) {
  const auto pattern = std::bit_cast<std::uint32_t>(max);
  const auto binade = std::bit_cast<float>(pattern & 0x7F800000U);
  const float tie = max + binade * static_cast<float>(Format::power_of_two(-man - 1));
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(tie) - 1);
}
/// Returns the largest unrounded sum that rounds to a finite number of the format, but at most
/// 2^100. Veltkamp's roundings support unrounded sums up to this limit.
constexpr float limit_of(const TermsAsked& asked) {
  const float max = asked.round.max_value;
  return max < kMostWithMagnets ? most_rounded_to(max, asked.format.man) : kMostWithMagnets;
}

/// Sets plan.of_sum, plan.of_compensation and plan.of_products, the coefficients of a bound on
/// every intermediate result of plan.steps steps of Kahan's sum. Each rounding may err by `e` times
/// its result. The bound assumes that the first step adds all products, because a product
/// contributes most if it is added first.
constexpr void bound_kahan(FastPlan& plan, double e) {
  const auto up = [e](double x) { return x * (1 + e); };
  double bound[3] = {};
  for (int which = 0; which < 3; ++which) {
    double s = which == 0 ? 1 : 0;
    double c = which == 1 ? 1 : 0;
    double p = which == 2 ? 1 : 0;
    double most = 0;
    for (int step = 0; step < plan.steps; ++step, p = 0) {
      const double y = up(p + c);
      const double t = up(s + y);
      const double gained = up(y + e * t);  // t - s is y and t's error
      c = up(e * t + e * (y + e * t));
      s = t;
      if (gained > most) most = gained;
      if (s > most) most = s;
    }
    bound[which] = most;
  }
  plan.of_sum = static_cast<float>(bound[0]);
  plan.of_compensation = static_cast<float>(bound[1]);
  plan.of_products = static_cast<float>(bound[2]);
}

/// Sets the bounds on operands and sums (FastPlan) for a path that rounds every product and every
/// sum by Veltkamp's splitting (veltkamp_rounding.h).
constexpr void bound_veltkamp(FastPlan& plan, const ProductsAsked& asked) {
  const auto& [scheme, product, exact_products, sum, options, product_plan, sum_plan] = asked;
  plan.guarded = sum.man == 0 || (!exact_products && product.man == 0);
  plan.man_product = exact_products ? sum.man : product.man;
  plan.man_sum = sum.man;
  plan.keeps_negative_zero = sum_plan.keeps_negative_zero;
  plan.product_quantum =
      Format::power_of_two((exact_products ? sum : product).min_quantum_exponent());
  // Limits product_least to 2^-120 or more: with subnormal numbers, bound_products would be slow.
  plan.product_least =
      static_cast<float>(plan.product_quantum < 0x1p-120 ? 0x1p-120 : plan.product_quantum);
  plan.sum_quantum = Format::power_of_two(sum.min_quantum_exponent());
  const double half_place = Format::power_of_two(-sum.precision());
  plan.product_growth =
      static_cast<float>(1 + 2 * Format::power_of_two(-product.precision()) + 0x1p-20);
  plan.steps = kRangeGroup;
  if (scheme == Scheme::sequential) {
    // A product p changes a sum by at most 2 |p|. The old sum is a number of the format at distance
    // |p| from the exact new sum, and rounding takes the nearest number.
    plan.of_products = 2;
  } else if (scheme == Scheme::pairwise) {
    // In a pairwise sum, a group of kRangeGroup products is a tree of three levels.
    const double up = 1 + half_place;
    plan.of_products = static_cast<float>(up * up * up);
  } else {
    plan.steps = kShortSteps;
    bound_kahan(plan, half_place);
  }
  const double most = kMostWithMagnets;
  plan.limit = static_cast<float>(sum.max() < most ? sum.max() : most);
  plan.product_limit = static_cast<float>(exact_products         ? most
                                          : product.max() < most ? product.max()
                                                                 : most);
  const bool both_saturate = saturates(sum_plan) && (exact_products || saturates(product_plan));
  plan.saturates = both_saturate && sum.max() <= most && (exact_products || product.max() <= most);
}

}  // namespace cpd
