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

#include "cpd/backend/roster.h"
#include "cpd/numeric/scaled/scaled_plan.h"
#include "cpd/ops/block_layout.h"
#include "cpd/ops/elementwise.h"
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
  TileReader(const TensorView& x, const BlockLayout& layout) : reader_(x), layout_(layout) {}
  [[nodiscard]] bool is_direct() const { return reader_.is_direct(); }

  /// The tile's values, valid until the next call.
  TileRows Read(const Tile& tile) {
    const std::int64_t begin = layout_.index(tile.p, tile.i, tile.t, tile.j);
    if (is_direct()) return {reader_.Read(begin, tile.count), layout_.row_stride()};
    values_.resize(static_cast<std::size_t>(tile.rows * tile.count));
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      for (std::int64_t c = 0; c < tile.count; c += kStage) {
        const std::int64_t n = std::min(kStage, tile.count - c);
        const float* from = reader_.Read(begin + r * layout_.row_stride() + c, n);
        std::copy_n(from, n, values_.data() + r * tile.count + c);
      }
    }
    return {values_.data(), tile.count};
  }

 private:
  Reader<float> reader_;
  const BlockLayout& layout_;
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
Floats GivenOf(const TensorView& given, const Format& format, std::int64_t count,
               const char* name);
/// The largest magnitudes of a caller, from the host's memory.
Floats GivenLargest(const TensorView& given, std::int64_t count);
/// Throws Error for a block of so many elements that candidates of a scale cannot be compared.
void CheckChoice(const Scaled& scaled, const BlockLayout& layout);

/// A ScaledTensor of at least one element, after CheckLevels, with the scales that are known before
/// the pass over tiles.
ScaledTensor MakeScaledTensor(const TensorView& x, const Scaled& scaled, int axis,
                              const RoundingOptions& options, const GivenScales& given,
                              const TensorView* random);

/// The scales of a tile: for each of its blocks the largest |x|, the second level's scale and
/// encode multiplier, the scale, ElementScale's factor and the scale by which elements are decoded;
/// where a kernel cannot take blocks as runs (ScaledRun::run), the three that it reads also for
/// each element of a row.
struct TileScales {
  Floats largest, outer, encode, scale, factor, decode;
  Floats element_factor, element_scale, element_outer;
  ElementRoute route = ElementRoute::wide;
};

/// The random integers of a tile's elements: the caller's, or generated by their indices.
class TileIntegers {
 public:
  explicit TileIntegers(const ScaledTensor& tensor) : tensor_(tensor) {
    if (tensor.random != nullptr) given_.emplace(*tensor.random);
  }
  /// The integers of `count` columns from `begin` on, row after row; null where none are needed.
  const std::uint32_t* Read(const Tile& tile, std::int64_t begin, std::int64_t count) {
    if (tensor_.options.mode != Rounding::stochastic) return nullptr;
    values_.resize(static_cast<std::size_t>(tile.rows * count));
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const std::int64_t first = tensor_.layout.index(tile.p, tile.i + r, tile.t, tile.j + begin);
      std::uint32_t* to = values_.data() + r * count;
      if (given_) {
        std::copy_n(given_->Read(first, count), count, to);
        continue;
      }
      const std::int64_t before = first % kBlock;
      if (before == 0) {
        Kernels().random_integers(tensor_.options.random_bits, tensor_.options.seed,
                                  tensor_.options.stream, first, count, to);
        continue;
      }
      made_.resize(static_cast<std::size_t>(before + count));
      Kernels().random_integers(tensor_.options.random_bits, tensor_.options.seed,
                                tensor_.options.stream, first - before, before + count,
                                made_.data());
      std::copy_n(made_.data() + before, count, to);
    }
    return values_.data();
  }

 private:
  const ScaledTensor& tensor_;
  std::optional<Reader<std::uint32_t>> given_;
  std::vector<std::uint32_t> values_, made_;
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
      run.random = integers_.Read(tile, c, run.n);
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
