// SPDX-License-Identifier: Apache-2.0
//
// The fast path `powers_of_two_exact`: rounds sums of any terms to nearest-even in formats without
// mantissa bits. An addition of a term is first rounded to odd, and then rounded by the addition of
// a magnet, a large number of the right parity (with_magnet in veltkamp_rounding.h). Kahan's
// algorithm also adds numbers that are not terms; their sums are rounded as in powers_of_two.h.
#pragma once

#include "cpd/numeric/fast/asked.h"
#include "cpd/numeric/fast/bounds.h"
#include "cpd/numeric/fast/veltkamp_rounding.h"

namespace cpd {

struct PowersOfTwoExact : OfTermsAlone {
  using OfTermsAlone::applies;
  static constexpr NoPath applies(const TermsAsked& asked) {
    const bool fits = takes_powers(asked) && !asked.are_known();
    return fits ? NoPath::has_one : NoPath::other;
  }
  static constexpr float limit_of_terms(const TermsAsked& asked) { return limit_of(asked); }
};

inline namespace CPD_ISA {

template <class V>
class TermSteps<PowersOfTwoExact, V> {
 public:
  static constexpr bool kAnyTerms = true;
  CPD_FN explicit TermSteps(const RoundedInto& into)
      : magnets_(into.man, into.quantum, into.keeps_negative_zero, 0),
        flip_(flip_of<V>(into.quantum)) {}
  CPD_FN V rounded(V t) const { return split_power(t, flip_); }
  /// Returns t, a sum that was already rounded to odd, rounded to nearest-even into the format.
  CPD_FN V rounded_odd(V t) const { return with_magnet(t, magnets_); }

 private:
  GuardedFormat<V> magnets_;
  Unsigned<V> flip_;
};

}  // namespace CPD_ISA
}  // namespace cpd
