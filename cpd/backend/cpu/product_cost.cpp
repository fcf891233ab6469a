// SPDX-License-Identifier: Apache-2.0
//
// Estimates the time of a matrix product, relative to a BLAS's time for the fp32 product of the
// same shapes.
//
// Each figure below is the time of one operation on one sum, or of one product with all operations
// that belong to it. The unit is the time that the BLAS takes for one multiply-accumulate. The
// figures were measured on one thread of a Xeon (model 207) with AVX-512. `python
// benchmarks/gemm_cost.py` measures products by each path again and prints the times next to
// SlowdownOf. With AVX2, products in integers or with random bits take up to three times as long.
#include "cpd/backend/cpu/product_cost.h"

#include <string_view>

#include "cpd/backend/roster.h"
#include "cpd/numeric/units/accumulator_plan.h"

namespace cpd {
namespace {

/// The assumed number of products in a sum. The choice of some code paths depends on this number.
constexpr std::int64_t kUsualDepth = 128;

/// Times of the general path, which supports every format and rounding, for sums in binary32
/// (gemm_general.h). kRoundingByAddition is for one rounding to nearest-even by one addition of
/// binary32, kGeneralRounding for one rounding by any other method.
constexpr double kRoundingByAddition = 15, kGeneralRounding = 40;
/// Times of the general path, which supports every format and rounding, for sums in binary64: one
/// addition to a sum with its rounding, and one product that is rounded before it is added.
constexpr double kAdditionInBinary64 = 130, kProductInBinary64 = 80;

/// The time to generate and use one word of random bits by Philox for one sum: about 30 operations.
constexpr double kPhiloxWord = 40;

/// Times of one product and its addition in fp32 sums that the hardware rounds (path `binary32`):
/// with a fused multiply-add, with a product that is rounded before it is added, in Kahan's sum,
/// and in a pairwise sum.
constexpr double kFusedFp32 = 1.5, kSeparateFp32 = 2.5, kCompensatedFp32 = 9, kTreeFp32 = 9;
/// The paths that round by Veltkamp's splitting: the times of one product with its one or two
/// roundings. The three figures are for a sequential sum, Kahan's sum and a pairwise sum.
constexpr double kVeltkampInOrder = 9, kVeltkampKahan = 20, kVeltkampTree = 15;
/// The factor by which Veltkamp's roundings take longer if each one checks for overflow, as in
/// formats without fraction bits.
constexpr double kGuarded = 2.5;
/// Times of one stochastic rounding on the path `stochastic`, computed in binary32 or in binary64.
/// The random bits take additional time (kPhiloxWord).
constexpr double kStochasticInBinary32 = 12, kStochasticInBinary64 = 20;

/// Times of one product in integer sums. If a sum has up to kFewWords words of 32 bits, a product
/// takes kIntegerOfFewWords. Otherwise it takes kIntegerWord for each word of the sum.
constexpr int kFewWords = 4;
constexpr double kIntegerOfFewWords = 30, kIntegerWord = 50;

/// Times of one product in the emulated sums of a matrix unit. kAlignedUnit is for units that align
/// all terms of a block at once (Adder::aligned), kOtherUnit for all other units.
constexpr double kAlignedUnit = 20, kOtherUnit = 200;

/// The factor by which every product takes longer if the kernels use no vector instructions.
constexpr double kWithoutVectors = 8;

/// Returns the number of rounded additions that one product's addition to a sum takes: four for
/// Kahan's scheme, otherwise one.
double AdditionsOf(const GemmPlan& plan) { return plan.scheme == Scheme::kahan ? 4 : 1; }

/// Returns the number of roundings that one product and its addition to a sum take.
double RoundingsOf(const GemmPlan& plan) {
  return AdditionsOf(plan) + (plan.exact_products ? 0 : 1);
}

/// Returns the time to generate the random bits for the roundings of one product; 0 if these use
/// none.
double RandomBits(const GemmPlan& plan) {
  if (plan.sum.mode != Rounding::stochastic) return 0;
  return kPhiloxWord * RoundingsOf(plan) / draws_per_word(plan.sum.random_bits);
}

/// Returns the time of one product by the general path, which supports every format and rounding.
double GeneralRoute(const GemmPlan& plan) {
  if (plan.sum_in_binary32 && plan.product_bits > 0) {
    const bool by_addition = plan.sum.mode == Rounding::nearest_even && is_addition(plan.sum) &&
                             is_addition(plan.product);
    return (by_addition ? kRoundingByAddition : kGeneralRounding) * RoundingsOf(plan);
  }
  return kAdditionInBinary64 * AdditionsOf(plan) + (plan.exact_products ? 0 : kProductInBinary64);
}

template <class Path>
constexpr bool kTakesAnyValues = [] {
  if constexpr (Path::kTakesProducts) return Path::kAnyValues;
  return false;
}();

/// Returns the time for the scheme of the sum: sequential, Kahan's or pairwise.
double ByScheme(Scheme scheme, double in_order, double kahan, double tree) {
  if (scheme == Scheme::kahan) return kahan;
  return scheme == Scheme::pairwise ? tree : in_order;
}

/// Returns the time of one product by the fast path that the plan has chosen. If the plan has none,
/// returns the time by the general path, which supports every format and rounding.
double PathOfProduct(const GemmPlan& plan) {
  double cost = 0;
  const bool has_path = with_path(plan.fast.path, [&]<class Path>() {
    if constexpr (Path::kStochastic) {
      const bool narrow = plan.fast.stochastic.in_binary32;
      cost = (narrow ? kStochasticInBinary32 : kStochasticInBinary64) * RoundingsOf(plan);
    } else if constexpr (kTakesAnyValues<Path>) {
      cost = ByScheme(plan.scheme, plan.exact_products ? kFusedFp32 : kSeparateFp32,
                      kCompensatedFp32, kTreeFp32);
    } else {
      const double guarded = plan.fast.guarded ? kGuarded : 1;
      cost = guarded * ByScheme(plan.scheme, kVeltkampInOrder, kVeltkampKahan, kVeltkampTree);
    }
  });
  return has_path ? cost : GeneralRoute(plan);
}

double FloatSum(const GemmPlan& plan) { return RandomBits(plan) + PathOfProduct(plan); }

double IntegerSum(const FixedPlan& plan) {
  return plan.words <= kFewWords ? kIntegerOfFewWords : kIntegerWord * plan.words;
}

double UnitSum(const BlockFma& unit) {
  return unit.adder == Adder::aligned ? kAlignedUnit : kOtherUnit;
}

}  // namespace

double SlowdownOf(const Accumulator& accumulator) {
  Check(accumulator);
  const AccumulatorPlan plan = make_accumulator_plan(accumulator, kUsualDepth);
  const double vectors = std::string_view(Kernels().name) == "scalar" ? kWithoutVectors : 1;
  if (accumulator.unit) return vectors * UnitSum(*accumulator.unit);
  if (plan.scheme == Scheme::fixed) return vectors * IntegerSum(plan.fixed);
  return vectors * FloatSum(plan.sum);
}

}  // namespace cpd
