// SPDX-License-Identifier: Apache-2.0
//
// Sequential stochastic sums of products on a GPU by the fast roundings of
// numeric/fast/stochastic.h, with one sum in each thread. Each block of random words is generated
// once, for all steps that use it. Requires the CUDA instructions that truncate (lanes/cuda.h).
#pragma once

#include <cstdint>

#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/fast/stochastic.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "kernels/cuda/strided.h"
#include "kernels/cuda/tile_range.h"

namespace cpd::cuda {

/// The operands and the random bits of one sum. A step adds one product to the sum.
struct StochasticSteps {
  const GemmPlan& plan;
  std::uint64_t seed, stream, index;  ///< the element's
  std::uint64_t first;  ///< the first step's first draw, at the beginning of a block of words
  int spare;            ///< the low bits of random integers that have no effect
  const float* a;
  const float* b;
  int apart;  ///< the distance, in floats, between the operands of neighboring steps
  int count;
  bool products_fit;  ///< none is beyond the format's max
};

/// Returns how many low bits of the random integers the fast path may omit, because they have no
/// effect on sums of products of a and b. `a` and `b` are the bounds of the operands. Returns -1 if
/// the fast path may give wrong sums.
CPD_FN int spare_of(const GemmPlan& plan, const TileRange& a, const TileRange& b) {
  const StochasticPlan& way = plan.fast.stochastic;
  const bool finite = a.largest < Pattern<float>::infinity && b.largest < Pattern<float>::infinity;
  if (!finite) return -1;
  if (way.in_binary32) return 0;
  if (way.spare_bits == 0) return -1;
  const double least = way.product.quantum * exact_power(way.spare_bits - plan.sum.random_bits);
  const bool fits = significant_bits(a.fraction) + significant_bits(b.fraction) <= 22 &&
                    least_bit(a.smallest, a.fraction) * least_bit(b.smallest, b.fraction) >= least;
  return fits ? way.spare_bits : -1;
}

template <bool kExactProducts, bool kProductsFit, int kPerWord>
CPD_FN float add_stochastic(const StochasticSteps& steps, float s) {
  constexpr int kInBlock = 4 * kPerWord;
  constexpr int kDraws = kExactProducts ? 1 : 2;
  constexpr int kSteps = kInBlock / kDraws;
  const RoundPlan& plan = steps.plan.sum;
  const int bits = plan.random_bits - steps.spare;
  const SplitStochastic<float> product(steps.plan.fast.stochastic.product, bits);
  const SplitStochastic<float> sum(steps.plan.fast.stochastic.sum, bits);
  const std::uint32_t mask = (1U << bits) - 1;
  // Adds products number k … k + count - 1 to s. One block of random words must contain all their
  // random integers.
  const auto add = [&](int k, int count) {
    const auto words =
        random_words(static_cast<std::uint32_t>(steps.index), steps.index,
                     (steps.first + static_cast<std::uint64_t>(kDraws) * k) / kInBlock, steps.seed,
                     steps.stream);
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int j = 0; j < kSteps; ++j) {
      if (j >= count) return;
      const auto draw = [&](int q) {
        const int at = kDraws * j + q;
        return words.word[at / kPerWord] >> (at % kPerWord * (32 / kPerWord) + steps.spare) & mask;
      };
      const int place = (k + j) * steps.apart;
      s = stochastic_step<kExactProducts, kProductsFit>(steps.a[place], steps.b[place], s, draw,
                                                        product, sum);
    }
  };
  int k = 0;
  CPD_ROLLED for (; k + kSteps <= steps.count; k += kSteps) add(k, kSteps);
  if (k < steps.count) add(k, steps.count - k);
  return s;
}

template <bool kExactProducts, bool kProductsFit>
CPD_FN float add_stochastic(const StochasticSteps& steps, float s) {
  switch (draws_per_word(steps.plan.sum.random_bits)) {
    case 1:
      return add_stochastic<kExactProducts, kProductsFit, 1>(steps, s);
    case 2:
      return add_stochastic<kExactProducts, kProductsFit, 2>(steps, s);
    default:
      return add_stochastic<kExactProducts, kProductsFit, 4>(steps, s);
  }
}

/// Returns s plus all products of `steps`, rounded after each addition.
CPD_FN float add_stochastic(const StochasticSteps& steps, float s) {
  if (steps.plan.exact_products) return add_stochastic<true, true>(steps, s);
  return steps.products_fit ? add_stochastic<false, true>(steps, s)
                            : add_stochastic<false, false>(steps, s);
}

CPD_FN bool is_stochastic(FastPath path) {
  bool is = false;
  with_path(path, [&]<class Path>() { is = Path::kStochastic; });
  return is;
}
/// Returns whether the plan allows the fast path of stochastic rounding for its sums.
CPD_FN bool may_take_short_steps(const GemmPlan& plan) {
  return plan.scheme == Scheme::sequential && is_stochastic(plan.fast.path) &&
         (plan.exact_products || plan.fast.stochastic.on_grid);
}
/// Returns whether a sum can be computed by the fast path. `first`, the number of the sum's first
/// random integer, must be the first of a block of random words.
CPD_FN bool has_short_steps(const GemmPlan& plan, std::uint64_t first) {
  const auto in_block = static_cast<std::uint64_t>(4 * draws_per_word(plan.sum.random_bits));
  return kHasDirectedRounding<float> && may_take_short_steps(plan) && first % in_block == 0;
}

}  // namespace cpd::cuda
