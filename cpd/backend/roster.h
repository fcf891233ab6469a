// SPDX-License-Identifier: Apache-2.0
//
// Selects the CPU kernels. There is one table of kernels for each instruction set. The operations
// of the CPU's backend call the table in use.
#pragma once

#include <string_view>
#include <vector>

#include "cpd/backend/kernel_table.h"

namespace cpd {

/// Returns the CPU kernels in use: the ones that CPD_BACKEND names, or the best that this CPU can
/// run of scalar, avx2 and avx512 (on aarch64: of scalar and neon). Throws Error if CPD_BACKEND
/// names kernels that are unknown or cannot run on this CPU.
CPD_API const KernelTable& Kernels();
/// Returns the tables of kernels, one for each instruction set, that can run on this CPU, slowest
/// first.
CPD_API std::vector<const KernelTable*> AvailableKernels();
/// For tests and benchmarks: makes operations use the table of kernels `name` from now on; ""
/// selects the default again. No other thread may run an operation during the call.
CPD_API void ForceKernels(std::string_view name);
/// For tests: makes operations use the kernels in `table` from now on. No other thread may run an
/// operation during the call.
CPD_API void SetKernels(const KernelTable& table);

}  // namespace cpd
