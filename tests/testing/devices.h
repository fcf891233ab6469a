// SPDX-License-Identifier: Apache-2.0
//
// Running the same assertions on every backend of the CPU and on a GPU, whose tensors are copies of
// the host's.
#pragma once

#include <gtest/gtest.h>

#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpd/backend/faults.h"
#include "cpd/base/tensor.h"
#include "tests/testing/backends.h"
#include "tests/testing/cuda_memory.h"

namespace cpd::testing {

/// The backends that are built in this tree, and `cuda`: a GPU, or the CPU emulation of one.
inline const std::vector<const char*>& Backends() {
  static const std::vector<const char*> all = [] {
    std::vector<const char*> names(std::begin(kBuiltBackends), std::end(kBuiltBackends));
    names.push_back("cuda");
    return names;
  }();
  return all;
}

/// Those of them that this run tests, for a loop within a test.
inline std::vector<std::string> devices() {
  std::vector<std::string> names = backends();
  if (CudaDriver::Get() != nullptr) names.emplace_back("cuda");
  return names;
}

/// Computes on one of Backends() for as long as it lives.
class OnBackendOrGpu {
 public:
  explicit OnBackendOrGpu(const std::string& name) : is_cuda_(name == "cuda") {
    if (is_cuda_) CheckAtOnce(true);
    if (!is_cuda_) ForceKernels(name);
  }
  ~OnBackendOrGpu() { ForceKernels(""); }
  OnBackendOrGpu(const OnBackendOrGpu&) = delete;
  OnBackendOrGpu& operator=(const OnBackendOrGpu&) = delete;

  [[nodiscard]] bool is_cuda() const { return is_cuda_; }

  /// Calls run(in, out) with the tensors where the device has them: the host's own, or on a GPU
  /// copies, of which `out` is then copied back. An `out` that is one of `in` stays so.
  template <class Run>
  void Compute(std::vector<TensorView> in, const TensorView& out, Run run) const {
    if (!is_cuda_) return run(in, out);
    const CudaDriver& driver = *CudaDriver::Get();
    const OnGpuView result(driver, out);
    std::vector<std::unique_ptr<OnGpuView>> copies;
    for (TensorView& x : in) {
      if (x.data == out.data && x.size() > 0) {
        x = result.view();
        continue;
      }
      copies.push_back(std::make_unique<OnGpuView>(driver, x));
      x = copies.back()->view();
    }
    run(in, result.view());
    result.Read();
  }

 private:
  bool is_cuda_;
};

/// A test with the name of one of Backends(), on which it computes.
class OnDevice : public GpuTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (std::string_view(GetParam()) == "cuda") {
      GpuTest::SetUp();
    } else if (const std::string reason = reason_without(GetParam()); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    if (!IsSkipped() && !HasFatalFailure()) device_.emplace(GetParam());
  }
  void TearDown() override { device_.reset(); }

  [[nodiscard]] bool is_cuda() const { return device_->is_cuda(); }
  template <class Run>
  void Compute(std::vector<TensorView> in, const TensorView& out, Run run) const {
    device_->Compute(std::move(in), out, run);
  }

 private:
  std::optional<OnBackendOrGpu> device_;
};

/// The name of a test's parameter.
inline std::string NameOf(const ::testing::TestParamInfo<const char*>& test) { return test.param; }

}  // namespace cpd::testing
