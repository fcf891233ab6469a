// SPDX-License-Identifier: Apache-2.0
//
// Divides the sums of a matrix product among threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cpd {

/// The rows or columns of a matrix of sums (`lines`), divided into `blocks` blocks of nearly equal
/// size. Operands are packed in panels of `width` lines, and no block divides a panel.
struct GridLines {
  std::int64_t lines = 0, width = 1, blocks = 1;

  [[nodiscard]] constexpr std::int64_t panels() const { return (lines + width - 1) / width; }
  [[nodiscard]] constexpr std::int64_t begin(std::int64_t block) const {
    return std::min(lines, panels() * block / blocks * width);
  }
  /// Returns the number of lines (rows or columns of the matrix) in the largest block.
  [[nodiscard]] constexpr std::int64_t most() const {
    return std::min(lines, (panels() + blocks - 1) / blocks * width);
  }
};

/// A batch of matrices of sums. Each matrix is divided into blocks, and each block is one task of a
/// thread.
struct GemmGrid {
  std::int64_t batch = 1;
  GridLines rows, columns;

  [[nodiscard]] constexpr std::int64_t tasks() const {
    return batch * rows.blocks * columns.blocks;
  }
};

/// The time to pack one value of an operand for a block. The unit is the time of one multiply-add.
constexpr std::int64_t kPackingCost = 8;

/// Returns an estimate of the time that the slowest of `threads` threads takes for each k, that is,
/// for one product of each of its sums. The unit is the time of one multiply-add.
constexpr std::int64_t cost_of(const GemmGrid& grid, std::int64_t threads) {
  const std::int64_t rows = grid.rows.most();
  const std::int64_t columns = grid.columns.most();
  const std::int64_t turns = (grid.tasks() + threads - 1) / threads;
  return turns * (rows * columns + kPackingCost * (rows + columns));
}

/// Divides each matrix of sums into blocks of at most `most` x `most` sums. Before the call, each
/// matrix of `grid` must be a single block. Chooses the numbers of blocks with the lowest cost_of.
/// So threads get nearly equal shares, and few operand values are packed more than once.
constexpr GemmGrid divided(GemmGrid grid, std::int64_t most, std::int64_t threads) {
  const auto least = [&](const GridLines& x) {
    const std::int64_t panels_of_most = std::max<std::int64_t>(1, most / x.width);
    return std::max<std::int64_t>(1, (x.panels() + panels_of_most - 1) / panels_of_most);
  };
  const std::int64_t tasks = threads == 1 ? 1 : 4 * threads;  // more hardly even out the shares
  grid.rows.blocks = least(grid.rows);
  grid.columns.blocks = least(grid.columns);
  GemmGrid best = grid;
  const auto try_columns = [&](GemmGrid tried) {
    for (; tried.columns.blocks <= tried.columns.panels(); ++tried.columns.blocks) {
      if (tried.tasks() > tasks) break;
      if (cost_of(tried, threads) < cost_of(best, threads)) best = tried;
    }
  };
  for (GemmGrid tried = grid; tried.rows.blocks <= tried.rows.panels(); ++tried.rows.blocks) {
    if (tried.tasks() > tasks) break;
    try_columns(tried);
  }
  return best;
}

}  // namespace cpd
