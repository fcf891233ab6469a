// SPDX-License-Identifier: Apache-2.0
//
// Divides a tensor into blocks. Element (p, i, t, j) has the row-major index ((p * height + i) *
// middle + t) * width + j. The element is in block (p, i / rows, t, j / columns). Blocks are
// numbered in row-major order of these four coordinates.
#pragma once

#include <cstdint>

namespace cpd {

/// A tensor of planes x height x middle x width elements, divided into blocks. A block has `rows`
/// indices of the dimension `height` and `columns` indices of the dimension `width`.
struct BlockLayout {
  std::int64_t planes = 1, height = 1, middle = 1, width = 1;
  std::int64_t rows = 1, columns = 1;  ///< extents of a block

  [[nodiscard]] constexpr std::int64_t bands() const { return (height + rows - 1) / rows; }
  [[nodiscard]] constexpr std::int64_t across() const { return (width + columns - 1) / columns; }
  [[nodiscard]] constexpr std::int64_t blocks() const {
    return planes * bands() * middle * across();
  }
  [[nodiscard]] constexpr std::int64_t index(std::int64_t p, std::int64_t i, std::int64_t t,
                                             std::int64_t j) const {
    return ((p * height + i) * middle + t) * width + j;
  }
  /// Returns the number of the block that holds an element.
  [[nodiscard]] constexpr std::int64_t block(std::int64_t p, std::int64_t i, std::int64_t t,
                                             std::int64_t j) const {
    return ((p * bands() + i / rows) * middle + t) * across() + j / columns;
  }
  /// Returns the index of the first element of block number b.
  [[nodiscard]] constexpr std::int64_t first_of(std::int64_t b) const {
    const std::int64_t g = b % across();
    const std::int64_t t = b / across() % middle;
    const std::int64_t band = b / (across() * middle) % bands();
    return index(b / (across() * middle * bands()), band * rows, t, g * columns);
  }
  /// Returns the distance, in elements, between an element and the element below it in its block.
  [[nodiscard]] constexpr std::int64_t row_stride() const { return middle * width; }
};

/// Groups the elements that share an outer scale. A cell is one such group. If `extent` is 0, one
/// cell holds all elements. Else an axis has `extent` elements, and each cell holds the elements
/// along that axis at fixed other coordinates. `after` is the product of the dimensions after the
/// axis.
struct OuterCells {
  std::int64_t extent = 0, after = 1;

  /// Returns the number of the cell (the group of elements that share an outer scale) that holds an
  /// element.
  [[nodiscard]] constexpr std::int64_t cell(std::int64_t index) const {
    return extent == 0 ? 0 : index / (extent * after) * after + index % after;
  }
};

}  // namespace cpd
