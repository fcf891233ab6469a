// SPDX-License-Identifier: Apache-2.0
//
// Makes the plans of numeric/ in the default floating-point environment, by the fast paths that are
// on (fast_paths.h).
#pragma once

#include <cstdint>

#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/units/accumulator_plan.h"
#include "cpd/spec/random_key.h"

namespace cpd {

/// Calls make_plan. Throws Error for an invalid format.
CPD_API RoundPlan PlanOf(const Format& format, const RoundingOptions& options = {},
                         const RandomKey& key = {});
/// plan_of_terms and plan_of_sums, of an accumulator and a format that Check has accepted.
CPD_API FoldPlan TermsPlanOf(const Accumulator& accumulator, const Format& terms_in,
                             const RandomKey& key = {});
CPD_API FoldPlan SumsPlanOf(const Accumulator& accumulator, const RandomKey& key = {});
/// make_accumulator_plan, of an accumulator that Check has accepted.
CPD_API AccumulatorPlan AccumulatorPlanOf(const Accumulator& accumulator, std::int64_t depth,
                                          const RandomKey& key = {});

}  // namespace cpd
