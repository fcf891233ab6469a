// SPDX-License-Identifier: Apache-2.0
//
// Computes tiles of stochastic sums of every scheme by FastPath::stochastic. Only gemm.cpp may
// include this file: its functions are compiled for one ISA and must not be linked into other
// object files.
#pragma once

#include <cstdint>

#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/fast/stochastic.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/numeric/sums/order.h"
#include "kernels/cpu/gemm_general.h"
#include "kernels/cpu/gemm_registers.h"
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

/// Generates all random integers of `blocks` blocks of random words, for the columns of a tile.
/// Each row of `to` has one integer for each column. The last `spare` bits of each integer are cut
/// off.
template <int kPerWord>
CPD_BODY void make_draws(const RoundPlan* plan, int spare, std::uint64_t index, std::uint64_t block,
                         std::int64_t blocks, std::uint32_t* to) {
  using U = Unsigned<F>;
  const U mask = splat<U>(((1U << plan->random_bits) - 1) >> spare);
  constexpr int kSets = kWordSets<U>;
  constexpr int kStep = kSets * Lanes<F>::count;
  for (const std::uint64_t end = block + static_cast<std::uint64_t>(blocks); block < end; ++block) {
    for (int j = 0; j < kGemmColumns; j += kStep) {
      const WordSets<U, kSets> words = fold_words<U, kSets>(index + static_cast<std::uint64_t>(j),
                                                            block, plan->seed, plan->stream);
#pragma GCC unroll 2
      for (int s = 0; s < kSets; ++s) {
#pragma GCC unroll 16
        for (int q = 0; q < 4 * kPerWord; ++q) {
          const U word =
              words.set[s].word[q / kPerWord] >> (q % kPerWord * (32 / kPerWord) + spare);
          store(to + q * kGemmColumns + j + s * Lanes<F>::count, word & mask);
        }
      }
    }
    to += 4 * kPerWord * kGemmColumns;
  }
}

/// Holds the random integers of one row of a tile for a range of k. Generating them in advance
/// keeps generation and sums from stalling each other.
class RandomRun {
 public:
  static constexpr int kDraws = 128;

  /// Generates random integers number first … first + count - 1 for each column of the tile.
  /// `index` is the element index of the first column; count <= kDraws.
  CPD_FN void make(const RoundPlan& plan, int spare, std::uint64_t index, std::uint64_t first,
                   std::int64_t count) {
    const int per_word = draws_per_word(plan.random_bits);
    const int in_block = 4 * per_word;
    const std::uint64_t block = first / static_cast<std::uint64_t>(in_block);
    const auto skipped = static_cast<std::int64_t>(first % static_cast<std::uint64_t>(in_block));
    const std::int64_t blocks = (skipped + count + in_block - 1) / in_block;
    next_ = draws_ + skipped * kGemmColumns;
    switch (per_word) {
      case 1:
        return make_draws<1>(&plan, spare, index, block, blocks, draws_);
      case 2:
        return make_draws<2>(&plan, spare, index, block, blocks, draws_);
      default:
        return make_draws<4>(&plan, spare, index, block, blocks, draws_);
    }
  }
  /// Returns the next row of random integers from make(): one integer for each column.
  CPD_FN const std::uint32_t* next() {
    const std::uint32_t* draw = next_;
    next_ += kGemmColumns;
    return draw;
  }

 private:
  alignas(64) std::uint32_t draws_[(kDraws + 32) * kGemmColumns];
  const std::uint32_t* next_ = draws_;
};

/// Returns the number of values of k in a run: a range of k for which the random integers are
/// generated together.
constexpr std::int64_t steps_in_run(Scheme scheme) {
  switch (scheme) {
    case Scheme::kahan:
      return 24;  // five draws each
    case Scheme::pairwise:
      return 32;  // draws: 32 products, 32 sums, and log2 of the number of all products
    default:
      return 32;
  }
}

/// A run: the range k … k + count - 1 of a block, whose products are added together.
struct StochasticRun {
  std::int64_t k, count;
  bool last;  ///< no value of k follows
  int spare;  ///< low bits of the random integers that have no effect
};

/// The number of rows of a tile whose additions are interleaved. These rows have four independent
/// vectors of sums, which hides latency.
template <class V>
constexpr int kStochasticRows = Lanes<V>::mantissa == 23 ? 2 : 1;

