// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/scaled.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "cpd/backend/cpu/scaled_tiles.h"
#include "cpd/backend/explain.h"
#include "cpd/base/guarded.h"
#include "cpd/ops/block_layout.h"
#include "cpd/ops/call.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/checks.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/hadamard.h"
#include "cpd/spec/axis.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

void CheckInput(const TensorView& x, const char* name) {
  CheckFloat(x, name);
  if (x.dtype == DType::f64) {
    throw Error(std::string(name) + " must be fp32, bf16 or fp16 for scaled formats, got fp64");
  }
}

/// Throws Error unless Cast takes these arguments.
void CheckCast(const TensorView& x, const Scaled& scaled, const TensorView& out) {
  Check(scaled);
  CheckInput(x, "x");
  CheckInput(out, "out");
  CheckSameShape(x, out, "x and out");
  CheckSameDevice(x, out);
}

/// Throws Error if the format chooses between two candidates for a block's scale (ScaleChoice) and
/// a block has more than kMostChosen elements.
void CheckChoice(const Scaled& scaled, const BlockLayout& layout) {
  if (scaled.choose == ScaleChoice::none || layout.rows * layout.columns <= kMostChosen) return;
  throw Error("choose is for blocks of at most " + std::to_string(kMostChosen) + " values");
}

/// Throws Error if scales and largest magnitudes are both given, if outer scales are given to a
/// format that has none, or if a format with outer scales gets only the blocks' scales.
void CheckLevels(const Scaled& scaled, const GivenScales& given) {
  if (given.largest != nullptr && (given.blocks != nullptr || given.tensor != nullptr)) {
    throw Error("give scales or amax, not both");
  }
  if (given.tensor != nullptr && !scaled.tensor_scale) {
    throw Error("tensor scales are for two levels; " + ToString(scaled) + " has one");
  }
  if (scaled.tensor_scale && given.blocks != nullptr && given.tensor == nullptr) {
    throw Error("the scales of two levels are a pair: the blocks' and the tensor's");
  }
}

/// Throws Error unless `codes` is u8, contiguous and as long as `count` packed codes.
void CheckCodes(const TensorView& codes, const Format& format, std::int64_t count,
                const char* name) {
  Check(codes, name);
  if (codes.dtype != DType::u8 || !codes.is_contiguous() ||
      codes.size() != PackedBytes(format, count)) {
    throw Error(std::string(name) + " must be " + std::to_string(PackedBytes(format, count)) +
                " contiguous bytes, of " + std::to_string(count) + " codes of " + ToString(format) +
                ", got " + std::to_string(codes.size()) + " of " + ToString(codes.dtype));
  }
}

void CheckScales(const Scaled& scaled, const ScaleCounts& counts, const TensorView& scales,
                 const TensorView* tensor_scales) {
  CheckCodes(scales, scaled.scale, counts.blocks, "scales");
  if ((tensor_scales != nullptr) != scaled.tensor_scale.has_value()) {
    throw Error(scaled.tensor_scale ? "two levels have tensor scales too"
                                    : "one level has no tensor scales");
  }
  if (tensor_scales != nullptr) {
    CheckCodes(*tensor_scales, *scaled.tensor_scale, counts.tensor, "tensor scales");
  }
}

/// Returns a view of the memory at `data`, of type `dtype` and shape `shape`, with the device and
/// stream of `like`.
TensorView Beside(const TensorView& like, void* data, DType dtype,
                  std::span<const std::int64_t> shape) {
  TensorView view = View(data, dtype, shape);
  view.device = like.device;
  view.device_index = like.device_index;
  view.stream = like.stream;
  return view;
}
TensorView FloatsBeside(const TensorView& like, void* data, std::int64_t n) {
  const std::array<std::int64_t, 1> shape{n};
  return Beside(like, data, DType::f32, shape);
}

