// SPDX-License-Identifier: Apache-2.0
//
// Tiles of stochastic sums by the short roundings of numeric/split_stochastic.h: every scheme. Of
// gemm.cpp alone, as gemm_tile.h is.
#pragma once

#include <cstdint>

#include "cpd/numeric/gemm_plan.h"
#include "cpd/numeric/philox.h"
#include "cpd/numeric/split_stochastic.h"
#include "kernels/cpu/gemm_short.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

/// The random integers of `blocks` blocks of words for a panel's columns, column by column.
template <int kPerWord>
CPD_BODY void make_draws(const RoundPlan* plan, std::uint64_t index, std::uint64_t block,
                         std::int64_t blocks, std::uint32_t* to) {
  using U = Unsigned<F>;
  const U mask = splat<U>((1U << plan->random_bits) - 1);
  for (const std::uint64_t end = block + static_cast<std::uint64_t>(blocks); block < end; ++block) {
    for (int j = 0; j < kGemmColumns; j += Lanes<F>::count) {
      const Words<U> words =
          fold_words<U>(index + static_cast<std::uint64_t>(j), block, plan->seed, plan->stream);
#pragma GCC unroll 16
      for (int q = 0; q < 4 * kPerWord; ++q) {
        const U word = words.word[q / kPerWord] >> (q % kPerWord * (32 / kPerWord));
        store(to + q * kGemmColumns + j, word & mask);
      }
    }
    to += 4 * kPerWord * kGemmColumns;
  }
}

/// Random integers of one row of a tile for a run of k, made before they are used: neither their
/// computation nor the sums' then waits for the other.
class RandomRun {
 public:
  static constexpr int kDraws = 128;

  /// Draws first … first + count - 1 of element `index` and those beside it; count <= kDraws.
  CPD_FN void make(const RoundPlan& plan, std::uint64_t index, std::uint64_t first,
                   std::int64_t count) {
    const int per_word = draws_per_word(plan.random_bits);
    const int in_block = 4 * per_word;
    const std::uint64_t block = first / static_cast<std::uint64_t>(in_block);
    const auto skipped = static_cast<std::int64_t>(first % static_cast<std::uint64_t>(in_block));
    const std::int64_t blocks = (skipped + count + in_block - 1) / in_block;
    next_ = draws_ + skipped * kGemmColumns;
    switch (per_word) {
      case 1:
        return make_draws<1>(&plan, index, block, blocks, draws_);
      case 2:
        return make_draws<2>(&plan, index, block, blocks, draws_);
      default:
        return make_draws<4>(&plan, index, block, blocks, draws_);
    }
  }
  /// The next draw of each column.
  CPD_FN const std::uint32_t* next() {
    const std::uint32_t* draw = next_;
    next_ += kGemmColumns;
    return draw;
  }

 private:
  alignas(64) std::uint32_t draws_[(kDraws + 32) * kGemmColumns];
  const std::uint32_t* next_ = draws_;
};

/// The sums of one row and a panel's columns. kOnGrid: what is added are multiples of the sum's
/// least spacing.
template <class V, bool kExactProducts, bool kOnGrid>
class StochasticRow {
 public:
  CPD_FN StochasticRow(const BoundedTile& bounded, const Place& at, RandomRun& random)
      : plan_(*bounded.plan),
        block_(*bounded.block),
        at_(at),
        random_(random),
        product_(plan_.stochastic.product, plan_.sum.random_bits),
        sum_(plan_.stochastic.sum, plan_.sum.random_bits) {}

  /// Takes `count` values of k from the block's number k on; the last one of all, if `last`.
  CPD_FN void run(std::int64_t k, std::int64_t count, bool last) {
    switch (plan_.scheme) {
      case Scheme::kahan:
        return kahan(k, count);
      case Scheme::pairwise:
        return pairwise(k, count, last);
      default:
        return sequential(k, count);
    }
  }

 private:
  static constexpr int kVectors = kGemmColumns / Lanes<V>::count;
  struct Row {
    V of[kVectors];
  };

