// SPDX-License-Identifier: Apache-2.0
//
// The plans of numeric/plan.h and levels.h as verbs make them: of formats that are checked, in the
// default floating-point environment.
#pragma once

#include <cstdint>

#include "cpd/numeric/levels.h"

namespace cpd {

/// make_plan. Throws Error for a format that is none.
CPD_API RoundPlan PlanOf(const Format& format, const RoundingOptions& options = {});
/// make_fold_plan. Throws Error for a format that is none.
CPD_API FoldPlan FoldPlanOf(const Accumulator& accumulator, const Format& terms_in);
/// make_levels, of an accumulator that Check has seen.
CPD_API Levels LevelsOf(const Accumulator& accumulator, std::int64_t depth);

}  // namespace cpd
