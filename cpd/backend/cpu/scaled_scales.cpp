// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cpu/scaled_scales.h"

#include <atomic>
#include <bit>
#include <cmath>

#include "cpd/numeric/scaled/scaled_choice.h"

namespace cpd {
namespace {

/// The maximum number of elements of a block whose scale is formed in the same pass over the tensor
/// that casts its elements. Such a block fits into the L2 cache.
constexpr std::int64_t kWhole = kMostChosen;

/// The maximum number of rows of a block whose scale is formed in the same pass over the tensor
/// that casts its elements. With more rows, a pass over a few columns would read too little of each
/// memory page at a time.
constexpr std::int64_t kTallest = 1024;

/// Runs of at most this many neighboring elements are searched for their largest magnitude without
/// prefetching, because the pass over the previous tile has already prefetched them.
constexpr std::int64_t kPart = 128;

/// Finds the largest |x| of each block of a tile.
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

/// Finds the largest |x| of each block of a whole tensor.
void LargestOf(const TensorView& of, const BlockLayout& layout, bool with_nan, float* into) {
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
  std::ranges::transform(most, into,
                         [](const auto& bits) { return std::bit_cast<float>(bits.load()); });
}

void CopyMagnitudes(const float* from, std::int64_t n, float* to) {
  std::transform(from, from + n, to, [](float a) { return std::abs(a); });
}

}  // namespace

ScaledPass::ScaledPass(const ScalesCall& call, const Strided& strided)
    : of(call), x(ViewOf(strided)), route(call.call.route) {
  if (of.call.random.data != nullptr) random = ViewOf(of.call.random);
  const bool chooses = of.choose != ScaleChoice::none;
  const bool large =
      layout().rows * layout().columns > kWhole || (layout().rows > kTallest && !chooses);
  known = of.given.blocks != nullptr || large || (of.given.largest != nullptr && !of.two_levels);
  if (Explains()) return;
  FormCells();
  if (known) FormBlocks();
}

void ScaledPass::FormCells() const {
  const std::int64_t count = of.two_levels ? of.cell_layout.blocks() : 1;
  std::fill_n(of.cells.scale, count, 1.0F);
  std::fill_n(of.cells.encode, count, 1.0F);
  std::fill_n(of.cells.largest, count, 0.0F);
  if (!of.two_levels) return;
  if (of.given.cells != nullptr) {
    std::copy_n(of.given.cells, count, of.cells.scale);
    return;
  }
  if (of.given.largest != nullptr) {
    CopyMagnitudes(of.given.largest, count, of.cells.largest);
  } else {
    LargestOf(x, of.cell_layout, plan().makes_nan, of.cells.largest);
  }
  Kernels().outer_scales(plan(), count, of.cells.largest, of.cells.scale, of.cells.encode);
}

void ScaledPass::FormBlocks() {
  const std::int64_t count = layout().blocks();
  const ScaleTables& tables = of.call.tables;
  Floats outer, encode;
  OuterOfBlocks(0, count, outer, encode);
  bool outside = false;
  if (of.given.blocks != nullptr) {
    std::copy_n(of.given.blocks, count, tables.scale);
    outside =
        Kernels().given_scales(plan(), route, count, tables.scale, outer.data(), tables.factor);
  } else {
    float* const largest = tables.outer;  // which no tile reads
    if (of.given.largest != nullptr) {
      CopyMagnitudes(of.given.largest, count, largest);
    } else {
      LargestOf(x, layout(), plan().makes_nan, largest);
    }
    outside = Kernels().block_scales(plan(), route, 1, count, largest, outer.data(), encode.data(),
                                     tables.scale, tables.factor, largest);
  }
  if (outside && plan().arithmetic == Arithmetic::exact) route = ElementRoute::wide;
}

void ScaledPass::OuterOfBlocks(std::int64_t first, std::int64_t count, Floats& scale,
                               Floats& encode) const {
  const auto n = static_cast<std::size_t>(count);
  const OuterCells& cells = of.call.cells;
  if (cells.extent == 0) {
    scale.assign(n, of.cells.scale[0]);
    encode.assign(n, of.cells.encode[0]);
    return;
  }
  scale.resize(n);
  encode.resize(n);
  for (std::int64_t b = 0; b < count; ++b) {
    const std::int64_t cell = cells.cell(layout().first_of(first + b));
    scale[b] = of.cells.scale[cell];
    encode[b] = of.cells.encode[cell];
  }
}

void TileScaler::FindScales(const Tile& tile, const TileRows& rows) {
  const BlockLayout& layout = pass_.layout();
  const ScaleTables& tables = pass_.of.call.tables;
  const std::int64_t first = layout.block(tile.p, tile.i, tile.t, tile.j);
  const std::int64_t count = (tile.count + layout.columns - 1) / layout.columns;
  const auto n = static_cast<std::size_t>(count);
  for (Floats* each : {&scales_.largest, &scales_.scale, &scales_.factor, &scales_.decode}) {
    each->resize(n);
  }
  pass_.OuterOfBlocks(first, count, scales_.outer, scales_.encode);
  scales_.route = pass_.route;
  if (pass_.known) {
    std::copy_n(tables.factor + first, count, scales_.factor.data());
    std::copy_n(tables.scale + first, count, scales_.decode.data());
    return;
  }
  LargestOfBlocks(tile, rows);
  FormScales(scales_, 1);
  if (pass_.of.choose != ScaleChoice::none) ChooseScales(tile, rows);
  std::copy_n(scales_.scale.data(), count, tables.scale + first);
}

void TileScaler::LargestOfBlocks(const Tile& tile, const TileRows& rows) {
  const BlockLayout& layout = pass_.layout();
  float* const largest = scales_.largest.data();
  const bool makes_nan = pass_.plan().makes_nan;
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
      pass_.plan(), pass_.route, share, static_cast<std::int64_t>(scales.largest.size()),
      scales.largest.data(), scales.outer.data(), scales.encode.data(), scales.scale.data(),
      scales.factor.data(), scales.decode.data());
  if (outside && pass_.plan().arithmetic == Arithmetic::exact) scales.route = ElementRoute::wide;
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
  const std::int64_t run = pass_.layout().columns;
  Spread(run, tile.count);
  values_.resize(static_cast<std::size_t>(tile.rows * tile.count));
  const bool te = pass_.plan().arithmetic == Arithmetic::te;
  ones_.assign(static_cast<std::size_t>(tile.count), 1);
  const ScaledRun all{.rows = tile.rows,
                      .n = tile.count,
                      .x = rows.at,
                      .x_stride = rows.stride,
                      .factor = scales_.element_factor.data(),
                      .scale = te ? ones_.data() : scales_.element_scale.data(),
                      .outer = te ? ones_.data() : scales_.element_outer.data()};
  Kernels().round_blocks(pass_.of.nearest, scales_.route, all,
                         Rows(values_.data(), tile.rows, tile.count, tile.count));
  std::vector<double> errors;
  std::vector<double> of_rows(static_cast<std::size_t>(tile.rows));
  for (std::size_t b = 0; b < scales_.scale.size(); ++b) {
    const std::int64_t begin = static_cast<std::int64_t>(b) * run;
    const std::int64_t n = std::min(run, tile.count - begin);
    const std::int64_t first = pass_.layout().index(tile.p, tile.i, tile.t, tile.j + begin);
    const DividedBy at{scales_.scale[b], scales_.outer[b],
                       pass_.of.cells.largest[pass_.of.call.cells.cell(first)]};
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      SumOfErrors sum(pass_.plan(), pass_.of.choose == ScaleChoice::mse, at);
      const float* q = values_.data() + r * tile.count + begin;
      const float* x = rows.at + r * rows.stride + begin;
      for (std::int64_t i = 0; i < n; ++i) sum.add(q[i], x[i]);
      of_rows[r] = sum.value();
    }
    errors.push_back(sum_of_rows(pass_.plan(), tile.rows, of_rows.data()));
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
  if (pass_.plan().two_levels || scales_.element_outer.size() < size) {
    spread(scales_.outer, scales_.element_outer);
  }
}

}  // namespace cpd
