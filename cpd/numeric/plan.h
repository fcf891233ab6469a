// SPDX-License-Identifier: Apache-2.0
//
// Plans: a format and its rounding options turned into the constants that the kernels need, and the
// one place that decides which route is exact. Plain data, so that every ISA's object and the GPU
// read the same.
#pragma once

#include <cstdint>
#include <limits>

#include "cpd/numeric/accumulator.h"
#include "cpd/numeric/format.h"
#include "cpd/numeric/lanes.h"  // CPD_FN: what kernels call must be inlined
#include "cpd/numeric/rounding.h"

namespace cpd {

/// Where a format's grid lies in binary32 or binary64.
struct Grid {
  std::int32_t emin_field = 0;  ///< biased exponent field of 2^emin
  std::int32_t cut = 0;         ///< fraction bits that a normal number drops
};

/// How much of a plan is known when a kernel is compiled.
enum class Form : std::uint8_t {
  general,   ///< nothing
  simple,    ///< signed, with zero, -0 and subnormals, and overflow is not NaN
  addition,  ///< simple, nearest-even, and binary32 addition does the rounding (round.h)
  scaled,    ///< simple, stochastic A, and a power of two makes R's bits below 2^emin integers
  in_place,  ///< simple, nearest-even, with binary32's own exponents
};

/// Everything that rounding into one format needs.
struct RoundPlan {
  Rounding mode = Rounding::nearest_even;
  Variant variant = Variant::A;
  std::int32_t random_bits = kMaxRandomBits;
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;

  Grid grid32, grid64;
  bool wide = false;  ///< the grid leaves binary32's normal range: round from binary64
  Form form = Form::simple;
  bool plain = true;   ///< signed, with -0: the sign bit is simply kept
  bool flush = false;  ///< no subnormals
  bool is_signed = true;
  bool has_zero = true;
  bool has_nan = true;
  bool has_inf = true;
  bool keeps_negative_zero = true;
  bool overflow_is_nan = false;
  bool negative_is_nan = false;  ///< unsigned: what a negative number becomes

