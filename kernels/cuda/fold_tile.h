// SPDX-License-Identifier: Apache-2.0
//
// Ordered sums on a GPU, with one element in each thread. numeric/sums/order.h orders the
// operations; the planes of a sum (its running values) are in the thread's registers.
#pragma once

#include <type_traits>

#include "cpd/backend/message_calls.h"
#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/round/exact64.h"
#include "cpd/numeric/sums/fast_sum.h"
#include "cpd/numeric/sums/order.h"
#include "kernels/cuda/strided.h"

namespace cpd::cuda {

/// The most partial sums (trees) that a pairwise sum of fewer than 2^40 terms holds at a time.
constexpr int kMostTrees = 40;

/// The running values of one element's sum (plane 0, plane 1, …), and the additions that change
/// them. SumWalk calls the additions (add_terms, merge_trees and others) in the order that the
/// sum's scheme defines. `terms` points to the terms that are added next.
template <Rounding mode, class T, bool kGiven = false>
class ElementPlanes {
 public:
  CPD_FN ElementPlanes(const SumPlan& plan, std::uint64_t seed, std::uint64_t stream,
                       std::int64_t i, std::int64_t first_draw, const std::uint32_t* given)
      : plan_(plan),
        draws_(plan.terms.round.random_bits, seed, stream, static_cast<std::uint64_t>(i),
               static_cast<std::uint64_t>(first_draw), given) {
    trees_[0] = 0;
  }

  T sum = 0, second = 0;  ///< planes 0 and 1 of all schemes but pairwise
  const T* terms = nullptr;

  CPD_FN void add_terms(int plane, bool starts, std::int64_t, std::int64_t first,
                        std::int64_t count) {
    if (!starts && add_short<false>(plane == 1 ? second : sum, terms + first, count)) return;
    T total = plane == 1 ? second : sum;
    CPD_ROLLED for (std::int64_t k = 0; k < count; ++k) {
      total = rounded(plan_.terms, starts && k == 0, total, terms[first + k], draws_.next());
    }
    (plane == 1 ? second : sum) = total;
  }
  CPD_FN void add_compensated(bool starts, std::int64_t, std::int64_t first, std::int64_t count) {
    if (!starts && add_short<true>(sum, terms + first, count)) return;
    if (starts) {
      sum = called(plan_.terms, true, 0, terms[first], draws_.next());
      second = 0;
    }
    CPD_ROLLED for (std::int64_t k = starts ? 1 : 0; k < count; ++k) {
      kahan_step(terms[first + k], sum, second, CalledSums{*this});
    }
  }
  CPD_FN void add_chunk(bool starts, std::int64_t) {
    sum = called(plan_.sums, starts, sum, second, draws_.next());
  }
  CPD_FN void open_tree(int plane, std::int64_t term) { trees_[plane] = terms[term]; }
  CPD_FN void merge_term(int plane, std::int64_t, std::int64_t term) {
    trees_[plane] = called(plan_.terms, false, trees_[plane], terms[term], draws_.next());
  }
  CPD_FN void merge_trees(int plane, std::int64_t, bool of_term) {
    const FoldPlan& plan = of_term ? plan_.terms : plan_.sums;
    trees_[plane] = called(plan, false, trees_[plane], trees_[plane + 1], draws_.next());
  }
  CPD_FN void round_tree(std::int64_t) {
    trees_[0] = called(plan_.terms, true, 0, trees_[0], draws_.next());
  }
  /// Returns plane q, one of the values of the sum's state.
  CPD_FN T& plane(int q) {
    if (plan_.order.scheme == Scheme::pairwise) return trees_[q];
    return q == 0 ? sum : second;
  }
  CPD_FN T result() const { return plan_.order.scheme == Scheme::pairwise ? trees_[0] : sum; }

 private:
  using R = Rule<mode, Form::general>;

  /// Adds terms by a fast path. Returns false and adds no term if the fast path may give another
  /// sum than the steps that the scheme defines.
  template <bool kKahan>
  CPD_FN bool add_short(T& to, const T* all, std::int64_t count) {
    if constexpr (mode == Rounding::nearest_even && sizeof(T) == sizeof(float)) {
      bool added = false;
      with_fast_sums(plan_.terms.path,
                     [&]<class Path>() { added = add_short<kKahan, Path>(to, all, count); });
      return added;
    }
    return false;
  }
  template <bool kKahan, class Path>
  CPD_FN bool add_short(T& to, const T* all, std::int64_t count) {
    FastSums<Path, T> rounding(plan_.terms);
    T s = to;
    T c = second;
    CPD_ROLLED for (std::int64_t k = 0; k < count; ++k) {
      if constexpr (kKahan) {
        rounding.add(all[k], s, c);
      } else {
        rounding.add(all[k], s);
      }
    }
    if (!rounding.is_good()) return false;
    if constexpr (kKahan) second = c;
    to = s;
    return true;
  }

