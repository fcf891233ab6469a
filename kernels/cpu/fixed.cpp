// SPDX-License-Identifier: Apache-2.0
#include "cpd/numeric/fixed.h"

#include "table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

CPD_BODY void fixed_body(const FixedPlan* plan, const GemmBlock* block) {
  (void)plan;
  (void)block;
}

}  // namespace

void fixed(const FixedPlan& plan, const GemmBlock& block) { enter<fixed_body>(&plan, &block); }

}  // namespace CPD_ISA
}  // namespace cpd