std::span<const std::int64_t> ShapeOf(const TensorView& x) {
  return {x.shape.data(), static_cast<std::size_t>(x.rank)};
}

/// Holds x, or a transformed copy of x if the format has a transform.
class Inputs {
 public:
  Inputs(const TensorView& x, const Scaled& scaled, int axis) : view_(x) {
    if (!scaled.transform) return;
    void* data = x.data;  // which nothing reads where this thread explains
    if (!Explains()) {
      data = copy_.emplace(x, x.size() * static_cast<std::int64_t>(SizeOf(x.dtype))).data();
    }
    view_ = Beside(x, data, x.dtype, ShapeOf(x));
    Transform(x, *scaled.transform, axis, false, view_);
  }
  [[nodiscard]] const TensorView& view() const { return view_; }

 private:
  TensorView view_;
  std::optional<Scratch> copy_;
};

/// Returns the axis as 0 … rank - 1; returns 0 for a tensor without dimensions.
int AxisOf(const TensorView& x, int axis) { return x.rank == 0 ? 0 : ResolveAxis(axis, x.rank); }

/// The arguments of Cast, with dimensions permuted to the order of `out` in memory.
struct InOrder {
  TensorView x, out, indices;
  std::optional<TensorView> random;
  int axis;
};

/// Returns the arguments of Cast with dimensions permuted to the order of `out` in memory, or none
/// if the permuted cast might give other values or is not supported.
///
/// `out` must fill memory without gaps, but not in row-major order. Scales must not be given or
/// chosen among candidates. If blocks have two dimensions, the permutation must not change which
/// dimension is the blocks' second one. `indices` in the result holds the row-major indices before
/// the permutation, for random integers.
std::optional<InOrder> OrderLike(const TensorView& x, const Scaled& scaled, int axis,
                                 const TensorView& out, const GivenScales& given,
                                 const TensorView* random) {
  const bool is_given =
      given.blocks != nullptr || given.tensor != nullptr || given.largest != nullptr;
  if (out.is_contiguous() || is_given || scaled.choose != ScaleChoice::none ||
      !FillAlike(out, out)) {
    return std::nullopt;
  }
  std::array<int, TensorView::kMaxRank> from{};
  std::iota(from.begin(), from.begin() + x.rank, 0);
  const auto stride = [&](int d) {
    return out.shape[d] == 1 ? std::numeric_limits<std::int64_t>::max() : out.stride[d];
  };
  std::stable_sort(from.begin(), from.begin() + x.rank,
                   [&](int a, int b) { return stride(a) > stride(b); });
  const auto place = [&](int d) {
    return static_cast<int>(std::find(from.begin(), from.begin() + x.rank, d) - from.begin());
  };
  const auto across = [&](int along) { return along == x.rank - 1 ? x.rank - 2 : x.rank - 1; };
  const int along = place(axis);
  if (scaled.block.rows > 1 && place(across(axis)) != across(along)) return std::nullopt;
  const auto ordered = [&](TensorView view) {
    const TensorView before = view;
    for (int d = 0; d < view.rank; ++d) {
      view.shape[d] = before.shape[from[d]];
      view.stride[d] = before.stride[from[d]];
    }
    return view;
  };
  InOrder all{ordered(x), ordered(out), ordered(IndicesOf(x)), std::nullopt, along};
  if (random != nullptr) all.random = ordered(*random);
  return all;
}

/// Returns whether the device can cast a tensor with permuted dimensions. Each element must get the
/// random integer of its index before the permutation.
bool TurnsIntegers(const Scaled& scaled, const InOrder& order) {
  return order.x.on_host() &&
         TurnsIntegers(LayoutOf(scaled.block, ShapeOf(order.x), order.axis), order.indices);
}

