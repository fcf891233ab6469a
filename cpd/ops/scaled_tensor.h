// SPDX-License-Identifier: Apache-2.0
//
// A tensor that is cast into a scaled format, or decoded: its blocks' scales are formed tile by
// tile while its elements are in the cache, and its elements passed to kernels with their scales.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "cpd/backend/cpu/boxes.h"
#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/roster.h"
#include "cpd/numeric/scaled/scaled_plan.h"
#include "cpd/ops/block_layout.h"
#include "cpd/ops/scaled.h"

namespace cpd {

using Floats = std::vector<float>;

inline std::span<const std::int64_t> ShapeOf(const TensorView& x) {
  return {x.shape.data(), static_cast<std::size_t>(x.rank)};
}

/// Calls body(begin, end) on threads, for ranges of tile numbers that together are all.
void ForTiles(const Tiles& tiles, const std::function<void(std::int64_t, std::int64_t)>& body);

/// The values of a tile: `at` is the first, rows are `stride` apart.
struct TileRows {
  const float* at;
  std::int64_t stride;
};

/// Reads tiles of a tensor as binary32, in place where the tensor holds contiguous binary32.
class TileReader {
 public:
  TileReader(const TensorView& x, const BlockLayout& layout)
      : reader_(x),
        boxes_(x),
        of_strips_(x),
        strips_(x, kStripRows, layout.rows <= kStripRows ? layout.rows : kPartRows),
        strip_(strips_),
        layout_(layout) {
    if (x.dtype == DType::bf16 && x.is_contiguous()) {
      halves_ = static_cast<const std::uint16_t*>(x.data);
    }
  }
  [[nodiscard]] bool is_direct() const { return reader_.is_direct(); }

  /// The tile's values, valid until the next call.
  TileRows Read(const Tile& tile);

 private:
  static constexpr std::int64_t kStripRows = 64;  ///< whole cache lines of any type

  Reader<float> reader_;
  BoxReader<float> boxes_, of_strips_;
  Strips strips_;
  StripReader<float> strip_;
  const BlockLayout& layout_;
  const std::uint16_t* halves_ = nullptr;  ///< the patterns of a contiguous bf16 tensor
  Floats values_;
};

/// The second level's scales: for each cell (a tensor or a row of it) the scale, the multiplier
/// from which te forms blocks' scales, and the largest |x|. Without a second level one cell, of
/// scale 1.
struct OuterScales {
  Floats scale{1}, encode{1}, largest{0};
  OuterCells cells{};
};

/// The cells of the second level of a tensor of that shape; one, where there is none.
OuterCells CellsOf(const Scaled& scaled, std::span<const std::int64_t> shape, int axis);

/// A tensor, how it is rounded into a scaled format, and its scales.
struct ScaledTensor {
  const TensorView& x;
  const RoundingOptions& options;
  const TensorView* random;
  /// The strides of indices, where they are not those of x's row-major order.
  const TensorView* indices;
  ScaledPlan plan;
  ElementRoute route;
  ScaleChoice choose;
  BlockLayout layout;
  OuterScales outer;
  ScaledPlan nearest{};  ///< rounds to nearest-even, to compare candidates of `choose`
  Floats scale;          ///< of each block
  /// Whether all scales are known before elements are read. Then each block also has ElementScale's
  /// factor, and the scale by which its elements are decoded.
  bool known = false;
  Floats factor{}, decode{};

  /// The tiles: of whole blocks where scales are not known yet, else of any parts.
  [[nodiscard]] Tiles tiles() const { return {layout, !known}; }
};

/// Throws Error for scales of levels that the format does not have, or that exclude each other.
void CheckLevels(const Scaled& scaled, const GivenScales& given);
/// A caller's scales of a level as fp32, from the host's memory; throws Error unless they are
/// numbers of its format.
Floats GivenOf(const TensorView& given, const Format& format, std::int64_t count, const char* name);
/// The largest magnitudes of a caller, from the host's memory.
Floats GivenLargest(const TensorView& given, std::int64_t count);
/// Throws Error for a block of so many elements that candidates of a scale cannot be compared.
void CheckChoice(const Scaled& scaled, const BlockLayout& layout);

/// A ScaledTensor of at least one element, after CheckLevels, with the scales that are known before
/// the pass over tiles. indices: as of ScaledTensor; TileIntegers must take them (TurnsIntegers).
ScaledTensor MakeScaledTensor(const TensorView& x, const Scaled& scaled, int axis,
                              const RoundingOptions& options, const GivenScales& given,
                              const RandomKey& key, const TensorView* random,
                              const TensorView* indices = nullptr);

/// The scales of a tile: for each of its blocks the largest |x|, the second level's scale and
/// encode multiplier, the scale, ElementScale's factor and the scale by which elements are decoded;
/// where a kernel cannot take blocks as runs (ScaledRun::run), the three that it reads also for
/// each element of a row.
struct TileScales {
  Floats largest, outer, encode, scale, factor, decode;
  Floats element_factor, element_scale, element_outer;
  ElementRoute route = ElementRoute::wide;
};

/// Whether the integers of a tensor of that layout can be drawn by tiles, its indices having other
/// strides than its row-major order.
bool TurnsIntegers(const BlockLayout& layout, const TensorView& indices);

/// The random integers of a tile's elements: the caller's, or generated by their indices.
class TileIntegers {
 public:
  explicit TileIntegers(const ScaledTensor& tensor);
  /// The integers of `count` columns from `begin` on; null where none are needed.
  BoxRows<const std::uint32_t> Read(const Tile& tile, std::int64_t begin, std::int64_t count);

