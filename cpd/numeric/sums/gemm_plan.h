// SPDX-License-Identifier: Apache-2.0
//
// The plan of a sum of products: its roundings, and the route by which it is exact.
#pragma once

#include <cstdint>
#include <limits>

#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/lanes/isa.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/sums/stochastic_format.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/format.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// Values of k whose operands are bounded together.
constexpr int kRangeGroup = 8;
/// Steps between two checks of sums whose bound grows with them (Kahan); divides kRangeGroup.
constexpr int kShortSteps = 2;

/// Bounds on one group of k in one packed panel of an operand; NaN counts as the largest.
struct PanelRange {
  float largest = 0;           ///< max |x|
  float total = 0;             ///< operand b: the sum over k of the max of |x| at that k
  std::uint32_t fraction = 0;  ///< the fraction bits of all values, or-ed (the panel's first group)
  /// For each pair of k: the least last bit of a nonzero; 0 where none was asked for.
  float least_bit[kRangeGroup / 2] = {};
};

/// The most significant bits that values have, from their or-ed fraction bits: 1…24.
CPD_FN constexpr int significant_bits(std::uint32_t fraction) {
  int bits = 24;
  for (; bits > 1 && (fraction & 1) == 0; --bits) fraction >>= 1;
  return bits;
}

/// A number of which values are multiples, from the pattern of the least |x| that is not 0 and
/// their fraction bits together.
CPD_FN constexpr double least_bit(std::uint32_t smallest, std::uint32_t fraction) {
  const int exponent = static_cast<int>(smallest >> 23 & 0xFF);
  return exact_power((exponent == 0 ? 1 : exponent) - 127 - (significant_bits(fraction) - 1));
}

/// Types of 16-bit lanes (kernels/cuda/halves.h).
enum class Half : std::uint8_t { none, fp16, bf16 };

/// The short route of a sum of products (split.h), and the bounds within which it is exact.
struct SplitPlan {
  Split kind = Split::none;
  std::int32_t man_product = 0, man_sum = 0;
  double product_quantum = 0, sum_quantum = 0;  ///< least spacings
  /// Sums up to s and compensations up to c stay within the format while `steps` rounded products
  /// of sizes p are added, where s * of_sum + c * of_compensation + (the sum of p) * of_products <=
  /// limit and the sum of p <= product_limit. A rounded product's p is |a||b| * product_growth +
  /// product_quantum.
  std::int32_t steps = kShortSteps;
  float limit = 0, of_sum = 1, of_compensation = 0, of_products = 0;
  float product_growth = 1, product_least = 0;  ///< the second at least product_quantum
  float product_limit = 0;
  bool guarded = false;    ///< man = 0: ties need split.h's guarded roundings
  bool saturates = false;  ///< results beyond the limits are the formats' largest values
  Half half = Half::none;  ///< kind `rounded`: lanes that are exact within the same bounds, too
};

/// The bound of values below which split.h's magnets, 2^(23 - man) times them, are finite.
constexpr float kMostWithMagnets = 0x1p100F;

/// Constants where GemmPlan::split's kind is `stochastic`. Binary32 lanes suffice where no value
/// exceeds 2^100. With `steady`, no value exceeds `limit` in 64 steps (in Kahan's sum 24) before
/// which the sums and all the products together are at most limit / kSteadyGrowth.
struct StochasticPlan {
  bool fits_binary32 = false;
  bool in_binary32 = false;  ///< fits, and the formats end below 2^100
  /// The low bits of R without effect, which binary32 omits where products are exact; 0: none, or
  /// binary32 does not suffice.
  std::int32_t spare_bits = 0;
  bool on_grid = false;  ///< rounded products are multiples of the sum's least spacing
  bool steady = false;
  float limit = 0;
  StochasticFormat product, sum;
};
constexpr float kSteadyGrowth = 64;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A bound of the sum of p (SplitPlan) over `count` products whose |a||b| sum to sum_ab; Inf where
/// an operand of b is NaN or so large that its product with a magnet's factor may not be finite,
/// NaN where one of a is.
CPD_FN constexpr float bound_products(const SplitPlan& split, float sum_ab, int count,
                                      float largest_b) {
  if (!(largest_b <= 0x1p100F)) return kInfinity;
  return sum_ab * split.product_growth + static_cast<float>(count) * split.product_least;
}
/// The most that s * of_sum + c * of_compensation may be before products whose p sum to
/// `products`; negative: no sum is small enough.
CPD_FN constexpr float sum_limit(const SplitPlan& split, float products) {
  return products <= split.product_limit ? split.limit - products * split.of_products : -1.0F;
}
/// The size below which sums remain binary32 numbers after each of such exact products, whose least
/// last bit is least_bit.
CPD_FN constexpr float exact_limit(const SplitPlan& split, float products, float least_bit) {
  const auto quantum = static_cast<float>(split.sum_quantum);
  const float last = least_bit < quantum ? least_bit : quantum;
  return 0x1p24F * last - products * split.of_products;
}

