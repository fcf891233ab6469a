// SPDX-License-Identifier: Apache-2.0
//
// TensorView, which every operation takes and which owns nothing; devices; checks of views.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "cpd/base/dtype.h"

namespace cpd {

/// The kind of device that holds a tensor's memory. Further kinds have the numbers after these
/// (AddBackend in backend/registry.h).
enum class Device : std::uint8_t { cpu, cuda };

/// The argument of every operation: memory that the caller owns. Strides are in elements and may be
/// 0 or negative. Work is queued on `stream`, a stream of the device; the CPU has none.
struct TensorView {
  static constexpr int kMaxRank = 16;

  void* data = nullptr;
  DType dtype = DType::f32;
  Device device = Device::cpu;
  int device_index = 0;
  void* stream = nullptr;
  int rank = 1;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};

  /// Returns whether the CPU reads its memory, and computes at once.
  [[nodiscard]] bool on_host() const { return device == Device::cpu; }
  [[nodiscard]] std::int64_t size() const {
    std::uint64_t n = 1;  // which may wrap on the way to 0
    for (int d = 0; d < rank; ++d) n *= static_cast<std::uint64_t>(shape[d]);
    return static_cast<std::int64_t>(n);
  }
  /// Row-major without gaps, so that element i is at data + i.
  [[nodiscard]] bool is_contiguous() const {
    std::uint64_t expected = 1;
    for (int d = rank - 1; d >= 0; --d) {
      if (shape[d] != 1 && static_cast<std::uint64_t>(stride[d]) != expected) return size() == 0;
      expected *= static_cast<std::uint64_t>(shape[d]);
    }
    return true;
  }
};

/// A row-major view over n elements (or over `shape`) of host memory.
CPD_API TensorView View(const void* data, DType dtype, std::int64_t n);
CPD_API TensorView View(const void* data, DType dtype, std::span<const std::int64_t> shape);
inline TensorView View(std::span<const float> x) {
  return View(x.data(), DType::f32, static_cast<std::int64_t>(x.size()));
}

/// Joins neighboring dimensions that all views, which have one shape, traverse evenly, and leaves
/// out those of extent 1: the row-major order of elements is the same.
CPD_API void MergeDimensions(std::span<TensorView* const> views);

/// Returns whether x and y fill memory without gaps and with their dimensions in the same order, as
/// transposed and channels-last tensors may. An operation that does not depend on elements' indices
/// can then run in memory order.
[[nodiscard]] CPD_API bool FillAlike(const TensorView& x, const TensorView& y);
/// The elements of a tensor that fills memory without gaps, as one dimension in memory order.
[[nodiscard]] CPD_API TensorView AlongMemory(const TensorView& x);

/// Throws Error unless x's rank is 0…kMaxRank, its extents are not negative, and all its elements'
/// bytes, and the distance from the first to the last in memory, can be counted in 64 bits. Every
/// function that takes a TensorView calls it first; `name` is x's name in the error text.
CPD_API void Check(const TensorView& x, const char* name);

/// Throws Error unless both have the same shape; `what` names them in the error text.
CPD_API void CheckSameShape(const TensorView& a, const TensorView& b, const char* what);

}  // namespace cpd
