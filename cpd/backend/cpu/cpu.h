// SPDX-License-Identifier: Apache-2.0
//
// The CPU as a backend. Each operation divides its tensors among threads and passes contiguous
// elements to the kernels of the instruction set in use (roster.h). All work is done when a call
// returns, and errors are thrown by the call.
#pragma once

#include "cpd/backend/backend.h"

namespace cpd::cpu {

#define CPD_OP(name, Call) int name(const Launch& launch, const Call& call);
#include "cpd/backend/operations.def"

ProductPath product_path(const AccumulatorPlan& plan, bool given);

/// The table.
const Backend& Table();

}  // namespace cpd::cpu
