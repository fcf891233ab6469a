// SPDX-License-Identifier: Apache-2.0
//
// The functions of a CPU backend: loops over contiguous memory, compiled once for each instruction
// set. They make no decisions: numeric/ does every rounding, and the plan holds every choice. They
// neither allocate memory nor throw.
#pragma once

#include <cstdint>

#include "cpd/backend/calls.h"

namespace cpd {

struct KernelTable {
  const char* name;
  int lanes;
  /// The number of rows of a, and of columns of b, that are packed together as one panel
  /// (GemmBlock).
  int gemm_rows, gemm_columns;
  /// Returns the number of kernel calls since the program started.
  std::uint64_t (*calls)();

#define CPD_CPU(Result, name, ...) Result (*name)(__VA_ARGS__);
#define CPD_CPU_PATH CPD_CPU
#include "cpd/backend/operations.def"
};

}  // namespace cpd
