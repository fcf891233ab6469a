// SPDX-License-Identifier: Apache-2.0
//
// Gives tests the devices to run on: GPUs and simulated devices. If there is no device, the tests
// are skipped with the reason.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpd/backend/faults.h"
#include "cpd/base/tensor.h"
#include "tests/testing/accelerator.h"
#include "tests/testing/backends.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/sim/device.h"

namespace cpd::testing {

/// True if the GPU's kernels run on a CPU (cuda_on_cpu), where they take a thousand times as long.
inline const bool kCudaOnCpu = std::getenv("CPD_CUDA_ON_CPU") != nullptr;
/// The factor by which cases are rarer on a simulated device, which is too slow for all cases of a
/// GPU, and under a sanitizer, which shows faults that hardly depend on the case.
inline const unsigned kRarer = tests_only("sim") ? 12 : (kSanitized ? 4 : 1);

/// True if this run tests a real GPU, which runs all cases.
inline const bool kOnGpuItself = !kCudaOnCpu && tests_only("cuda");

/// Returns all cases on a real GPU and in the exhaustive tier; otherwise about one in `of`, and
/// fewer if devices are emulated.
template <class T>
std::vector<T> few_on_cpu(std::vector<T> all, unsigned of) {
  return kOnGpuItself ? all : few(std::move(all), kRarer * of);
}

/// Returns whether few_on_cpu selects case number i.
inline bool is_chosen_on_cpu(std::size_t i, unsigned of) {
  return kOnGpuItself || is_chosen(i, kRarer * of);
}

/// Returns the kernels that the CUDA emulation has queued since the last call, as names without
/// namespaces and arguments. Returns std::nullopt on a real GPU.
inline std::optional<std::vector<std::string>> queued_kernels() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return std::nullopt;
  auto* kernels = reinterpret_cast<const char* (*)()>(dlsym(library, "cuda_on_cpu_kernels"));
  if (kernels == nullptr) return std::nullopt;
  std::vector<std::string> names;
  std::istringstream lines(kernels());
  const std::string unnamed = "(anonymous namespace)::";
  for (std::string line; std::getline(lines, line);) {
    while (line.find(unnamed) != std::string::npos) {
      line.erase(line.find(unnamed), unnamed.size());
    }
    line.resize(std::min(line.size(), line.find_first_of("<(")));
    names.push_back(line.substr(line.find_last_of(": ") + 1));
  }
  return names;
}

/// Device number `device` of the kind "cuda" or "sim", or the reason why it is missing.
class Found {
 public:
  Found(std::string_view name, int device) {
    try {
      device_.emplace(name == "sim" ? SimKind() : Device::cuda, device);
      why_ = device_->Lack();
    } catch (const std::exception& error) {
      why_ = error.what();
    }
  }
  [[nodiscard]] const Accelerator* get() const { return why_.empty() ? &*device_ : nullptr; }
  [[nodiscard]] const std::string& why() const { return why_; }

  /// Returns the first (0) or the second (1) device of a kind, "cuda" or "sim".
  static const Found& Of(std::string_view name, int device = 0) {
    static const Found cuda[] = {{"cuda", 0}, {"cuda", 1}};
    static const Found sim[] = {{"sim", 0}, {"sim", 1}};
    return (name == "sim" ? sim : cuda)[device];
  }

 private:
  std::optional<Accelerator> device_;
  std::string why_;
};

/// A test on a device other than the CPU: a GPU, or the simulated device if CPD_TEST_BACKENDS=sim.
/// If the device is missing, the test is skipped; with CPD_REQUIRE_GPU=1 it fails.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override { SetUpOn(tests_only("sim") ? "sim" : "cuda"); }
  /// Sets the test up on a device of the kind "cuda" or "sim".
  void SetUpOn(const std::string& name) {
    if (!is_tested(name)) GTEST_SKIP() << "this run tests another device, not " << name;
    CheckAtOnce(true);
    name_ = name;
    if (Found::Of(name).get() != nullptr) return;
    const std::string& why = Found::Of(name).why();
    const char* required = std::getenv("CPD_REQUIRE_GPU");
    const bool is_asked_for = name == "cuda" || tests_only("sim");
    if (is_asked_for && required != nullptr && std::string(required) == "1") {
      FAIL() << "CPD_REQUIRE_GPU=1, but there is none: " << why;
    }
    GTEST_SKIP() << "no " << name << ": " << why;
  }
  [[nodiscard]] const Accelerator& driver() const { return *Found::Of(name_).get(); }
  /// Returns the second device of the same kind; null if there is none.
  [[nodiscard]] const Accelerator* second() const { return Found::Of(name_, 1).get(); }
  /// Returns the kind of the test's device.
  [[nodiscard]] Device kind() const { return driver().kind(); }

 private:
  std::string name_;
};

}  // namespace cpd::testing
