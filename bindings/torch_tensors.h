// SPDX-License-Identifier: Apache-2.0
//
// Converts torch's tensors to TensorViews, and makes new tensors.
#pragma once

#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cpd/backend/device_memory.h"
#include "cpd/base/explaining.h"
#include "cpd/base/huge_pages.h"
#include "cpd/base/tensor.h"
#include "cpd/spec/error.h"
#include "optional_view.h"

namespace cpd {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

// ---- tensors as TensorView ------------------------------------------------------------------

inline DType DTypeOf(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return DType::f32;
    case ScalarType::Double:
      return DType::f64;
    case ScalarType::BFloat16:
      return DType::bf16;
    case ScalarType::Half:
      return DType::f16;
    case ScalarType::Byte:
      return DType::u8;
    case ScalarType::Int:
      return DType::u32;  // random integers: below 2^24, so the same bits
    case ScalarType::Long:
      return DType::i64;
    default:
      break;
  }
  throw Error("tensors must be of Float, Double, BFloat16, Half, Byte, Int or Long, got " +
              std::string(toString(type)));
}

inline DType DTypeOf(const Tensor& x) { return DTypeOf(x.scalar_type()); }

/// Returns the stream on which torch queues work for a GPU. Looks up torch's function at run time,
/// because CPU builds of torch lack libtorch_cuda.so. A process with CUDA tensors has loaded
/// libtorch_cuda.so. Throws Error if torch lacks the function or the function fails.
inline void* CurrentCudaStream(int device_index) {
  using Getter = AOTITorchError (*)(std::int32_t, void**);
  static const auto get = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return library == nullptr
               ? nullptr
               : reinterpret_cast<Getter>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
  }();
  void* stream = nullptr;
  if (get == nullptr || get(device_index, &stream) != 0) {
    throw Error("this torch does not tell its current CUDA stream (libtorch_cuda.so)");
  }
  return stream;
}

inline void CheckRank(std::int64_t rank) {
  if (rank > TensorView::kMaxRank) {
    throw Error("tensors must have at most " + std::to_string(TensorView::kMaxRank) +
                " dimensions, got " + std::to_string(rank));
  }
}

inline TensorView Describe(const Tensor& x, void* data) {
  CheckRank(x.dim());
  TensorView view;
  view.data = data;
  view.dtype = DTypeOf(x);
  view.rank = static_cast<int>(x.dim());
  const auto sizes = x.sizes();
  const auto strides = x.strides();
  for (int d = 0; d < view.rank; ++d) {
    view.shape[d] = sizes[d];
    view.stride[d] = strides[d];
  }
  if (x.is_cuda()) {
    view.device = Device::cuda;
    view.device_index = x.get_device_index();
    view.stream = CurrentCudaStream(view.device_index);
  }
  return view;
}

/// Returns the view of a tensor without memory. Used within cpd.explain, which only records what
/// calls would run.
inline TensorView Describe(const Tensor& x, Explaining& explaining) {
  TensorView view = Describe(x, nullptr);
  view.data = explaining.Place(view.size() * static_cast<std::int64_t>(SizeOf(view.dtype)));
  if (explaining.gpu() < 0) return view;
  view.device = Device::cuda;
  view.device_index = explaining.gpu();
  return view;
}

inline TensorView Input(const Tensor& x) {
  if (Explaining* const explaining = Explaining::Current()) return Describe(x, *explaining);
  return Describe(x, const_cast<void*>(x.const_data_ptr()));
}

inline TensorView Output(const Tensor& x) {
  Explaining* const explaining = Explaining::Current();
  const TensorView view =
      explaining == nullptr ? Describe(x, x.mutable_data_ptr()) : Describe(x, *explaining);
  if (view.size() == 0) return view;  // overlaps nothing
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] > 1 && view.stride[d] == 0) {
      throw Error("out must not overlap itself, got stride 0 in dimension " + std::to_string(d));
    }
  }
  return view;
}

/// Returns `made`, an uninitialized tensor. If it is large and on the CPU, asks the system for huge
/// pages. (torch does so only if an environment variable is set.)
inline Tensor OnHugePages(const Tensor& made) {
  constexpr std::int64_t kFewest = 1 << 19;  // values that take 4 MiB
  if (made.numel() >= kFewest && made.is_cpu()) {
    AdviseHugePages(made.mutable_data_ptr(),
                    static_cast<std::size_t>(made.numel()) * SizeOf(DTypeOf(made)));
  }
  return made;
}

/// Throws NoMemory, or NoDeviceMemory for a GPU, with the size of the tensor that torch could not
/// allocate. (torch's C functions only report that they failed.)
[[noreturn]] inline void RefuseTensor(const Tensor& x, std::span<const std::int64_t> sizes,
                                      ScalarType dtype) {
  std::uint64_t bytes = SizeOf(DTypeOf(dtype));
  std::string shape;
  for (const std::int64_t size : sizes) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) bytes = ~0ULL;
    shape += (shape.empty() ? "" : ", ") + std::to_string(size);
  }
  const std::string of = "a tensor of shape (" + shape + (sizes.size() == 1 ? ",)" : ")");
  if (x.is_cpu()) throw NoMemory(bytes, of);
  throw NoDeviceMemory("CUDA out of memory: " + std::to_string(bytes) + " bytes, " + of);
}

/// Returns an uninitialized tensor on x's device. Calls the C function of torch's stable ABI
/// directly, because the function of ops.h would look up its operator by name in each call.
inline Tensor Empty(const Tensor& x, std::span<const std::int64_t> sizes,
                    std::span<const std::int64_t> strides, ScalarType dtype) {
  const auto element = torch::stable::detail::to<std::int32_t>(torch::stable::detail::from(dtype));
  std::int32_t device = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(x.get(), &device));
  AtenTensorHandle made = nullptr;
  if (aoti_torch_empty_strided(static_cast<std::int64_t>(sizes.size()), sizes.data(),
                               strides.data(), element, device, x.get_device_index(), &made) != 0) {
    RefuseTensor(x, sizes, dtype);
  }
  return OnHugePages(Tensor(made));
}

/// Returns an uninitialized tensor on x's device, in row-major order.
inline Tensor Empty(const Tensor& x, std::span<const std::int64_t> sizes, ScalarType dtype) {
  std::array<std::int64_t, TensorView::kMaxRank> strides;
  CheckRank(static_cast<std::int64_t>(sizes.size()));
  std::int64_t step = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    strides[d] = step;
    step *= std::max<std::int64_t>(sizes[d], 1);
  }
  return Empty(x, sizes, std::span(strides).first(sizes.size()), dtype);
}

inline std::span<const std::int64_t> SizesOf(const Tensor& x) {
  return {x.sizes().data(), x.sizes().size()};
}

inline Tensor EmptyLike(const Tensor& x) {
  if (!x.is_contiguous()) {
    try {
      return OnHugePages(torch::stable::empty_like(x));
    } catch (const std::runtime_error&) {
      RefuseTensor(x, SizesOf(x), x.scalar_type());
    }
  }
  const auto strides = x.strides();
  return Empty(x, SizesOf(x), {strides.data(), strides.size()}, x.scalar_type());
}

inline OptionalView Input(const OptionalTensor& x) {
  return x ? OptionalView(Input(*x)) : OptionalView();
}

/// Makes the device of `x` the current device while the object lives.
class OnDeviceOf {
 public:
  explicit OnDeviceOf(const Tensor& x) {
    if (x.is_cuda()) guard_.emplace(x.get_device_index());
  }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

}  // namespace cpd
