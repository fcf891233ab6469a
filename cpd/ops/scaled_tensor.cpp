// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/scaled_tensor.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "cpd/base/guarded.h"
#include "cpd/base/parallel.h"
#include "cpd/numeric/scaled/scaled_choice.h"
#include "cpd/ops/call.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/codec.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// The most elements of a block whose scale and values are formed in one pass, within L2.
constexpr std::int64_t kWhole = std::int64_t{1} << 17;

/// The most rows of such a block: of more, a pass over a few columns of each would read too little
/// of a page at a time.
constexpr std::int64_t kTallest = 1024;

/// The most neighbours in a run whose largest magnitude a kernel finds without prefetching, which
/// the pass over the previous tile's elements has done.
constexpr std::int64_t kPart = 128;

/// The largest |x| of each of a tile's blocks.
void LargestOf(const BlockLayout& layout, bool with_nan, const Tile& tile, const TileRows& rows,
               Floats& columns, float* largest) {
  const std::int64_t run = std::min(layout.columns, tile.count);
  if (tile.rows == 1) {
    return Kernels().block_max(with_nan, run, tile.count, rows.at, largest);
  }
  if (run == 1) {
    return Kernels().column_max(with_nan, tile.rows, rows.stride, tile.count, rows.at, largest);
  }
  columns.resize(static_cast<std::size_t>(tile.count));
  Kernels().column_max(with_nan, tile.rows, rows.stride, tile.count, rows.at, columns.data());
  Kernels().block_max(true, run, tile.count, columns.data(), largest);
}

/// The largest |x| of each block of a whole tensor.
Floats LargestOf(const TensorView& of, const BlockLayout& layout, bool with_nan) {
  const TensorView x = layout.blocks() == 1 && FillAlike(of, of) ? AlongMemory(of) : of;
  std::vector<std::atomic<std::uint32_t>> most(static_cast<std::size_t>(layout.blocks()));
  const Tiles tiles(layout, false);
  ForTiles(tiles, [&](std::int64_t begin, std::int64_t end) {
    TileReader reader(x, layout);
    Floats columns;
    Floats largest(static_cast<std::size_t>(tiles.elements()));
    for (std::int64_t s = begin; s < end; ++s) {
      const Tile tile = tiles[s];
      if (tile.rows * tile.count == 0) continue;
      LargestOf(layout, with_nan, tile, reader.Read(tile), columns, largest.data());
      const std::int64_t first = layout.block(tile.p, tile.i, tile.t, tile.j);
      const std::int64_t count = (tile.count + layout.columns - 1) / layout.columns;
      for (std::int64_t b = 0; b < count; ++b) {
        const auto mine = std::bit_cast<std::uint32_t>(largest[b]);
        std::atomic<std::uint32_t>& all = most[first + b];
        std::uint32_t seen = all;
        while (seen < mine && !all.compare_exchange_weak(seen, mine)) {
        }
      }
    }
  });
  Floats result(most.size());
  std::ranges::transform(most, result.begin(),
                         [](const auto& bits) { return std::bit_cast<float>(bits.load()); });
  return result;
}

OuterScales OuterOf(const TensorView& x, const Scaled& scaled, int axis, const ScaledPlan& plan,
                    const GivenScales& given) {
  OuterScales outer;
  const auto shape = ShapeOf(x);
  outer.cells = CellsOf(scaled, shape, axis);
  if (!scaled.tensor_scale) return outer;
  const BlockLayout layout = LayoutOf({.kind = scaled.outer}, shape, axis);
  const auto count = static_cast<std::size_t>(layout.blocks());
  outer.scale.assign(count, 1);
  outer.encode.assign(count, 1);
  outer.largest.assign(count, 0);
  if (given.tensor != nullptr) {
    outer.scale = GivenOf(*given.tensor, *scaled.tensor_scale, layout.blocks(), "tensor scales");
    return outer;
  }
  outer.largest = given.largest != nullptr ? GivenLargest(*given.largest, layout.blocks())
                                           : LargestOf(x, layout, plan.makes_nan);
  Kernels().outer_scales(plan, layout.blocks(), outer.largest.data(), outer.scale.data(),
                         outer.encode.data());
  return outer;
}

