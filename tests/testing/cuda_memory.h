// SPDX-License-Identifier: Apache-2.0
//
// CUDA's devices for the GPU tests, through the driver (libcuda.so.1), which is looked for at run
// time: the tests compile and link without CUDA, and where there is no GPU they say so.
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

/// Whether the kernels run on a CPU (cuda_on_cpu), where they take a thousand times as long.
inline const bool kCudaOnCpu = std::getenv("CPD_CUDA_ON_CPU") != nullptr;
/// The simulated device has the same kernels, and one in so many of the GPU's cases.
inline const unsigned kRarer = tests_only("sim") ? 12 : 1;

/// Whether this run is of a GPU itself, which has all cases.
inline const bool kOnGpuItself = !kCudaOnCpu && tests_only("cuda");

/// All of them on a GPU and in the exhaustive tier, else about one in `of`.
template <class T>
std::vector<T> few_on_cpu(std::vector<T> all, unsigned of) {
  return kOnGpuItself ? all : few(std::move(all), kRarer * of);
}

/// Whether case number i is among those.
inline bool is_chosen_on_cpu(std::size_t i, unsigned of) {
  return kOnGpuItself || is_chosen(i, kRarer * of);
}

/// The names, without namespaces and arguments, of the kernels that were queued since the last call
/// on the CPU in a GPU's place; nothing on a GPU.
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

/// The driver's functions in a device's primary context, for any thread.
class CudaDriver final : public Accelerator {
 public:
  /// The first device's; null where there is no driver or no device; `why()` then tells.
  static const CudaDriver* Get() {
    static const CudaDriver driver(0);
    return driver.why_.empty() ? &driver : nullptr;
  }
  static std::string Why() { return CudaDriver(0).why_; }
  /// The second device's, or null.
  static const CudaDriver* GetSecond() {
    static const CudaDriver driver(1);
    return driver.why_.empty() ? &driver : nullptr;
  }

  [[nodiscard]] const Accelerator* Second() const override { return GetSecond(); }
  void Enter() const override { Check(set_current_(context_), "cuCtxSetCurrent"); }

  [[nodiscard]] void* Allocate(std::size_t bytes) const override {
    std::uint64_t memory = 0;
    Enter();
    Check(allocate_(&memory, bytes == 0 ? 1 : bytes), "cuMemAlloc");
    return reinterpret_cast<void*>(memory);
  }
  void Free(void* memory) const override {
    Enter();
    free_(reinterpret_cast<std::uint64_t>(memory));
  }
  /// Waits until the values have arrived: streams that the driver's copies know nothing of read
  /// them.
  void ToDevice(void* to, const void* from, std::size_t bytes) const override {
    if (bytes == 0) return;
    Enter();
    Check(to_device_(reinterpret_cast<std::uint64_t>(to), from, bytes), "cuMemcpyHtoD");
    Check(synchronize_(), "cuCtxSynchronize");
  }
  void ToHost(void* to, const void* from, std::size_t bytes) const override {
    Enter();
    Check(synchronize_(), "cuCtxSynchronize");
    if (bytes != 0) {
      Check(to_host_(to, reinterpret_cast<std::uint64_t>(from), bytes), "cuMemcpyDtoH");
    }
  }

 private:
  explicit CudaDriver(int device) : Accelerator(Device::cuda, device) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) {
      why_ = "no CUDA driver (libcuda.so.1)";
      return;
    }
    int (*init)(unsigned) = nullptr;
    int (*device_get)(int*, int) = nullptr;
    int (*retain)(void**, int) = nullptr;
    Find(library, "cuInit", init);
    Find(library, "cuDeviceGet", device_get);
    Find(library, "cuDevicePrimaryCtxRetain", retain);
    Find(library, "cuCtxSetCurrent", set_current_);
    Find(library, "cuCtxSynchronize", synchronize_);
    Find(library, "cuMemAlloc_v2", allocate_);
    Find(library, "cuMemFree_v2", free_);
    Find(library, "cuMemcpyHtoD_v2", to_device_);
    Find(library, "cuMemcpyDtoH_v2", to_host_);
    if (!why_.empty()) return;
    int handle = 0;
    if (init(0) != 0 || device_get(&handle, device) != 0 || retain(&context_, handle) != 0 ||
        (device == 0 && set_current_(context_) != 0)) {
      why_ = device == 0 ? "no CUDA device" : "no second CUDA device";
    }
  }

  template <class Function>
  void Find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) why_ = std::string("the CUDA driver has no ") + name;
  }
  static void Check(int status, const char* call) {
    if (status != 0) throw std::runtime_error(std::string(call) + ": " + std::to_string(status));
  }

  std::string why_;
  void* context_ = nullptr;
  int (*set_current_)(void*) = nullptr;
  int (*synchronize_)() = nullptr;
  int (*allocate_)(std::uint64_t*, std::size_t) = nullptr;
  int (*free_)(std::uint64_t) = nullptr;
  int (*to_device_)(std::uint64_t, const void*, std::size_t) = nullptr;
  int (*to_host_)(void*, std::uint64_t, std::size_t) = nullptr;
};

/// Tests on a device other than the CPU: a GPU, or with CPD_TEST_BACKENDS=sim the simulated one.
/// They are skipped where there is none, and fail with CPD_REQUIRE_GPU=1.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override { SetUpOn(tests_only("sim") ? "sim" : "cuda"); }
  /// On "cuda" or "sim".
  void SetUpOn(std::string_view name) {
    if (!is_tested(name)) GTEST_SKIP() << "this run tests another device, not " << name;
    CheckAtOnce(true);
    const bool is_sim = name == "sim";
    driver_ = is_sim ? SimDevice::Get() : static_cast<const Accelerator*>(CudaDriver::Get());
    if (driver_ != nullptr) return;
    const std::string why = is_sim ? SimDevice::Why() : CudaDriver::Why();
    const char* required = std::getenv("CPD_REQUIRE_GPU");
    if ((!is_sim || tests_only("sim")) && required != nullptr && std::string(required) == "1") {
      FAIL() << "CPD_REQUIRE_GPU=1, but there is " << why;
    }
    GTEST_SKIP() << (is_sim ? "no simulated device: " : "no GPU: ") << why;
  }
  [[nodiscard]] const Accelerator& driver() const { return *driver_; }
  /// Its kind of device.
  [[nodiscard]] Device kind() const { return driver_->kind(); }

 private:
  const Accelerator* driver_ = nullptr;
};

}  // namespace cpd::testing
