// SPDX-License-Identifier: Apache-2.0
//
// Running the same assertions on every backend of the CPU, on a GPU and on the simulated device,
// whose tensors are copies of the host's.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpd/backend/faults.h"
#include "cpd/backend/queue.h"
#include "cpd/base/tensor.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/cuda_memory.h"

namespace cpd::testing {

/// The backends that are built in this tree; `cuda`: a GPU, or the CPU emulation of one; and `sim`,
/// the device of tests/testing/sim.
inline const std::vector<const char*>& Backends() {
  static const std::vector<const char*> all = [] {
    std::vector<const char*> names(std::begin(kBuiltBackends), std::end(kBuiltBackends));
    names.insert(names.end(), {"cuda", "sim"});
    return names;
  }();
  return all;
}

/// Returns the device of a name in Backends(); null for the CPU, or if there is none.
inline const Accelerator* AcceleratorOf(std::string_view name) {
  return name == "cuda" || name == "sim" ? Found::Of(name).get() : nullptr;
}

/// Returns the names in Backends() that this run tests, for a loop within a test.
inline std::vector<std::string> devices() {
  std::vector<std::string> names = backends();
  for (const char* name : {"cuda", "sim"}) {
    if (is_tested(name) && AcceleratorOf(name) != nullptr) names.emplace_back(name);
  }
  return names;
}

/// Tensors where a device has them: the host's own, or copies on a device other than the CPU. Views
/// of one address are one tensor.
class Copies {
 public:
  /// null: of the CPU.
  explicit Copies(const Accelerator* device) : device_(device) {}

  TensorView operator()(const TensorView& host) {
    if (device_ == nullptr) return host;
    for (const auto& [data, copy] : copies_) {
      if (data == host.data && data != nullptr) return copy->Like(host);
    }
    copies_.emplace_back(host.data, std::make_unique<OnGpuView>(*device_, host));
    return copies_.back().second->view();
  }
  /// The first of a vector's values.
  template <class T>
  T* Of(const std::vector<T>& host) {
    if (device_ == nullptr || host.empty()) return const_cast<T*>(host.data());
    const auto bytes = static_cast<std::int64_t>(host.size() * sizeof(T));
    return static_cast<T*>((*this)(View(host.data(), DType::u8, bytes)).data);
  }
  /// The view that `host` points to, or null; valid as long as this lives.
  const TensorView* operator()(const TensorView* host) {
    return host == nullptr ? nullptr : &views_.emplace_back((*this)(*host));
  }
  /// Copies a result back.
  void Read(const TensorView& host) const { Read(host.data); }
  void Read(const void* host) const {
    for (const auto& [data, copy] : copies_) {
      if (data == host) copy->Read();
    }
  }

 private:
  const Accelerator* device_;
  std::vector<std::pair<void*, std::unique_ptr<OnGpuView>>> copies_;
  std::deque<TensorView> views_;
};

/// Computes on one of Backends() for as long as it lives.
class OnBackendOrGpu {
 public:
  explicit OnBackendOrGpu(const std::string& name) : device_(AcceleratorOf(name)) {
    if (on_host()) {
      ForceKernels(name);
    } else {
      CheckAtOnce(true);
    }
  }
  ~OnBackendOrGpu() { ForceKernels(""); }
  OnBackendOrGpu(const OnBackendOrGpu&) = delete;
  OnBackendOrGpu& operator=(const OnBackendOrGpu&) = delete;

  /// Returns whether it is a backend of the CPU.
  [[nodiscard]] bool on_host() const { return device_ == nullptr; }
  [[nodiscard]] Copies There() const { return Copies(device_); }

  /// Calls run(in, out) with the tensors where the device has them, and copies `out` back.
  template <class Run>
  void Compute(std::vector<TensorView> in, const TensorView& out, Run run) const {
    Copies there = There();
    const TensorView result = there(out);
    for (TensorView& x : in) x = there(x);
    run(in, result);
    there.Read(out);
  }

 private:
  const Accelerator* device_;
};

/// Tests that loop over devices(). In a run for a GPU or the simulated device they are skipped if
/// there is none, or fail with CPD_REQUIRE_GPU=1.
class OverDevices : public GpuTest {
 protected:
  void SetUp() override {
    if (backends().empty()) GpuTest::SetUp();
  }
};

/// A test with the name of one of Backends(), on which it computes.
class OnDevice : public GpuTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    const std::string_view name = GetParam();
    const bool is_accelerator = name == "cuda" || name == "sim";
    const std::string reason = is_accelerator ? "" : reason_without(name);
    if (!reason.empty()) GTEST_SKIP() << reason;
    if (is_accelerator) SetUpOn(GetParam());
    if (!IsSkipped() && !HasFatalFailure()) device_.emplace(GetParam());
  }
  void TearDown() override { device_.reset(); }

  [[nodiscard]] bool on_host() const { return device_->on_host(); }
  [[nodiscard]] Device kind() const { return on_host() ? Device::cpu : GpuTest::kind(); }
  [[nodiscard]] Copies There() const { return device_->There(); }
  /// The CPU's queue, or a new one on the device.
  [[nodiscard]] SharedQueue NewQueue() const {
    return on_host() ? HostQueue() : std::make_shared<const Queue>(kind(), 0);
  }
  /// Returns what `run` returns with the scalar kernels, which all others are held against.
  template <class Run>
  auto OnScalar(Run run) const {
    ForceKernels("scalar");
    auto expected = run();
    ForceKernels(on_host() ? GetParam() : "");
    return expected;
  }
  template <class Run>
  void Compute(std::vector<TensorView> in, const TensorView& out, Run run) const {
    device_->Compute(std::move(in), out, run);
  }

 private:
  std::optional<OnBackendOrGpu> device_;
};

/// A test of what all of Backends() must give alike.
class SameOnDevices : public OnDevice {
 protected:
  /// Expects that `run`, called with tensors' places, returns the same on the device as with the
  /// scalar kernels: a vector's bits, or equal values.
  template <class Run>
  void ExpectSame(Run run, const std::string& about) const {
    const auto expected = OnScalar([&] { return run(Copies(nullptr)); });
    const auto got = run(There());
    if constexpr (requires { std::span(expected); }) {
      EXPECT_TRUE(bits_equal(std::span(expected), std::span(got))) << about;
    } else {
      EXPECT_EQ(expected, got) << about;
    }
  }
};

/// The name of a test's parameter.
inline std::string NameOf(const ::testing::TestParamInfo<const char*>& test) { return test.param; }

}  // namespace cpd::testing
