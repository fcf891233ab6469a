// SPDX-License-Identifier: Apache-2.0
//
// Tests how tensors are divided into blocks, and layouts into tiles. All small shapes, axes and
// blocks are compared with the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cpd/backend/cpu/scaled_tiles.h"
#include "cpd/ops/block_layout.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

using Kind = BlockShape::Kind;
using Shape = std::vector<std::int64_t>;

std::vector<Shape> Shapes() {
  std::vector<Shape> all;
  for (const std::int64_t n : {1, 2, 5, 7}) {
    all.push_back({n});
    for (const std::int64_t m : {1, 3, 4}) {
      all.push_back({m, n});
      for (const std::int64_t k : {1, 2, 5}) all.push_back({k, m, n});
    }
  }
  all.insert(all.end(), {{2, 3, 2, 5}, {1, 2, 4, 3}, {3, 1, 1, 1}, {2, 1, 3, 2, 2}});
  return all;
}

std::vector<BlockShape> Blocks() {
  std::vector<BlockShape> all = {{.kind = Kind::tensor}, {.kind = Kind::row}};
  for (const std::int64_t rows : {1, 2, 3, 16}) {
    for (const std::int64_t columns : {1, 2, 3, 4, 16}) {
      all.push_back({.rows = rows, .columns = columns});
    }
  }
  return all;
}

/// Returns the extent of a block along each dimension.
Shape Extents(const BlockShape& block, const Shape& shape, int axis) {
  if (block.kind == Kind::tensor) return shape;
  Shape extents(shape.size(), 1);
  const int rank = static_cast<int>(shape.size());
  extents[axis] = block.kind == Kind::row ? shape[axis] : block.columns;
  const int other = axis == rank - 1 ? rank - 2 : rank - 1;
  if (other >= 0 && block.kind == Kind::tile) extents[other] = block.rows;
  return extents;
}

struct Grid {
  Shape extents;
  std::vector<std::int64_t> block_of;  ///< of each element, blocks counted in row-major order
};

Grid Defined(const BlockShape& block, const Shape& shape, int axis) {
  const Shape spans = Extents(block, shape, axis);
  Grid grid;
  std::int64_t n = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    grid.extents.push_back((shape[d] + spans[d] - 1) / spans[d]);
    n *= shape[d];
  }
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t rest = i, stride = 1, number = 0;
    for (std::size_t d = shape.size(); d-- > 0;) {
      number += rest % shape[d] / spans[d] * stride;
      stride *= grid.extents[d];
      rest /= shape[d];
    }
    grid.block_of.push_back(number);
  }
  return grid;
}

template <class ForElements>
void ForAll(const ForElements& visit) {
  for (const Shape& shape : Shapes()) {
    for (int axis = 0; axis < static_cast<int>(shape.size()); ++axis) {
      for (const BlockShape& block : Blocks()) {
        std::string about = ToString(block) + " along " + std::to_string(axis) + " of";
        for (const std::int64_t n : shape) about += " " + std::to_string(n);
        visit(block, shape, axis, about);
      }
    }
  }
}

TEST(BlockLayouts, BlocksAreNumberedAsTheirGrid) {
  ForAll([](const BlockShape& block, const Shape& shape, int axis, const std::string& about) {
    const Grid grid = Defined(block, shape, axis);
    const int rank = static_cast<int>(shape.size());
    const bool whole = block.kind == Kind::tensor;
    EXPECT_EQ(ScaleGrid(block, shape, axis), whole ? Shape{} : grid.extents) << about;
    EXPECT_EQ(ScaleGrid(block, shape, axis - rank), ScaleGrid(block, shape, axis)) << about;

    const BlockLayout layout = LayoutOf(block, shape, axis);
    const auto n = static_cast<std::int64_t>(grid.block_of.size());
    ASSERT_EQ(layout.planes * layout.height * layout.middle * layout.width, n) << about;
    ASSERT_EQ(layout.blocks(), grid.block_of.back() + 1) << about;
    std::vector<std::int64_t> first(static_cast<std::size_t>(layout.blocks()), -1);
    std::int64_t index = 0;
    for (std::int64_t p = 0; p < layout.planes; ++p) {
      for (std::int64_t i = 0; i < layout.height; ++i) {
        for (std::int64_t t = 0; t < layout.middle; ++t) {
          for (std::int64_t j = 0; j < layout.width; ++j, ++index) {
            ASSERT_EQ(layout.index(p, i, t, j), index) << about;
            const std::int64_t b = layout.block(p, i, t, j);
            ASSERT_EQ(b, grid.block_of[static_cast<std::size_t>(index)]) << about << ", " << index;
            if (first[static_cast<std::size_t>(b)] < 0) first[static_cast<std::size_t>(b)] = index;
          }
        }
      }
    }
    for (std::int64_t b = 0; b < layout.blocks(); ++b) {
      ASSERT_EQ(layout.first_of(b), first[static_cast<std::size_t>(b)]) << about;
    }
  });
}