/// Returns whether split_fma_in_parts (split.h) adds products of `bits` significant bits.
CPD_FN constexpr bool adds_in_parts(const SplitPlan& split, int bits) {
  return bits + split.man_sum <= 22;
}
/// The size below which it adds such products to sums; negative: no sum is small enough.
CPD_FN constexpr float parts_limit(const SplitPlan& split, float products) {
  const auto quantum = static_cast<float>(split.sum_quantum);
  return products <= 0x1p22F * quantum ? 0x1p42F * quantum - products * split.of_products : -1.0F;
}

/// The roundings of a sum of products. (A chunked sum is two: this one within a chunk, and
/// FoldPlan's over the chunks.)
struct GemmPlan {
  Scheme scheme = Scheme::sequential;  ///< sequential, kahan or pairwise
  bool exact_products = false;
  RoundPlan product;  ///< unless exact_products
  RoundPlan sum;
  /// Rounded products may be formed in binary32 where the operands' significant bits add up to at
  /// most this; 0: never.
  int product_bits = 0;
  bool sum_in_binary32 = false;  ///< rounded products may be added in binary32 (see FoldPlan)
  SplitPlan split;
  StochasticPlan stochastic;
  /// The loop's first draw is number first_draw (philox.h); product k takes the draws from
  /// first_draw + draws_of_products(k) on.
  std::uint64_t first_draw = 0;
};

/// The number of the loop's first draw: draw 0 is c's, the loop's begin with the next block of
/// random words.
constexpr std::uint64_t first_draw(const RoundingOptions& options) {
  return 4 * static_cast<std::uint64_t>(draws_per_word(options.random_bits));
}

/// Returns whether the short route needs the operands' logarithms (fixed_log).
constexpr bool takes_logs(const SplitPlan& split) {
  return split.kind == Split::rounded || split.kind == Split::kahan || split.kind == Split::tree;
}

/// The significant bits up to which a short route asks for the least last bits of a panel's values,
/// of which products of few bits and exact sums are multiples; the other operand has one bit or
/// more.
constexpr int least_bits_within(const SplitPlan& split) {
  if (split.kind == Split::exact) return 24;
  return takes_logs(split) ? split.man_product : 0;
}

/// The number of floats of state of a sum of `depth` products: the sum; Kahan's compensation; a
/// tree's nodes of 2, 4, 8, … products.
constexpr int planes_of(Scheme scheme, std::int64_t depth) {
  if (scheme == Scheme::kahan) return 2;
  int planes = 1;
  if (scheme == Scheme::pairwise) {
    for (std::int64_t products = 2; products <= depth; products *= 2) ++planes;
  }
  return planes;
}

/// The number of draws that the first k products, and the sums that follow each, take.
CPD_FN constexpr std::uint64_t draws_of_products(const GemmPlan& plan, std::int64_t k) {
  const auto products = static_cast<std::uint64_t>(k);
  std::uint64_t sums = products;
  if (plan.scheme == Scheme::kahan) sums *= 4;
  if (plan.scheme == Scheme::pairwise) {
    for (std::uint64_t rest = products; rest != 0; rest &= rest - 1) --sums;  // trees still open
  }
  return sums + (plan.exact_products ? 0 : products);
}

