// SPDX-License-Identifier: Apache-2.0
//
// Selects the CPU kernels: lists the tables, one for each instruction set, and returns the one in
// use, which every operation of the CPU's backend calls.
#pragma once

#include <string_view>
#include <vector>

#include "cpd/backend/kernel_table.h"

namespace cpd {

/// Returns the CPU kernels in use: the best of scalar, avx2 and avx512 (on aarch64 of scalar and
/// neon) that this CPU has, or the ones that CPD_BACKEND names. Throws Error if CPD_BACKEND names
/// unknown kernels, or kernels that cannot run here.
CPD_API const KernelTable& Kernels();
/// Tables that can run on this CPU, slowest first.
CPD_API std::vector<const KernelTable*> AvailableKernels();
/// Uses table `name` from now on ("" for the default again); for tests and benchmarks. Must not be
/// called while another thread runs an operation.
CPD_API void ForceKernels(std::string_view name);
/// The same of a test's own table.
CPD_API void SetKernels(const KernelTable& table);

}  // namespace cpd
