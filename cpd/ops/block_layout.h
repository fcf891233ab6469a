// SPDX-License-Identifier: Apache-2.0
//
// How a tensor falls into blocks: element (p, i, t, j) has the row-major index
// ((p * height + i) * middle + t) * width + j and lies in block (p, i / rows, t, j / columns),
// whose number counts likewise.
#pragma once

#include <cstdint>
#include <span>

#include "cpd/spec/scaled.h"

namespace cpd {

struct BlockLayout {
  std::int64_t planes = 1, height = 1, middle = 1, width = 1;
  std::int64_t rows = 1, columns = 1;  ///< of a block

  [[nodiscard]] std::int64_t bands() const { return (height + rows - 1) / rows; }
  [[nodiscard]] std::int64_t across() const { return (width + columns - 1) / columns; }
  [[nodiscard]] std::int64_t blocks() const { return planes * bands() * middle * across(); }
  [[nodiscard]] std::int64_t index(std::int64_t p, std::int64_t i, std::int64_t t,
                                   std::int64_t j) const {
    return ((p * height + i) * middle + t) * width + j;
  }
  /// Of the element's block.
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
  /// The index of the row above or below is that much further.
  [[nodiscard]] std::int64_t row_stride() const { return middle * width; }
};

/// Of a tensor of at least one element; axis: 0 … rank - 1, any of none.
CPD_API BlockLayout LayoutOf(const BlockShape& block, std::span<const std::int64_t> shape,
                             int axis);

/// A part of a tensor: `count` neighbours in each of `rows` rows of one band.
struct Strip {
  std::int64_t p = 0, i = 0, t = 0, j = 0;
  std::int64_t rows = 0, count = 0;
};

/// Strips that cover a layout, of about kStage elements. whole: each holds whole blocks; else none
/// crosses a block's edge unless it holds all of the block's columns.
class CPD_API Strips {
 public:
  Strips(const BlockLayout& layout, bool whole);
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Elements in the largest.
  [[nodiscard]] std::int64_t elements() const { return rows_ * count_; }
  /// Whether codes of so many bits begin and end on bytes in every strip (but for the last's end).
  [[nodiscard]] bool on_bytes(std::int64_t bits) const;
  /// Strip number n; count 0 where a short block leaves nothing.
  [[nodiscard]] Strip operator[](std::int64_t n) const;

 private:
  BlockLayout layout_;
  std::int64_t rows_ = 1, count_ = 1;    // of a strip
  std::int64_t parts_ = 1, pieces_ = 1;  // strips to a band's height, to a block's columns
  std::int64_t along_ = 1, size_ = 0;    // strips to a width; all
};

}  // namespace cpd
