// SPDX-License-Identifier: Apache-2.0
//
// Adds terms by the steps of a fast path. The results are valid if all sums are finite and stay
// below the plan's limit. The caller checks this afterwards (is_good), and repeats the sum by
// accumulate.h's steps if the check fails.
#pragma once

#include "cpd/numeric/fast/choose.h"
#include "cpd/numeric/round/exact.h"
#include "cpd/numeric/sums/fold_plan.h"

namespace cpd {
inline namespace CPD_ISA {

/// Passes the class of a fast path to `run` as a template argument, run.operator()<Path>(), if
/// FastSums supports the path. Returns false, without a call, for any other path.
template <class Run>
CPD_FN bool with_fast_sums(FastPath path, Run run) {
  bool taken = false;
  with_path(path, [&]<class Path>() {
    if constexpr (!Path::kStochastic) {
      run.template operator()<Path>();
      taken = true;
    }
  });
  return taken;
}

/// Adds terms to sums, in lanes, with the roundings of a fast path. Records the largest magnitude
/// of any sum before its rounding, which decides whether the results are valid (is_good).
template <class Path, class V>
class FastSums {
 public:
  CPD_FN explicit FastSums(const FoldPlan& plan)
      : steps_(plan.into()), limit_(splat<Signed<V>>(bits_as<std::int32_t>(plan.limit))) {}

  /// Adds a term to a sum.
  CPD_FN void add(V x, V& sum) { sum = sum_of_term(x, sum); }
  /// Adds the term x to a Kahan sum: y = x - compensation; t = sum + y; compensation = (t - sum) -
  /// y; sum = t. Each operation is rounded.
  CPD_FN void add(V x, V& sum, V& compensation) {
    const V y = sum_of_term(x, -compensation);
    const V t = sum_of(sum, y);
    compensation = sum_of(sum_of(t, -sum), -y);
    sum = t;
  }
  /// Returns whether every sum was finite and within the plan's limit before its rounding, so that
  /// the results are valid.
  CPD_FN bool is_good() const { return !any(largest_ > limit_); }

 private:
  using Steps = TermSteps<Path, V>;

  /// Returns a + b rounded into the format. `a` is a term, which need not be a number of the
  /// format.
  CPD_FN V sum_of_term(V a, V b) {
    if constexpr (Steps::kAnyTerms) {
      V t;
      if constexpr (kHasDirectedRounding<V>) {
        t = fma_to_odd(a, splat<V>(1.0F), b);
      } else {
        t = add_to_odd(a, b);
      }
      see(t);
      return steps_.rounded_odd(t);
    } else {
      return sum_of(a, b);
    }
  }
  CPD_FN V sum_of(V a, V b) {
    const V t = a + b;
    see(t);
    return steps_.rounded(t);
  }
  CPD_FN void see(V t) {
    const auto pattern = bits_as<Unsigned<V>>(t) & splat<Unsigned<V>>(Pattern<V>::magnitude);
    largest_ = max(largest_, (Signed<V>)pattern);
  }

  Steps steps_;
  Signed<V> limit_;
  Signed<V> largest_{};
};

}  // namespace CPD_ISA
}  // namespace cpd
