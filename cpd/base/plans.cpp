// SPDX-License-Identifier: Apache-2.0
#include "cpd/base/plans.h"

#include "cpd/base/guarded.h"

namespace cpd {

RoundPlan PlanOf(const Format& format, const RoundingOptions& options) {
  Check(format);
  return Guarded([&] { return make_plan(format, options); });
}

FoldPlan FoldPlanOf(const Accumulator& accumulator, const Format& terms_in) {
  return Guarded([&] { return make_fold_plan(accumulator, terms_in); });
}

AccumulatorPlan AccumulatorPlanOf(const Accumulator& accumulator, std::int64_t depth) {
  return Guarded([&] { return make_accumulator_plan(accumulator, depth); });
}

}  // namespace cpd
