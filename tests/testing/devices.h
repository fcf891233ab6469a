// SPDX-License-Identifier: Apache-2.0
//
// Running the same assertions on every backend of the CPU and on a GPU, whose tensors are copies of
// the host's.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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

/// A test with the name of one of Backends().
class OnDevice : public GpuTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    if (is_cuda()) return GpuTest::SetUp();
    const std::string reason = reason_without(GetParam());
    if (!reason.empty()) GTEST_SKIP() << reason;
    ForceKernels(GetParam());
  }
  void TearDown() override { ForceKernels(""); }

  [[nodiscard]] static bool is_cuda() { return std::string_view(GetParam()) == "cuda"; }

  /// Calls run(in, out) with the tensors where the device has them: the host's own, or on a GPU
  /// copies, of which `out` is then copied back. An `out` that is one of `in` stays so.
  template <class Run>
  void Compute(std::vector<TensorView> in, TensorView out, Run run) const {
    if (!is_cuda()) return run(in, out);
    const OnGpuView result(driver(), out);
    std::vector<std::unique_ptr<OnGpuView>> copies;
    for (TensorView& x : in) {
      if (x.data == out.data && x.size() > 0) {
        x = result.view();
        continue;
      }
      copies.push_back(std::make_unique<OnGpuView>(driver(), x));
      x = copies.back()->view();
    }
    run(in, result.view());
    result.Read();
  }
};

/// The name of a test's parameter.
inline std::string NameOf(const ::testing::TestParamInfo<const char*>& test) { return test.param; }

}  // namespace cpd::testing
