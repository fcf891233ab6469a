// SPDX-License-Identifier: Apache-2.0
//
// Gives tests a device other than the CPU, and copies of host values in that device's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "cpd/backend/registry.h"
#include "cpd/base/tensor.h"

namespace cpd::testing {

/// A device other than the CPU, with functions that allocate its memory and copy to and from it.
/// Copies are queued on the device's default stream.
class Accelerator {
 public:
  Accelerator(Device kind, int device)
      : backend_(BackendOf(kind)), kind_(kind), launch_{.device = device} {}

  [[nodiscard]] Device kind() const { return kind_; }
  [[nodiscard]] int device() const { return launch_.device; }
  /// Returns why the device cannot be used; empty if it can.
  [[nodiscard]] std::string Lack() const {
    void* memory = nullptr;
    const int status = backend_.allocate(launch_, MemoryKind::device, 1, &memory);
    if (status != 0) return backend_.describe(status);
    Free(memory);
    return "";
  }

  [[nodiscard]] void* Allocate(std::size_t bytes) const {
    void* memory = nullptr;
    Check(backend_.allocate(launch_, MemoryKind::device, Signed(bytes), &memory));
    return memory;
  }
  void Free(void* memory) const {
    static_cast<void>(backend_.release(launch_, MemoryKind::device, memory));
  }
  /// Copies and waits.
  void ToDevice(void* to, const void* from, std::size_t bytes) const { Copy(to, from, bytes); }
  void ToHost(void* to, const void* from, std::size_t bytes) const { Copy(to, from, bytes); }

 private:
  void Copy(void* to, const void* from, std::size_t bytes) const {
    if (bytes != 0) Check(backend_.copy(launch_, to, from, Signed(bytes)));
  }
  static std::int64_t Signed(std::size_t bytes) { return static_cast<std::int64_t>(bytes); }
  void Check(int status) const {
    if (status != 0) throw std::runtime_error(backend_.describe(status));
  }

  const Backend& backend_;
  Device kind_;
  Launch launch_;
};

/// A copy of host values in device memory, freed with the object. The copy's address has the same
/// offset from a multiple of 16 as the host address.
class OnGpu {
 public:
  OnGpu(const Accelerator& driver, const void* values, std::size_t bytes)
      : driver_(driver),
        bytes_(bytes),
        beyond_(reinterpret_cast<std::uintptr_t>(values) % 16),
        memory_(static_cast<std::uint8_t*>(driver.Allocate(bytes + beyond_)) + beyond_) {
    driver_.ToDevice(memory_, values, bytes);
  }
  ~OnGpu() { driver_.Free(memory_ - beyond_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  /// Returns the device's copy of `host`, a view of host values that begin at `base`.
  [[nodiscard]] TensorView View(TensorView host, const void* base) const {
    const auto offset =
        static_cast<const std::uint8_t*>(host.data) - static_cast<const std::uint8_t*>(base);
    host.data = memory_ + offset;
    host.device = driver_.kind();
    host.device_index = driver_.device();
    return host;
  }
  void Read(void* to) const { driver_.ToHost(to, memory_, bytes_); }

 private:
  const Accelerator& driver_;
  std::size_t bytes_, beyond_;
  std::uint8_t* memory_;
};

/// A copy in device memory of all bytes from the first to the last element of a view.
class OnGpuView {
 public:
  OnGpuView(const Accelerator& driver, const TensorView& host)
      : host_(host), range_(RangeOf(host)), memory_(driver, range_.first, range_.bytes) {}
  [[nodiscard]] TensorView view() const { return memory_.View(host_, range_.first); }
  /// Returns the device's copy of `host`, which may be any view of the copied host memory.
  [[nodiscard]] TensorView Like(const TensorView& host) const {
    return memory_.View(host, range_.first);
  }
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

}  // namespace cpd::testing