/// The second level's scale and multiplier for each of blocks first … first + count - 1.
void OuterOfBlocks(const ScaledTensor& tensor, std::int64_t first, std::int64_t count,
                   Floats& scale, Floats& encode) {
  const auto n = static_cast<std::size_t>(count);
  if (tensor.outer.cells.extent == 0) {
    scale.assign(n, tensor.outer.scale[0]);
    encode.assign(n, tensor.outer.encode[0]);
    return;
  }
  scale.resize(n);
  encode.resize(n);
  for (std::int64_t b = 0; b < count; ++b) {
    const std::int64_t cell = tensor.outer.cells.cell(tensor.layout.first_of(first + b));
    scale[b] = tensor.outer.scale[cell];
    encode[b] = tensor.outer.encode[cell];
  }
}

/// Joins the rows of a contiguous tensor where blocks lie within rows: tiles then are long even if
/// rows are short.
BlockLayout Joined(const BlockLayout& layout, const TensorView& x) {
  const bool joins = layout.rows == 1 && layout.middle == 1 && x.is_contiguous() &&
                     layout.width % layout.columns == 0;
  if (!joins) return layout;
  return {.width = layout.planes * layout.height * layout.width, .columns = layout.columns};
}

}  // namespace

Floats GivenOf(const TensorView& given, const Format& format, std::int64_t count,
               const char* name) {
  Check(given, name);
  Floats values(static_cast<std::size_t>(count));
  const TensorView to = View(values);
  if (given.dtype == DType::u8) {
    Decode(given, format, to);
    return values;
  }
  if (given.dtype != DType::f32 || !given.is_contiguous() || given.size() != count) {
    throw Error(std::string(name) + " must be " + std::to_string(count) +
                " contiguous fp32 numbers or their packed codes, got " +
                std::to_string(given.size()) + " of " + ToString(given.dtype));
  }
  TensorView flat = View(given.data, DType::f32, count);
  Cast(flat, format, {}, to);
  const auto* from = static_cast<const float*>(given.data);
  for (std::int64_t i = 0; i < count; ++i) {
    if (values[i] == from[i] || (values[i] != values[i] && from[i] != from[i])) continue;
    throw Error(std::string(name) + " must be numbers of " + ToString(format) + ", got " +
                std::to_string(from[i]) + " at " + std::to_string(i));
  }
  if (std::ranges::any_of(values, [](float s) { return s < 0; })) {
    throw Error(std::string(name) + " must not be negative");
  }
  return values;
}

Floats GivenLargest(const TensorView& given, std::int64_t count) {
  Floats values = GivenOf(given, kFp32, count, "amax");
  for (float& a : values) a = std::abs(a);
  return values;
}

void ForTiles(const Tiles& tiles, const std::function<void(std::int64_t, std::int64_t)>& body) {
  parallel_for(tiles.size(), 1, kSerialBelow / tiles.elements(), body);
}

void CheckChoice(const Scaled& scaled, const BlockLayout& layout) {
  if (scaled.choose == ScaleChoice::none || layout.rows * layout.columns <= kWhole) return;
  throw Error("choose is for blocks of at most " + std::to_string(kWhole) + " values");
}

OuterCells CellsOf(const Scaled& scaled, std::span<const std::int64_t> shape, int axis) {
  OuterCells cells;
  const bool by_row = scaled.tensor_scale && scaled.outer == BlockShape::Kind::row;
  if (!by_row || shape.empty()) return cells;
  cells.extent = shape[axis];
  for (std::size_t d = axis + 1; d < shape.size(); ++d) cells.after *= shape[d];
  return cells;
}

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

