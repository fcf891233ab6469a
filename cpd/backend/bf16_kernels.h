// SPDX-License-Identifier: Apache-2.0
//
// Selects the CPU kernels for products of bf16 numbers; roster.h selects all other kernels. Kernels
// for bf16 have a separate table because few CPUs can run them.
#pragma once

#include "cpd/base/bf16_table.h"
#include "cpd/export.h"

namespace cpd {

/// Returns the kernels for products of bf16 numbers that match Kernels() (roster.h). Returns null
/// unless Kernels() are the AVX-512 kernels and the CPU has the instruction for such products.
CPD_API const Bf16Table* Bf16Kernels();

}  // namespace cpd
