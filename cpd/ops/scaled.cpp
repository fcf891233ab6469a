// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/scaled.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cpd/backend/cuda.h"
#include "cpd/backend/explain.h"
#include "cpd/numeric/scaled/power_blocks.h"
#include "cpd/ops/call.h"
#include "cpd/ops/checks.h"
#include "cpd/ops/codec.h"
#include "cpd/ops/hadamard.h"
#include "cpd/ops/scaled_cuda.h"
#include "cpd/ops/scaled_tensor.h"
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

/// Throws Error unless Cast takes these.
void CheckCast(const TensorView& x, const Scaled& scaled, const TensorView& out) {
  Check(scaled);
  CheckInput(x, "x");
  CheckInput(out, "out");
  CheckSameShape(x, out, "x and out");
  CheckSameDevice(x, out);
}

/// Holds x, or where the format has a transform, a transformed copy of x.
class Inputs {
 public:
  Inputs(const TensorView& x, const Scaled& scaled, int axis) : view_(x) {
    if (!scaled.transform) return;
    const auto bytes = static_cast<std::size_t>(x.size()) * SizeOf(x.dtype);
    void* data = nullptr;
    if (Explains()) {
      data = x.data;  // which nothing reads
    } else if (x.on_host()) {
      kept_ = std::make_unique_for_overwrite<std::uint8_t[]>(bytes);
      data = kept_.get();
    } else {
      data = on_gpu_.emplace(x, static_cast<std::int64_t>(bytes)).data();
    }
    view_ = View(data, x.dtype, ShapeOf(x));
    view_.device = x.device;
    view_.device_index = x.device_index;
    view_.stream = x.stream;
    Transform(x, *scaled.transform, axis, false, view_);
  }
  [[nodiscard]] const TensorView& view() const { return view_; }

 private:
  TensorView view_;
  std::unique_ptr<std::uint8_t[]> kept_;
  std::optional<Scratch> on_gpu_;
};

/// The axis as 0 … rank - 1; unchanged where the tensor has no dimensions.
int AxisOf(const TensorView& x, int axis) { return x.rank == 0 ? 0 : ResolveAxis(axis, x.rank); }

/// The arguments of Cast with dimensions in the order of `out` in memory.
struct InOrder {
  TensorView x, out, indices;
  std::optional<TensorView> random;
  int axis;
};

/// The arguments in the order of `out`, if it fills memory without gaps, but not in row-major
/// order, and values do not depend on the order of dimensions: but for indices, which random
/// integers depend on, and the dimension across two-dimensional blocks.
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

/// Casts a tensor's blocks where their scales are usual powers of two (power_blocks.h).
class PowerCaster {
 public:
  PowerCaster(const ScaledTensor& tensor, const TensorView& out, bool apart)
      : x_(tensor.x), layout_(tensor.layout) {
    const bool narrow = x_.dtype == DType::bf16 || x_.dtype == DType::f32;
    run_.along = layout_.rows == 1;
    const bool fits = run_.along ? layout_.columns == kPowerBlock : layout_.columns == 1;
    if (narrow && fits && x_.is_contiguous() && !tensor.known && !apart &&
        out.dtype == DType::bf16 && out.is_contiguous()) {
      blocks_ = make_power_blocks(tensor.plan);
    }
    run_.is_bf16 = x_.dtype == DType::bf16;
    run_.stride = layout_.row_stride();
    out_ = static_cast<std::uint16_t*>(out.data);
  }

  /// Whether there may be such blocks.
  [[nodiscard]] bool casts() const { return blocks_.has_any(); }
  /// Casts the tile; calls other(part) for the parts with blocks of another kind.
  template <class Other>
  void Cast(const Tile& tile, Other other) const {
    if (!blocks_.has_any()) return other(tile);
    PowerRun run = run_;
    run.rows = tile.rows;
    Tile rest = tile;
    while (rest.count > 0) {
      const std::int64_t first = layout_.index(rest.p, rest.i, rest.t, rest.j);
      run.n = rest.count;
      run.x = static_cast<const std::uint8_t*>(x_.data) + first * SizeOf(x_.dtype);
      run.y = out_ + first;
      const std::int64_t done = Kernels().cast_power_blocks(blocks_, run);
      rest.j += done;
      rest.count -= done;
      if (rest.count == 0) return;
      Tile part = rest;
      part.count = std::min(rest.count, run.along ? 16 * kPowerBlock : 2 * kPowerBlock);
      other(part);
      rest.j += part.count;
      rest.count -= part.count;
    }
  }

