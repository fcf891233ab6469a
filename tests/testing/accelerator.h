// SPDX-License-Identifier: Apache-2.0
//
// A device other than the CPU, and copies of host values in its memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpd/base/tensor.h"

namespace cpd::testing {

/// A device other than the CPU, and its memory.
class Accelerator {
 public:
  Accelerator(Device kind, int device) : kind_(kind), device_(device) {}
  virtual ~Accelerator() = default;
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  [[nodiscard]] Device kind() const { return kind_; }
  [[nodiscard]] int device() const { return device_; }
  /// Another device of the kind, or null.
  [[nodiscard]] virtual const Accelerator* Second() const = 0;
  /// Makes the device this thread's current one, where a kind of device has that.
  virtual void Enter() const {}

  [[nodiscard]] virtual void* Allocate(std::size_t bytes) const = 0;
  virtual void Free(void* memory) const = 0;
  /// Copies to the device, and waits.
  virtual void ToDevice(void* to, const void* from, std::size_t bytes) const = 0;
  /// Copies to the host after all of the device's work, and waits.
  virtual void ToHost(void* to, const void* from, std::size_t bytes) const = 0;

 private:
  Device kind_;
  int device_;
};

/// A copy of host values in device memory, which are there as long as it lives, at an address that
/// is as many bytes beyond a multiple of 16 as the host's.
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

  /// `host`, a view of the values given, as a view of the copy.
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

/// The memory between a view's first and last element, on the GPU.
class OnGpuView {
 public:
  OnGpuView(const Accelerator& driver, const TensorView& host)
      : host_(host), range_(RangeOf(host)), memory_(driver, range_.first, range_.bytes) {}
  [[nodiscard]] TensorView view() const { return memory_.View(host_, range_.first); }
  /// A view of the same memory.
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
