// SPDX-License-Identifier: Apache-2.0
//
// Device memory for the GPU tests, through the driver (libcuda.so.1), which is looked for at run
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
#include <utility>
#include <vector>

#include "cpd/backend/faults.h"
#include "cpd/base/tensor.h"
#include "tests/testing/sanitized.h"

namespace cpd::testing {

/// Whether the kernels run on a CPU (cuda_on_cpu), where they take a thousand times as long.
inline const bool kCudaOnCpu = std::getenv("CPD_CUDA_ON_CPU") != nullptr;

/// All of them on a GPU and in the exhaustive tier, else about one in `of`.
template <class T>
std::vector<T> few_on_cpu(std::vector<T> all, unsigned of) {
  return kCudaOnCpu ? few(std::move(all), of) : all;
}

/// Whether case number i is among those.
inline bool is_chosen_on_cpu(std::size_t i, unsigned of) { return !kCudaOnCpu || is_chosen(i, of); }

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
class CudaDriver {
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

  [[nodiscard]] int device() const { return device_; }
  /// Makes the device this thread's current one.
  void Enter() const { Check(set_current_(context_), "cuCtxSetCurrent"); }

  void* Allocate(std::size_t bytes) const {
    std::uint64_t memory = 0;
    Enter();
    Check(allocate_(&memory, bytes == 0 ? 1 : bytes), "cuMemAlloc");
    return reinterpret_cast<void*>(memory);
  }
  void Free(void* memory) const {
    Enter();
    free_(reinterpret_cast<std::uint64_t>(memory));
  }
  /// Waits until the values have arrived: streams that the driver's copies know nothing of read
  /// them.
  void ToDevice(void* to, const void* from, std::size_t bytes) const {
    if (bytes == 0) return;
    Enter();
    Check(to_device_(reinterpret_cast<std::uint64_t>(to), from, bytes), "cuMemcpyHtoD");
    Check(synchronize_(), "cuCtxSynchronize");
  }
  /// Waits for the work queued before.
  void ToHost(void* to, const void* from, std::size_t bytes) const {
    Enter();
    Check(synchronize_(), "cuCtxSynchronize");
    if (bytes != 0) {
      Check(to_host_(to, reinterpret_cast<std::uint64_t>(from), bytes), "cuMemcpyDtoH");
    }
  }

 private:
  explicit CudaDriver(int device) : device_(device) {
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

  int device_;
  std::string why_;
  void* context_ = nullptr;
  int (*set_current_)(void*) = nullptr;
  int (*synchronize_)() = nullptr;
  int (*allocate_)(std::uint64_t*, std::size_t) = nullptr;
  int (*free_)(std::uint64_t) = nullptr;
  int (*to_device_)(std::uint64_t, const void*, std::size_t) = nullptr;
  int (*to_host_)(void*, std::uint64_t, std::size_t) = nullptr;
};

/// A copy of host values in device memory, which are there as long as it lives, at an address that
/// is as many bytes beyond a multiple of 16 as the host's.
class OnGpu {
 public:
  OnGpu(const CudaDriver& driver, const void* values, std::size_t bytes)
      : driver_(driver),
        bytes_(bytes),
        beyond_(reinterpret_cast<std::uintptr_t>(values) % 16),
        memory_(static_cast<std::uint8_t*>(driver.Allocate(bytes + beyond_)) + beyond_) {
    driver_.ToDevice(memory_, values, bytes);
  }
  ~OnGpu() { driver_.Free(memory_ - beyond_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  /// `host`, a view of the values given, as a view of the copy.
  [[nodiscard]] TensorView View(TensorView host, const void* base) const {
    const auto offset =
        static_cast<const std::uint8_t*>(host.data) - static_cast<const std::uint8_t*>(base);
    host.data = memory_ + offset;
    host.device = Device::cuda;
    host.device_index = driver_.device();
    return host;
  }
  void Read(void* to) const { driver_.ToHost(to, memory_, bytes_); }

 private:
  const CudaDriver& driver_;
  std::size_t bytes_, beyond_;
  std::uint8_t* memory_;
};

/// The memory between a view's first and last element, on the GPU.
class OnGpuView {
 public:
  OnGpuView(const CudaDriver& driver, const TensorView& host)
      : host_(host), range_(RangeOf(host)), memory_(driver, range_.first, range_.bytes) {}
  [[nodiscard]] TensorView view() const { return memory_.View(host_, range_.first); }
  void Read() const { memory_.Read(range_.first); }

 private:
  struct Range {
    std::uint8_t* first;
    std::size_t bytes;
  };
  static Range RangeOf(const TensorView& x) {
    std::int64_t low = 0;
    std::int64_t high = 0;
    for (int d = 0; d < x.rank && x.size() > 0; ++d) {
      const std::int64_t reach = (x.shape[d] - 1) * x.stride[d];
      (reach < 0 ? low : high) += reach;
    }
    const auto size = static_cast<std::int64_t>(SizeOf(x.dtype));
    return {static_cast<std::uint8_t*>(x.data) + low * size,
            x.size() == 0 ? 0 : static_cast<std::size_t>((high - low + 1) * size)};
  }

  TensorView host_;
  Range range_;
  OnGpu memory_;
};

/// Tests on a GPU: skipped where there is none, failures with CPD_REQUIRE_GPU=1.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CheckAtOnce(true);
    driver_ = CudaDriver::Get();
    if (driver_ != nullptr) return;
    const char* required = std::getenv("CPD_REQUIRE_GPU");
    if (required != nullptr && std::string(required) == "1") {
      FAIL() << "CPD_REQUIRE_GPU=1, but there is " << CudaDriver::Why();
    }
    GTEST_SKIP() << "no GPU: " << CudaDriver::Why();
  }
  [[nodiscard]] const CudaDriver& driver() const { return *driver_; }

 private:
  const CudaDriver* driver_ = nullptr;
};

}  // namespace cpd::testing