ScaledTensor MakeScaledTensor(const TensorView& x, const Scaled& scaled, int axis,
                              const RoundingOptions& options, const GivenScales& given,
                              const RandomKey& key, const TensorView* random,
                              const TensorView* indices) {
  const ScaledPlan plan =
      Guarded([&] { return make_scaled_plan(scaled, options, x.dtype == DType::bf16, key); });
  const auto shape = ShapeOf(x);
  ScaledTensor tensor{.x = x,
                      .options = options,
                      .random = random,
                      .indices = indices,
                      .plan = plan,
                      .route = route_of(plan),
                      .choose = scaled.choose,
                      .layout = LayoutOf(scaled.block, shape, axis),
                      .outer = Explains() ? OuterScales{} : OuterOf(x, scaled, axis, plan, given),
                      .scale = {}};
  if (indices == nullptr) tensor.layout = Joined(tensor.layout, x);
  if (tensor.choose != ScaleChoice::none) {
    const RoundingOptions nearest{.overflow = options.overflow};
    tensor.nearest =
        Guarded([&] { return make_scaled_plan(scaled, nearest, x.dtype == DType::bf16); });
  }
  const std::int64_t blocks = tensor.layout.blocks();
  if (!Explains()) tensor.scale.resize(static_cast<std::size_t>(blocks));
  CheckChoice(scaled, tensor.layout);
  const BlockLayout& layout = tensor.layout;
  const bool tall = layout.rows > kTallest && tensor.choose == ScaleChoice::none;
  const bool large = layout.rows * layout.columns > kWhole || tall;
  Floats outer, encode;
  tensor.known =
      given.blocks != nullptr || large || (given.largest != nullptr && !scaled.tensor_scale);
  if (Explains() || !tensor.known) return tensor;
  if (given.blocks != nullptr) {
    tensor.scale = GivenOf(*given.blocks, scaled.scale, blocks, "scales");
  } else {
    tensor.decode = given.largest != nullptr ? GivenLargest(*given.largest, blocks)
                                             : LargestOf(x, tensor.layout, plan.makes_nan);
  }
  tensor.factor.resize(tensor.scale.size());
  OuterOfBlocks(tensor, 0, blocks, outer, encode);
  bool outside = false;
  if (given.blocks != nullptr) {
    outside = Kernels().given_scales(plan, tensor.route, blocks, tensor.scale.data(), outer.data(),
                                     tensor.factor.data());
  } else {
    outside = Kernels().block_scales(plan, tensor.route, 1, blocks, tensor.decode.data(),
                                     outer.data(), encode.data(), tensor.scale.data(),
                                     tensor.factor.data(), tensor.decode.data());
  }
  tensor.decode = tensor.scale;
  if (outside && plan.arithmetic == Arithmetic::exact) tensor.route = ElementRoute::wide;
  return tensor;
}

TileRows TileReader::Read(const Tile& tile) {
  const std::int64_t begin = layout_.index(tile.p, tile.i, tile.t, tile.j);
  if (is_direct()) return {reader_.Read(begin, tile.count), layout_.row_stride()};
  const auto read = [&](const Box& box) { return of_strips_.Read(box, 0).at; };
  if (strips_.fit() && tile.rows == 1) {
    return {strip_.Read(read, begin, tile.count, values_), tile.count};
  }
  if (layout_.middle == 1 && strips_.have(layout_.height, layout_.width)) {
    if (tile.rows <= kStripRows) {
      const std::int64_t n = (tile.rows - 1) * layout_.width + tile.count;
      return {strip_.Read(read, begin, n, values_), layout_.width};
    }
    const BoxRows<const float> rows = boxes_.Read(strips_.box_at(begin, tile.rows, tile.count));
    return {rows.at, rows.stride};
  }
  values_.resize(static_cast<std::size_t>(tile.rows * tile.count));
  if (halves_ != nullptr) {
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      Kernels().widen_bf16(tile.count, halves_ + begin + r * layout_.row_stride(),
                           values_.data() + r * tile.count);
    }
    return {values_.data(), tile.count};
  }
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    for (std::int64_t c = 0; c < tile.count; c += kStage) {
      const std::int64_t n = std::min(kStage, tile.count - c);
      const float* from = reader_.Read(begin + r * layout_.row_stride() + c, n);
      std::copy_n(from, n, values_.data() + r * tile.count + c);
    }
  }
  return {values_.data(), tile.count};
}

