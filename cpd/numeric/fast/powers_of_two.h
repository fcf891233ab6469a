// SPDX-License-Identifier: Apache-2.0
//
// The fast path `powers_of_two`: rounds sums of terms to nearest-even in formats without mantissa
// bits. The terms are numbers of the format or of a coarser format. A tie goes to the even code
// (split_power in veltkamp_rounding.h). A step takes one addition and 6 integer operations.
#pragma once

#include "cpd/numeric/fast/asked.h"
#include "cpd/numeric/fast/bounds.h"
#include "cpd/numeric/fast/veltkamp_rounding.h"

namespace cpd {

struct PowersOfTwo : OfTermsAlone {
  using OfTermsAlone::applies;
  static constexpr NoPath applies(const TermsAsked& asked) {
    const bool fits = takes_powers(asked) && asked.are_known();
    return fits ? NoPath::has_one : NoPath::other;
  }
  static constexpr float limit_of_terms(const TermsAsked& asked) { return limit_of(asked); }
};

inline namespace CPD_ISA {

template <class V>
class TermSteps<PowersOfTwo, V> {
 public:
  static constexpr bool kAnyTerms = false;
  CPD_FN explicit TermSteps(const RoundedInto& into) : flip_(flip_of<V>(into.quantum)) {}
  CPD_FN V rounded(V t) const { return split_power(t, flip_); }

 private:
  Unsigned<V> flip_;
};

}  // namespace CPD_ISA
}  // namespace cpd