 private:
  const TensorView& x_;
  const BlockLayout& layout_;
  PowerBlocks blocks_;
  PowerRun run_;
  std::uint16_t* out_;
};

/// Notes a pass over a tensor's tiles.
void NoteTiles(const char* function, const ScaledTensor& tensor, bool powers, const char* kernel) {
  const Tiles tiles = tensor.tiles();
  NotePath(function, PathOf(tensor.plan, tensor.route, powers));
  NoteKernel(kernel, {tensor.layout.rows, tensor.layout.columns});
  ForTiles(tiles, [](std::int64_t, std::int64_t) {});
}

/// Returns whether out is known to hold all values: of fp32 and of contiguous bf16. `apart`: the
/// values lack the outermost level's scales.
bool CastTiles(ScaledTensor& tensor, const TensorView& out, bool apart = false) {
  const Tiles tiles = tensor.tiles();
  const bool is_bf16 = out.dtype == DType::bf16 && out.is_contiguous();
  std::atomic<bool> holds = is_bf16 || out.dtype == DType::f32;
  const bool streams = tensor.x.size() >= kStreamingFrom && tensor.x.data != out.data;
  const PowerCaster powers(tensor, out, apart);
  if (Explains()) {
    NoteTiles("cast", tensor, powers.casts(),
              powers.casts() ? "cast_power_blocks" : "round_blocks");
    return true;
  }
  ForTiles(tiles, [&](std::int64_t begin, std::int64_t end) {
    TileScaler scaler(tensor);
    Writer<float> writer(out);
    const auto cast = [&](const Tile& tile) {
      scaler.ForElements(tile, [&](ScaledRun run, ElementRoute route, std::int64_t c) {
        const BlockLayout& layout = tensor.layout;
        run.apart = apart;
        const std::int64_t first = layout.index(tile.p, tile.i, tile.t, tile.j + c);
        if (is_bf16) {
          auto* const y = static_cast<std::uint16_t*>(out.data) + first;
          const Strided halves = Rows(y, run.rows, run.n, layout.row_stride(), DType::bf16);
          if (!Kernels().round_blocks(tensor.plan, route, run, halves)) holds = false;
          return;
        }
        if (writer.is_direct()) {
          run.streaming = streams;
          const float* y = writer.Target(first, run.n);
          Kernels().round_blocks(tensor.plan, route, run,
                                 Rows(y, run.rows, run.n, layout.row_stride()));
          return;
        }
        const ScaledRun all = run;
        run.rows = 1;
        for (std::int64_t r = 0; r < all.rows; ++r) {
          const std::int64_t at = first + r * layout.row_stride();
          run.x = all.x + r * all.x_stride;
          if (all.random != nullptr) run.random = all.random + r * all.random_stride;
          Kernels().round_blocks(tensor.plan, route, run, Contiguous(writer.Target(at, run.n)));
          writer.Flush(at, run.n);
        }
      });
    };
    for (std::int64_t s = begin; s < end; ++s) powers.Cast(tiles[s], cast);
  });
  return holds;
}

/// Whether the CPU's tiles can draw the integers of a tensor in that order.
bool TurnsIntegers(const Scaled& scaled, const InOrder& order) {
  return order.x.on_host() &&
         TurnsIntegers(LayoutOf(scaled.block, ShapeOf(order.x), order.axis), order.indices);
}

/// Cast in the order of x's dimensions, whose indices may have other strides.
void CastInOrder(const TensorView& x, const Scaled& scaled, int axis,
                 const RoundingOptions& options, const TensorView& out, const GivenScales& given,
                 const RandomKey& key, const TensorView* random, const TensorView* indices) {
  const Inputs inputs(x, scaled, axis);
  if (!x.on_host()) {
    return CastOnGpu(inputs.view(), scaled, axis, options, out, given, key, random);
  }
  ScaledTensor tensor =
      MakeScaledTensor(inputs.view(), scaled, axis, options, given, key, random, indices);
  CastTiles(tensor, out);
}

/// Finds the least index of a NaN that has no code, in blocks whose scale is not NaN (elsewhere an
/// element has code 0).
class NanFinder {
 public:
  explicit NanFinder(const Format& element) : wanted_(!element.has_nan()) {}
  /// Searches a run's first row, whose first element has index `first`. places: run.n integers.
  void Look(const ScaledRun& run, std::int64_t first, std::uint32_t* places) {
    if (!wanted_) return;
    const std::int64_t nans =
        Kernels().find_large(0x7FFFFFFF, 0x7F800001, run.n, run.x, nullptr, nullptr, places);
    for (std::int64_t k = 0; k < nans; ++k) {
      const float scale = run.scale[places[k] / run.run];
      if (scale == scale) return Found(first + places[k]);
    }
  }
  void Throw(const Format& element) const {
    if (first_ == kNone) return;
    throw Error("element " + std::to_string(first_) + " is NaN, and " + ToString(element) +
                " has no code for NaN");
  }