/// States which values of a run (a range of k) may overflow, according to the bounds of the run's
/// operands. This determines the checks while the run's products are added.
enum class Range : std::uint8_t {
  steady,   ///< nothing overflows (is_steady)
  watched,  ///< no product overflows; where a sum does, the run is not stored
  any,      ///< anything may overflow
};

/// Adds the products of a run to the sums of kRows rows of a tile. SumWalk (numeric/sums/order.h)
/// determines the order of the additions and calls add_terms, merge_trees and so on. kOnGrid: all
/// terms are multiples of the least spacing of the sum's format.
template <class V, bool kExactProducts, bool kOnGrid, Range kRange>
class StochasticRows {
 public:
  static constexpr int kRows = kStochasticRows<V>;
  static constexpr bool kMayOverflow = kRange == Range::any;
  static constexpr int kVectors = kGemmColumns / Lanes<V>::count;
  static constexpr int kAll = kRows * kVectors;

  /// All sums of the kRows rows, or one term for each of these sums: kVectors vectors for the first
  /// row, then for the next row.
  struct Sums {
    V of[kAll];
  };

  CPD_FN StochasticRows(const BoundedTile& bounded, const Place& at, int spare,
                        RandomRun (&random)[kRows])
      : plan_(*bounded.plan),
        block_(*bounded.block),
        at_(at),
        spare_(spare),
        random_(random),
        product_(plan_.fast.stochastic.product, plan_.sum.random_bits - spare),
        sum_(plan_.fast.stochastic.sum, plan_.sum.random_bits - spare) {}

  /// Adds the products of a run (a range of k). Returns false and leaves the sums unchanged if a
  /// sum overflows and the run is Range::watched.
  CPD_FN bool take(const StochasticRun& run) {
    if (kRange == Range::watched && are_at_end(load_plane(0))) return false;
    const SumOrder order = product_order(plan_.scheme, kExactProducts);
    const std::int64_t end = block_.first_k + run.k + run.count;
    SumWalk walk(order, block_.first_k + run.k);
    draw(walk.first_draw(), run.last ? draws_of_sum(order, end) : draws_before(order, end));
    at_.a += run.k * kGemmRows;
    at_.b += run.k * kGemmColumns;
    walk.take(*this, run.count);
    if (run.last) walk.end(*this);
    return !overflowed();
  }

  // --- the steps of SumWalk ----------------------------------------------------------------------

  CPD_FN void add_terms(int, bool, std::int64_t, std::int64_t, std::int64_t count) {
    Sums sum = load_plane(0);
    for (std::int64_t k = 0; k < count; ++k) sum = add_product(k, sum);
    if (!overflowed()) store_plane(0, sum);
  }
  /// Computes Kahan's sum with the operations of kahan_step (accumulate.h).
  CPD_FN void add_compensated(bool, std::int64_t, std::int64_t, std::int64_t count) {
    Sums sum = load_plane(0);
    Sums lost = load_plane(1);
    for (std::int64_t k = 0; k < count; ++k) {
      const Sums y = add_product(k, minus(lost));
      const Sums t = add(sum, y);
      lost = add(add(t, minus(sum)), minus(y));
      if constexpr (kMayOverflow) {
        lost = each([&](int j) { return finite_or_zero(t.of[j], lost.of[j]); });
      }
      sum = t;
    }
    if (overflowed()) return;
    store_plane(0, sum);
    store_plane(1, lost);
  }
  CPD_FN void open_tree(int, std::int64_t k)
    requires kMayOverflow
  {
    tree_ = product(k);
    k_ = k;
  }
  CPD_FN void merge_term(int, std::int64_t, std::int64_t k) { tree_ = add_product(k, tree_); }
  CPD_FN void merge_trees(int level, std::int64_t, bool of_term) {
    // If tree_ (the newest partial sum) is a single exact product, number k_ of the run, no
    // rounding has changed it. One fma then computes this product again and adds it to the earlier
    // partial sum that load_plane(level) reads.
    const bool fused = kExactProducts && of_term;
    tree_ = fused ? add_product(k_, load_plane(level)) : add(load_plane(level), tree_);
  }
  CPD_FN void round_tree(std::int64_t) {}  // sums begin with c
  CPD_FN void load_tree(int level) { tree_ = load_plane(level); }
  CPD_FN void store_tree(int level) { store_plane(level, tree_); }

