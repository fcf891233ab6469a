// SPDX-License-Identifier: Apache-2.0
//
// The short steps of an ordered sum of terms (FoldPlan::kind), for finite sums that stay below the
// plan's limit: the caller looks afterwards, and takes accumulate.h's steps where one did not.
#pragma once

#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/sums/split.h"

namespace cpd {
inline namespace CPD_ISA {

/// Calls run.operator()<kind>() for a kind of ShortSums; returns false for any other.
template <class Run>
CPD_FN bool with_short_kind(Split kind, Run run) {
  switch (kind) {
    case Split::plain:
      return run.template operator()<Split::plain>(), true;
    case Split::rounded:
      return run.template operator()<Split::rounded>(), true;
    case Split::exact:
      return run.template operator()<Split::exact>(), true;
    case Split::powers:
      return run.template operator()<Split::powers>(), true;
    case Split::exact_powers:
      return run.template operator()<Split::exact_powers>(), true;
    default:
      return false;
  }
}

/// Roundings of sums in lanes, which record the largest sum before its rounding. kKind: plain; with
/// terms that are numbers of the format, or of a coarser one, rounded or powers; with any terms
/// exact or exact_powers.
template <Split kKind, class V>
class ShortSums {
 public:
  CPD_FN explicit ShortSums(const FoldPlan& plan)
      : format_(plan.round.man, plan.quantum, plan.round.keeps_negative_zero),
        magnets_(plan.round.man, plan.quantum, plan.round.keeps_negative_zero, 0),
        flip_(splat<Unsigned<V>>(
            1 ^ (bits_as<std::uint32_t>(static_cast<float>(plan.quantum)) >> 23 & 1))),
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
  /// Returns whether every sum was finite and within the limit before its rounding.
  CPD_FN bool is_good() const { return !any(largest_ > limit_); }

 private:
  static constexpr bool kIntoPowers = kKind == Split::powers || kKind == Split::exact_powers;

  /// a + b rounded, where `a` need not be a number of the format.
  CPD_FN V sum_of_term(V a, V b) {
    if constexpr (kKind == Split::exact || kKind == Split::exact_powers) {
      V t;
      if constexpr (kHasDirectedRounding<V>) {
        t = fma_to_odd(a, splat<V>(1.0F), b);
      } else {
        t = add_to_odd(a, b);
      }
      see(t);
      return kKind == Split::exact ? split_any(t, format_) : with_magnet(t, magnets_);
    } else {
      return sum_of(a, b);
    }
  }
  CPD_FN V sum_of(V a, V b) {
    const V t = a + b;
    see(t);
    if constexpr (kKind == Split::plain) return t;
    if constexpr (kIntoPowers) return split_power(t, flip_);
    return with_sign_of(split(t, format_), t, format_.sign);
  }
  CPD_FN void see(V t) {
    const auto pattern = bits_as<Unsigned<V>>(t) & splat<Unsigned<V>>(Pattern<V>::magnitude);
    largest_ = max(largest_, (Signed<V>)pattern);
  }

  SplitFormat<V> format_;
  GuardedFormat<V> magnets_;
  Unsigned<V> flip_;
  Signed<V> limit_;
  Signed<V> largest_{};
};

}  // namespace CPD_ISA
}  // namespace cpd