void ExpectCover(const BlockLayout& layout, bool whole, const std::string& about) {
  const Tiles tiles(layout, whole);
  const std::int64_t n = layout.planes * layout.height * layout.middle * layout.width;
  std::vector<int> seen(static_cast<std::size_t>(n));
  std::vector<std::int64_t> strip_of(static_cast<std::size_t>(layout.blocks()), -1);
  for (std::int64_t s = 0; s < tiles.size(); ++s) {
    const Tile tile = tiles[s];
    ASSERT_LE(tile.rows * tile.count, tiles.elements()) << about;
    if (tile.rows * tile.count == 0) continue;
    ASSERT_TRUE(tile.count <= layout.columns || tile.j % layout.columns == 0) << about;
    ASSERT_EQ(tile.i / layout.rows, (tile.i + tile.rows - 1) / layout.rows) << about;
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      for (std::int64_t c = 0; c < tile.count; ++c) {
        ASSERT_LT(tile.i + r, layout.height) << about;
        ASSERT_LT(tile.j + c, layout.width) << about;
        const std::int64_t at = layout.index(tile.p, tile.i + r, tile.t, tile.j + c);
        ++seen[static_cast<std::size_t>(at)];
        if (!whole) continue;
        std::int64_t& of = strip_of[static_cast<std::size_t>(
            layout.block(tile.p, tile.i + r, tile.t, tile.j + c))];
        ASSERT_TRUE(of < 0 || of == s) << about << ": a block in two tiles";
        of = s;
      }
    }
    if (!whole && tile.count < layout.columns) {  // of a part of a block: in one block
      ASSERT_EQ(tile.j / layout.columns, (tile.j + tile.count - 1) / layout.columns) << about;
    }
  }
  ASSERT_EQ(std::ranges::count(seen, 1), n) << about << ", whole " << whole;
  if (!tiles.on_bytes(4)) return;
  for (std::int64_t s = 0; s < tiles.size(); ++s) {
    const Tile tile = tiles[s];
    if (tile.rows * tile.count == 0) continue;
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const std::int64_t begin = layout.index(tile.p, tile.i + r, tile.t, tile.j);
      ASSERT_EQ(begin % 2, 0) << about << ": 4-bit codes begin inside a byte";
      ASSERT_TRUE(tile.count % 2 == 0 || begin + tile.count == n) << about;
    }
  }
}

TEST(BlockLayouts, TilesCoverOnce) {
  ForAll([](const BlockShape& block, const Shape& shape, int axis, const std::string& about) {
    for (const bool whole : {false, true}) {
      ExpectCover(LayoutOf(block, shape, axis), whole, about);
    }
  });
}

/// A block of 32 values extends only along the axis. The dimensions behind the axis are therefore
/// merged into one.
TEST(BlockLayouts, DimensionsBehindTheAxisAreOneRun) {
  const BlockLayout layout = LayoutOf({.columns = 32}, Shape{2, 64, 3, 5}, 1);
  EXPECT_EQ(layout.planes, 2);
  EXPECT_EQ(layout.height, 64);
  EXPECT_EQ(layout.middle, 1);
  EXPECT_EQ(layout.width, 3 * 5);
}

/// Tests tensors whose rows are about as long as a tile (the range that a kernel takes at once),
/// and blocks that are longer than a tile.
TEST(BlockLayouts, LongRowsAndBlocks) {
  for (const Shape& shape : {Shape{4095}, Shape{4096}, Shape{4097}, Shape{3, 9001}, Shape{9001, 3},
                             Shape{130, 257}, Shape{2, 300, 70}}) {
    for (int axis = 0; axis < static_cast<int>(shape.size()); ++axis) {
      for (const BlockShape& block :
           {BlockShape{.kind = Kind::tensor}, BlockShape{.kind = Kind::row}, BlockShape{},
            BlockShape{.columns = 100}, BlockShape{.columns = 4096}, BlockShape{.columns = 5000},
            BlockShape{.rows = 128, .columns = 128}, BlockShape{.rows = 7, .columns = 9}}) {
        for (const bool whole : {false, true}) {
          ExpectCover(LayoutOf(block, shape, axis), whole,
                      ToString(block) + " along " + std::to_string(axis) + " of " +
                          std::to_string(shape[0]));
        }
      }
    }
  }
}

/// A kernel copies a row of a tile to a buffer of kStage elements (elementwise.h), unless the row
/// is contiguous binary32. No row may therefore be longer than the buffer, unless a single block is
/// longer.
TEST(BlockLayouts, RowsOfTilesHaveAtMostAStageUnlessABlockHasMore) {
  for (std::int64_t rows = 1; rows <= 70; ++rows) {
    for (const std::int64_t columns : {1, 2, 48, 4096, 5000}) {
      for (const std::int64_t width : {1, 100, 5000, 20000}) {
        const BlockShape block{.rows = rows, .columns = columns};
        const BlockLayout layout = LayoutOf(block, Shape{rows, width}, 1);
        for (const bool whole : {false, true}) {
          const Tiles tiles(layout, whole);
          for (std::int64_t n = 0; n < tiles.size(); ++n) {
            ASSERT_LE(tiles[n].count, whole ? std::max(kStage, columns) : kStage)
                << rows << " x " << columns << " of " << width;
          }
        }
      }
    }
  }
}

TEST(BlockLayouts, EmptyGrids) {
  EXPECT_EQ(ScaleGrid({}, Shape{0, 5}, -1), (Shape{0, 1}));
  EXPECT_EQ(ScaleGrid({}, Shape{5, 0}, -1), (Shape{5, 0}));
  EXPECT_EQ(ScaleGrid({.kind = Kind::row}, Shape{5, 0}, 1), (Shape{5, 0}));
  EXPECT_EQ(ScaleGrid({.kind = Kind::tensor}, Shape{0}, 0), Shape{});
  EXPECT_EQ(ScaleGrid({}, Shape{}, 0), Shape{});
  EXPECT_THROW(ScaleGrid({}, Shape{3, 4}, 2), Error);
  EXPECT_THROW(ScaleGrid({}, Shape{3, 4}, -3), Error);
}

}  // namespace
}  // namespace cpd