/// A caller's scales as fp32 numbers in the device's memory, which is held until the work that
/// reads them is queued.
class Given {
 public:
  Given(const TensorView& like, const Scaled& scaled, const GivenScales& given,
        const ScalesCall& call)
      : like_(like) {
    const std::int64_t blocks = call.call.layout.blocks(), cells = call.cell_layout.blocks();
    if (given.blocks != nullptr) {
      pointers_.blocks = Take(*given.blocks, scaled.scale, blocks, "scales", first_);
    }
    if (given.tensor != nullptr) {
      pointers_.cells = Take(*given.tensor, *scaled.tensor_scale, cells, "tensor scales", second_);
    }
    if (given.largest != nullptr) {
      pointers_.largest =
          Take(*given.largest, kFp32, scaled.tensor_scale ? cells : blocks, "amax", first_);
    }
  }
  [[nodiscard]] const ScalesCall::Given& pointers() const { return pointers_; }

 private:
  const float* Take(const TensorView& given, const Format& format, std::int64_t count,
                    const char* name, std::optional<Scratch>& copy) const {
    Check(given, name);
    CheckSameDevice(like_, given);
    const bool are_codes = given.dtype == DType::u8;
    if (are_codes) CheckCodes(given, format, count, name);
    if (!are_codes &&
        (given.dtype != DType::f32 || !given.is_contiguous() || given.size() != count)) {
      throw Error(std::string(name) + " must be " + std::to_string(count) +
                  " contiguous fp32 numbers or their packed codes, got " +
                  std::to_string(given.size()) + " of " + ToString(given.dtype));
    }
    const auto* numbers = static_cast<const float*>(given.data);
    if (Explains()) return numbers;
    if (!are_codes && !given.on_host()) {
      cpd::CheckScales(given, format, name);
      return numbers;
    }
    copy.emplace(like_, count * std::int64_t{sizeof(float)});
    auto* const values = static_cast<float*>(copy->data());
    const TensorView to = FloatsBeside(like_, values, count);
    if (are_codes) {
      Decode(given, format, to);
    } else {
      Cast(View(numbers, DType::f32, count), format, {}, to);
      Guarded([&] { CheckNumbers(numbers, values, count, format, name); });
    }
    return values;
  }

  /// Throws Error if a caller's scale is negative or is not a value of `format`. `numbers` are the
  /// scales, and `values` the scales cast to `format`.
  static void CheckNumbers(const float* numbers, const float* values, std::int64_t count,
                           const Format& format, const char* name) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (values[i] == numbers[i] || (values[i] != values[i] && numbers[i] != numbers[i])) continue;
      throw Error(std::string(name) + " must be numbers of " + ToString(format) + ", got " +
                  std::to_string(numbers[i]) + " at " + std::to_string(i));
    }
    if (std::any_of(values, values + count, [](float s) { return s < 0; })) {
      throw Error(std::string(name) + " must not be negative");
    }
  }

  const TensorView& like_;
  std::optional<Scratch> first_, second_;
  ScalesCall::Given pointers_;
};

/// Sets a call's operand to x, with merged dimensions.
void Take(const TensorView& x, Strided& to) {
  if (!x.is_contiguous()) {
    to = Merge(x);
    return;
  }
  to.data = x.data;  // in place, since small calls feel a copy
  to.dtype = x.dtype;
  to.rank = 1;
  to.shape[0] = x.size();
  to.stride[0] = 1;
}

