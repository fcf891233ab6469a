// SPDX-License-Identifier: Apache-2.0
//
// Sums of products, walked over k: the general route of a matrix product, any scheme and rounding.
// Float lanes where plan and operands allow binary32 (fits_binary32), double lanes always.
#pragma once

#include "cpd/numeric/accumulate.h"
#include "cpd/numeric/gemm_plan.h"
#include "cpd/numeric/philox.h"
#include "cpd/numeric/round_plan.h"

namespace cpd {
inline namespace CPD_ISA {

/// Successive random integers under rule R: zeros, unless it is stochastic.
template <class R, class V>
class SumDraws {
 public:
  CPD_FN constexpr SumDraws(int, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t) {}
  CPD_FN constexpr Unsigned<V> next() { return Unsigned<V>{}; }
};
template <Form form, class V>
class SumDraws<Rule<Rounding::stochastic, form>, V> {
 public:
  /// Of elements index, index + 1, … from draw number `first` on.
  CPD_FN constexpr SumDraws(int random_bits, std::uint64_t seed, std::uint64_t stream,
                            std::uint64_t index, std::uint64_t first)
      : draws_(random_bits, seed, stream, index, first) {}
  CPD_FN constexpr Unsigned<V> next() { return convert<Unsigned<V>>(draws_.next()); }

 private:
  FoldDraws<typename Narrow<V>::U32> draws_;
};

/// Takes products k = first_k … first_k + count - 1 into the sums of V's lanes. `operands` has a(k)
/// and b(k), k counted from first_k, as V. `state` has load(plane) and store(plane, V): plane 0 is
/// the sum, plane 1 Kahan's compensation; a tree's plane q holds the finished tree of 2^q products
/// where bit q of their number is set. `Draws` has next(), as SumDraws.
template <class R, class V, bool kExactProducts, class Operands, class State,
          class Draws = SumDraws<R, V>>
class GemmSums {
 public:
  CPD_FN constexpr GemmSums(const GemmPlan& plan, Operands operands, State state, Draws draws)
      : plan_(plan), operands_(operands), state_(state), draws_(draws) {}

  CPD_FN constexpr void sequential(std::int64_t count) {
    V sum = state_.load(0);
    for (std::int64_t k = 0; k < count; ++k) {
      const V x = product(k);
      accumulate<R>(x, sum, draws_.next(), plan_.sum);
    }
    state_.store(0, sum);
  }

  CPD_FN constexpr void kahan(std::int64_t count) {
    V sum = state_.load(0);
    V compensation = state_.load(1);
    for (std::int64_t k = 0; k < count; ++k) {
      const V x = product(k);
      const Unsigned<V> random[4] = {draws_.next(), draws_.next(), draws_.next(), draws_.next()};
      accumulate_kahan<R>(x, sum, compensation, [&](int i) { return random[i]; }, plan_.sum);
    }
    state_.store(0, sum);
    state_.store(1, compensation);
  }

  /// first_k is even, and so is count unless this is the last call.
  CPD_FN constexpr void pairwise(std::int64_t first_k, std::int64_t count, bool last) {
    const std::int64_t end = first_k + count;
    std::int64_t k = first_k;
    for (; k + 2 <= end; k += 2) {
      const V first = product(k - first_k);
      V node = add(first, product(k + 1 - first_k));
      int level = 1;
      for (; (k >> level & 1) != 0; ++level) node = add(state_.load(level), node);
      state_.store(level, node);
    }
    if (last && end > 0) close(end, end - 1 - first_k);
  }

 private:
  CPD_FN constexpr V product(std::int64_t k) {
    if constexpr (kExactProducts) {
      return exact_product(operands_.a(k), operands_.b(k));
    } else {
      return rounded_product<R>(operands_.a(k), operands_.b(k), draws_.next(), plan_.product);
    }
  }
  CPD_FN constexpr V add(V a, V b) { return rounded_sum<R>(a, b, draws_.next(), plan_.sum); }

  /// The trees that are left, the smallest first (of one product: at `odd`), then what the sum
  /// started from.
  CPD_FN constexpr void close(std::int64_t depth, std::int64_t odd) {
    int level = 0;
    while ((depth >> level & 1) == 0) ++level;
    V node = level == 0 ? product(odd) : state_.load(level);
    for (++level; depth >> level != 0; ++level) {
      if ((depth >> level & 1) != 0) node = add(state_.load(level), node);
    }
    state_.store(0, add(state_.load(0), node));
  }

  const GemmPlan& plan_;
  Operands operands_;
  State state_;
  Draws draws_;
};

}  // namespace CPD_ISA
}  // namespace cpd
