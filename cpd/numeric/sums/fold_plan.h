// SPDX-License-Identifier: Apache-2.0
//
// The plan of an ordered sum of terms: its roundings, and the route by which it is exact.
#pragma once

#include <bit>
#include <cstdint>

#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/stochastic_format.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/format.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// Returns whether round(fl32(a + b)) is the exact sum rounded once, for all a and b of precisions
/// p_a and p_b (bits). Figueroa 1995: a sum of p-bit numbers rounded to nearest in 2p + 2 bits can
/// be rounded to nearest again to p bits; below the target's min normal the sum is exact. fp32
/// itself needs no second rounding.
constexpr bool sum_is_exact_in_binary32(int p_a, int p_b, const Format& target, Rounding mode) {
  if (target == kFp32) return mode == Rounding::nearest_even;
  const int p = target.precision();
  return is_nearest(mode) && p_a <= p && p_b <= p && 2 * p + 2 <= 24;
}

/// The short routes of split.h, for sums that are known to stay below the format's largest value
/// for the next few steps. Sums of terms take plain, rounded, exact, powers, exact_powers and,
/// sequential ones, stochastic.
enum class Split : std::uint8_t {
  none,
  plain,         ///< binary32's own operations: the formats are fp32
  rounded,       ///< products and sums to nearest-even
  exact,         ///< exact products, sums to nearest-even
  kahan,         ///< Kahan's sum of products, all to nearest-even
  stochastic,    ///< variant A (split_stochastic.h)
  tree,          ///< pairwise sums of products, all to nearest-even
  plain_kahan,   ///< binary32's own operations in Kahan's sum
  plain_tree,    ///< and in a pairwise one
  powers,        ///< as rounded, into a format of powers of two (man = 0)
  exact_powers,  ///< as exact, into one
};

/// Returns whether split.h's magnets round into a format: it has the grid below 2^emin, and the
/// least magnet is a binary32 number.
constexpr bool takes_magnets(const Format& format, const RoundPlan& plan) {
  const bool grid = format.is_signed && format.subnormals && format.has_zero() && format.max() > 0;
  const int magnet = 24 + format.min_quantum_exponent();
  return grid && !plan.wide && magnet > -126 && magnet < 127;
}
/// The largest binary32 number that rounding to nearest, to man + 1 significant bits, takes to
/// `max`.
constexpr float most_rounded_to(float max, int man) {
  const auto pattern = std::bit_cast<std::uint32_t>(max);
  const auto binade = std::bit_cast<float>(pattern & 0x7F800000U);
  const float tie = max + binade * static_cast<float>(Format::power_of_two(-man - 1));
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(tie) - 1);
}

/// The roundings of the steps of an ordered sum, and their route.
struct FoldPlan {
  RoundPlan round;
  Scheme scheme = Scheme::sequential;
  bool in_binary32 = false;  ///< binary32 addition, then the rounding, is one exact rounding
  Split kind = Split::none;  ///< while every sum before its rounding is at most `limit`
  float limit = 0;
  double quantum = 0;  ///< the format's least spacing
  StochasticFormat stochastic{};
  bool stochastic_in_binary32 = false;  ///< of kind `stochastic`: binary32 lanes suffice
};

constexpr Split split_of_terms(const RoundPlan& round, Scheme scheme, const Format& format,
                               const Format& terms_in) {
  if (round.mode == Rounding::stochastic && round.variant == Variant::A) {
    const bool splits = scheme == Scheme::sequential && splits_stochastic(format);
    return splits ? Split::stochastic : Split::none;
  }
  if (round.mode != Rounding::nearest_even) return Split::none;
  if (format == kFp32) return Split::plain;
  if (!takes_magnets(format, round) || format.precision() > 11) return Split::none;
  const bool known = terms_in.precision() <= format.precision() &&
                     terms_in.min_quantum_exponent() >= format.min_quantum_exponent();
  if (format.man >= 1) return known ? Split::rounded : Split::exact;
  if (!round.keeps_negative_zero) return Split::none;
  return known ? Split::powers : Split::exact_powers;
}

constexpr FoldPlan make_fold_plan(const Accumulator& accumulator, const Format& terms_in,
                                  const RandomKey& key = {}) {
  const Format& format = accumulator.format;
  FoldPlan plan;
  plan.round = make_plan(format, accumulator.rounding, key);
  plan.scheme = accumulator.scheme;
  plan.in_binary32 =
      !plan.round.wide && sum_is_exact_in_binary32(format.precision(), terms_in.precision(), format,
                                                   accumulator.rounding.mode);
  plan.kind = split_of_terms(plan.round, plan.scheme, format, terms_in);
  // Magnets, 2^(23 - man) above a value, are binary32 numbers.
  constexpr float kMost = 0x1p100F;
  plan.limit = kMost;
  if (plan.kind == Split::plain) plan.limit = plan.round.max_value;
  if (plan.kind != Split::plain && plan.round.max_value < kMost) {
    plan.limit = most_rounded_to(plan.round.max_value, format.man);
  }
  plan.quantum = Format::power_of_two(format.min_quantum_exponent());
  plan.stochastic = stochastic_format(format, plan.round);
  plan.stochastic_in_binary32 =
      format.max() < double{kMost} && stochastic_fits_binary32(format, plan.round.random_bits);
  return plan;
}

}  // namespace cpd
