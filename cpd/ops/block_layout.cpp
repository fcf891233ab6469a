// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/block_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "cpd/backend/cpu/elementwise.h"

namespace cpd {
namespace {

// Columns below which a tile of many rows wastes what is fetched of a page, and elements of a tile
// of several rows.
constexpr std::int64_t kLine = 128, kTall = 4 * kStage;
// Columns of a part of a block that is taller than whole tiles are.
constexpr std::int64_t kPartColumns = 1024;

std::int64_t Product(std::span<const std::int64_t> extents) {
  return std::accumulate(extents.begin(), extents.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t Pieces(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

BlockLayout Clipped(BlockLayout layout) {
  layout.rows = std::min(layout.rows, layout.height);
  layout.columns = std::min(layout.columns, layout.width);
  // Rows that consist of whole blocks are treated as one long row.
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

Tiles::Tiles(const BlockLayout& layout, bool whole) : layout_(layout) {
  rows_ = layout.rows;
  const std::int64_t wide = std::min(kStage, kTall / layout.rows);  // of several rows
  const bool parts = !whole && layout.rows > kTall / kLine;
  if (parts) rows_ = kPartRows;
  if (whole || layout.columns <= kStage) {
    const std::int64_t wanted =
        parts ? kPartColumns : std::max(std::min(kLine, layout.width), wide);
    count_ = layout.columns * std::max<std::int64_t>(1, wanted / layout.columns);
    along_ = Pieces(layout.width, count_);
  } else {
    count_ = kStage;
    pieces_ = Pieces(layout.columns, kStage);
    along_ = pieces_ * layout.across();
  }
  count_ = std::min(count_, layout.width);
  if (!whole) {
    if (!parts) rows_ = std::min(layout.rows, std::max<std::int64_t>(1, kStage / count_));
    parts_ = Pieces(layout.rows, rows_);
  }
  size_ = layout.planes * layout.bands() * parts_ * layout.middle * along_;
}

bool Tiles::on_bytes(std::int64_t bits) const {
  const bool one_row = layout_.planes * layout_.height * layout_.middle == 1;
  const std::int64_t begins_at = pieces_ == 1 ? count_ : layout_.columns;
  return bits % 8 == 0 || (one_row && (along_ == 1 || begins_at * bits % 8 == 0));
}

Tile Tiles::operator[](std::int64_t n) const {
  Tile tile;
  const std::int64_t s = n % along_;
  n /= along_;
  tile.t = n % layout_.middle;
  n /= layout_.middle;
  const std::int64_t part = n % parts_;
  n /= parts_;
  const std::int64_t band = n % layout_.bands();
  tile.p = n / layout_.bands();
  tile.i = band * layout_.rows + part * rows_;
  const std::int64_t last = std::min((band + 1) * layout_.rows, layout_.height);
  tile.rows = std::max<std::int64_t>(0, std::min(rows_, last - tile.i));
  std::int64_t end = layout_.width;
  if (pieces_ == 1) {
    tile.j = s * count_;
  } else {
    const std::int64_t block = s / pieces_;
    tile.j = block * layout_.columns + s % pieces_ * count_;
    end = std::min(end, (block + 1) * layout_.columns);
  }
  tile.count = std::max<std::int64_t>(0, std::min(count_, end - tile.j));
  return tile;
}

}  // namespace cpd
