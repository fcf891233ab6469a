// SPDX-License-Identifier: Apache-2.0
//
// Sums of products, a loop over k: the general route of a matrix product, exact for any scheme and
// rounding in double lanes, and in float lanes where plan and operands allow them (fits_binary32).
#pragma once

#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/accumulate.h"
#include "cpd/numeric/sums/gemm_plan.h"

namespace cpd {
inline namespace CPD_ISA {

/// The successive random integers of a sum under rule R; zeros unless R is stochastic.
template <class R, class V>
class SumDraws {
 public:
  CPD_FN constexpr SumDraws(int, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t) {}
  CPD_FN constexpr Unsigned<V> next() { return Unsigned<V>{}; }
};
template <Form form, class V>
class SumDraws<Rule<Rounding::stochastic, form>, V> {
 public:
  /// The draws of elements index, index + 1, … from number `first` on.
  CPD_FN constexpr SumDraws(int random_bits, std::uint64_t seed, std::uint64_t stream,
                            std::uint64_t index, std::uint64_t first)
      : draws_(random_bits, seed, stream, index, first) {}
  CPD_FN constexpr Unsigned<V> next() { return convert<Unsigned<V>>(draws_.next()); }

 private:
  FoldDraws<typename Narrow<V>::U32> draws_;
};

/// The operands of one sum, its state and its random integers.
template <class Operands, class State, class Draws>
struct SumPlace {
  Operands operands;
  State state;
  Draws draws;
};

/// Adds products k = first_k … first_k + count - 1 to the sums in V's lanes. `operands` has a(k)
/// and b(k), k counted from first_k, as V. `state` has load(plane) and store(plane, V): plane 0 is
/// the sum, plane 1 Kahan's compensation; a tree's plane q holds the finished tree of 2^q products
/// where bit q of their number is set. `Draws` has next(), as SumDraws. The loop interleaves kSums
/// independent sums, so that the operations of one hide the latency of another's.
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

  /// first_k is even, and so is count unless this is the last call.
  CPD_FN constexpr void pairwise(std::int64_t first_k, std::int64_t count, bool last) {
    const std::int64_t end = first_k + count;
    std::int64_t k = first_k;
    V node[kSums];
    for (; k + 2 <= end; k += 2) {
      for (int i = 0; i < kSums; ++i) {
        const V first = product(i, k - first_k);
        node[i] = add(i, first, product(i, k + 1 - first_k));
      }
      int level = 1;
      for (; (k >> level & 1) != 0; ++level) add_plane(level, node);
      store(level, node);
    }
    if (last && end > 0) close(end, end - 1 - first_k);
  }

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
  /// node = plane + node.
  CPD_FN constexpr void add_plane(int plane, V (&node)[kSums]) {
    for (int i = 0; i < kSums; ++i) node[i] = add(i, at_[i].state.load(plane), node[i]);
  }

  /// Adds the remaining trees, the smallest first (if that is one product, the one at `odd`), then
  /// the sum's initial value.
  CPD_FN constexpr void close(std::int64_t depth, std::int64_t odd) {
    int level = 0;
    while ((depth >> level & 1) == 0) ++level;
    V node[kSums];
    if (level == 0) {
      for (int i = 0; i < kSums; ++i) node[i] = product(i, odd);
    } else {
      load(level, node);
    }
    for (++level; depth >> level != 0; ++level) {
      if ((depth >> level & 1) != 0) add_plane(level, node);
    }
    add_plane(0, node);
    store(0, node);
  }

  const GemmPlan& plan_;
  Place at_[kSums];
};

}  // namespace CPD_ISA
}  // namespace cpd
