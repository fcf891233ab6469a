// SPDX-License-Identifier: Apache-2.0
//
// Makes plans, the choices of an algorithm that cpd/numeric defines, for casts, sums and products.
// Plans are made in the default floating-point environment, and may choose only fast paths that are
// on (fast_paths.h).
#pragma once

#include <cstdint>

#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/units/accumulator_plan.h"
#include "cpd/spec/random_key.h"

namespace cpd {

/// Makes the plan of a rounding by make_plan. Throws Error for an invalid format.
CPD_API RoundPlan PlanOf(const Format& format, const RoundingOptions& options = {},
                         const RandomKey& key = {});
/// TermsPlanOf makes the plan for adding terms (plan_of_terms), and SumsPlanOf the plan for adding
/// sums of chunks and trees (plan_of_sums). The caller must have checked the accumulator and the
/// format (Check).
CPD_API FoldPlan TermsPlanOf(const Accumulator& accumulator, const Format& terms_in,
                             const RandomKey& key = {});
CPD_API FoldPlan SumsPlanOf(const Accumulator& accumulator, const RandomKey& key = {});
/// Makes the plan of a matrix product's accumulator by make_accumulator_plan. The caller must have
/// checked the accumulator (Check).
CPD_API AccumulatorPlan AccumulatorPlanOf(const Accumulator& accumulator, std::int64_t depth,
                                          const RandomKey& key = {});

}  // namespace cpd
