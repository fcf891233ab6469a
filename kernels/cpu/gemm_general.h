// SPDX-License-Identifier: Apache-2.0
//
// Computes tiles of sums by the general path (numeric/sums/gemm_sums.h), which supports every
// scheme and every rounding. Only gemm.cpp may include this file: its functions are compiled for
// one ISA and must not be linked into other object files.
#pragma once

#include <cstdint>

#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/numeric/sums/gemm_sums.h"
#include "cpd/numeric/sums/order.h"
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {

/// Reports to a test the code path (the method of computation) that is used for a tile.
#if defined(CPD_TRACE_PATHS)
void took_path(FastPath path);
#define CPD_TOOK(path) took_path(path)
#else
#define CPD_TOOK(path)
#endif

namespace {

/// Neighboring sums of one row: their operands, state (the sums themselves) and random integers.
struct Place {
  const float* a;  ///< the row's operand of the block's first k; the next is kGemmRows further
  const float* b;  ///< the first lane's; the next is kGemmColumns further
  float* state;
  std::uint64_t index;
  GivenDraws given;  ///< from the first lane's element on
};

/// Reads the operands of GemmSums from packed panels (packed rows of a or columns of b).
template <class V>
struct PackedOperands {
  const float *a_, *b_;
  CPD_FN V a(std::int64_t k) const { return splat<V>(static_cast<Scalar<V>>(a_[k * kGemmRows])); }
  CPD_FN V b(std::int64_t k) const { return load_f32<V>(b_ + k * kGemmColumns); }
};
template <class V>
struct PlaneState {
  float* sums;
  std::int64_t plane;
  CPD_FN V load(int q) const { return load_f32<V>(sums + q * plane); }
  CPD_FN void store(int q, V x) const { store_f32(sums + q * plane, x); }
};

/// Returns an object whose next() gives one random integer for each lane of V. The first call gives
/// random integer number `first` of each lane's element. Only the first `lanes` lanes are elements
/// of the result.
template <class R, class V, bool kGiven>
CPD_FN auto draws_of(const GemmPlan& plan, const Place& at, std::int64_t lanes,
                     std::uint64_t first) {
  if constexpr (kGiven) {
    return TakenDraws<V>(at.given, lanes, first);
  } else {
    const RoundPlan& sum = plan.sum;
    return SumDraws<R, V>(sum.random_bits, sum.seed, sum.stream, at.index, first);
  }
}

/// One tile of the result: the sums of the rows of one panel of a and the columns of one panel of
/// b. (A panel is a group of rows or columns that is packed together.)
struct Tile {
  std::int64_t rows, columns;
  Place at;
};

/// Computes the sums of kVectors neighboring vectors of a tile, starting at row i and column j.
template <class R, class V, bool kExactProducts, bool kGiven, int kVectors>
CPD_FN void sum_lanes(const GemmPlan& plan, const GemmBlock& block, const Tile& tile,
                      std::int64_t i, std::int64_t j) {
  SumWalk walk(product_order(plan.scheme, plan.exact_products), block.first_k);
  const auto at = [&](int vector) {
    const std::int64_t column = j + vector * Lanes<V>::count;
    const auto element = i * static_cast<std::int64_t>(block.index_row) + column;
    const Place place{
        tile.at.a + i, tile.at.b + column, tile.at.state + i * block.state_columns + column,
        tile.at.index + static_cast<std::uint64_t>(element), tile.at.given.from(element)};
    auto draws =
        draws_of<R, V, kGiven>(plan, place, tile.columns - column,
                               plan.first_draw + static_cast<std::uint64_t>(walk.first_draw()));
    return SumPlace<PackedOperands<V>, PlaneState<V>, decltype(draws)>{
        {place.a, place.b}, {place.state, block.plane}, draws};
  };
  const auto add = [&](auto... places) {
    using Draws = decltype(at(0).draws);
    GemmSums<R, V, kExactProducts, PackedOperands<V>, PlaneState<V>, Draws, sizeof...(places)> sums(
        plan, places...);
    walk.take(sums, block.count);
    if (block.last) walk.end(sums);
  };
  if constexpr (kVectors == 1) {
    add(at(0));
  } else if constexpr (kVectors == 2) {
    add(at(0), at(1));
  } else {
    add(at(0), at(1), at(2), at(3));
  }
}

/// The number of vectors of a row that are interleaved to hide latency. Only rounding to
/// nearest-even interleaves more than one vector: stochastic rounding needs the registers for
/// random words.
template <class R, class V>
constexpr int kSideBySide = R::mode == Rounding::nearest_even && Lanes<V>::count > 1
                                ? static_cast<int>(least(4, kGemmColumns / Lanes<V>::count))
                                : 1;

template <class R, class V, bool kExactProducts, bool kGiven = false>
CPD_BODY void sum_tile(const GemmPlan* plan, const GemmBlock* block, const Tile* tile) {
  constexpr int kMany = kSideBySide<R, V>;
  for (std::int64_t i = 0; i < tile->rows; ++i) {
    std::int64_t j = 0;
    for (; kMany > 1 && tile->columns - j > (kMany - 1) * Lanes<V>::count;
         j += kMany * Lanes<V>::count) {
      sum_lanes<R, V, kExactProducts, kGiven, kMany>(*plan, *block, *tile, i, j);
    }
    for (; j < tile->columns; j += Lanes<V>::count) {
      sum_lanes<R, V, kExactProducts, kGiven, 1>(*plan, *block, *tile, i, j);
    }
  }
}

/// Selects the rounding rule for products and sums in binary32 lanes, and passes it to `run` as a
/// template argument: run.operator()<Rule<…>>().
template <Rounding mode, class Run>
CPD_FN void with_sum_form(const GemmPlan& plan, Run run) {
  if constexpr (mode == Rounding::nearest_even && Lanes<F>::count > 1) {
    if (plan.product.form == Form::addition && plan.sum.form == Form::addition) {
      return run.template operator()<Rule<mode, Form::addition>>();
    }
    if (is_addition(plan.product) && is_addition(plan.sum)) {
      return run.template operator()<Rule<mode, Form::general_addition>>();
    }
  }
  run.template operator()<Rule<mode, Form::general>>();
}

CPD_FN void general_tile(const GemmPlan& plan, const GemmBlock& block, const Tile& tile,
                         bool binary32) {
  with_mode(plan.sum.mode, [&]<Rounding mode>() {
    using General = Rule<mode, Form::general>;
    if (plan.exact_products) return sum_tile<General, D, true>(&plan, &block, &tile);
    if constexpr (mode != Rounding::stochastic) {
      if (binary32) {
        return with_sum_form<mode>(plan,
                                   [&]<class R>() { sum_tile<R, F, false>(&plan, &block, &tile); });
      }
    }
    sum_tile<General, D, false>(&plan, &block, &tile);
  });
}

/// Computes a tile of stochastic sums with the random integers that the caller gives.
CPD_FN void given_tile(const GemmPlan& plan, const GemmBlock& block, const Tile& tile) {
  using General = Rule<Rounding::stochastic, Form::general>;
  if (plan.exact_products) return sum_tile<General, D, true, true>(&plan, &block, &tile);
  sum_tile<General, D, false, true>(&plan, &block, &tile);
}

}  // namespace
}  // namespace CPD_ISA
}  // namespace cpd
