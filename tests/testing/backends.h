// SPDX-License-Identifier: Apache-2.0
//
// Lets tests run the same assertions on every backend of the CPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "cpd/backend/roster.h"

namespace cpd::testing {

/// The backends that this tree was built with, from the slowest to the fastest.
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

/// Returns whether the environment variable CPD_TEST_BACKENDS equals `which`.
inline bool tests_only(std::string_view which) {
  const char* wanted = std::getenv("CPD_TEST_BACKENDS");
  return wanted != nullptr && wanted == which;
}

/// Returns whether this run tests the device "cuda" or "sim". Returns false only if
/// CPD_TEST_BACKENDS is the name of the other device.
inline bool is_tested(std::string_view device) {
  return !tests_only(device == "cuda" ? "sim" : "cuda");
}

/// Returns the kernel tables that this run tests, from the slowest to the fastest. Only tables that
/// this CPU can run are returned. With CPD_TEST_BACKENDS=vectors, the scalar table is left out if
/// there is another one; the runs with a sanitizer test it. With CPD_TEST_BACKENDS=cuda or sim the
/// list is empty.
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

/// Returns the reason why this run does not test a backend that was built; empty if the run tests
/// it.
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

/// Makes the library use the backend with this name while the object lives.
class WithBackend {
 public:
  explicit WithBackend(const std::string& name) { ForceKernels(name); }
  ~WithBackend() { ForceKernels(""); }
  WithBackend(const WithBackend&) = delete;
  WithBackend& operator=(const WithBackend&) = delete;
};

/// A test whose parameter is the name of a backend. The library uses that backend during the test.
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