 private:
  const ScaledTensor& tensor_;
  std::optional<Reader<std::uint32_t>> given_;
  BoxIntegers drawn_, of_strips_;
  struct Turned {
    explicit Turned(const Strips& all) : strips(all), strip(all) {}
    Strips strips;
    StripReader<std::uint32_t> strip;
  };
  std::optional<Turned> turned_;
  std::vector<std::uint32_t> values_;
  /// What values_ has of those that are drawn: of the tile's rows so many columns, from the element
  /// of that index on.
  std::int64_t first_ = 0, columns_ = 0;
};

/// Forms, or looks up, the scales of a tile's blocks and passes its elements to kernels with them,
/// in runs.
class TileScaler {
 public:
  explicit TileScaler(ScaledTensor& tensor)
      : tensor_(tensor), reader_(tensor.x, tensor.layout), integers_(tensor) {}

  /// Calls take(run, route, begin) for up to kStage columns of the tile at a time, of which
  /// `begin` is the first; all rows are in one run.
  template <class Take>
  void ForElements(const Tile& tile, Take take) {
    if (tile.rows * tile.count == 0) return;
    const TileRows rows = reader_.Read(tile);
    FindScales(tile, rows);
    ForSteps(tile, [&](ScaledRun run, std::int64_t c) {
      run.x = rows.at + c;
      run.x_stride = rows.stride;
      const auto [random, random_stride] = integers_.Read(tile, c, run.n);
      run.random = random;
      run.random_stride = random_stride;
      take(run, scales_.route, c);
    });
  }
  /// Calls take(run, begin) as ForElements does, without elements, where all scales are known.
  template <class Take>
  void ForScales(const Tile& tile, Take take) {
    if (tile.rows * tile.count == 0) return;
    FindScales(tile, {});
    ForSteps(tile, take);
  }

 private:
  template <class Take>
  void ForSteps(const Tile& tile, Take take) {
    const std::int64_t columns = tensor_.layout.columns;
    const bool one_block = columns >= tile.count;
    const std::int64_t step = one_block ? std::min(kStage, tile.count) : tile.count;
    ScaledRun run{.rows = tile.rows,
                  .factor = scales_.factor.data(),
                  .scale = scales_.decode.data(),
                  .outer = scales_.outer.data()};
    if (one_block) {
      run.run = kStage;
    } else if (columns % 16 == 0 && (1024 % columns == 0 || columns % 1024 == 0)) {
      run.run = columns;
    } else if (columns != 1) {
      Spread(columns, step);
      run.factor = scales_.element_factor.data();
      run.scale = scales_.element_scale.data();
      run.outer = scales_.element_outer.data();
    }
    for (std::int64_t c = 0; c < tile.count; c += step) {
      run.n = std::min(step, tile.count - c);
      take(run, c);
    }
  }

  void FindScales(const Tile& tile, const TileRows& rows);

  /// Finds the largest |x| of each of the tile's blocks; tiles come in memory order.
  void LargestOfBlocks(const BlockLayout& layout, const Tile& tile, const TileRows& rows);

  void FormScales(TileScales& scales, double share) const;

  /// Sets a block's scale to the other candidate where that has the smaller error.
  void ChooseScales(const Tile& tile, const TileRows& rows);

  /// The error of each of the tile's blocks with scales_, elements being rounded to nearest-even.
  std::vector<double> ErrorsOf(const Tile& tile, const TileRows& rows);

  /// Copies the scales of each block of `run` elements to each of n elements of a row.
  void Spread(std::int64_t run, std::int64_t n);

  ScaledTensor& tensor_;
  TileReader reader_;
  TileIntegers integers_;
  TileScales scales_;
  Floats columns_, values_, ones_;
};

}  // namespace cpd
