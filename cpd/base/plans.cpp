// SPDX-License-Identifier: Apache-2.0
#include "cpd/base/plans.h"

#include "cpd/base/fast_paths.h"
#include "cpd/base/guarded.h"
#include "cpd/numeric/sums/order.h"

namespace cpd {

RoundPlan PlanOf(const Format& format, const RoundingOptions& options, const RandomKey& key) {
  Check(format);
  return Guarded([&] { return make_plan(format, options, key); });
}

FoldPlan TermsPlanOf(const Accumulator& accumulator, const Format& terms_in, const RandomKey& key) {
  return Guarded([&] { return plan_of_terms(accumulator, terms_in, key, EnabledFastPaths()); });
}
FoldPlan SumsPlanOf(const Accumulator& accumulator, const RandomKey& key) {
  return Guarded([&] { return plan_of_sums(accumulator, key, EnabledFastPaths()); });
}

AccumulatorPlan AccumulatorPlanOf(const Accumulator& accumulator, std::int64_t depth,
                                  const RandomKey& key) {
  return Guarded(
      [&] { return make_accumulator_plan(accumulator, depth, key, EnabledFastPaths()); });
}

}  // namespace cpd
