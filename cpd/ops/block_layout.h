// SPDX-License-Identifier: Apache-2.0
//
// A tensor's layout in blocks, and the tiles in which the CPU takes it.
#pragma once

#include <cstdint>
#include <span>

#include "cpd/numeric/scaled/block_layout.h"
#include "cpd/spec/scaled.h"

namespace cpd {

/// The layout of a tensor of at least one element. axis: 0 … rank - 1; any for rank 0.
CPD_API BlockLayout LayoutOf(const BlockShape& block, std::span<const std::int64_t> shape,
                             int axis);

/// A part of a tensor that a thread handles at a time: `rows` x `count` elements of one band (a row
/// of blocks), of which (p, i, t, j) is the first.
struct Tile {
  std::int64_t p = 0, i = 0, t = 0, j = 0;
  std::int64_t rows = 0, count = 0;
};

/// The rows of a part of a block that is taller than whole tiles are.
constexpr std::int64_t kPartRows = 16;

/// Tiles that cover a layout, of about kStage elements in a row, or four times as many in several;
/// a row has at most kStage, or a whole block's. whole: each holds whole blocks; else none crosses
/// a block's edge unless it holds all of the block's columns.
class CPD_API Tiles {
 public:
  Tiles(const BlockLayout& layout, bool whole);
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// The number of elements of the largest tile.
  [[nodiscard]] std::int64_t elements() const { return rows_ * count_; }
  /// Whether codes of so many bits begin and end on bytes in every tile (but for the last's end).
  [[nodiscard]] bool on_bytes(std::int64_t bits) const;
  /// Tile number n; count 0 where a short block leaves nothing.
  [[nodiscard]] Tile operator[](std::int64_t n) const;

 private:
  BlockLayout layout_;
  std::int64_t rows_ = 1, count_ = 1;    // extents of a tile
  std::int64_t parts_ = 1, pieces_ = 1;  // tiles in a band's height, in a block's columns
  std::int64_t along_ = 1, size_ = 0;    // tiles in a width, in all
};

}  // namespace cpd