/// Divides a tensor's random integers into strips. A tile of fewer than kBlock rows lies within one
/// strip.
Strips StripsOf(const BlockLayout& layout, const TensorView& indices) {
  return {indices, kBlock, layout.rows < kBlock ? layout.rows : kPartRows};
}

bool TurnsIntegers(const BlockLayout& layout, const TensorView& indices) {
  const Strips strips = StripsOf(layout, indices);
  return layout.rows == 1 ? strips.fit()
                          : layout.middle == 1 && strips.have(layout.height, layout.width);
}

TileIntegers::TileIntegers(const ScaledTensor& tensor)
    : tensor_(tensor), drawn_(tensor.plan.element), of_strips_(tensor.plan.element) {
  if (tensor.random != nullptr) {
    given_.emplace(*tensor.random);
  } else if (tensor.indices != nullptr) {
    turned_.emplace(StripsOf(tensor.layout, *tensor.indices));
  }
}

BoxRows<const std::uint32_t> TileIntegers::Read(const Tile& tile, std::int64_t begin,
                                                std::int64_t count) {
  if (tensor_.options.mode != Rounding::stochastic) return {nullptr, 0};
  const BlockLayout& layout = tensor_.layout;
  const std::int64_t first = layout.index(tile.p, tile.i, tile.t, tile.j + begin);
  if (turned_) {
    auto& [strips, strip] = *turned_;
    const auto read = [&](const Box& box) { return of_strips_.Read(box); };
    if (tile.rows == 1) return {strip.Read(read, first, count, values_), count};
    if (tile.rows >= kBlock) return {drawn_.Read(strips.box_at(first, tile.rows, count)), count};
    const std::int64_t n = (tile.rows - 1) * layout.width + count;
    return {strip.Read(read, first, n, values_), layout.width};
  }
  if (given_) {
    values_.resize(static_cast<std::size_t>(tile.rows * count));
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const std::int64_t at = first + r * layout.row_stride();
      std::copy_n(given_->Read(at, count), count, values_.data() + r * count);
    }
    return {values_.data(), count};
  }
  const bool is_drawn = first >= first_ && first + count <= first_ + columns_;
  if (!is_drawn) {
    const std::int64_t rest = layout.width - tile.j - begin;
    first_ = first;
    columns_ = tile.rows == 1 ? count : std::min(rest, std::max(count, kBlock));
    std::uint32_t* to = Sized(values_, tile.rows * columns_);
    for (std::int64_t r = 0; r < tile.rows; ++r, to += columns_) {
      DrawIntegers(tensor_.plan.element, first + r * layout.row_stride(), columns_, to);
    }
  }
  return {values_.data() + (first - first_), columns_};
}

void TileScaler::FindScales(const Tile& tile, const TileRows& rows) {
  const BlockLayout& layout = tensor_.layout;
  const std::int64_t first = layout.block(tile.p, tile.i, tile.t, tile.j);
  const std::int64_t count = (tile.count + layout.columns - 1) / layout.columns;
  const auto n = static_cast<std::size_t>(count);
  for (Floats* each : {&scales_.largest, &scales_.scale, &scales_.factor, &scales_.decode}) {
    each->resize(n);
  }
  OuterOfBlocks(tensor_, first, count, scales_.outer, scales_.encode);
  scales_.route = tensor_.route;
  if (tensor_.known) {
    std::copy_n(tensor_.factor.data() + first, count, scales_.factor.data());
    std::copy_n(tensor_.decode.data() + first, count, scales_.decode.data());
    return;
  }
  LargestOfBlocks(layout, tile, rows);
  FormScales(scales_, 1);
  if (tensor_.choose != ScaleChoice::none) ChooseScales(tile, rows);
  std::copy_n(scales_.scale.data(), count, tensor_.scale.data() + first);
}

