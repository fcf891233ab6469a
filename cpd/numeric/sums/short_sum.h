// SPDX-License-Identifier: Apache-2.0
//
// The short steps of an ordered sum of terms (FoldPlan::kind), for finite sums that stay below the
// plan's limit: the caller looks afterwards, and takes accumulate.h's steps where one did not.
#pragma once

#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/sums/split.h"

namespace cpd {
inline namespace CPD_ISA {

/// Roundings of sums in lanes, which record the largest sum before its rounding. kKind: plain,
/// rounded (terms are numbers of the format, or of a coarser one) or exact (any terms).
template <Split kKind, class V>
class ShortSums {
 public:
  CPD_FN explicit ShortSums(const FoldPlan& plan)
      : format_(plan.round.man, plan.quantum, plan.round.keeps_negative_zero),
        limit_(splat<Signed<V>>(bits_as<std::int32_t>(plan.limit))) {}

  /// Adds a term to a sum.
  CPD_FN void add(V x, V& sum) { sum = sum_of_term(x, sum); }
  /// kahan_step.
  CPD_FN void add(V x, V& sum, V& compensation) {
    const V y = sum_of_term(x, -compensation);
    const V t = sum_of(sum, y);
    compensation = sum_of(sum_of(t, -sum), -y);
    sum = t;
  }
  /// Whether every sum was finite and within the limit before its rounding.
  CPD_FN bool is_good() const { return !any(largest_ > limit_); }

 private:
  /// a + b rounded, where `a` need not be a number of the format.
  CPD_FN V sum_of_term(V a, V b) {
    if constexpr (kKind == Split::exact) {
      V t;
      if constexpr (kHasDirectedRounding<V>) {
        t = fma_to_odd(a, splat<V>(1.0F), b);
      } else {
        t = add_to_odd(a, b);
      }
      see(t);
      return split_any(t, format_);
    } else {
      return sum_of(a, b);
    }
  }
  CPD_FN V sum_of(V a, V b) {
    const V t = a + b;
    see(t);
    if constexpr (kKind == Split::plain) return t;
    return with_sign_of(split(t, format_), t, format_.sign);
  }
  CPD_FN void see(V t) {
    const auto pattern = bits_as<Unsigned<V>>(t) & splat<Unsigned<V>>(Pattern<V>::magnitude);
    largest_ = max(largest_, (Signed<V>)pattern);
  }

  SplitFormat<V> format_;
  Signed<V> limit_;
  Signed<V> largest_{};
};

}  // namespace CPD_ISA
}  // namespace cpd