 private:
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  void Found(std::int64_t index) {
    std::int64_t least = first_;
    while (index < least && !first_.compare_exchange_weak(least, index)) {
    }
  }
  bool wanted_;
  std::atomic<std::int64_t> first_{kNone};
};

/// ORs `count` bits of `from`, whose spare ones are 0, into `to` from bit number `begin` on. Other
/// threads may write to the bytes at both ends.
void PutBits(std::uint8_t* to, std::int64_t begin, const std::uint8_t* from, std::int64_t count) {
  const int shift = static_cast<int>(begin % 8);
  std::uint8_t* at = to + begin / 8;
  const std::int64_t last = (shift + count - 1) / 8;
  const std::int64_t given = (count + 7) / 8;
  for (std::int64_t i = 0; i <= last; ++i) {
    const int high = i < given ? from[i] << shift : 0;
    const int low = i > 0 ? from[i - 1] >> (8 - shift) : 0;
    const auto bits = static_cast<std::uint8_t>(high | low);
    if (i == 0 || i == last) {
      std::atomic_ref(at[i]).fetch_or(bits);
    } else {
      at[i] = bits;
    }
  }
}

void EncodeTiles(ScaledTensor& tensor, std::uint8_t* packed, NanFinder& nans) {
  const Tiles tiles = tensor.tiles();
  const std::int64_t bits = tensor.plan.element.bits;
  const bool on_bytes = tiles.on_bytes(bits);
  const bool streams = on_bytes && tensor.x.size() >= kStreamingFrom;
  if (!on_bytes) std::fill_n(packed, (tensor.x.size() * bits + 7) / 8, std::uint8_t{0});
  ForTiles(tiles, [&](std::int64_t begin, std::int64_t end) {
    TileScaler scaler(tensor);
    std::vector<std::uint8_t> row;
    std::vector<std::uint32_t> places;
    for (std::int64_t s = begin; s < end; ++s) {
      const Tile tile = tiles[s];
      scaler.ForElements(tile, [&](ScaledRun run, ElementRoute route, std::int64_t c) {
        std::int64_t first = tensor.layout.index(tile.p, tile.i, tile.t, tile.j + c);
        places.resize(static_cast<std::size_t>(run.n));
        row.resize(static_cast<std::size_t>((run.n * bits + 7) / 8));
        for (std::int64_t r = 0; r < run.rows; ++r, first += tensor.layout.row_stride()) {
          std::uint8_t* const to = on_bytes ? packed + first * bits / 8 : row.data();
          nans.Look(run, first, places.data());
          run.streaming = streams;
          Kernels().encode_blocks(tensor.plan, route, run, to);
          if (!on_bytes) PutBits(packed, first * bits, row.data(), run.n * bits);
          run.x += run.x_stride;
          if (run.random != nullptr) run.random += run.random_stride;
        }
      });
    }
  });
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

void DecodeTiles(ScaledTensor& tensor, const TensorView& packed, const TensorView& out) {
  const Tiles tiles = tensor.tiles();
  const std::int64_t bits = tensor.plan.element.bits;
  const auto* from = static_cast<const std::uint8_t*>(packed.data);
  ForTiles(tiles, [&](std::int64_t begin, std::int64_t end) {
    TileScaler scaler(tensor);
    Writer<float> writer(out);
    Floats elements;
    for (std::int64_t s = begin; s < end; ++s) {
      const Tile tile = tiles[s];
      scaler.ForScales(tile, [&](ScaledRun run, std::int64_t c) {
        std::int64_t first = tensor.layout.index(tile.p, tile.i, tile.t, tile.j + c);
        for (std::int64_t r = 0; r < run.rows; ++r, first += tensor.layout.row_stride()) {
          // Decoding begins at a code that begins on a byte.
          const std::int64_t before = (first * bits % 8 != 0) ? first % 8 : 0;
          elements.resize(static_cast<std::size_t>(before + run.n));
          Kernels().decode({.n = before + run.n,
                            .plan = &tensor.plan.element,
                            .packed = from + (first - before) * bits / 8,
                            .out = Contiguous(elements.data())});
          run.x = elements.data() + before;
          Kernels().scale_blocks(tensor.plan.wide_values, run, writer.Target(first, run.n));
          writer.Flush(first, run.n);
        }
      });
    }
  });
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
  if (!x.on_host() || out.dtype != DType::bf16 || !out.is_contiguous()) {
    throw Error("out must be contiguous bf16 on the CPU, got " + ToString(out.dtype) +
                (x.on_host() ? "" : " on a GPU") + (out.is_contiguous() ? "" : ", not contiguous"));
  }
  const int along = AxisOf(x, axis);
  if (x.size() == 0) return true;
  const Inputs inputs(x, scaled, along);
  ScaledTensor tensor = MakeScaledTensor(inputs.view(), scaled, along, options, {}, key, nullptr);
  return CastTiles(tensor, out);
}

void CastApart(const TensorView& x, const Scaled& scaled, int axis, const RoundingOptions& options,
               const TensorView& out, const TensorView& scales, const RandomKey& key) {
  Check(key, false);
  CheckCast(x, scaled, out);
  const int along = AxisOf(x, axis);
  const ScaleCounts counts = CountScales(scaled, ShapeOf(x), along);
  const std::int64_t count = scaled.tensor_scale ? counts.tensor : counts.blocks;
  Check(scales, "scales");
  if (!x.on_host() || scales.dtype != DType::f32 || !scales.is_contiguous() ||
      scales.size() != count) {
    throw Error("scales must be " + std::to_string(count) + " contiguous fp32 numbers on the CPU");
  }
  if (x.size() == 0) return;
  const Inputs inputs(x, scaled, along);
  ScaledTensor tensor = MakeScaledTensor(inputs.view(), scaled, along, options, {}, key, nullptr);
  CastTiles(tensor, out, true);
  if (Explains()) return;
  std::ranges::copy(scaled.tensor_scale ? tensor.outer.scale : tensor.scale,
                    static_cast<float*>(scales.data));
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
                         draws ? &order->indices : nullptr);
    }
  }
  CastInOrder(x, scaled, along, options, out, given, key, random, nullptr);
}