/// Returns whether a product of at most 24 bits may be formed in binary32 and rounded again by the
/// mode: to nearest, where the bits that it loses below 2^-149 are far below half the least
/// spacing.
constexpr bool product_fits_binary32(const Format& target, Rounding mode) {
  return is_nearest(mode) && target.min_quantum_exponent() >= -120;
}

/// Returns whether products of operands with these or-ed fraction bits, and their sums, may use
/// binary32 lanes.
CPD_FN constexpr bool fits_binary32(const GemmPlan& plan, std::uint32_t a_fraction,
                                    std::uint32_t b_fraction) {
  return plan.sum_in_binary32 &&
         significant_bits(a_fraction) + significant_bits(b_fraction) <= plan.product_bits;
}

/// Sets the coefficients of s, c and the products in a bound of every intermediate of `steps`
/// steps, where each rounding errs by at most `e` of its result. A product counts most where it
/// comes first.
constexpr void bound_growth(SplitPlan& split, double e) {
  const auto up = [e](double x) { return x * (1 + e); };
  double bound[3] = {};
  for (int which = 0; which < 3; ++which) {
    double s = which == 0 ? 1 : 0;
    double c = which == 1 ? 1 : 0;
    double p = which == 2 ? 1 : 0;
    double most = 0;
    for (int step = 0; step < split.steps; ++step, p = 0) {
      if (split.kind == Split::kahan) {
        const double y = up(p + c);
        const double t = up(s + y);
        const double gained = up(y + e * t);  // t - s is y and t's error
        c = up(e * t + e * (y + e * t));
        s = t;
        if (gained > most) most = gained;
      } else {
        s = up(s + p);
      }
      if (s > most) most = s;
    }
    bound[which] = most;
  }
  split.of_sum = static_cast<float>(bound[0]);
  split.of_compensation = static_cast<float>(bound[1]);
  split.of_products = static_cast<float>(bound[2]);
}

constexpr Format format_of(Half half) {
  return half == Half::bf16 ? Format{.exp = 8, .man = 7, .bias = 127}
                            : Format{.exp = 5, .man = 10, .bias = 15};
}

/// Returns whether split_short's products and split's sums are exact in lanes of a type, up to the
/// limits: a sum rounded to its 2p + 2 bits may be rounded again (Figueroa 1995), it holds the
/// magnets, and what it has no normal numbers for is at most half a product's least spacing.
constexpr bool splits_in(Half half, const Format& product, const Format& sum,
                         const SplitPlan& split) {
  const Format lanes = format_of(half);
  const auto has_magnets = [&](double most, int man) {
    return most * (1 + Format::power_of_two(lanes.man - man)) <= lanes.max();
  };
  return 2 * sum.precision() + 2 <= lanes.precision() &&
         sum.min_quantum_exponent() >= lanes.min_quantum_exponent() &&
         product.min_quantum_exponent() > lanes.emin() &&
         has_magnets(split.product_limit, product.man) && has_magnets(split.limit, sum.man);
}
constexpr Half half_of(const Format& product, const Format& sum, const SplitPlan& split) {
  if (split.kind != Split::rounded || split.guarded) return Half::none;
  for (const Half half : {Half::fp16, Half::bf16}) {
    if (splits_in(half, product, sum, split)) return half;
  }
  return Half::none;
}

/// Returns whether overflow gives the largest finite value.
constexpr bool saturates(const RoundPlan& plan) {
  return !plan.overflow_is_nan && plan.overflow_value == plan.max_value;
}

/// Why a sum of products has no short path.
enum class NoSplit : std::uint8_t {
  has_one,
  mode,            ///< the rounding mode
  variant,         ///< variant B or C of stochastic rounding
  exact_products,  ///< exact products, which only a sequential sum adds in a short path
  special_values,  ///< a format without sign, zero or subnormals, or beyond binary32's range
  grid,            ///< the products' least spacing is below the sums'
  precision,       ///< more significant bits than binary32 rounds twice, or exactly, by additions
  powers,          ///< a pairwise sum in a format of powers of two
};
struct SplitChoice {
  Split kind = Split::none;
  NoSplit why = NoSplit::has_one;
};