  std::int32_t man = 23;
  std::int32_t bits = 32;
  std::int32_t max_code = 0;
  std::int32_t inf_code = 0;
  std::int32_t min_normal_code = 0;
  std::int32_t overflow_code = 0;  ///< magnitude code, unless overflow_is_nan
  std::uint32_t nan_code = 0;      ///< whole code
  std::int32_t beyond =
      0;  ///< nearest-even by addition: a pattern that overflows, and whose sum does not
  float max_value = 0;
  /// Form::scaled: patterns below `scaled_below` are multiplied by 2^(man + N - emin). With
  /// binary32's own exponents there are none.
  std::int32_t scaled_below = 0;
  float to_units = 0;
  float overflow_value = 0;
  float lowest_value = 0;          ///< unsigned, saturating: what a negative number becomes
  bool scale_in_binary32 = false;  ///< x * 2^shift may be formed in binary32 first
};

constexpr bool is_nearest(Rounding mode) {
  return mode == Rounding::nearest_even || mode == Rounding::nearest_away;
}

/// True where round(fl32(a + b)) is the exact sum rounded once, for all a and b of the given
/// precisions (bits). Figueroa 1995: a sum of p-bit numbers rounded to nearest in 2p + 2 bits can
/// be rounded to nearest again to p bits; below the target's min normal the sum is exact. fp32
/// itself needs no second rounding.
constexpr bool sum_is_exact_in_binary32(int p_a, int p_b, const Format& target, Rounding mode) {
  if (target == kFp32) return mode == Rounding::nearest_even;
  const int p = target.precision();
  return is_nearest(mode) && p_a <= p && p_b <= p && 2 * p + 2 <= 24;
}

/// The exponent of the binade of the largest value; where there is none but zero (e1m0), of the one
/// below 2^emin, the first number that overflows. Twice the next binade's power of two overflows.
constexpr int top_exponent(const Format& format) {
  return format.max() > 0 ? format.emax() : format.emin() - 1;
}

constexpr Form form_of(const RoundPlan& plan, const Format& format) {
  const bool simple = plan.plain && plan.has_zero && !plan.flush && !plan.overflow_is_nan;
  if (!simple) return Form::general;
  if (plan.wide) return Form::simple;
  if (plan.mode == Rounding::stochastic) {
    // 2^emin in units of the last place * 2^-N is an int32, the factor a normal binary32 number.
    const int looked_at = format.man + plan.random_bits;
    const int factor = looked_at - format.emin();
    const bool fits = looked_at <= 30 && (factor <= 127 || plan.grid32.emin_field == 1);
    return fits && plan.variant == Variant::A ? Form::scaled : Form::simple;
  }
  if (plan.mode != Rounding::nearest_even) return Form::simple;
  if (plan.grid32.emin_field == 1) return Form::in_place;
  // 2^(top + 2) * 2^cut must be a binary32 value, and man + 2 bits fit beside its leading bit.
  const bool fits = top_exponent(format) + 2 + plan.grid32.cut <= 127 && format.man <= 22;
  return fits ? Form::addition : Form::simple;
}

constexpr RoundPlan make_plan(const Format& format, const RoundingOptions& options) {
  RoundPlan plan;
  plan.mode = options.mode;
  plan.variant = options.variant;
  plan.random_bits = options.random_bits;
  plan.seed = options.seed;
  plan.stream = options.stream;

  const int emin = format.emin();
  plan.grid32 = {emin + 127, 23 - format.man};
  plan.grid64 = {emin + 1023, 52 - format.man};
  const int least_field = format.subnormals && format.has_zero() ? 1 : 2;
  plan.wide = plan.grid32.emin_field < least_field || plan.grid32.emin_field > 253;
  plan.flush = !format.subnormals || !format.has_zero();
  plan.is_signed = format.is_signed;
  plan.has_zero = format.has_zero();
  plan.has_nan = format.has_nan();
  plan.has_inf = format.has_inf();
  plan.keeps_negative_zero = format.has_negative_zero();
  plan.plain = plan.keeps_negative_zero;

  plan.man = format.man;
  plan.bits = format.bits();
  plan.max_code = static_cast<std::int32_t>(format.max_code());
  plan.min_normal_code = static_cast<std::int32_t>(format.min_normal_code());
  plan.inf_code = plan.has_inf ? static_cast<std::int32_t>(format.inf_code()) : -1;
  plan.nan_code = plan.has_nan ? format.nan_code() : 0;
  plan.max_value = static_cast<float>(format.max());
  plan.lowest_value = static_cast<float>(format.lowest());

  const bool saturate = options.overflow == Overflow::saturate;
  const bool to_inf = !saturate && format.has_inf();
  plan.overflow_is_nan = !saturate && !to_inf && format.has_nan();
  plan.overflow_code = to_inf ? plan.inf_code : plan.max_code;
  plan.overflow_value = to_inf ? std::numeric_limits<float>::infinity() : plan.max_value;
  plan.negative_is_nan = !format.is_signed && !saturate && format.has_nan();
  plan.form = form_of(plan, format);
  if (plan.form == Form::scaled && plan.grid32.emin_field > 1) {
    plan.scaled_below = plan.grid32.emin_field << 23;
    plan.to_units = static_cast<float>(Format::power_of_two(format.man + plan.random_bits - emin));
  }
  if (plan.form == Form::addition) plan.beyond = (top_exponent(format) + 2 + 127) << 23;
  // A product below 2^-126 loses bits, but lies so far under the spacing that nearest gives zero
  // and stochastic (at most 25 bits of the fraction count) never rounds up; one that overflows is
  // beyond every format whose own max stays below 2^127.
  plan.scale_in_binary32 = !plan.wide &&
                           (is_nearest(plan.mode) || plan.mode == Rounding::stochastic) &&
                           format.min_quantum_exponent() > -96 && format.max() < 0x1p127;
  return plan;
}

// --- sums of given terms
// ------------------------------------------------------------------------------

/// The short roundings of split.h, for sums whose size is known to stay below the format's largest
/// value for the next few steps. Sums of given terms take plain, rounded and exact.
enum class Split : std::uint8_t {
  none,
  plain,       ///< binary32's own operations: the formats are fp32
  rounded,     ///< products and sums to nearest-even
  exact,       ///< exact products, sums to nearest-even
  kahan,       ///< Kahan's sum of products, all to nearest-even
  stochastic,  ///< products and sums, variant A
};

/// A format whose sums and products split.h rounds: an even significand is an even code, the grid
/// below 2^emin is there, and its magnets are binary32 numbers.
constexpr bool splits(const Format& format, const RoundPlan& plan) {
  const bool grid = format.is_signed && format.subnormals && format.has_zero() && format.man >= 1;
  const int magnet = 24 + format.min_quantum_exponent();
  return grid && !plan.wide && magnet > -126 && magnet < 127;
}

/// An ordered sum: how its steps are rounded and by which route.
struct FoldPlan {
  RoundPlan round;
  Scheme scheme = Scheme::sequential;
  bool in_binary32 = false;  ///< binary32 addition, then the rounding, is one exact rounding
  Split kind = Split::none;  ///< while every sum before its rounding is at most `limit`
  float limit = 0;
  double quantum = 0;  ///< least spacing
};

constexpr Split split_of_terms(const RoundPlan& round, const Format& format,
                               const Format& terms_in) {
  if (round.mode != Rounding::nearest_even) return Split::none;
  if (format == kFp32) return Split::plain;
  if (!splits(format, round) || format.precision() > 11) return Split::none;
  const bool known = terms_in.precision() <= format.precision() &&
                     terms_in.min_quantum_exponent() >= format.min_quantum_exponent();
  return known ? Split::rounded : Split::exact;
}

constexpr FoldPlan make_fold_plan(const Accumulator& accumulator, const Format& terms_in) {
  const Format& format = accumulator.format;
  FoldPlan plan;
  plan.round = make_plan(format, accumulator.rounding);
  plan.scheme = accumulator.scheme;
  plan.in_binary32 =
      !plan.round.wide && sum_is_exact_in_binary32(format.precision(), terms_in.precision(), format,
                                                   accumulator.rounding.mode);
  plan.kind = split_of_terms(plan.round, format, terms_in);
  // Magnets, 2^(23 - man) above a value, are binary32 numbers.
  constexpr float kMost = 0x1p100F;
  const bool bounded = plan.kind == Split::plain || plan.round.max_value < kMost;
  plan.limit = bounded ? plan.round.max_value : kMost;
  plan.quantum = Format::power_of_two(format.min_quantum_exponent());
  return plan;
}

// --- matrix products
// ------------------------------------------------------------------------------

/// Values of k whose operands are bounded together.
constexpr int kRangeGroup = 8;
/// Steps between two checks of sums whose bound grows with them (Kahan, stochastic); divides
/// kRangeGroup.
constexpr int kShortSteps = 2;

/// What is known of one group of k in one packed panel of an operand; NaN counts as the largest.
struct PanelRange {
  float largest = 0;           ///< max |x|
  float total = 0;             ///< of b: the sum over k of the max of |x| at that k
  std::uint32_t fraction = 0;  ///< the fraction bits of all values, or-ed (the panel's first group)
  float least_bit[kRangeGroup / 2] = {};  ///< of each pair of k: the least last bit of a nonzero
};

/// How many significant bits values have at most, from their or-ed fraction bits: 1…24.
CPD_FN constexpr int significant_bits(std::uint32_t fraction) {
  int bits = 24;
  for (; bits > 1 && (fraction & 1) == 0; --bits) fraction >>= 1;
  return bits;
}

struct SplitPlan {
  Split kind = Split::none;
  bool in_binary64 = false;  ///< stochastic: binary32 has too few bits
  std::int32_t man_product = 0, man_sum = 0;
  double product_quantum = 0, sum_quantum = 0;  ///< least spacings
  /// Sums up to s and compensations up to c stay within the format while `steps` rounded products
  /// of sizes p are added, where s * of_sum + c * of_compensation + (the sum of p) * of_products <=
  /// limit and the sum of p <= product_limit. A rounded product's p is |a||b| * product_growth +
  /// product_quantum.
  std::int32_t steps = kShortSteps;
  float limit = 0, of_sum = 1, of_compensation = 0, of_products = 0;
  float product_growth = 1, product_least = 0;  ///< the second is product_quantum
  float product_limit = 0;
};

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The sum of p over `count` products, of which |a||b| are sum_ab together; Inf where an operand of
/// b is so large that its multiple by a magnet's factor may not be finite, NaN where one is NaN.
CPD_FN constexpr float bound_products(const SplitPlan& split, float sum_ab, int count,
                                      float largest_b) {
  if (!(largest_b <= 0x1p100F)) return kInfinity;
  return sum_ab * split.product_growth + static_cast<float>(count) * split.product_least;
}
/// What s * of_sum + c * of_compensation may be before products of that bound; negative: nothing.
CPD_FN constexpr float sum_limit(const SplitPlan& split, float products) {
  return products <= split.product_limit ? split.limit - products * split.of_products : -1.0F;
}
/// Below this, sums are binary32 numbers after every such exact product; least_bit: of the
/// products.
CPD_FN constexpr float exact_limit(const SplitPlan& split, float products, float least_bit) {
  const auto quantum = static_cast<float>(split.sum_quantum);
  const float last = least_bit < quantum ? least_bit : quantum;
  return 0x1p24F * last - products * split.of_products;
}

/// A sum of products: which roundings it takes. (A chunked sum is two: this one within a chunk, and
/// FoldPlan's over the chunks.)
struct GemmPlan {
  Scheme scheme = Scheme::sequential;  ///< sequential, kahan or pairwise
  bool exact_products = false;
  RoundPlan product;  ///< unless exact_products
  RoundPlan sum;
  /// Rounded products may be formed in binary32 of operands with so many significant bits together.
  /// 0: never.
  int product_bits = 0;
  bool sum_in_binary32 = false;  ///< rounded products may be added in binary32 (see FoldPlan)
  SplitPlan split;
  /// The loop's first draw is number first_draw (philox.h); k takes the draws from
  /// first_draw + draws_before(k) on.
  std::uint64_t first_draw = 0;
};

/// Whether the short roundings want the operands' logarithms.
constexpr bool takes_logs(const SplitPlan& split) {
  return split.kind == Split::rounded || split.kind == Split::kahan;
}

/// Floats of state for each sum of `depth` products: the sum; Kahan's compensation; a tree's nodes
/// of 2, 4, 8, … products.
constexpr int planes_of(Scheme scheme, std::int64_t depth) {
  if (scheme == Scheme::kahan) return 2;
  int planes = 1;
  if (scheme == Scheme::pairwise) {
    for (std::int64_t products = 2; products <= depth; products *= 2) ++planes;
  }
  return planes;
}

/// Draws that the first k products and what follows each of them take.
CPD_FN constexpr std::uint64_t draws_before(const GemmPlan& plan, std::int64_t k) {
  const auto products = static_cast<std::uint64_t>(k);
  std::uint64_t sums = products;
  if (plan.scheme == Scheme::kahan) sums *= 4;
  if (plan.scheme == Scheme::pairwise) {
    for (std::uint64_t rest = products; rest != 0; rest &= rest - 1) --sums;  // trees still open
  }
  return sums + (plan.exact_products ? 0 : products);
}

/// A product of binary32 values formed in binary32 may be rounded again by a nearest mode where it
/// has at most 24 bits: what it loses below 2^-149 then lies far under half the least spacing.
constexpr bool product_fits_binary32(const Format& target, Rounding mode) {
  return is_nearest(mode) && target.min_quantum_exponent() >= -120;
}

/// Whether the products of operands with these or-ed fraction bits, and their sums, may take
/// binary32 lanes.
CPD_FN constexpr bool fits_binary32(const GemmPlan& plan, std::uint32_t a_fraction,
                                    std::uint32_t b_fraction) {
  return plan.sum_in_binary32 &&
         significant_bits(a_fraction) + significant_bits(b_fraction) <= plan.product_bits;
}

/// How sums may grow in `steps` steps where each rounding adds at most `e` of its result: the
/// coefficients of s, c and the products in a bound of every intermediate. A product counts most
/// where it comes first.
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

constexpr SplitPlan make_split_plan(Scheme scheme, const Format& product, bool exact_products,
                                    const Format& sum, const RoundingOptions& options,
                                    const RoundPlan& product_plan, const RoundPlan& sum_plan) {
  SplitPlan split;
  const bool even = options.mode == Rounding::nearest_even;
  if (scheme == Scheme::sequential && even && options.overflow == Overflow::ieee && sum == kFp32 &&
      (exact_products || product == kFp32)) {
    split.kind = Split::plain;
    return split;
  }
  // Sums of multiples of the least spacing need no rounding at the grid's lower end, and binary32
  // sums may be rounded again (sum_is_exact_in_binary32).
  const bool same_grid = product.min_quantum_exponent() >= sum.min_quantum_exponent();
  const bool narrow = product.precision() <= sum.precision() && 2 * sum.precision() + 2 <= 24;
  const bool rounded = splits(sum, sum_plan) && splits(product, product_plan) && same_grid &&
                       product.precision() <= sum.precision();
  const bool stochastic = options.mode == Rounding::stochastic && options.variant == Variant::A;
  if (scheme == Scheme::sequential && exact_products && even && splits(sum, sum_plan)) {
    if (sum.precision() <= 11) split.kind = Split::exact;
  } else if (scheme == Scheme::sequential && !exact_products && stochastic && rounded) {
    split.kind = Split::stochastic;
    const int looked_at = sum.precision() + options.random_bits;
    split.in_binary64 = looked_at > 22;
    if (looked_at > 48) split.kind = Split::none;
  } else if (!exact_products && even && rounded && narrow) {
    if (scheme == Scheme::sequential) split.kind = Split::rounded;
    if (scheme == Scheme::kahan) split.kind = Split::kahan;
  }
  if (split.kind == Split::none) return split;

  split.man_product = exact_products ? sum.man : product.man;
  split.man_sum = sum.man;
  split.product_quantum =
      Format::power_of_two((exact_products ? sum : product).min_quantum_exponent());
  split.product_least = static_cast<float>(split.product_quantum);
  split.sum_quantum = Format::power_of_two(sum.min_quantum_exponent());
  const double half_place = Format::power_of_two(-sum.precision());
  split.product_growth =
      static_cast<float>(1 + 2 * Format::power_of_two(-product.precision()) + 0x1p-20);
  if (split.kind == Split::rounded || split.kind == Split::exact) {
    // A rounded sum lies no further from the exact one than the old sum does.
    split.steps = kRangeGroup;
    split.of_products = 2;
  } else {
    split.steps = kShortSteps;
    bound_growth(split, split.kind == Split::kahan ? half_place : 2 * half_place);
  }
  // Magnets, 2^(23 - man) above a value, are binary32 numbers.
  const double most = Format::power_of_two(100);
  split.limit = static_cast<float>(sum.max() < most ? sum.max() : most);
  split.product_limit = static_cast<float>(exact_products         ? most
                                           : product.max() < most ? product.max()
                                                                  : most);
  return split;
}

/// Of one level: products rounded into `product` (or exact), summed in `sum`.
constexpr GemmPlan make_gemm_plan(Scheme scheme, const Format& product, bool exact_products,
                                  const Format& sum, const RoundingOptions& options,
                                  std::uint64_t first_draw) {
  GemmPlan plan;
  plan.scheme = scheme;
  plan.exact_products = exact_products;
  plan.product = make_plan(product, options);
  plan.sum = make_plan(sum, options);
  plan.first_draw = first_draw;
  plan.split =
      make_split_plan(scheme, product, exact_products, sum, options, plan.product, plan.sum);
  if (exact_products) return plan;
  if (!plan.product.wide && product_fits_binary32(product, options.mode)) plan.product_bits = 24;
  plan.sum_in_binary32 =
      !plan.sum.wide &&
      sum_is_exact_in_binary32(sum.precision(), product.precision(), sum, options.mode);
  return plan;
}

}  // namespace cpd
