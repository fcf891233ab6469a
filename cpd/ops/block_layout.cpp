// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/block_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace cpd {
namespace {

std::int64_t Product(std::span<const std::int64_t> extents) {
  return std::accumulate(extents.begin(), extents.end(), std::int64_t{1}, std::multiplies<>());
}

BlockLayout Clipped(BlockLayout layout) {
  layout.rows = std::min(layout.rows, layout.height);
  layout.columns = std::min(layout.columns, layout.width);
  // If rows consist of whole blocks, all rows together are treated as one long row.
  if (layout.rows == 1 && layout.width % layout.columns == 0) {
    layout.width *= layout.planes * layout.height * layout.middle;
    layout.planes = layout.height = layout.middle = 1;
  }
  return layout;
}

}  // namespace

BlockLayout LayoutOf(const BlockShape& block, std::span<const std::int64_t> shape, int axis) {
  const std::int64_t n = Product(shape);
  const int rank = static_cast<int>(shape.size());
  if (block.kind == BlockShape::Kind::tensor || rank == 0) return {.width = n, .columns = n};
  const bool is_row = block.kind == BlockShape::Kind::row;
  const std::int64_t extent = shape[axis];
  const std::int64_t along = is_row ? extent : block.columns;
  const std::int64_t across = is_row ? 1 : block.rows;
  if (axis == rank - 1) {
    const std::int64_t height = rank > 1 ? shape[rank - 2] : 1;
    return Clipped({.planes = n / (height * extent),
                    .height = height,
                    .width = extent,
                    .rows = across,
                    .columns = along});
  }
  const std::int64_t planes = Product(shape.first(axis));
  const std::int64_t width = across == 1 ? n / (planes * extent) : shape[rank - 1];
  return Clipped({.planes = planes,
                  .height = extent,
                  .middle = n / (planes * extent * width),
                  .width = width,
                  .rows = along,
                  .columns = across});
}

OuterCells CellsOf(const Scaled& scaled, std::span<const std::int64_t> shape, int axis) {
  OuterCells cells;
  const bool by_row = scaled.tensor_scale && scaled.outer == BlockShape::Kind::row;
  if (!by_row || shape.empty()) return cells;
  cells.extent = shape[axis];
  for (std::size_t d = axis + 1; d < shape.size(); ++d) cells.after *= shape[d];
  return cells;
}

}  // namespace cpd
