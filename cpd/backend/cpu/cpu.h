// SPDX-License-Identifier: Apache-2.0
//
// The CPU as a backend: each operation walks its tensors on threads and gives neighboring elements
// to the kernels of the instruction set in use (roster.h). Work is done when a call returns, and
// what is wrong is thrown.
#pragma once

#include "cpd/backend/backend.h"

namespace cpd::cpu {

#define CPD_OP(name, Call) int name(const Launch& launch, const Call& call);
#include "cpd/backend/operations.def"

ProductPath product_path(const AccumulatorPlan& plan, bool given);

/// The table.
const Backend& Table();

}  // namespace cpd::cpu