/// The short path of one level of sums, as make_gemm_plan has it.
constexpr SplitChoice choose_split(Scheme scheme, const Format& product, bool exact_products,
                                   const Format& sum, const RoundingOptions& options,
                                   const RoundPlan& product_plan, const RoundPlan& sum_plan) {
  const auto none = [](NoSplit why) { return SplitChoice{Split::none, why}; };
  if (options.mode == Rounding::stochastic) {
    if (options.variant != Variant::A) return none(NoSplit::variant);
    const bool splits = splits_stochastic(sum) && (exact_products || splits_stochastic(product));
    return splits ? SplitChoice{Split::stochastic} : none(NoSplit::special_values);
  }
  if (options.mode != Rounding::nearest_even) return none(NoSplit::mode);
  if (exact_products && scheme != Scheme::sequential) return none(NoSplit::exact_products);
  if (options.overflow == Overflow::ieee && sum == kFp32 && (exact_products || product == kFp32)) {
    return {scheme == Scheme::kahan      ? Split::plain_kahan
            : scheme == Scheme::pairwise ? Split::plain_tree
                                         : Split::plain};
  }
  if (!takes_magnets(sum, sum_plan)) return none(NoSplit::special_values);
  if (exact_products) {
    return sum.precision() <= 11 ? SplitChoice{Split::exact} : none(NoSplit::precision);
  }
  if (!takes_magnets(product, product_plan)) return none(NoSplit::special_values);
  // Sums of multiples of the least spacing need no rounding below 2^emin, and binary32 sums may be
  // rounded again (sum_is_exact_in_binary32).
  if (product.min_quantum_exponent() < sum.min_quantum_exponent()) return none(NoSplit::grid);
  if (product.precision() > sum.precision() || 2 * sum.precision() + 2 > 24) {
    return none(NoSplit::precision);
  }
  if (scheme == Scheme::kahan) return {Split::kahan};
  if (scheme != Scheme::pairwise) return {Split::rounded};
  const bool powers = sum.man == 0 || product.man == 0;
  return powers ? none(NoSplit::powers) : SplitChoice{Split::tree};
}

constexpr bool is_binary32(Split kind) {
  return kind == Split::plain || kind == Split::plain_kahan || kind == Split::plain_tree;
}

constexpr SplitPlan make_split_plan(Scheme scheme, const Format& product, bool exact_products,
                                    const Format& sum, const RoundingOptions& options,
                                    const RoundPlan& product_plan, const RoundPlan& sum_plan) {
  SplitPlan split;
  split.kind =
      choose_split(scheme, product, exact_products, sum, options, product_plan, sum_plan).kind;
  if (split.kind == Split::none || split.kind == Split::stochastic || is_binary32(split.kind)) {
    return split;
  }
  split.guarded = sum.man == 0 || (!exact_products && product.man == 0);
  split.man_product = exact_products ? sum.man : product.man;
  split.man_sum = sum.man;
  split.product_quantum =
      Format::power_of_two((exact_products ? sum : product).min_quantum_exponent());
  // A subnormal one would cost every bound a microcode assist.
  split.product_least =
      static_cast<float>(split.product_quantum < 0x1p-120 ? 0x1p-120 : split.product_quantum);
  split.sum_quantum = Format::power_of_two(sum.min_quantum_exponent());
  const double half_place = Format::power_of_two(-sum.precision());
  split.product_growth =
      static_cast<float>(1 + 2 * Format::power_of_two(-product.precision()) + 0x1p-20);
  if (split.kind == Split::rounded || split.kind == Split::exact) {
    // A rounded sum is no further from the exact one than the old sum is.
    split.steps = kRangeGroup;
    split.of_products = 2;
  } else if (split.kind == Split::tree) {
    // A group is three levels deep.
    split.steps = kRangeGroup;
    const double up = 1 + half_place;
    split.of_products = static_cast<float>(up * up * up);
  } else {
    split.steps = kShortSteps;
    bound_growth(split, half_place);
  }
  const double most = kMostWithMagnets;
  split.limit = static_cast<float>(sum.max() < most ? sum.max() : most);
  split.product_limit = static_cast<float>(exact_products         ? most
                                           : product.max() < most ? product.max()
                                                                  : most);
  const bool both_saturate = saturates(sum_plan) && (exact_products || saturates(product_plan));
  split.saturates = both_saturate && sum.max() <= most && (exact_products || product.max() <= most);
  split.half = half_of(product, sum, split);
  return split;
}

