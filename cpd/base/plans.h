// SPDX-License-Identifier: Apache-2.0
//
// Makes the plans of numeric/ in the default floating-point environment, with the fast paths that
// are on (fast_paths.h).
#pragma once

#include <cstdint>

#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/units/accumulator_plan.h"
#include "cpd/spec/random_key.h"

namespace cpd {

/// Returns make_plan of these arguments. Throws Error for an invalid format.
CPD_API RoundPlan PlanOf(const Format& format, const RoundingOptions& options = {},
                         const RandomKey& key = {});
/// TermsPlanOf returns plan_of_terms, and SumsPlanOf returns plan_of_sums. Check must have accepted
/// the accumulator and the format.
CPD_API FoldPlan TermsPlanOf(const Accumulator& accumulator, const Format& terms_in,
                             const RandomKey& key = {});
CPD_API FoldPlan SumsPlanOf(const Accumulator& accumulator, const RandomKey& key = {});
/// Returns make_accumulator_plan of these arguments. Check must have accepted the accumulator.
CPD_API AccumulatorPlan AccumulatorPlanOf(const Accumulator& accumulator, std::int64_t depth,
                                          const RandomKey& key = {});

}  // namespace cpd
