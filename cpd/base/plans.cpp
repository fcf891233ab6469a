// SPDX-License-Identifier: Apache-2.0
#include "cpd/base/plans.h"

#include "cpd/base/guarded.h"
#include "cpd/numeric/sums/fold_walk.h"

namespace cpd {

RoundPlan PlanOf(const Format& format, const RoundingOptions& options) {
  Check(format);
  return Guarded([&] { return make_plan(format, options); });
}

FoldPlan TermsPlanOf(const Accumulator& accumulator, const Format& terms_in) {
  return Guarded([&] { return plan_of_terms(accumulator, terms_in); });
}
FoldPlan SumsPlanOf(const Accumulator& accumulator) {
  return Guarded([&] { return plan_of_sums(accumulator); });
}

AccumulatorPlan AccumulatorPlanOf(const Accumulator& accumulator, std::int64_t depth) {
  return Guarded([&] { return make_accumulator_plan(accumulator, depth); });
}

}  // namespace cpd
