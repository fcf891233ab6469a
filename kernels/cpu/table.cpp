// SPDX-License-Identifier: Apache-2.0
//
// The CPU backend: loops over contiguous memory that call cpd/numeric. The files are compiled once
// for each ISA, with that ISA's flags and with CPD_ISA defined as its name. The objects of one ISA
// export one function, which returns their table.
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {

std::uint64_t g_calls = 0;

namespace {

#define CPD_STRING2(x) #x
#define CPD_STRING(x) CPD_STRING2(x)

std::uint64_t calls() { return __atomic_load_n(&g_calls, __ATOMIC_RELAXED); }

constexpr KernelTable kTable = {
    .name = CPD_STRING(CPD_ISA),
    .lanes = Lanes<F>::count,
    .gemm_rows = kGemmRows,
    .gemm_columns = kGemmColumns,
    .calls = calls,
#define CPD_CPU(Result, name, ...) .name = Entry<name>::Run,
#define CPD_CPU_PATH(Result, name, ...) .name = name,
#include "cpd/backend/operations.def"
};

}  // namespace

const KernelTable& kernel_table() { return kTable; }

}  // namespace CPD_ISA
}  // namespace cpd