 private:
  template <class Of>
  CPD_FN static Sums each(Of of) {
    Sums sums;
#pragma GCC unroll 4
    for (int j = 0; j < kAll; ++j) sums.of[j] = of(j);
    return sums;
  }

  // --- operations --------------------------------------------------------------------------------

  /// Generates the random integers with the numbers first … end - 1 of each sum, which next_draw()
  /// then returns one after the other.
  CPD_FN void draw(std::int64_t first, std::int64_t end) {
    for (int i = 0; i < kRows; ++i) {
      const std::uint64_t row = static_cast<std::uint64_t>(i) * block_.index_row;
      random_[i].make(plan_.sum, spare_, at_.index + row,
                      plan_.first_draw + static_cast<std::uint64_t>(first), end - first);
    }
  }
  /// One random integer for each sum: draw(j) returns the integers for vector j of Sums.
  struct Draw {
    const std::uint32_t* of_row[kRows];
    CPD_FN Unsigned<V> operator()(int j) const {
      return load_u32<V>(of_row[j / kVectors] + j % kVectors * Lanes<V>::count);
    }
  };
  CPD_FN Draw next_draw() {
    Draw draw;
    for (int i = 0; i < kRows; ++i) draw.of_row[i] = random_[i].next();
    return draw;
  }
  CPD_FN V a(std::int64_t k, int j) const {
    return splat<V>(static_cast<Scalar<V>>(at_.a[k * kGemmRows + j / kVectors]));
  }
  CPD_FN V b(std::int64_t k, int j) const {
    return load_f32<V>(at_.b + k * kGemmColumns + j % kVectors * Lanes<V>::count);
  }
  /// Returns product number k of the run (a range of k) for each sum, rounded unless
  /// kExactProducts. The run's first product has number 0.
  CPD_FN Sums product(std::int64_t k) {
    if constexpr (kExactProducts) {
      return each([&](int j) { return a(k, j) * b(k, j); });
    } else {
      const Draw random = next_draw();
      return each(
          [&](int j) { return round_any<kMayOverflow>(a(k, j) * b(k, j), random(j), product_); });
    }
  }
  /// Returns x plus product number k of the run (a range of k) for each sum, rounded.
  CPD_FN Sums add_product(std::int64_t k, const Sums& x) {
    if constexpr (kExactProducts) {
      const Draw random = next_draw();
      return watched(each([&](int j) {
        return round_any<kMayOverflow>(fma(a(k, j), b(k, j), x.of[j]), random(j), sum_);
      }));
    } else {
      return add(x, product(k));
    }
  }
  CPD_FN Sums add(const Sums& x, const Sums& y) {
    const Draw random = next_draw();
    return watched(each([&](int j) {
      const V t = x.of[j] + y.of[j];
      return kOnGrid ? round_on_grid<kMayOverflow>(t, random(j), sum_)
                     : round_any<kMayOverflow>(t, random(j), sum_);
    }));
  }
  CPD_FN Sums watched(const Sums& x) {
    if constexpr (kRange == Range::watched) {
      for (int j = 0; j < kAll; ++j) most_[j] = larger_magnitude(most_[j], x.of[j]);
    }
    return x;
  }
  /// Returns whether a sum exceeded the format's largest value. Always returns false unless kRange
  /// is Range::watched.
  CPD_FN bool overflowed() const {
    if constexpr (kRange != Range::watched) return false;
    V most = most_[0];
    for (int j = 1; j < kAll; ++j) most = larger_magnitude(most, most_[j]);
    return !all_at_most(most, static_cast<Scalar<V>>(plan_.fast.stochastic.sum.max));
  }
  /// Returns whether a sum exceeds 3/4 of the format's largest value. Such sums would overflow
  /// repeatedly.
  CPD_FN bool are_at_end(const Sums& x) const {
    if constexpr (kRange != Range::watched) return false;
    V most = larger_magnitude(x.of[0], x.of[0]);
    for (int j = 1; j < kAll; ++j) most = larger_magnitude(most, x.of[j]);
    return !all_at_most(most, static_cast<Scalar<V>>(0.75 * plan_.fast.stochastic.sum.max));
  }
  CPD_FN static Sums minus(const Sums& x) {
    return each([&](int j) { return -x.of[j]; });
  }