/// A call of a scaled format's operation. It holds the memory of the call's tables until the call's
/// work is queued.
class TableCall {
 public:
  /// `like`: the tensor x to encode, or the result of a decoding. It gives the device, shape and
  /// type.
  TableCall(const TensorView& like, const Scaled& scaled, int axis, const RoundingOptions& options,
            const GivenScales& given = {}, const RandomKey& key = {}) {
    ScaledCall& call = call_.call;
    call.plan = PlanOf(like, scaled, options, key);
    const auto shape = ShapeOf(like);
    call.route = route_of(call.plan);
    call.layout = LayoutOf(scaled.block, shape, axis);
    CheckChoice(scaled, call.layout);
    call.cells = CellsOf(scaled, shape, axis);
    call.n = like.size();
    call.key = KeyOf(options, key);
    call_.two_levels = scaled.tensor_scale.has_value();
    if (call_.two_levels) call_.cell_layout = LayoutOf({.kind = scaled.outer}, shape, axis);
    call_.choose = scaled.choose;
    if (scaled.choose != ScaleChoice::none) {
      call_.nearest = PlanOf(like, scaled, {.overflow = options.overflow}, {});
    }
    call_.given = given_.emplace(like, scaled, given, call_).pointers();
    call.given = call_.given.blocks != nullptr;
    if (Explains()) return;
    const std::int64_t blocks = call.layout.blocks(), cells = call_.cell_layout.blocks();
    memory_.emplace(like, 3 * (blocks + cells) * std::int64_t{sizeof(float)});
    auto* const block = static_cast<float*>(memory_->data());
    call.tables = {block, block + blocks, block + 2 * blocks};
    float* const cell = block + 3 * blocks;
    call_.cells = {cell, cell + cells, cell + 2 * cells};
  }
  ScalesCall& operator*() { return call_; }
  ScalesCall* operator->() { return &call_; }

 private:
  static ScaledPlan PlanOf(const TensorView& like, const Scaled& scaled,
                           const RoundingOptions& options, const RandomKey& key) {
    return Guarded(
        [&] { return make_scaled_plan(scaled, options, like.dtype == DType::bf16, key); });
  }

  ScalesCall call_;
  std::optional<Given> given_;
  std::optional<Scratch> memory_;
};

/// If this thread records what calls would run and computes nothing (cpd.explain), and the device
/// is not the CPU, records a kernel and returns true. Otherwise returns false. Operations on the
/// CPU record their own kernels.
bool NotesKernel(const char* function, const char* kernel, const TensorView& like,
                 const ScalesCall& of) {
  if (!Explains() || like.on_host()) return false;
  NotePath(function, PathOf(of.call.plan, of.call.route, false));
  const BlockLayout& layout = of.call.layout;
  Explaining::Current()->Run(NameOf(like), kernel, {layout.rows, layout.columns});
  return true;
}

/// Optional arguments of a cast on the CPU. `indices`: the strides of random integers' indices, if
/// they differ from x's row-major order. `scales`: where to write the outer scales (if the format
/// has none: the blocks' scales) if the written values are not multiplied by them. `holds`: the
/// address of a bool that the cast sets if out's type can represent all values, and else clears.
struct Besides {
  const TensorView* indices = nullptr;
  float* scales = nullptr;
  bool* holds = nullptr;
};

/// Casts x without permuting its dimensions.
void CastInOrder(const TensorView& x, const Scaled& scaled, int axis,
                 const RoundingOptions& options, const TensorView& out, const GivenScales& given,
                 const RandomKey& key, const TensorView* random, const Besides& besides = {}) {
  const Inputs inputs(x, scaled, axis);
  TableCall call(inputs.view(), scaled, axis, options, given, key);
  if (NotesKernel("cast", "cast_scaled", x, *call)) return;
  Take(inputs.view(), call->call.x);
  if (random != nullptr) Take(*random, call->call.random);
  Take(out, call->out);
  call->indices = besides.indices;
  call->holds = besides.holds;
  call->apart = besides.scales != nullptr;
  if (call->apart) {
    (call->two_levels ? call->cells.scale : call->call.tables.scale) = besides.scales;
  }
  QueueOf(x).cast_scaled(*call);
}

/// Writes the codes of the scales, on x's device.
void EncodeScales(const TensorView& x, const Scaled& scaled, const ScaleCounts& counts,
                  float* blocks, float* cells, const TensorView& scales,
                  const TensorView* tensor_scales) {
  Encode(FloatsBeside(x, blocks, counts.blocks), scaled.scale, {}, scales);
  if (tensor_scales == nullptr) return;
  Encode(FloatsBeside(x, cells, counts.tensor), *scaled.tensor_scale, {}, *tensor_scales);
}

