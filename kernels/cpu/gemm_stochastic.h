// SPDX-License-Identifier: Apache-2.0
//
// Tiles of stochastic sums by the short roundings (numeric/split_stochastic.h), while nothing can
// overflow. Of gemm.cpp alone, as gemm_tile.h is.
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

/// Random words of one row of a tile for a run of k, made before they are used: neither their
/// computation nor the sums' then waits for the other.
class RandomRun {
 public:
  static constexpr int kBlocks = 16;  ///< blocks of four words for each sum

  CPD_FN void make(const GemmPlan& plan, std::uint64_t index, std::uint64_t first_block,
                   std::int64_t blocks) {
    using U = Unsigned<F>;
    for (std::int64_t block = 0; block < blocks; ++block) {
      for (int j = 0; j < kGemmColumns; j += Lanes<F>::count) {
        const Words<U> words = fold_words<U>(index + static_cast<std::uint64_t>(j),
                                             first_block + static_cast<std::uint64_t>(block),
                                             plan.sum.seed, plan.sum.stream);
        for (int w = 0; w < 4; ++w) store(words_[block][w] + j, words.word[w]);
      }
    }
  }
  [[nodiscard]] CPD_FN const std::uint32_t* words(std::int64_t block, int word) const {
    return words_[block][word];
  }

 private:
  alignas(64) std::uint32_t words_[kBlocks][4][kGemmColumns];
};

/// The sums of one row and a panel's columns; kDraws random integers a word.
template <class V, int kDraws>
class StochasticRow {
 public:
  CPD_FN StochasticRow(const BoundedTile& bounded, Tile tile)
      : bounded_(bounded),
        plan_(*bounded.plan),
        block_(*bounded.block),
        tile_(tile),
        product_(plan_.split.man_product, plan_.sum.random_bits, plan_.split.product_quantum),
        sum_(plan_.split.man_sum, plan_.sum.random_bits, plan_.split.sum_quantum),
        mask_(splat<U32>((1U << plan_.sum.random_bits) - 1)) {}

  CPD_FN void run() {
    load_sums();
    for (std::int64_t k = 0; k < block_.count; k += kRun) {
      const std::int64_t count = block_.count - k < kRun ? block_.count - k : kRun;
      const std::uint64_t first = plan_.first_draw + draws_before(plan_, block_.first_k + k);
      random_.make(plan_, tile_.at.index, first / (4 * kDraws), (count + kSteps - 1) / kSteps);
      for (std::int64_t at = 0; at < count; at += kGuard) {
        guarded(k + at, at, count - at < kGuard ? count - at : kGuard);
      }
    }
    store_sums();
  }

 private:
  using U32 = typename Narrow<V>::U32;
  static constexpr int kVectors = kGemmColumns / Lanes<V>::count;
  static constexpr int kSteps = 2 * kDraws;  ///< values of k that a block of random words serves
  static constexpr int kRun = kSteps * RandomRun::kBlocks;
  static constexpr int kGuard = kShortSteps;

  /// k counts from the block's first, `at` from the run's.
  CPD_FN void guarded(std::int64_t k, std::int64_t at, std::int64_t count) {
    V most = larger_magnitude(sums_[0], sums_[0]);
    for (int j = 1; j < kVectors; ++j) most = larger_magnitude(most, sums_[j]);
    const V weighed = most * splat<V>(plan_.split.of_sum);
    const float products = bounded_.products(k, count);
    if (ordinary_ && all_at_most(weighed, sum_limit(plan_.split, products))) {
      for (std::int64_t step = 0; step < count; ++step) add(k + step, at + step);
      return;
    }
    store_sums();
    general_steps(&bounded_, tile_, k, count);
    load_sums();
  }

  CPD_FN void add(std::int64_t k, std::int64_t at) {
    const V a = splat<V>(static_cast<Scalar<V>>(tile_.at.a[k * kGemmRows]));
    const auto number = static_cast<int>(2 * (at % kSteps));
    const std::uint32_t* words = random_.words(at / kSteps, number / kDraws);
    const std::uint32_t* next = random_.words(at / kSteps, (number + 1) / kDraws);
    for (int j = 0; j < kVectors; ++j) {
      const int column = j * Lanes<V>::count;
      const V b = load_f32<V>(tile_.at.b + k * kGemmColumns + column);
      const V x =
          split_product(a, b, b * product_.factor, random(words + column, number), product_);
      sums_[j] = split_sum(sums_[j], x, random(next + column, number + 1), sum_);
    }
  }
  CPD_FN Unsigned<V> random(const std::uint32_t* words, int number) const {
    const int shift = number % kDraws * (32 / kDraws);
    return convert<Unsigned<V>>((load<U32>(words) >> shift) & mask_);
  }

  CPD_FN void load_sums() {
    ordinary_ = true;
    for (int j = 0; j < kVectors; ++j) {
      const float* from = tile_.at.state + j * Lanes<V>::count;
      sums_[j] = load_f32<V>(from);
      for (int lane = 0; lane < Lanes<V>::count; ++lane) {
        const auto pattern = bits_as<std::uint32_t>(from[lane]);
        const bool finite = (pattern & Pattern<float>::magnitude) < Pattern<float>::infinity;
        if (!finite || pattern == Pattern<float>::sign) ordinary_ = false;
      }
    }
  }
  CPD_FN void store_sums() {
    for (int j = 0; j < kVectors; ++j) {
      store_f32(tile_.at.state + j * Lanes<V>::count, sums_[j]);
    }
  }

  const BoundedTile& bounded_;
  const GemmPlan& plan_;
  const GemmBlock& block_;
  Tile tile_;
  SplitStochastic<V> product_, sum_;
  U32 mask_;
  V sums_[kVectors];
  RandomRun random_;
  bool ordinary_ = true;
};

template <class V, int kDraws>
CPD_BODY void stochastic_tile(const BoundedTile* bounded) {
  for (std::int64_t i = 0; i < bounded->tile.rows; ++i) {
    Tile row = bounded->tile;
    row.rows = 1;
    row.at.a += i;
    row.at.state += i * bounded->block->state_columns;
    row.at.index += static_cast<std::uint64_t>(i) * bounded->block->index_row;
    StochasticRow<V, kDraws>(*bounded, row).run();
  }
}

template <class V>
CPD_FN void with_draws(const BoundedTile& bounded) {
  switch (draws_per_word(bounded.plan->sum.random_bits)) {
    case 1:
      return stochastic_tile<V, 1>(&bounded);
    case 2:
      return stochastic_tile<V, 2>(&bounded);
    default:
      return stochastic_tile<V, 4>(&bounded);
  }
}

}  // namespace
}  // namespace CPD_ISA
}  // namespace cpd