  CPD_FN float* plane(std::int64_t number, int j) const {
    return at_.state + number * block_.plane + j / kVectors * block_.state_columns +
           j % kVectors * Lanes<V>::count;
  }
  CPD_FN Sums load_plane(std::int64_t number) const {
    return each([&](int j) { return load_f32<V>(plane(number, j)); });
  }
  CPD_FN void store_plane(std::int64_t number, const Sums& x) {
    const V nan = bits_as<V>(splat<Unsigned<V>>(Pattern<V>::quiet_nan));
    for (int j = 0; j < kAll; ++j) {
      store_f32(plane(number, j), select(x.of[j] == x.of[j], x.of[j], nan));
    }
  }

  /// Returns x for lanes in which t is finite, else +0.
  CPD_FN static V finite_or_zero(V t, V x) {
    using U = Unsigned<V>;
    const V magnitude = bits_as<V>(bits_as<U>(t) & splat<U>(Pattern<V>::magnitude));
    return select(magnitude < bits_as<V>(splat<U>(Pattern<V>::infinity)), x, V{});
  }

  const GemmPlan& plan_;
  const GemmBlock& block_;
  Place at_;
  int spare_;
  RandomRun (&random_)[kRows];
  SplitStochastic<V> product_, sum_;
  V most_[kAll] = {};    ///< the largest magnitude of each watched sum
  Sums tree_;            ///< the last tree of a pairwise sum
  std::int64_t k_ = -1;  ///< its first product
};

/// Adds the products of a run (a range of k) to all rows of a tile, Rows::kRows rows at a time. The
/// floating-point environment must round toward zero. If kRange is Range::watched and a sum
/// overflows, its kRows rows are computed again with Range::any.
template <class V, bool kExactProducts, bool kOnGrid, Range kRange>
CPD_BODY void stochastic_rows(const BoundedTile* bounded, const StochasticRun* run) {
  using Rows = StochasticRows<V, kExactProducts, kOnGrid, kRange>;
  RandomRun random[Rows::kRows];
  BoundedTile part = *bounded;
  Place& at = part.tile.at;
  for (std::int64_t i = 0; i < bounded->tile.rows; i += Rows::kRows) {
    part.tile.rows = least(Rows::kRows, bounded->tile.rows - i);
    if (!Rows(part, at, run->spare, random).take(*run)) {
      stochastic_rows<V, kExactProducts, kOnGrid, Range::any>(&part, run);
    }
    at.a += Rows::kRows;
    at.state += Rows::kRows * bounded->block->state_columns;
    at.index += Rows::kRows * bounded->block->index_row;
  }
}

template <class V, bool kExactProducts>
CPD_FN void stochastic_steps(const BoundedTile& bounded, const StochasticRun& run, Range range) {
  const Environment environment(Environment::TowardZero{});
  if (range == Range::steady) {
    return stochastic_rows<V, kExactProducts, true, Range::steady>(&bounded, &run);
  }
  if (!bounded.plan->fast.stochastic.on_grid) {
    return stochastic_rows<V, kExactProducts, false, Range::any>(&bounded, &run);
  }
  if (range == Range::watched) {
    return stochastic_rows<V, kExactProducts, true, Range::watched>(&bounded, &run);
  }
  stochastic_rows<V, kExactProducts, true, Range::any>(&bounded, &run);
}

/// Returns whether the tile's operands are finite at all k of one group (kRangeGroup successive k):
/// the group that contains the argument `k`.
CPD_FN bool finite_operands(const BoundedTile& bounded, std::int64_t k) {
  const PanelRange& a = bounded.a[k / kRangeGroup];
  const PanelRange& b = bounded.b[k / kRangeGroup];
  return a.largest < kInfinity && b.largest < kInfinity;
}

/// Returns whether the rounding of the tile's products may omit the low plan.spare_bits bits of the
/// random integers. Binary32 must represent each product exactly. Each product must be a multiple
/// of the product format's least spacing times 2^-r, where r is the number of random bits that
/// remain.
CPD_FN bool products_fit(const BoundedTile& bounded) {
  const StochasticPlan& plan = bounded.plan->fast.stochastic;
  if (significant_bits(bounded.a->fraction) + significant_bits(bounded.b->fraction) > 22) {
    return false;
  }
  const int met = bounded.plan->sum.random_bits - plan.spare_bits;
  const auto least = static_cast<float>(plan.product.quantum * exact_power(-met));
  return bounded.least_bit() >= least;
}