/// Writes the codes of an empty tensor's scales. Each block scale has the value 0, and each outer
/// scale the value 1.
void EncodeEmpty(const TensorView& x, const Scaled& scaled, const ScaleCounts& counts,
                 const TensorView& scales, const TensorView* tensor_scales) {
  std::vector<float> values(static_cast<std::size_t>(counts.blocks));
  values.resize(values.size() + static_cast<std::size_t>(counts.tensor), 1.0F);
  if (values.empty() || Explains()) return;
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(float));
  const Scratch memory(x, bytes);
  memory.Upload(values.data(), bytes);
  auto* const first = static_cast<float*>(memory.data());
  EncodeScales(x, scaled, counts, first, first + counts.blocks, scales, tensor_scales);
}

}  // namespace

ScaleCounts CountScales(const Scaled& scaled, std::span<const std::int64_t> shape, int axis) {
  Check(scaled);
  const auto count = [&](const BlockShape& block) {
    std::int64_t n = 1;
    for (const std::int64_t extent : ScaleGrid(block, shape, axis)) n *= extent;
    return n;
  };
  return {count(scaled.block), scaled.tensor_scale ? count({.kind = scaled.outer}) : 0};
}

bool CastWhereHeld(const TensorView& x, const Scaled& scaled, int axis,
                   const RoundingOptions& options, const TensorView& out, const RandomKey& key) {
  Check(key, false);
  CheckCast(x, scaled, out);
  Check(OnCpuAlone::casts_for_products, x);
  if (out.dtype != DType::bf16 || !out.is_contiguous()) {
    throw Error("out must be contiguous bf16 on the CPU, got " + ToString(out.dtype) +
                (out.is_contiguous() ? "" : ", not contiguous"));
  }
  const int along = AxisOf(x, axis);
  if (x.size() == 0) return true;
  bool holds = true;
  CastInOrder(x, scaled, along, options, out, {}, key, nullptr, {.holds = &holds});
  return holds;
}

void CastApart(const TensorView& x, const Scaled& scaled, int axis, const RoundingOptions& options,
               const TensorView& out, const TensorView& scales, const RandomKey& key) {
  Check(key, false);
  CheckCast(x, scaled, out);
  const int along = AxisOf(x, axis);
  const ScaleCounts counts = CountScales(scaled, ShapeOf(x), along);
  const std::int64_t count = scaled.tensor_scale ? counts.tensor : counts.blocks;
  Check(scales, "scales");
  Check(OnCpuAlone::casts_for_products, x);
  if (scales.dtype != DType::f32 || !scales.is_contiguous() || scales.size() != count) {
    throw Error("scales must be " + std::to_string(count) + " contiguous fp32 numbers on the CPU");
  }
  if (x.size() == 0) return;
  CastInOrder(x, scaled, along, options, out, {}, key, nullptr,
              {.scales = static_cast<float*>(scales.data)});
}

void Cast(const TensorView& x, const Scaled& scaled, int axis, const RoundingOptions& options,
          const TensorView& out, const GivenScales& given, const RandomKey& key,
          const TensorView* random) {
  CheckCast(x, scaled, out);
  CheckRandom(random, x, options, key);
  const int along = AxisOf(x, axis);
  CheckLevels(scaled, given);
  if (x.size() == 0) return;
  if (const auto order = OrderLike(x, scaled, along, out, given, random)) {
    const bool draws = options.mode == Rounding::stochastic && random == nullptr;
    if (!draws || TurnsIntegers(scaled, *order)) {
      return CastInOrder(order->x, scaled, order->axis, options, order->out, given, key,
                         order->random ? &*order->random : nullptr,
                         {.indices = draws ? &order->indices : nullptr});
    }
  }
  CastInOrder(x, scaled, along, options, out, given, key, random);
}

