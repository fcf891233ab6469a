// SPDX-License-Identifier: Apache-2.0
//
// The plans of numeric/plan.h, fold_walk.h and levels.h as verbs make them: in the default
// floating-point environment.
#pragma once

#include <cstdint>

#include "cpd/numeric/levels.h"

namespace cpd {

/// make_plan. Throws Error for a format that is none.
CPD_API RoundPlan PlanOf(const Format& format, const RoundingOptions& options = {});
/// plan_of_terms and plan_of_sums, of an accumulator and a format that Check has seen.
CPD_API FoldPlan TermsPlanOf(const Accumulator& accumulator, const Format& terms_in);
CPD_API FoldPlan SumsPlanOf(const Accumulator& accumulator);
/// make_levels, of an accumulator that Check has seen.
CPD_API Levels LevelsOf(const Accumulator& accumulator, std::int64_t depth);

}  // namespace cpd