/// The number of R's low bits that have no effect, if binary32 then suffices, else 0. Where sums
/// have at most 22 bits from max to the least spacing, p + N' = 22 bits are all of them, so that
/// R's last N - N' bits have no effect; so for exact products.
constexpr int stochastic_spare_bits(const Format& format, int random_bits) {
  const int met = 22 - format.precision();
  const bool all = 2 * format.max() <=
                   Format::power_of_two(format.min_quantum_exponent() + format.precision() + met);
  return all && met > 0 && met < random_bits && stochastic_fits_binary32(format, met)
             ? random_bits - met
             : 0;
}

constexpr StochasticPlan make_stochastic_plan(Scheme scheme, bool exact_products,
                                              const Format& product, const Format& sum,
                                              const RoundPlan& product_plan,
                                              const RoundPlan& sum_plan) {
  StochasticPlan plan;
  plan.product = stochastic_format(product, product_plan);
  plan.sum = stochastic_format(sum, sum_plan);
  const bool same_grid = product.min_quantum_exponent() >= sum.min_quantum_exponent();
  plan.on_grid = sum.man > 0 && (exact_products || same_grid);
  // A tree's first product is unrounded: binary64 holds it exactly.
  const bool alone = exact_products && scheme == Scheme::pairwise;
  const double most = Format::power_of_two(100);
  const int bits = sum_plan.random_bits;
  plan.fits_binary32 = !alone && stochastic_fits_binary32(sum, bits) &&
                       (exact_products || stochastic_fits_binary32(product, bits));
  plan.in_binary32 =
      plan.fits_binary32 && sum.max() < most && (exact_products || product.max() < most);
  if (!exact_products && product == sum && plan.on_grid) {
    plan.spare_bits = stochastic_spare_bits(sum, bits);
  }
  // A step's values are at most (1 + 8 * 2^-man) times the old ones and the product together.
  const double largest = exact_products || sum.max() < product.max() ? sum.max() : product.max();
  plan.steady = plan.on_grid && scheme != Scheme::pairwise && sum.man >= 7 &&
                (exact_products || product.man >= 7);
  plan.limit = static_cast<float>(!plan.fits_binary32 || largest < most ? largest : most);
  return plan;
}

/// The plan of one level of sums: products rounded into `product` (or exact), summed in `sum`.
constexpr GemmPlan make_gemm_plan(Scheme scheme, const Format& product, bool exact_products,
                                  const Format& sum, const RoundingOptions& options,
                                  std::uint64_t first_draw, const RandomKey& key = {}) {
  GemmPlan plan;
  plan.scheme = scheme;
  plan.exact_products = exact_products;
  plan.product = make_plan(product, options, key);
  plan.sum = make_plan(sum, options, key);
  plan.first_draw = first_draw;
  plan.split =
      make_split_plan(scheme, product, exact_products, sum, options, plan.product, plan.sum);
  if (plan.split.kind == Split::stochastic) {
    plan.stochastic =
        make_stochastic_plan(scheme, exact_products, product, sum, plan.product, plan.sum);
  }
  if (exact_products) return plan;
  if (!plan.product.wide && product_fits_binary32(product, options.mode)) plan.product_bits = 24;
  plan.sum_in_binary32 =
      !plan.sum.wide &&
      sum_is_exact_in_binary32(sum.precision(), product.precision(), sum, options.mode);
  return plan;
}

/// The path of a product's tiles. Each tile takes the path while its values are within the path's
/// bounds, and the general one otherwise.
struct GemmPath {
  Split kind = Split::none;  ///< none: the general path
  Half half = Half::none;    ///< 16-bit lanes of kind `rounded`
  /// Of kind `exact`: whether a tile also takes the general path where a product is not a binary32
  /// number, for want of instructions that round to a given direction.
  bool wants_binary32 = false;
};

}  // namespace cpd