void CastBoth(const TensorView& x, const Scaled& scaled, const std::array<int, 2>& axes,
              const RoundingOptions& options, const TensorView& first, const TensorView& second,
              const RandomKey& key) {
  const std::array<int, 2> along{AxisOf(x, axes[0]), AxisOf(x, axes[1])};
  CheckCast(x, scaled, first);
  CheckCast(x, scaled, second);
  CheckRandom(nullptr, x, options, key);
  if (scaled.transform || x.size() == 0 || !first.is_contiguous() || !second.is_contiguous()) {
    Cast(x, scaled, along[0], options, first, {}, key);
    Cast(x, scaled, along[1], options, second, {}, key);
    return;
  }
  TableCall rows(x, scaled, along[0], options, {}, key);
  TableCall columns(x, scaled, along[1], options, {}, key);
  if (NotesKernel("cast", "cast_both", x, *rows)) return;
  Take(x, rows->call.x);
  Take(x, columns->call.x);
  Take(first, rows->out);
  Take(second, columns->out);
  QueueOf(x).cast_both({*rows, *columns});
}

void Encode(const TensorView& x, const Scaled& scaled, int axis, const RoundingOptions& options,
            const TensorView& packed, const TensorView& scales, const TensorView* tensor_scales,
            const GivenScales& given, const RandomKey& key, const TensorView* random) {
  Check(scaled);
  CheckInput(x, "x");
  CheckRandom(random, x, options, key);
  const int along = AxisOf(x, axis);
  CheckCodes(packed, scaled.element, x.size(), "packed");
  const ScaleCounts counts = CountScales(scaled, ShapeOf(x), along);
  CheckScales(scaled, counts, scales, tensor_scales);
  CheckSameDevice(x, packed);
  CheckSameDevice(x, scales);
  if (tensor_scales != nullptr) CheckSameDevice(x, *tensor_scales);
  CheckLevels(scaled, given);
  if (x.size() == 0) return EncodeEmpty(x, scaled, counts, scales, tensor_scales);
  const Inputs inputs(x, scaled, along);
  TableCall call(inputs.view(), scaled, along, options, given, key);
  if (NotesKernel("encode", "encode_scaled", x, *call)) return;
  Take(inputs.view(), call->call.x);
  if (random != nullptr) Take(*random, call->call.random);
  call->packed = static_cast<std::uint8_t*>(packed.data);
  const Queue queue = QueueOf(x);
  const auto encode = [&](unsigned long long* first_nan) {
    call->first_nan = first_nan;
    queue.encode_scaled(*call);
  };
  if (scaled.element.has_nan()) {
    encode(nullptr);
  } else {
    RunChecked(queue, [&](std::int64_t) { return LostNan(scaled.element); }, encode);
  }
  if (Explains()) return;
  EncodeScales(x, scaled, counts, call->call.tables.scale, call->cells.scale, scales,
               tensor_scales);
}

void Decode(const TensorView& packed, const Scaled& scaled, int axis, const TensorView& scales,
            const TensorView* tensor_scales, const TensorView& out) {
  Check(scaled);
  CheckInput(out, "out");
  const int along = AxisOf(out, axis);
  CheckCodes(packed, scaled.element, out.size(), "packed");
  CheckScales(scaled, CountScales(scaled, ShapeOf(out), along), scales, tensor_scales);
  CheckSameDevice(out, packed);
  CheckSameDevice(out, scales);
  if (tensor_scales != nullptr) CheckSameDevice(out, *tensor_scales);
  if (out.size() == 0) return;
  TableCall call(out, scaled, along, {}, {.blocks = &scales, .tensor = tensor_scales});
  if (NotesKernel("decode", "decode_scaled", out, *call)) return;
  call->packed = static_cast<std::uint8_t*>(packed.data);
  Take(out, call->out);
  QueueOf(out).decode_scaled(*call);
}

}  // namespace cpd