  template <class Of>
  CPD_FN static Row each(Of of) {
    Row row;
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) row.of[j] = of(j);
    return row;
  }

  // --- operations --------------------------------------------------------------------------------

  /// Random integers for the steps of k from number k on.
  CPD_FN void draw(std::int64_t k, std::int64_t count) {
    random_.make(plan_.sum, at_.index, plan_.first_draw + draws_before(plan_, block_.first_k + k),
                 count);
  }
  CPD_FN static Unsigned<V> random(const std::uint32_t* draws, int j) {
    return load_u32<V>(draws + j * Lanes<V>::count);
  }
  CPD_FN V a(std::int64_t k) const {
    return splat<V>(static_cast<Scalar<V>>(at_.a[k * kGemmRows]));
  }
  CPD_FN V b(std::int64_t k, int j) const {
    return load_f32<V>(at_.b + k * kGemmColumns + j * Lanes<V>::count);
  }
  /// The product of number k.
  CPD_FN Row product(std::int64_t k) {
    const V of_a = a(k);
    if constexpr (kExactProducts) {
      return each([&](int j) { return of_a * b(k, j); });
    } else {
      const std::uint32_t* draws = random_.next();
      return each([&](int j) { return round_any(of_a * b(k, j), random(draws, j), product_); });
    }
  }
  /// The sum of x and the product of number k.
  CPD_FN Row add_product(std::int64_t k, const Row& x) {
    if constexpr (kExactProducts) {
      const V of_a = a(k);
      const std::uint32_t* draws = random_.next();
      return each(
          [&](int j) { return round_any(fma(of_a, b(k, j), x.of[j]), random(draws, j), sum_); });
    } else {
      return add(x, product(k));
    }
  }
  CPD_FN Row add(const Row& x, const Row& y) {
    const std::uint32_t* draws = random_.next();
    return each([&](int j) {
      const V t = x.of[j] + y.of[j];
      return kOnGrid ? round_on_grid(t, random(draws, j), sum_)
                     : round_any(t, random(draws, j), sum_);
    });
  }
  CPD_FN static Row minus(const Row& x) {
    return each([&](int j) { return -x.of[j]; });
  }

  CPD_FN Row load_plane(std::int64_t plane) const {
    const float* from = at_.state + plane * block_.plane;
    return each([&](int j) { return load_f32<V>(from + j * Lanes<V>::count); });
  }
  CPD_FN void store_plane(std::int64_t plane, const Row& x) {
    float* to = at_.state + plane * block_.plane;
    const V nan = bits_as<V>(splat<Unsigned<V>>(Pattern<V>::quiet_nan));
    for (int j = 0; j < kVectors; ++j) {
      store_f32(to + j * Lanes<V>::count, select(x.of[j] == x.of[j], x.of[j], nan));
    }
  }

  // --- schemes -----------------------------------------------------------------------------------

  CPD_FN void sequential(std::int64_t k, std::int64_t count) {
    constexpr int kInStep = kExactProducts ? 1 : 2;
    Row sum = load_plane(0);
    for (std::int64_t end = k + count; k < end;) {
      const std::int64_t stop = least(end, k + RandomRun::kDraws / kInStep);
      draw(k, (stop - k) * kInStep);
      for (; k < stop; ++k) sum = add_product(k, sum);
    }
    store_plane(0, sum);
  }

  /// kahan_step (accumulate.h).
  CPD_FN void kahan(std::int64_t k, std::int64_t count) {
    constexpr int kInStep = kExactProducts ? 4 : 5;
    Row sum = load_plane(0);
    Row lost = load_plane(1);
    for (std::int64_t end = k + count; k < end;) {
      const std::int64_t stop = least(end, k + RandomRun::kDraws / kInStep);
      draw(k, (stop - k) * kInStep);
      for (; k < stop; ++k) {
        const Row y = add_product(k, minus(lost));
        const Row t = add(sum, y);
        lost = add(add(t, minus(sum)), minus(y));
        lost = each([&](int j) { return finite_or_zero(t.of[j], lost.of[j]); });
        sum = t;
      }
    }
    store_plane(0, sum);
    store_plane(1, lost);
  }
  /// x where t is finite, else +0.
  CPD_FN static V finite_or_zero(V t, V x) {
    using U = Unsigned<V>;
    const V magnitude = bits_as<V>(bits_as<U>(t) & splat<U>(Pattern<V>::magnitude));
    return select(magnitude < bits_as<V>(splat<U>(Pattern<V>::infinity)), x, V{});
  }

  /// GemmSums::pairwise.
  CPD_FN void pairwise(std::int64_t k, std::int64_t count, bool last) {
    constexpr std::int64_t kSteps = 32;  // as many products, sums, and log2 of all products
    const std::int64_t end = k + count;
    while (k + 2 <= end) {
      const std::int64_t stop = least(end, k + kSteps) & ~std::int64_t{1};
      const std::uint64_t before = draws_before(plan_, block_.first_k + k);
      const std::uint64_t after = draws_before(plan_, block_.first_k + stop);
      draw(k, static_cast<std::int64_t>(after - before));
      for (; k < stop; k += 2) {
        Row node = add_product(k + 1, product(k));
        int level = 1;
        const std::int64_t number = block_.first_k + k;
        for (; (number >> level & 1) != 0; ++level) node = add(load_plane(level), node);
        store_plane(level, node);
      }
    }
    if (last && block_.first_k + end > 0) close(block_.first_k + end, k);
  }
  /// GemmSums::close; k is the odd product's number, if there is one.
  CPD_FN void close(std::int64_t depth, std::int64_t k) {
    draw(k, __builtin_popcountll(static_cast<std::uint64_t>(depth)) + 1);
    int level = 0;
    while ((depth >> level & 1) == 0) ++level;
    const bool odd = level == 0;
    Row node = odd ? Row{} : load_plane(level);
    bool first = odd;
    for (++level; depth >> level != 0; ++level) {
      if ((depth >> level & 1) == 0) continue;
      node = first ? add_product(k, load_plane(level)) : add(load_plane(level), node);
      first = false;
    }
    store_plane(0, first ? add_product(k, load_plane(0)) : add(load_plane(0), node));
  }

  const GemmPlan& plan_;
  const GemmBlock& block_;
  Place at_;
  RandomRun& random_;
  SplitStochastic<V> product_, sum_;
};

