// SPDX-License-Identifier: Apache-2.0
//
// Selects the CPU kernels for products of bf16 numbers, as roster.h does all others. They have a
// table of their own, which few CPUs can use.
#pragma once

#include "cpd/base/bf16_table.h"
#include "cpd/export.h"

namespace cpd {

/// The kernels for products of bf16 numbers that belong to Kernels() (roster.h); null where these
/// are not AVX-512's, or the CPU has no instruction for such products.
CPD_API const Bf16Table* Bf16Kernels();

}  // namespace cpd
