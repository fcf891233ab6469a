// SPDX-License-Identifier: Apache-2.0
//
// The plan of an ordered sum of terms: its roundings, and the fast path that computes the sum
// exactly.
#pragma once

#include <cstdint>

#include "cpd/numeric/fast/choose.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/format.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// Returns whether a + b can be computed in binary32 and then rounded to the format `target`, with
/// the same result as one rounding of the exact a + b to `target`. This must hold for all a of p_a
/// bits and b of p_b bits of precision. Figueroa 1995: if a sum of p-bit numbers is rounded to
/// nearest, first to 2p + 2 bits and then to p bits, one rounding gives the same result. If the sum
/// is below the least normal number of `target`, the binary32 addition is exact. If `target` is
/// fp32, there is no second rounding.
constexpr bool sum_is_exact_in_binary32(int p_a, int p_b, const Format& target, Rounding mode) {
  if (target == kFp32) return mode == Rounding::nearest_even;
  const int p = target.precision();
  return is_nearest(mode) && p_a <= p && p_b <= p && 2 * p + 2 <= 24;
}

/// The roundings of the steps of an ordered sum, and the fast path that computes the steps.
struct FoldPlan {
  RoundPlan round;
  Scheme scheme = Scheme::sequential;
  /// True if a binary32 addition followed by the rounding equals one exact rounding.
  bool in_binary32 = false;
  FastPath path = FastPath::none;  ///< valid while every sum before its rounding is at most `limit`
  float limit = 0;
  double quantum = 0;  ///< the format's least spacing
  StochasticFormat stochastic{};
  bool stochastic_in_binary32 = false;  ///< for the path `stochastic`: binary32 lanes suffice

  /// Returns the format into which the fast path rounds sums, for the constructor of TermSteps.
  [[nodiscard]] CPD_FN constexpr RoundedInto into() const {
    return {round.man, quantum, round.keeps_negative_zero};
  }
};

/// Returns the plan of a sum of terms. The terms are numbers of the format `terms_in`, and the plan
/// may use the fast paths in the set `on`.
constexpr FoldPlan make_fold_plan(const Accumulator& accumulator, const Format& terms_in,
                                  const RandomKey& key = {}, FastPaths on = {}) {
  const Format& format = accumulator.format;
  FoldPlan plan;
  plan.round = make_plan(format, accumulator.rounding, key);
  plan.scheme = accumulator.scheme;
  plan.in_binary32 =
      !plan.round.wide && sum_is_exact_in_binary32(format.precision(), terms_in.precision(), format,
                                                   accumulator.rounding.mode);
  const TermsAsked asked{plan.scheme, format, terms_in, plan.round};
  plan.path = choose_path(asked, on).path;
  with_path(plan.path, [&]<class Path>() { plan.limit = Path::limit_of_terms(asked); });
  plan.quantum = Format::power_of_two(format.min_quantum_exponent());
  plan.stochastic = stochastic_format(format, plan.round);
  plan.stochastic_in_binary32 = format.max() < double{kMostWithMagnets} &&
                                stochastic_fits_binary32(format, plan.round.random_bits);
  return plan;
}

}  // namespace cpd