/// `count` values of k from the block's number k on, in an environment that rounds toward zero.
template <class V, bool kExactProducts, bool kOnGrid>
CPD_BODY void stochastic_rows(const BoundedTile* bounded, std::int64_t k, std::int64_t count,
                              bool last) {
  RandomRun random;
  Place at = bounded->tile.at;
  for (std::int64_t i = 0; i < bounded->tile.rows; ++i) {
    StochasticRow<V, kExactProducts, kOnGrid>(*bounded, at, random).run(k, count, last);
    ++at.a;
    at.state += bounded->block->state_columns;
    at.index += bounded->block->index_row;
  }
}

template <class V>
CPD_FN void stochastic_steps(const BoundedTile& bounded, std::int64_t k, std::int64_t count,
                             bool last) {
  const GemmPlan& plan = *bounded.plan;
  const Environment environment(Environment::TowardZero{});
  if (plan.exact_products) {
    return plan.stochastic.on_grid ? stochastic_rows<V, true, true>(&bounded, k, count, last)
                                   : stochastic_rows<V, true, false>(&bounded, k, count, last);
  }
  return plan.stochastic.on_grid ? stochastic_rows<V, false, true>(&bounded, k, count, last)
                                 : stochastic_rows<V, false, false>(&bounded, k, count, last);
}

/// Whether the operands of k's group are finite.
CPD_FN bool finite_operands(const BoundedTile& bounded, std::int64_t k) {
  const PanelRange& a = bounded.a[k / kRangeGroup];
  const PanelRange& b = bounded.b[k / kRangeGroup];
  return a.largest < kInfinity && b.largest < kInfinity;
}

/// Groups of k with operands that are not finite take the general route.
CPD_FN void stochastic_tile(const BoundedTile& bounded) {
  const std::int64_t end = bounded.block->count;
  std::int64_t k = 0;
  do {
    const bool finite = k >= end || finite_operands(bounded, k);
    std::int64_t next = k;
    while (next < end && finite_operands(bounded, next) == finite) next += kRangeGroup;
    next = least(next, end);
    const bool last = next == end && bounded.block->last;
    if (!finite) {
      general_steps(&bounded, bounded.tile, k, next - k, last);
    } else if (bounded.plan->stochastic.in_binary64) {
      stochastic_steps<D>(bounded, k, next - k, last);
    } else {
      stochastic_steps<F>(bounded, k, next - k, last);
    }
    k = next;
  } while (k < end);
}

}  // namespace
}  // namespace CPD_ISA
}  // namespace cpd
