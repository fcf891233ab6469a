// SPDX-License-Identifier: Apache-2.0
//
// The steps of a sum of products by the general path of a matrix product, in the order of order.h.
// In double lanes, the steps are exact for any scheme and rounding. In float lanes, they are exact
// if plan and operands allow float lanes (fits_binary32).
#pragma once

#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/accumulate.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/numeric/sums/order.h"

namespace cpd {
inline namespace CPD_ISA {

/// The successive random integers of a sum whose rounding rule is R. The integers are zero unless R
/// is stochastic.
template <class R, class V>
class SumDraws {
 public:
  CPD_FN constexpr SumDraws(int, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t) {}
  CPD_FN constexpr Unsigned<V> next() { return Unsigned<V>{}; }
};
template <Form form, class V>
class SumDraws<Rule<Rounding::stochastic, form>, V> {
 public:
  /// The first call of next() returns random integer number `first` of each of the elements index,
  /// index + 1, …, one in each lane.
  CPD_FN constexpr SumDraws(int random_bits, std::uint64_t seed, std::uint64_t stream,
                            std::uint64_t index, std::uint64_t first)
      : draws_(random_bits, seed, stream, index, first) {}
  CPD_FN constexpr Unsigned<V> next() { return convert<Unsigned<V>>(draws_.next()); }

 private:
  FoldDraws<typename Narrow<V>::U32> draws_;
};

/// The operands of one sum, the sum's state and its random integers.
template <class Operands, class State, class Draws>
struct SumPlace {
  Operands operands;
  State state;
  Draws draws;
};

/// The backend of SumWalk (the loop over terms, order.h) that adds products, in the lanes of V.
/// `operands` has a(k) and b(k) of type V; k counts from the first product of the call. `state` has
/// load(plane) and store(plane, V), where a plane is one value of a sum's state. `Draws` has
/// next(), as SumDraws has. The loops interleave kSums independent sums to hide the latency of
/// operations.
template <class R, class V, bool kExactProducts, class Operands, class State,
          class Draws = SumDraws<R, V>, int kSums = 1>
class GemmSums {
 public:
  using Place = SumPlace<Operands, State, Draws>;

  CPD_FN constexpr GemmSums(const GemmPlan& plan, Operands operands, State state, Draws draws)
      : plan_(plan), at_{{operands, state, draws}} {}
  template <class... Places>
  CPD_FN constexpr explicit GemmSums(const GemmPlan& plan, Places... places)
      : plan_(plan), at_{places...} {}

  CPD_FN constexpr void sequential(std::int64_t count) {
    V sum[kSums];
    load(0, sum);
    for (std::int64_t k = 0; k < count; ++k) {
      for (int i = 0; i < kSums; ++i) {
        const V x = product(i, k);
        accumulate<R>(x, sum[i], at_[i].draws.next(), plan_.sum);
      }
    }
    store(0, sum);
  }

  CPD_FN constexpr void kahan(std::int64_t count) {
    V sum[kSums];
    V compensation[kSums];
    load(0, sum);
    load(1, compensation);
    for (std::int64_t k = 0; k < count; ++k) {
      for (int i = 0; i < kSums; ++i) {
        const V x = product(i, k);
        Draws& draws = at_[i].draws;
        const Unsigned<V> random[4] = {draws.next(), draws.next(), draws.next(), draws.next()};
        accumulate_kahan<R>(
            x, sum[i], compensation[i], [&](int call) { return random[call]; }, plan_.sum);
      }
    }
    store(0, sum);
    store(1, compensation);
  }

  // The functions that SumWalk (the loop over terms, order.h) calls.
  CPD_FN constexpr void add_terms(int, bool, std::int64_t, std::int64_t, std::int64_t count) {
    sequential(count);
  }
  CPD_FN constexpr void add_compensated(bool, std::int64_t, std::int64_t, std::int64_t count) {
    kahan(count);
  }
  CPD_FN constexpr void open_tree(int, std::int64_t term) { single_ = term; }
  CPD_FN constexpr void merge_term(int, std::int64_t, std::int64_t term) {
    for (int i = 0; i < kSums; ++i) {
      const V first = product(i, single_);
      tree_[i] = add(i, first, product(i, term));
    }
  }
  CPD_FN constexpr void merge_trees(int plane, std::int64_t, bool of_term) {
    for (int i = 0; i < kSums; ++i) {
      if (of_term) tree_[i] = product(i, single_);
      tree_[i] = add(i, at_[i].state.load(plane), tree_[i]);
    }
  }
  CPD_FN constexpr void round_tree(std::int64_t) {}  // never called, as sums begin with c
  CPD_FN constexpr void load_tree(int plane) { load(plane, tree_); }
  CPD_FN constexpr void store_tree(int plane) { store(plane, tree_); }

 private:
  CPD_FN constexpr void load(int plane, V (&x)[kSums]) const {
    for (int i = 0; i < kSums; ++i) x[i] = at_[i].state.load(plane);
  }
  CPD_FN constexpr void store(int plane, const V (&x)[kSums]) {
    for (int i = 0; i < kSums; ++i) at_[i].state.store(plane, x[i]);
  }

  CPD_FN constexpr V product(int i, std::int64_t k) {
    Place& at = at_[i];
    if constexpr (kExactProducts) {
      return exact_product(at.operands.a(k), at.operands.b(k));
    } else {
      return rounded_product<R>(at.operands.a(k), at.operands.b(k), at.draws.next(), plan_.product);
    }
  }
  CPD_FN constexpr V add(int i, V a, V b) {
    return rounded_sum<R>(a, b, at_[i].draws.next(), plan_.sum);
  }

  const GemmPlan& plan_;
  Place at_[kSums];
  V tree_[kSums];  ///< the last tree of a pairwise sum, of two products or more
  /// Pairwise sums: the index of a product that waits for the second product of its pair. It
  /// remains unpaired if the number of products is odd.
  std::int64_t single_;
};

}  // namespace CPD_ISA
}  // namespace cpd
