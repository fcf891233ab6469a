// SPDX-License-Identifier: Apache-2.0
//
// What products cost, by the route that they take. The figures are those of a Xeon with AVX-512
// (benchmarks/GEMM.md), in units of a BLAS's multiply-accumulate; AVX2's are up to three times as
// many where sums of exact products, or random bits, take more operations there.
#include <string_view>

#include "cpd/backend/roster.h"
#include "cpd/numeric/units/accumulator_plan.h"
#include "cpd/ops/checks.h"
#include "cpd/ops/gemm.h"

namespace cpd {
namespace {

constexpr std::int64_t kDepth = 128;  ///< of a usual sum

/// Rounded sums for each product.
double SumsOf(const GemmPlan& plan) { return plan.scheme == Scheme::kahan ? 4 : 1; }

double RoundingsOf(const GemmPlan& plan) { return SumsOf(plan) + (plan.exact_products ? 0 : 1); }

/// Of the random bits: 30 operations for a word of each lane.
double WordsOf(const GemmPlan& plan) {
  if (plan.sum.mode != Rounding::stochastic) return 0;
  return 40 * RoundingsOf(plan) / draws_per_word(plan.sum.random_bits);
}

double GeneralRoute(const GemmPlan& plan) {
  if (plan.sum_in_binary32 && plan.product_bits > 0) {
    const bool is_short = is_addition(plan.sum) && is_addition(plan.product);
    return (is_short ? 15 : 40) * RoundingsOf(plan);
  }
  return 130 * SumsOf(plan) + (plan.exact_products ? 0 : 80);
}

double ShortRoute(const GemmPlan& plan) {
  const double care = plan.split.guarded ? 2.5 : 1;
  switch (plan.split.kind) {
    case Split::plain:
      return plan.exact_products ? 1.5 : 2.5;
    case Split::plain_kahan:
    case Split::plain_tree:
      return 9;
    case Split::kahan:
      return 20 * care;
    case Split::tree:
      return 15;
    case Split::stochastic:
      return (plan.stochastic.in_binary32 ? 12 : 20) * RoundingsOf(plan);
    default:
      return 9 * care;
  }
}

double OfSums(const GemmPlan& plan) {
  return WordsOf(plan) + (plan.split.kind == Split::none ? GeneralRoute(plan) : ShortRoute(plan));
}

double OfIntegers(const FixedPlan& plan) { return plan.words <= 4 ? 30 : 50 * plan.words; }

double OfUnit(const BlockFma& unit) { return unit.adder == Adder::aligned ? 20 : 200; }

}  // namespace

double SlowdownOf(const Accumulator& accumulator) {
  Check(accumulator, true);  // wherever the product runs
  const AccumulatorPlan plan = make_accumulator_plan(accumulator, kDepth);
  const double lanes = std::string_view(Kernels().name) == "scalar" ? 8 : 1;
  if (accumulator.unit) return lanes * OfUnit(*accumulator.unit);
  if (plan.scheme == Scheme::fixed) return lanes * OfIntegers(plan.fixed);
  return lanes * OfSums(plan.sum);
}

}  // namespace cpd
