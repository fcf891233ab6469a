// SPDX-License-Identifier: Apache-2.0
//
// Running the same assertions on every CPU backend.
#pragma once

#include <string>
#include <vector>

#include "cpd/backend/roster.h"

namespace cpd::testing {

/// Backends that are built in this tree, slowest first.
inline constexpr const char* kBuiltBackends[] = {
    "scalar",
#ifdef CPD_ISA_AVX2
    "avx2",
#endif
#ifdef CPD_ISA_AVX512
    "avx512",
#endif
#ifdef CPD_ISA_NEON
    "neon",
#endif
};

/// Those that this CPU runs.
inline std::vector<std::string> backends() {
  std::vector<std::string> names;
  for (const KernelTable* table : AvailableKernels()) names.emplace_back(table->name);
  return names;
}

/// Forces a backend for as long as it lives.
class WithBackend {
 public:
  explicit WithBackend(const std::string& name) { ForceKernels(name); }
  ~WithBackend() { ForceKernels(""); }
  WithBackend(const WithBackend&) = delete;
  WithBackend& operator=(const WithBackend&) = delete;
};

}  // namespace cpd::testing