/// Returns whether all sums and products of a run (a range of k) stay so far below the plan's limit
/// (StochasticPlan) that no value can overflow.
CPD_FN bool is_steady(const BoundedTile& bounded, const StochasticRun& run) {
  const GemmPlan& plan = *bounded.plan;
  const auto quantum = static_cast<float>(plan.fast.stochastic.product.quantum);
  float most = quantum * static_cast<float>(run.count);
  for (std::int64_t k = run.k; k < run.k + run.count; k += kRangeGroup) {
    most += bounded.a[k / kRangeGroup].largest * bounded.b[k / kRangeGroup].total;
  }
  F state{};
  for (int plane = 0; plane < (plan.scheme == Scheme::kahan ? 2 : 1); ++plane) {
    for (std::int64_t i = 0; i < bounded.tile.rows; ++i) {
      const float* row =
          bounded.tile.at.state + plane * bounded.block->plane + i * bounded.block->state_columns;
      for (int j = 0; j < kGemmColumns; j += Lanes<F>::count) {
        const F x = load<F>(row + j);
        if (any((Signed<F>)(x != x))) return false;
        state = larger_magnitude(state, x);
      }
    }
  }
  const float limit = plan.fast.stochastic.limit / kSteadyGrowth - most;
  return all_at_most(larger_magnitude(state, state), limit);
}

/// Returns whether no rounded product of a run (a range of k) overflows. Rounding at most doubles a
/// product or adds one spacing.
CPD_FN bool products_stay(const BoundedTile& bounded, const StochasticRun& run) {
  const StochasticFormat& format = bounded.plan->fast.stochastic.product;
  if (bounded.plan->exact_products) return true;
  const auto limit = static_cast<float>((format.max - format.quantum) / 2);
  for (std::int64_t k = run.k; k < run.k + run.count; k += kRangeGroup) {
    const float largest = bounded.a[k / kRangeGroup].largest * bounded.b[k / kRangeGroup].largest;
    if (!(largest <= limit)) return false;
  }
  return true;
}

/// Returns what may overflow (Range) in a run (a range of k) whose operands are finite.
CPD_FN Range range_of(const BoundedTile& bounded, const StochasticRun& run) {
  const GemmPlan& plan = *bounded.plan;
  if (plan.fast.stochastic.steady && is_steady(bounded, run)) return Range::steady;
  const bool watches = plan.scheme != Scheme::pairwise && products_stay(bounded, run);
  return watches ? Range::watched : Range::any;
}

/// Computes a tile. A run (a range of k) takes the fast path if all its operands are finite. A
/// group of k with an operand that is infinite or NaN takes the general path.
CPD_FN void stochastic_tile(const BoundedTile& bounded) {
  const GemmPlan& plan = *bounded.plan;
  const StochasticPlan& way = plan.fast.stochastic;
  const std::int64_t end = bounded.block->count;
  const bool alone = bounded.tile.rows == 1;  // of two interleaved rows, one would be padding
  const bool spares = !alone && way.spare_bits > 0 && products_fit(bounded);
  std::int64_t k = 0;
  do {
    const bool finite = k >= end || finite_operands(bounded, k);
    const std::int64_t stop = least(end, k + steps_in_run(plan.scheme));
    std::int64_t next = k;
    while (next < stop && finite_operands(bounded, next) == finite) next += kRangeGroup;
    next = least(next, end);
    const StochasticRun run{k, next - k, next == end && bounded.block->last,
                            spares ? way.spare_bits : 0};
    const Range range = finite ? range_of(bounded, run) : Range::any;
    const bool steady = range == Range::steady;
    const bool fits = way.in_binary32 || spares || (steady && way.fits_binary32);
    const bool narrow = fits && !alone;
    if (!finite) {
      general_steps(&bounded, bounded.tile, k, run.count, run.last);
    } else if (narrow) {
      plan.exact_products ? stochastic_steps<F, true>(bounded, run, range)
                          : stochastic_steps<F, false>(bounded, run, range);
    } else {
      plan.exact_products ? stochastic_steps<D, true>(bounded, run, range)
                          : stochastic_steps<D, false>(bounded, run, range);
    }
    k = next;
  } while (k < end);
}

}  // namespace
}  // namespace CPD_ISA
}  // namespace cpd
