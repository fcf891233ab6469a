// SPDX-License-Identifier: Apache-2.0
//
// AVX2's kernels, but for products in lanes of 16 bits, which are emulated (emulated_halves.h): for
// programs that tests/CMakeLists.txt links with cpd_emulated_halves.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "cpd/backend/roster.h"
#include "cpd/numeric/sums/gemm_plan.h"

namespace cpd {
#ifdef CPD_ISA_AVX2
namespace emulated {
extern std::uint64_t g_half_products;
void gemm_in_halves(const GemmPlan& plan, const GemmBlock& block);
}  // namespace emulated
#endif

namespace testing {

/// Null where this CPU or this tree has no AVX2.
inline const KernelTable* emulated_halves_table() {
#ifdef CPD_ISA_AVX2
  static const auto tables = AvailableKernels();
  static const auto avx2 = std::ranges::find(
      tables, "avx2", [](const KernelTable* table) { return std::string_view(table->name); });
  if (avx2 == tables.end()) return nullptr;
  static const KernelTable halves = [] {
    KernelTable table = **avx2;
    table.name = "avx2 with emulated halves";
    table.gemm = [](const GemmPlan& plan, const GemmBlock& block) {
      if (plan.fast.half == Half::fp16) return emulated::gemm_in_halves(plan, block);
      (*avx2)->gemm(plan, block);
    };
    return table;
  }();
  return &halves;
#else
  return nullptr;
#endif
}

/// Multiplications of emulated lanes, all of a vector as one.
inline std::uint64_t emulated_products() {
#ifdef CPD_ISA_AVX2
  return emulated::g_half_products;
#else
  return 0;
#endif
}

}  // namespace testing
}  // namespace cpd