void TileScaler::LargestOfBlocks(const BlockLayout& layout, const Tile& tile,
                                 const TileRows& rows) {
  float* const largest = scales_.largest.data();
  const bool makes_nan = tensor_.plan.makes_nan;
  const std::int64_t run = std::min(layout.columns, tile.count);
  if (tile.rows > 1 || run <= kPart || run % kPart != 0 || tile.count % run != 0) {
    return LargestOf(layout, makes_nan, tile, rows, columns_, largest);
  }
  columns_.resize(static_cast<std::size_t>(tile.count / kPart));
  Kernels().block_max(makes_nan, kPart, tile.count, rows.at, columns_.data());
  Kernels().block_max(true, run / kPart, tile.count / kPart, columns_.data(), largest);
}

void TileScaler::FormScales(TileScales& scales, double share) const {
  const bool outside = Kernels().block_scales(
      tensor_.plan, tensor_.route, share, static_cast<std::int64_t>(scales.largest.size()),
      scales.largest.data(), scales.outer.data(), scales.encode.data(), scales.scale.data(),
      scales.factor.data(), scales.decode.data());
  if (outside && tensor_.plan.arithmetic == Arithmetic::exact) scales.route = ElementRoute::wide;
}

void TileScaler::ChooseScales(const Tile& tile, const TileRows& rows) {
  const std::vector<double> errors = ErrorsOf(tile, rows);
  const TileScales usual = scales_;
  FormScales(scales_, kOtherShare);
  const std::vector<double> others = ErrorsOf(tile, rows);
  for (std::size_t b = 0; b < errors.size(); ++b) {
    if (others[b] < errors[b]) continue;
    scales_.scale[b] = usual.scale[b];
    scales_.factor[b] = usual.factor[b];
    scales_.decode[b] = usual.decode[b];
  }
  if (usual.route == ElementRoute::wide) scales_.route = usual.route;
}

std::vector<double> TileScaler::ErrorsOf(const Tile& tile, const TileRows& rows) {
  const std::int64_t run = tensor_.layout.columns;
  Spread(run, tile.count);
  values_.resize(static_cast<std::size_t>(tile.rows * tile.count));
  const bool te = tensor_.plan.arithmetic == Arithmetic::te;
  ones_.assign(static_cast<std::size_t>(tile.count), 1);
  const ScaledRun all{.rows = tile.rows,
                      .n = tile.count,
                      .x = rows.at,
                      .x_stride = rows.stride,
                      .factor = scales_.element_factor.data(),
                      .scale = te ? ones_.data() : scales_.element_scale.data(),
                      .outer = te ? ones_.data() : scales_.element_outer.data()};
  Kernels().round_blocks(tensor_.nearest, scales_.route, all,
                         Rows(values_.data(), tile.rows, tile.count, tile.count));
  std::vector<double> errors;
  std::vector<double> of_rows(static_cast<std::size_t>(tile.rows));
  for (std::size_t b = 0; b < scales_.scale.size(); ++b) {
    const std::int64_t begin = static_cast<std::int64_t>(b) * run;
    const std::int64_t n = std::min(run, tile.count - begin);
    const std::int64_t first = tensor_.layout.index(tile.p, tile.i, tile.t, tile.j + begin);
    const DividedBy at{scales_.scale[b], scales_.outer[b],
                       tensor_.outer.largest[tensor_.outer.cells.cell(first)]};
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      SumOfErrors sum(tensor_.plan, tensor_.choose == ScaleChoice::mse, at);
      const float* q = values_.data() + r * tile.count + begin;
      const float* x = rows.at + r * rows.stride + begin;
      for (std::int64_t i = 0; i < n; ++i) sum.add(q[i], x[i]);
      of_rows[r] = sum.value();
    }
    errors.push_back(sum_of_rows(tensor_.plan, tile.rows, of_rows.data()));
  }
  return errors;
}

void TileScaler::Spread(std::int64_t run, std::int64_t n) {
  const auto size = static_cast<std::size_t>(n);
  const auto spread = [&](const Floats& each, Floats& all) {
    all.resize(size);
    Kernels().spread(run, n, each.data(), all.data());
  };
  spread(scales_.factor, scales_.element_factor);
  spread(scales_.decode, scales_.element_scale);
  if (tensor_.plan.two_levels || scales_.element_outer.size() < size) {
    spread(scales_.outer, scales_.element_outer);
  }
}

}  // namespace cpd
