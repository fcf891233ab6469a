// SPDX-License-Identifier: Apache-2.0
//
// TensorView, the non-owning argument of every operation; kinds of devices; and checks of views.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "cpd/base/dtype.h"

namespace cpd {

/// The kind of device that holds a tensor's memory. Kinds that AddBackend (backend/registry.h) adds
/// have the numbers after `cuda`.
enum class Device : std::uint8_t { cpu, cuda };

/// A view of a tensor in memory that the caller owns. Every operation takes such views. Strides are
/// in elements and may be 0 or negative. Work is queued on `stream`, a stream of the device; null
/// on the CPU, which has no streams.
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

  /// Returns whether the tensor is on the CPU, which can read its memory and computes without a
  /// queue.
  [[nodiscard]] bool on_host() const { return device == Device::cpu; }
  [[nodiscard]] std::int64_t size() const {
    std::uint64_t n = 1;  // which may wrap on the way to 0
    for (int d = 0; d < rank; ++d) n *= static_cast<std::uint64_t>(shape[d]);
    return static_cast<std::int64_t>(n);
  }
  /// Returns whether elements are row-major without gaps. Then element i is at data + i.
  [[nodiscard]] bool is_contiguous() const {
    std::uint64_t expected = 1;
    for (int d = rank - 1; d >= 0; --d) {
      if (shape[d] != 1 && static_cast<std::uint64_t>(stride[d]) != expected) return size() == 0;
      expected *= static_cast<std::uint64_t>(shape[d]);
    }
    return true;
  }
};

/// Returns a row-major view of n elements, or of a tensor of shape `shape`, in host memory.
CPD_API TensorView View(const void* data, DType dtype, std::int64_t n);
CPD_API TensorView View(const void* data, DType dtype, std::span<const std::int64_t> shape);
inline TensorView View(std::span<const float> x) {
  return View(x.data(), DType::f32, static_cast<std::int64_t>(x.size()));
}

/// Joins neighboring dimensions where the strides of all views allow it, and removes dimensions of
/// extent 1. All views must have one shape. The row-major order of elements does not change.
CPD_API void MergeDimensions(std::span<TensorView* const> views);

/// Returns whether x and y fill memory without gaps and have their dimensions in the same order in
/// memory. Transposed and channels-last tensors can do so. An operation that does not depend on
/// elements' indices may then run in memory order.
[[nodiscard]] CPD_API bool FillAlike(const TensorView& x, const TensorView& y);
/// Returns a one-dimensional view, in memory order, of a tensor that fills memory without gaps.
[[nodiscard]] CPD_API TensorView AlongMemory(const TensorView& x);

/// Throws Error unless x's rank is 0…kMaxRank, no extent is negative, and both the elements' bytes
/// and the distance from the first to the last byte fit into 64 bits. Every function that takes a
/// TensorView calls Check first. `name`: x's name in the error text.
CPD_API void Check(const TensorView& x, const char* name);

/// Throws Error unless both tensors have the same shape. `what`: the names of the tensors in the
/// error text.
CPD_API void CheckSameShape(const TensorView& a, const TensorView& b, const char* what);

}  // namespace cpd
