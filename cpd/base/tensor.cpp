// SPDX-License-Identifier: Apache-2.0
#include "cpd/base/tensor.h"

#include <algorithm>

#include "cpd/spec/error.h"
#include "cpd/spec/wide_format.h"

namespace cpd {
namespace {

std::string ShapeText(const TensorView& x) {
  std::string text = "(";
  for (int d = 0; d < x.rank; ++d) text += (d == 0 ? "" : ", ") + std::to_string(x.shape[d]);
  return text + ")";
}

Format FormatOf(DType type) {
  switch (type) {
    case DType::bf16:
      return MakeFormat(8, 7);
    case DType::f16:
      return MakeFormat(5, 10);
    default:
      return kFp32;
  }
}

}  // namespace

std::string ToString(DType type) {
  switch (type) {
    case DType::f32:
      return "fp32";
    case DType::f64:
      return "fp64";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "fp16";
    case DType::u8:
      return "uint8";
    case DType::u32:
      return "uint32";
    case DType::i64:
      return "int64";
  }
  return "unknown";
}

void CheckStorage(DType type, const Format& format) {
  if (!IsFloat(type)) {
    throw Error("values are stored in fp32, fp64, bf16 or fp16, got " + ToString(type));
  }
  if (is_wide(format) && type == DType::f64) return CheckOfElements(format);
  if (!Holds(FormatOf(type), format)) {
    throw Error(ToString(type) + " cannot represent every value of " + ToString(format) +
                "; use fp32");
  }
}

void MergeDimensions(std::span<TensorView* const> views) {
  const TensorView all = *views[0];
  int kept = 0;
  for (int d = 0; d < all.rank; ++d) {
    const std::int64_t extent = all.shape[d];
    if (extent == 1) continue;
    const bool even = kept > 0 && std::ranges::all_of(views, [&](const TensorView* v) {
                        return v->stride[kept - 1] == v->stride[d] * extent;
                      });
    if (!even) ++kept;
    for (TensorView* v : views) {
      v->shape[kept - 1] = even ? v->shape[kept - 1] * extent : extent;
      v->stride[kept - 1] = v->stride[d];
    }
  }
  for (TensorView* v : views) v->rank = kept;
}

bool FillAlike(const TensorView& x, const TensorView& y) {
  std::array<int, TensorView::kMaxRank> order{};
  int used = 0;
  for (int d = 0; d < x.rank; ++d) {
    if (x.shape[d] == 1) continue;
    if (x.stride[d] != y.stride[d]) return false;
    order[used++] = d;
  }
  std::sort(order.begin(), order.begin() + used,
            [&](int a, int b) { return x.stride[a] < x.stride[b]; });
  std::int64_t filled = 1;
  for (int i = 0; i < used; ++i) {
    if (x.stride[order[i]] != filled) return false;
    filled *= x.shape[order[i]];
  }
  return true;
}

TensorView AlongMemory(const TensorView& x) {
  TensorView line = x;
  line.rank = 1;
  line.shape[0] = x.size();
  line.stride[0] = 1;
  return line;
}

TensorView View(const void* data, DType dtype, std::span<const std::int64_t> shape) {
  if (shape.size() > TensorView::kMaxRank) {
    throw Error("a tensor has at most " + std::to_string(TensorView::kMaxRank) +
                " dimensions, got " + std::to_string(shape.size()));
  }
  TensorView view;
  view.data = const_cast<void*>(data);
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    view.shape[d] = shape[static_cast<std::size_t>(d)];
    view.stride[d] = stride;
    // The product of extents may wrap around here. Check later refuses such a tensor, unless one of
    // its extents is 0.
    stride = static_cast<std::int64_t>(static_cast<std::uint64_t>(stride) *
                                       static_cast<std::uint64_t>(view.shape[d]));
  }
  return view;
}

TensorView View(const void* data, DType dtype, std::int64_t n) {
  const std::array<std::int64_t, 1> shape{n};
  return View(data, dtype, shape);
}

void Check(const TensorView& x, const char* name) {
  if (x.rank < 0 || x.rank > TensorView::kMaxRank) {
    throw Error(std::string(name) + " must have 0…" + std::to_string(TensorView::kMaxRank) +
                " dimensions, got " + std::to_string(x.rank));
  }
  bool is_empty = false;
  for (int d = 0; d < x.rank; ++d) {
    if (x.shape[d] < 0) {
      throw Error(std::string(name) + " must have extents of at least 0, got " + ShapeText(x));
    }
    is_empty = is_empty || x.shape[d] == 0;
  }
  if (is_empty) return;
  const auto size = static_cast<std::int64_t>(SizeOf(x.dtype));
  std::int64_t bytes = size;
  std::int64_t reach = 0;
  bool fits = true;
  for (int d = 0; d < x.rank; ++d) {
    std::int64_t along = 0;
    fits = fits && !__builtin_mul_overflow(bytes, x.shape[d], &bytes) &&
           !__builtin_mul_overflow(x.shape[d] - 1, x.stride[d], &along) &&
           !__builtin_mul_overflow(along, size, &along) && along != INT64_MIN &&
           !__builtin_add_overflow(reach, along < 0 ? -along : along, &reach);
  }
  if (fits) return;
  throw Error(std::string(name) + " must have fewer than 2^63 bytes, got shape " + ShapeText(x) +
              " of " + ToString(x.dtype));
}

void CheckSameShape(const TensorView& a, const TensorView& b, const char* what) {
  bool same = a.rank == b.rank;
  for (int d = 0; same && d < a.rank; ++d) same = a.shape[d] == b.shape[d];
  if (!same) {
    throw Error(std::string(what) + " must have the same shape, got " + ShapeText(a) + " and " +
                ShapeText(b));
  }
}

}  // namespace cpd
