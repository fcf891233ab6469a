// SPDX-License-Identifier: Apache-2.0
//
// Tests how a matrix product is divided into a grid of blocks for threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "cpd/backend/cpu/product_grid.h"

namespace cpd {
namespace {

constexpr std::int64_t kMost = 512;

GemmGrid Whole(std::int64_t batch, std::int64_t rows, std::int64_t columns) {
  return {batch, {rows, 8, 1}, {columns, 32, 1}};
}

/// Expects that each block consists of whole panels (groups of `width` rows or columns). The blocks
/// must follow one another without gaps, and their sizes may differ by at most one panel.
void ExpectEven(const GridLines& x) {
  std::int64_t least = x.lines;
  for (std::int64_t i = 0; i < x.blocks; ++i) {
    EXPECT_EQ(x.begin(i) % x.width, 0);
    const std::int64_t lines = x.begin(i + 1) - x.begin(i);
    EXPECT_LE(lines, x.most());
    least = std::min(least, lines);
  }
  EXPECT_EQ(x.begin(0), 0);
  EXPECT_EQ(x.begin(x.blocks), x.lines);
  EXPECT_GT(least, x.most() - 2 * x.width);
  EXPECT_GT(least, 0);
}

TEST(GemmGrid, CoversAllInEvenBlocks) {
  for (const std::int64_t threads : {1, 2, 3, 5, 16, 64}) {
    for (const std::int64_t rows : {1, 7, 8, 9, 100, 513, 4000}) {
      for (const std::int64_t columns : {1, 31, 33, 100, 513, 545, 4000}) {
        for (const std::int64_t batch : {1, 3, 64, 1000}) {
          const GemmGrid grid = divided(Whole(batch, rows, columns), kMost, threads);
          ExpectEven(grid.rows);
          ExpectEven(grid.columns);
          EXPECT_LE(grid.rows.most(), kMost);
          EXPECT_LE(grid.columns.most(), kMost);
        }
      }
    }
  }
}

TEST(GemmGrid, GivesEachThreadAsMuch) {
  for (const std::int64_t side : {128, 192, 257, 300, 512, 513, 640, 1000, 1024}) {
    const GemmGrid alone = divided(Whole(1, side, side), kMost, 1);
    const GemmGrid grid = divided(Whole(1, side, side), kMost, 2);
    EXPECT_LT(cost_of(grid, 2), cost_of(alone, 1) * 0.58) << side;
  }
}

TEST(GemmGrid, DividesWhatIsNarrow) {
  EXPECT_EQ(divided(Whole(1, 32, 32), kMost, 2).rows.blocks, 2);
  EXPECT_EQ(divided(Whole(1, 8, 64), kMost, 2).columns.blocks, 2);
  EXPECT_EQ(divided(Whole(1, 8, 32), kMost, 2).tasks(), 1);
}

TEST(GemmGrid, LeavesLargeBatchesWhole) {
  const GemmGrid grid = divided(Whole(64, 64, 64), kMost, 2);
  EXPECT_EQ(grid.tasks(), 64);
  EXPECT_EQ(divided(Whole(3, 64, 64), kMost, 2).tasks() % 2, 0) << "two threads share three";
}

}  // namespace
}  // namespace cpd
