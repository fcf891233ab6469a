// SPDX-License-Identifier: Apache-2.0
//
// Lets tests run the same assertions on every backend of the CPU, on a GPU and on the simulated
// device. Tensors on a device are copies of the host's tensors.
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

/// Returns the names of the CPU backends that this tree was built with. Also returns "cuda" (a GPU,
/// or its emulation on the CPU) and "sim" (the device in tests/testing/sim).
inline const std::vector<const char*>& Backends() {
  static const std::vector<const char*> all = [] {
    std::vector<const char*> names(std::begin(kBuiltBackends), std::end(kBuiltBackends));
    names.insert(names.end(), {"cuda", "sim"});
    return names;
  }();
  return all;
}

/// Returns the device for a name in Backends(); null for a backend of the CPU or a missing device.
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

/// Gives tensors on a device: the host's tensor on the CPU, otherwise a copy in the device's
/// memory. Views with the same address use the same copy.
class Copies {
 public:
  /// Copies tensors to `device`. If `device` is null, gives the host's tensors.
  explicit Copies(const Accelerator* device) : device_(device) {}

  TensorView operator()(const TensorView& host) {
    if (device_ == nullptr) return host;
    for (const auto& [data, copy] : copies_) {
      if (data == host.data && data != nullptr) return copy->Like(host);
    }
    copies_.emplace_back(host.data, std::make_unique<OnGpuView>(*device_, host));
    return copies_.back().second->view();
  }
  /// Returns the address of the first value of a vector, or of its copy on the device.
  template <class T>
  T* Of(const std::vector<T>& host) {
    if (device_ == nullptr || host.empty()) return const_cast<T*>(host.data());
    const auto bytes = static_cast<std::int64_t>(host.size() * sizeof(T));
    return static_cast<T*>((*this)(View(host.data(), DType::u8, bytes)).data);
  }
  /// Returns a view of the tensor's copy on the device; null if `host` is null. The view is valid
  /// as long as this object.
  const TensorView* operator()(const TensorView* host) {
    return host == nullptr ? nullptr : &views_.emplace_back((*this)(*host));
  }
  /// Copies a result from the device back to the host's tensor.
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

/// Makes the library compute on the named backend, one of Backends(), while the object lives.
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

  /// Returns whether the backend is one of the CPU.
  [[nodiscard]] bool on_host() const { return device_ == nullptr; }
  [[nodiscard]] Copies There() const { return Copies(device_); }

  /// Copies the tensors `in` and `out` to the device, calls run(in, out) with the copies, and then
  /// copies the result back to `out`.
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

/// A test that loops over devices(). In a run for a GPU or the simulated device, it is skipped if
/// that device is missing; with CPD_REQUIRE_GPU=1 it fails.
class OverDevices : public GpuTest {
 protected:
  void SetUp() override {
    if (backends().empty()) GpuTest::SetUp();
  }
};

/// A test whose parameter is one of Backends(). The library computes on that backend during the
/// test.
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
  /// Returns the CPU's queue, or a new queue on the device.
  [[nodiscard]] SharedQueue NewQueue() const {
    return on_host() ? HostQueue() : std::make_shared<const Queue>(kind(), 0);
  }
  /// Returns the result of run() with the scalar kernels. The other backends are compared with it.
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

/// A test of results that must be the same on all of Backends().
class SameOnDevices : public OnDevice {
 protected:
  /// Expects the same result from `run` on the device as with the scalar kernels: equal bits for
  /// vectors, equal values otherwise. `run` gets an object that makes tensors on the device.
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

/// Returns the name of a test's parameter.
inline std::string NameOf(const ::testing::TestParamInfo<const char*>& test) { return test.param; }

}  // namespace cpd::testing
