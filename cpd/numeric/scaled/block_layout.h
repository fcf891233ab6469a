// SPDX-License-Identifier: Apache-2.0
//
// The division of a tensor into blocks. Element (p, i, t, j) has the row-major index ((p * height +
// i) * middle + t) * width + j, and is in block (p, i / rows, t, j / columns). Blocks are numbered
// in row-major order of these four, too.
#pragma once

#include <cstdint>

namespace cpd {

/// A tensor as planes x height x middle x width elements, and the extents of its blocks: `rows` of
/// the height and `columns` of the width.
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
  /// The number of the element's block.
  [[nodiscard]] constexpr std::int64_t block(std::int64_t p, std::int64_t i, std::int64_t t,
                                             std::int64_t j) const {
    return ((p * bands() + i / rows) * middle + t) * across() + j / columns;
  }
  /// The index of block number b's first element.
  [[nodiscard]] constexpr std::int64_t first_of(std::int64_t b) const {
    const std::int64_t g = b % across();
    const std::int64_t t = b / across() % middle;
    const std::int64_t band = b / (across() * middle) % bands();
    return index(b / (across() * middle * bands()), band * rows, t, g * columns);
  }
  /// The difference of the indices of an element and the one in the next row of its block.
  [[nodiscard]] constexpr std::int64_t row_stride() const { return middle * width; }
};

/// The cells that share a scale of the second level: all elements, or if `extent` is not 0, the
/// elements along an axis of that extent. `after` is the product of the dimensions after it.
struct OuterCells {
  std::int64_t extent = 0, after = 1;

  /// The cell of an element.
  [[nodiscard]] constexpr std::int64_t cell(std::int64_t index) const {
    return extent == 0 ? 0 : index / (extent * after) * after + index % after;
  }
};

}  // namespace cpd
