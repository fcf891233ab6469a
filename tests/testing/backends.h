// SPDX-License-Identifier: Apache-2.0
//
// Running the same assertions on every CPU backend.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
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

/// Returns whether CPD_TEST_BACKENDS has this value.
inline bool tests_only(std::string_view which) {
  const char* wanted = std::getenv("CPD_TEST_BACKENDS");
  return wanted != nullptr && wanted == which;
}

/// Returns whether this run tests a device other than the CPU, "cuda" or "sim": unless
/// CPD_TEST_BACKENDS names the other one.
inline bool is_tested(std::string_view device) {
  return !tests_only(device == "cuda" ? "sim" : "cuda");
}

/// Returns the tables of kernels that this run tests, slowest first: those that this CPU runs. With
/// CPD_TEST_BACKENDS=vectors, scalar kernels are left out if there are others: they are tested
/// under a sanitizer. With CPD_TEST_BACKENDS=cuda or sim there are none.
inline std::vector<const KernelTable*> kernel_tables() {
  if (tests_only("cuda") || tests_only("sim")) return {};
  std::vector<const KernelTable*> tables = AvailableKernels();
  if (tests_only("vectors") && tables.size() > 1) tables.erase(tables.begin());
  return tables;
}

/// Their names.
inline std::vector<std::string> backends() {
  std::vector<std::string> names;
  for (const KernelTable* table : kernel_tables()) names.emplace_back(table->name);
  return names;
}

/// Returns why a built backend is not tested in this run; empty if it is.
inline std::string reason_without(std::string_view name) {
  const auto is_named = [name](const KernelTable* table) { return name == table->name; };
  if (std::ranges::any_of(kernel_tables(), is_named)) return "";
  const bool runs = std::ranges::any_of(AvailableKernels(), is_named);
  const char* const why = tests_only("cuda")  ? "this run tests a GPU, not "
                          : tests_only("sim") ? "this run tests the simulated device, not "
                          : runs              ? "tested under a sanitizer: "
                                              : "this CPU has no ";
  return why + std::string(name);
}

/// Forces a backend for as long as it lives.
class WithBackend {
 public:
  explicit WithBackend(const std::string& name) { ForceKernels(name); }
  ~WithBackend() { ForceKernels(""); }
  WithBackend(const WithBackend&) = delete;
  WithBackend& operator=(const WithBackend&) = delete;
};

/// A test with the name of a backend, which it forces.
class OnBackend : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string reason = reason_without(GetParam());
    if (!reason.empty()) GTEST_SKIP() << reason;
    ForceKernels(GetParam());
  }
  void TearDown() override { ForceKernels(""); }
};

}  // namespace cpd::testing
