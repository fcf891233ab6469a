// SPDX-License-Identifier: Apache-2.0
//
// What the files of one ISA share: its lane types, the way into a kernel, and the functions from
// which kernels.cpp makes the table. No standard library: an inline function compiled with ISA
// flags could be picked up elsewhere.
#pragma once

#include "cpd/base/kernel_table.h"
#include "cpd/numeric/environment.h"
#include "cpd/numeric/lanes.h"

namespace cpd {
inline namespace CPD_ISA {

#if defined(__AVX512F__)
using F = F32x16;
using D = F64x8;
constexpr int kGemmRows = 8;
constexpr int kGemmColumns = 32;
#elif defined(__AVX2__)
using F = F32x8;
using D = F64x4;
constexpr int kGemmRows = 4;
constexpr int kGemmColumns = 16;
#else
using F = float;
using D = double;
constexpr int kGemmRows = 4;
constexpr int kGemmColumns = 16;
#endif

#define CPD_BODY __attribute__((noinline))  // computed between the environment's set and restore

/// Kernel calls since the program started.
extern std::uint64_t g_calls;

/// Every kernel's entry: counts the call and runs its body in the default environment.
template <auto kBody, class... Args>
CPD_FN auto enter(Args... args) {
  __atomic_fetch_add(&g_calls, 1, __ATOMIC_RELAXED);
  const Environment environment;
  return kBody(args...);
}

CPD_FN constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// KernelTable's members of these names.
void pack(std::int64_t lines, std::int64_t count, const float* x, std::int64_t line_stride,
          std::int64_t k_stride, int width, bool last_bits, float* packed, PanelRange* range,
          std::int32_t* logs);
void gemm(const GemmPlan& plan, const GemmBlock& block);
void block_fma(const BlockFmaPlan& plan, const GemmBlock& block);

}  // namespace CPD_ISA
}  // namespace cpd
