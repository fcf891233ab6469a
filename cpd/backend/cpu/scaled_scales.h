// SPDX-License-Identifier: Apache-2.0
//
// Scaled formats on the CPU. The scales of a tile's blocks are formed while the tile's elements are
// in the cache, and kernels get the elements together with their scales.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "cpd/backend/calls.h"
#include "cpd/backend/cpu/scaled_tiles.h"
#include "cpd/backend/roster.h"

namespace cpd {

using Floats = std::vector<float>;

/// A pass over a call's tensor, tile by tile (a tile is the elements that a thread handles at a
/// time). The constructor fills the call's tables with the outer scales and, if `known` is set,
/// with the scales of all blocks. If `known` is not set, blocks get their scales when their tile is
/// processed.
class ScaledPass {
 public:
  /// `x`: the tensor from which tiles are read; for a decoding, the result.
  ScaledPass(const ScalesCall& call, const Strided& x);
  ScaledPass(const ScaledPass&) = delete;
  ScaledPass& operator=(const ScaledPass&) = delete;

  [[nodiscard]] const ScaledPlan& plan() const { return of.call.plan; }
  [[nodiscard]] const BlockLayout& layout() const { return of.call.layout; }
  /// Returns the tiles of the call's tensor. Each tile consists of whole blocks if the blocks'
  /// scales are not known yet.
  [[nodiscard]] Tiles tiles() const { return {layout(), !known}; }
  [[nodiscard]] TileIntegers integers() const {
    return {plan().element, layout(), random ? &*random : nullptr, of.indices};
  }
  /// For each of blocks first … first + count - 1, writes the outer scale, and to `encode` the
  /// multiplier by which the block's scale is computed.
  void OuterOfBlocks(std::int64_t first, std::int64_t count, Floats& scale, Floats& encode) const;

  const ScalesCall& of;
  TensorView x;
  std::optional<TensorView> random;  ///< the caller's
  ElementRoute route;
  bool known;

 private:
  void FormCells() const;
  void FormBlocks();
};

/// The scales of the blocks in a tile (the elements that a thread handles at a time). The first six
/// vectors have one number for each block: `largest` the largest |x|, `outer` the outer scale,
/// `encode` the multiplier by which the block's scale is computed, and `scale` the stored scale.
/// Elements are divided or multiplied by `factor` to encode them, and multiplied by `decode` to
/// decode them. The last three vectors have one number for each element of a row, for kernels that
/// take one scale per element (ScaledRun::run is 1).
struct TileScales {
  Floats largest, outer, encode, scale, factor, decode;
  Floats element_factor, element_scale, element_outer;
  ElementRoute route = ElementRoute::wide;
};

/// Computes or looks up the scales of the blocks in a tile (the elements that a thread handles at a
/// time). Passes ranges of the tile's elements (ScaledRun) and their scales to kernels.
class TileScaler {
 public:
  explicit TileScaler(const ScaledPass& pass)
      : pass_(pass), reader_(pass.x, pass.layout()), integers_(pass.integers()) {}

  /// Calls take(run, route, begin) for each range of up to kStage columns of `tile`. `run`
  /// describes the range in all rows of the tile and its scales. `route` is the method by which
  /// elements are divided by scales. `begin` is the range's first column.
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
  /// Calls take(run, begin) for each range of up to kStage columns of `tile`, where `begin` is the
  /// range's first column. `run` has the scales of the range but no elements. All scales must be
  /// known.
  template <class Take>
  void ForScales(const Tile& tile, Take take) {
    if (tile.rows * tile.count == 0) return;
    FindScales(tile, {});
    ForSteps(tile, take);
  }

 private:
  template <class Take>
  void ForSteps(const Tile& tile, Take take) {
    const std::int64_t columns = pass_.layout().columns;
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

  /// Finds the largest |x| of each block of the tile. Tiles must come in memory order.
  void LargestOfBlocks(const Tile& tile, const TileRows& rows);

  void FormScales(TileScales& scales, double share) const;

  /// Chooses each block's scale from two candidates: the scale in scales_, and a scale kOtherShare
  /// times as large. Takes the candidate with the smaller error (ErrorsOf).
  void ChooseScales(const Tile& tile, const TileRows& rows);

  /// Returns the sum of each block's rounding errors, absolute or squared (ScaleChoice), if
  /// elements are divided by the scales in scales_ and rounded to nearest-even.
  std::vector<double> ErrorsOf(const Tile& tile, const TileRows& rows);

  /// Copies each block's scales to all of its elements in a row of n elements (element_factor,
  /// element_scale, element_outer). A block has `run` elements in the row.
  void Spread(std::int64_t run, std::int64_t n);

  const ScaledPass& pass_;
  TileReader reader_;
  TileIntegers integers_;
  TileScales scales_;
  Floats columns_, values_, ones_;
};

}  // namespace cpd