void CastBoth(const TensorView& x, const Scaled& scaled, const std::array<int, 2>& axes,
              const RoundingOptions& options, const TensorView& first, const TensorView& second,
              const RandomKey& key) {
  const std::array<int, 2> along{AxisOf(x, axes[0]), AxisOf(x, axes[1])};
  if (x.on_host() || scaled.transform || x.size() == 0) {
    Cast(x, scaled, along[0], options, first, {}, key);
    Cast(x, scaled, along[1], options, second, {}, key);
    return;
  }
  CheckCast(x, scaled, first);
  CheckCast(x, scaled, second);
  Check(key, true);
  CastBothOnGpu(x, scaled, along, options, first, second, key);
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
  if (!x.on_host()) {
    if (x.size() == 0) return EncodeEmptyOnGpu(scaled, counts, scales, tensor_scales);
    const Inputs inputs(x, scaled, along);
    return EncodeOnGpu(inputs.view(), scaled, along, options, packed, scales, tensor_scales, given,
                       key, random);
  }
  OuterScales outer;
  Floats blocks;
  if (x.size() > 0) {
    const Inputs inputs(x, scaled, along);
    ScaledTensor tensor =
        MakeScaledTensor(inputs.view(), scaled, along, options, given, key, random);
    if (Explains()) return NoteTiles("encode", tensor, false, "encode_blocks");
    NanFinder nans(scaled.element);
    EncodeTiles(tensor, static_cast<std::uint8_t*>(packed.data), nans);
    nans.Throw(scaled.element);
    outer = std::move(tensor.outer);
    blocks = std::move(tensor.scale);
  }
  blocks.resize(static_cast<std::size_t>(counts.blocks));
  Encode(View(blocks), scaled.scale, {}, scales);
  if (tensor_scales == nullptr) return;
  outer.scale.resize(static_cast<std::size_t>(counts.tensor), 1);
  Encode(View(outer.scale), *scaled.tensor_scale, {}, *tensor_scales);
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
  if (!out.on_host()) {
    return DecodeOnGpu(packed, scaled, along, scales, tensor_scales, out);
  }
  const GivenScales given{.blocks = &scales, .tensor = tensor_scales};
  const RoundingOptions options;
  ScaledTensor tensor = MakeScaledTensor(out, scaled, along, options, given, {}, nullptr);
  if (Explains()) return NoteTiles("decode", tensor, false, "scale_blocks");
  DecodeTiles(tensor, packed, out);
}

}  // namespace cpd
