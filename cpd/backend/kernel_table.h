// SPDX-License-Identifier: Apache-2.0
//
// The functions of a CPU backend: loops over contiguous memory, compiled once per ISA. They make no
// decisions: every rounding is numeric/'s, every choice is in the plan. They neither allocate nor
// throw.
#pragma once

#include <cstdint>

#include "cpd/backend/calls.h"

namespace cpd {

struct KernelTable {
  const char* name;
  int lanes;
  /// Sizes of packed panels (GemmBlock).
  int gemm_rows, gemm_columns;
  /// Kernel calls since the program started.
  std::uint64_t (*calls)();

#define CPD_CPU(Result, name, ...) Result (*name)(__VA_ARGS__);
#define CPD_CPU_PATH CPD_CPU
#include "cpd/backend/operations.def"
};

}  // namespace cpd