  /// A source of random integers for roundings that use none: always 0.
  struct NoDraws {
    CPD_FN NoDraws(int, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                   const std::uint32_t*) {}
    CPD_FN static std::uint32_t next() { return 0; }
  };
  /// Philox's draws.
  struct Philox : FoldDraws<std::uint32_t> {
    CPD_FN Philox(int random_bits, std::uint64_t seed, std::uint64_t stream, std::uint64_t index,
                  std::uint64_t first, const std::uint32_t*)
        : FoldDraws<std::uint32_t>(random_bits, seed, stream, index, first) {}
  };
  /// Reads the random integers that the caller gives for one element, from number `first` on.
  struct Given {
    const std::uint32_t* at;
    CPD_FN Given(int, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t first,
                 const std::uint32_t* given)
        : at(given + first) {}
    CPD_FN std::uint32_t next() { return *at++; }
  };
  using Drawn = std::conditional_t<kGiven, Given, Philox>;
  /// Returns a + b, rounded once. If `starts`, b is the first term: returns b, rounded.
  CPD_FN static T rounded(const FoldPlan& plan, bool starts, T a, T b, std::uint32_t random) {
    if constexpr (sizeof(T) == sizeof(double)) {
      return round<R>(starts ? b : sum_as_seen(a, b, R::is_down(plan.round)), std::uint64_t{random},
                      plan.round);
    } else {
      if constexpr (mode != Rounding::stochastic) {
        if (plan.in_binary32) return round<R>(starts ? b : a + b, random, plan.round);
      }
      const double second = b;
      const bool down = R::is_down(plan.round);
      const double exact = starts ? second : exact_sum(static_cast<double>(a), second, down);
      return convert_value<float>(round<R>(exact, std::uint64_t{random}, plan.round));
    }
  }
  /// Calls `rounded` out of line. All additions outside add_terms share this one copy of its code.
  CPD_CALL static T called(const FoldPlan& plan, bool starts, T a, T b, std::uint32_t random) {
    return rounded(plan, starts, a, b, random);
  }

  struct CalledSums {
    ElementPlanes& planes;
    CPD_FN T operator()(T a, T b) const {
      return called(planes.plan_.terms, false, a, b, planes.draws_.next());
    }
  };

  const SumPlan& plan_;
  std::conditional_t<mode == Rounding::stochastic, Drawn, NoDraws> draws_;
  T trees_[kMostTrees];
};

/// Computes the sum of one element, term by term, in the order of its scheme (SumWalk).
template <Rounding mode, class T, bool kGiven = false>
class ElementSum {
 public:
  using Value = T;
  /// Starts the sum of element i with term k. For k > 0, the caller must then set the planes (the
  /// sum's running values) to their values after k terms. Random integers come from the seed and
  /// stream, or from `given` if kGiven.
  CPD_FN ElementSum(const SumPlan& plan, std::uint64_t seed, std::uint64_t stream, std::int64_t i,
                    std::int64_t k, const std::uint32_t* given = nullptr)
      : walk_(plan.order, k), planes_(plan, seed, stream, i, walk_.first_draw(), given) {}

  /// sum() returns plane 0 (the running sum). second() returns plane 1 (the compensation of a Kahan
  /// sum, or the sum of the current chunk). The scheme must not be pairwise.
  CPD_FN T& sum() { return planes_.sum; }
  CPD_FN T& second() { return planes_.second; }
  CPD_FN T& plane(int q) { return planes_.plane(q); }

  CPD_FN void take(T x) { take(&x, 1); }
  CPD_FN void take(const T* terms, std::int64_t count) {
    planes_.terms = terms;
    walk_.take(planes_, count);
  }
  /// Ends the sum after the last term. Returns the result.
  CPD_FN T end() {
    walk_.end(planes_);
    return planes_.result();
  }

 private:
  SumWalk walk_;
  ElementPlanes<mode, T, kGiven> planes_;
};

template <Rounding mode, class T, bool kGiven>
CPD_FN ElementSum<mode, T, kGiven> sum_of_element(const SumCall& call, const Source& source,
                                                  std::int64_t i) {
  return {call.plan, source.seed, source.stream, i, 0, call.random.from(i).random};
}

constexpr int kTermsAtOnce = 8;  ///< that are read before the first of them is added

/// Adds `terms` terms to the sum. read(k, count, some) must store terms k … k + count - 1 in
/// `some`.
template <class Sum, class Read>
CPD_FN void take_all(Sum& sum, std::int64_t terms, Read read) {
  typename Sum::Value some[kTermsAtOnce];
  CPD_ROLLED for (std::int64_t k = 0; k < terms; k += kTermsAtOnce) {
    const int count = terms - k < kTermsAtOnce ? static_cast<int>(terms - k) : kTermsAtOnce;
    read(k, count, some);
    sum.take(some, count);
  }
}

/// Sums a tensor over a dimension: thread number `thread` computes every `threads`-th result. T is
/// float, or double for binary64 terms.
template <Rounding mode, class T, bool kGiven = false>
CPD_FN void sum_elements(const SumCall& call, std::int64_t thread, std::int64_t threads) {
  const RoundPlan& plan = call.plan.terms.round;
  const Source source = source_of(plan, call.key, {});
  CPD_ROLLED for (std::int64_t i = thread; i < call.n; i += threads) {
    if (call.terms == 0) {
      store_element(call.out, i, round<Rounding::nearest_even>(0.0, std::uint64_t{0}, call.empty));
      continue;
    }
    const std::int64_t at = offset_of(call.x, i);
    auto sum = sum_of_element<mode, T, kGiven>(call, source, i);
    take_all(sum, call.terms, [&](std::int64_t k, int count, T(&some)[kTermsAtOnce]) {
      load_together(
          call.x, [&](int j) { return j < count; }, [&](int j) { return at + (k + j) * call.step; },
          some);
    });
    store_element(call.out, i, sum.end());
  }
}

/// Calls run.operator()<mode, T, kGiven>() with the template arguments of sum_elements for `call`.
/// kGiven: the caller gives the random integers.
template <class Run>
void with_sum(const SumCall& call, Run run) {
  const auto run_with = [&]<Rounding mode, bool kGiven>() {
    if (call.x.dtype == DType::f64) return run.template operator()<mode, double, kGiven>();
    run.template operator()<mode, float, kGiven>();
  };
  if (call.random.random != nullptr) {
    return run_with.template operator()<Rounding::stochastic, true>();
  }
  with_mode(call.plan.terms.round.mode,
            [&]<Rounding mode>() { run_with.template operator()<mode, false>(); });
}

}  // namespace cpd::cuda
