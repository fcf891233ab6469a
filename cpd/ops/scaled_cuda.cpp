// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/scaled_cuda.h"

#include <memory>
#include <vector>

#include "cpd/backend/cuda.h"
#include "cpd/backend/explain.h"
#include "cpd/base/guarded.h"
#include "cpd/ops/call.h"
#include "cpd/ops/checks.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/scaled_tensor.h"

namespace cpd {
namespace {

/// A view like `like`, of n contiguous fp32 numbers.
TensorView FloatsBeside(const TensorView& like, void* data, std::int64_t n) {
  TensorView view = View(data, DType::f32, n);
  view.device = like.device;
  view.device_index = like.device_index;
  view.stream = like.stream;
  return view;
}

/// A caller's scales as fp32 numbers in device memory.
class GivenOnGpu {
 public:
  GivenOnGpu(const TensorView& like, const Scaled& scaled, const GivenScales& given,
             std::int64_t blocks, std::int64_t cells)
      : like_(like) {
    if (given.blocks != nullptr) {
      pointers_.blocks = Take(*given.blocks, scaled.scale, blocks, "scales");
    }
    if (given.tensor != nullptr) {
      pointers_.cells = Take(*given.tensor, *scaled.tensor_scale, cells, "tensor scales");
    }
    if (given.largest != nullptr) {
      pointers_.largest = Take(*given.largest, kFp32, scaled.tensor_scale ? cells : blocks, "amax");
    }
  }
  [[nodiscard]] const cuda::ScaledTensor::Given& pointers() const { return pointers_; }

 private:
  const float* Take(const TensorView& given, const Format& format, std::int64_t count,
                    const char* name) {
    Check(given, name);
    CheckSameDevice(like_, given);
    if (given.dtype == DType::u8) {
      kept_.push_back(std::make_unique<Scratch>(like_, count * std::int64_t{sizeof(float)}));
      Decode(given, format, FloatsBeside(like_, kept_.back()->data(), count));
      return static_cast<const float*>(kept_.back()->data());
    }
    if (given.dtype != DType::f32 || !given.is_contiguous() || given.size() != count) {
      GivenOf(given, format, count, name);  // throws
    }
    CheckScales(given, format, name);
    return static_cast<const float*>(given.data);
  }

  const TensorView& like_;
  std::vector<std::unique_ptr<Scratch>> kept_;
  cuda::ScaledTensor::Given pointers_;
};

cuda::ScaledTensor::Format FormatOf(const TensorView& like, const Scaled& scaled, int axis,
                                    const RoundingOptions& options, const RandomKey& key = {}) {
  cuda::ScaledTensor::Format format;
  const bool bf16 = like.dtype == DType::bf16;
  const auto shape = ShapeOf(like);
  format.layout = LayoutOf(scaled.block, shape, axis);
  CheckChoice(scaled, format.layout);
  format.cells = CellsOf(scaled, shape, axis);
  if (scaled.tensor_scale) format.cell_layout = LayoutOf({.kind = scaled.outer}, shape, axis);
  format.choose = scaled.choose;
  Guarded([&] {
    format.plan = make_scaled_plan(scaled, options, bf16, key);
    format.nearest = make_scaled_plan(scaled, {.overflow = options.overflow}, bf16);
  });
  return format;
}

/// A tensor in a scaled format, and the given scales in the device's memory, until its work is
/// queued.
class TensorOnGpu {
 public:
  TensorOnGpu(const TensorView& like, const TensorView* x, const Scaled& scaled, int axis,
              const RoundingOptions& options, const GivenScales& given, const RandomKey& key = {})
      : format_(FormatOf(like, scaled, axis, options, key)),
        given_(like, scaled, given, format_.layout.blocks(), format_.cell_layout.blocks()),
        tensor_(like, x, format_, given_.pointers()) {}

  const cuda::ScaledTensor* operator->() const { return &tensor_; }
  const cuda::ScaledTensor& operator*() const { return tensor_; }

 private:
  cuda::ScaledTensor::Format format_;
  GivenOnGpu given_;
  cuda::ScaledTensor tensor_;
};

}  // namespace

namespace {

/// Where this thread explains: notes a kernel that casts, encodes or decodes `like`.
bool Notes(const char* function, const char* kernel, const TensorView& like, const Scaled& scaled,
           int axis, const RoundingOptions& options) {
  if (!Explains()) return false;
  const cuda::ScaledTensor::Format format = FormatOf(like, scaled, axis, options);
  NotePath(function, PathOf(format.plan, route_of(format.plan), false));
  Explaining::Current()->Run(NameOf(like), kernel, {format.layout.rows, format.layout.columns});
  return true;
}

}  // namespace

void CastOnGpu(const TensorView& x, const Scaled& scaled, int axis, const RoundingOptions& options,
               const TensorView& out, const GivenScales& given, const RandomKey& key,
               const TensorView* random) {
  if (Notes("cast", "cast_scaled", x, scaled, axis, options)) return;
  const TensorOnGpu tensor(x, &x, scaled, axis, options, given, key);
  tensor->Cast(out, random, KeyOf(options, key));
}

void CastBothOnGpu(const TensorView& x, const Scaled& scaled, const std::array<int, 2>& axes,
                   const RoundingOptions& options, const TensorView& first,
                   const TensorView& second, const RandomKey& key) {
  if (Notes("cast", "cast_both", x, scaled, axes[0], options)) return;
  const TensorOnGpu rows(x, &x, scaled, axes[0], options, {}, key);
  const TensorOnGpu columns(x, &x, scaled, axes[1], options, {}, key);
  rows->CastBoth(first, *columns, second, KeyOf(options, key));
}

void EncodeOnGpu(const TensorView& x, const Scaled& scaled, int axis,
                 const RoundingOptions& options, const TensorView& packed, const TensorView& scales,
                 const TensorView* tensor_scales, const GivenScales& given, const RandomKey& key,
                 const TensorView* random) {
  if (Notes("encode", "encode_scaled", x, scaled, axis, options)) return;
  const TensorOnGpu tensor(x, &x, scaled, axis, options, given, key);
  tensor->Encode(packed, scaled.element, random, KeyOf(options, key));
  Encode(tensor->blocks(), scaled.scale, {}, scales);
  if (tensor_scales != nullptr) Encode(tensor->cells(), *scaled.tensor_scale, {}, *tensor_scales);
}

void EncodeEmptyOnGpu(const Scaled& scaled, const ScaleCounts& counts, const TensorView& scales,
                      const TensorView* tensor_scales) {
  if (Explains()) return;
  const auto encode = [&](float value, std::int64_t count, const Format& format,
                          const TensorView& to) {
    if (count == 0) return;
    const Floats values(static_cast<std::size_t>(count), value);
    const std::int64_t bytes = count * std::int64_t{sizeof(float)};
    const Scratch memory(to, bytes);
    memory.Upload(values.data(), bytes);
    Encode(FloatsBeside(to, memory.data(), count), format, {}, to);
  };
  encode(0, counts.blocks, scaled.scale, scales);
  if (tensor_scales != nullptr) encode(1, counts.tensor, *scaled.tensor_scale, *tensor_scales);
}

void DecodeOnGpu(const TensorView& packed, const Scaled& scaled, int axis, const TensorView& scales,
                 const TensorView* tensor_scales, const TensorView& out) {
  if (Notes("decode", "decode_scaled", out, scaled, axis, {})) return;
  const GivenScales given{.blocks = &scales, .tensor = tensor_scales};
  const TensorOnGpu tensor(out, nullptr, scaled, axis, {}, given);
  tensor->Decode(packed, out);
}

}  // namespace cpd
