// SPDX-License-Identifier: Apache-2.0
//
// How a tensor is divided into blocks: element (p, i, t, j) has the row-major index
// ((p * height + i) * middle + t) * width + j and is in block (p, i / rows, t, j / columns); blocks
// are numbered in row-major order of these four too.
#pragma once

#include <cstdint>
#include <span>

#include "cpd/spec/scaled.h"

namespace cpd {

/// A tensor as planes x height x middle x width elements, and the extents of its blocks: `rows` of
/// the height and `columns` of the width.
struct BlockLayout {
  std::int64_t planes = 1, height = 1, middle = 1, width = 1;
  std::int64_t rows = 1, columns = 1;  ///< extents of a block

  [[nodiscard]] std::int64_t bands() const { return (height + rows - 1) / rows; }
  [[nodiscard]] std::int64_t across() const { return (width + columns - 1) / columns; }
  [[nodiscard]] std::int64_t blocks() const { return planes * bands() * middle * across(); }
  [[nodiscard]] std::int64_t index(std::int64_t p, std::int64_t i, std::int64_t t,
                                   std::int64_t j) const {
    return ((p * height + i) * middle + t) * width + j;
  }
  /// The number of the element's block.
  [[nodiscard]] std::int64_t block(std::int64_t p, std::int64_t i, std::int64_t t,
                                   std::int64_t j) const {
    return ((p * bands() + i / rows) * middle + t) * across() + j / columns;
  }
  /// The index of block number b's first element.
  [[nodiscard]] std::int64_t first_of(std::int64_t b) const {
    const std::int64_t g = b % across();
    const std::int64_t t = b / across() % middle;
    const std::int64_t band = b / (across() * middle) % bands();
    return index(b / (across() * middle * bands()), band * rows, t, g * columns);
  }
  /// The difference of the indices of an element and the one in the next row of its block.
  [[nodiscard]] std::int64_t row_stride() const { return middle * width; }
};

/// The layout of a tensor of at least one element. axis: 0 … rank - 1; any for rank 0.
CPD_API BlockLayout LayoutOf(const BlockShape& block, std::span<const std::int64_t> shape,
                             int axis);

/// A part of a tensor that a thread handles at a time: `rows` x `count` elements of one band (a row
/// of blocks), of which (p, i, t, j) is the first.
struct Tile {
  std::int64_t p = 0, i = 0, t = 0, j = 0;
  std::int64_t rows = 0, count = 0;
};

/// Tiles that cover a layout, of about kStage elements. whole: each holds whole blocks; else none
/// crosses a block's edge unless it holds all of the block's columns.
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
