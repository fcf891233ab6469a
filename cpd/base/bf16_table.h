// SPDX-License-Identifier: Apache-2.0
//
// Kernels for products of bf16 numbers (backend/cpu/product_bf16.h), beside KernelTable: only
// AVX-512 has an instruction for them.
#pragma once

#include <cstdint>

namespace cpd {

/// The columns of a panel of packed bf16 numbers.
constexpr int kBf16Columns = 64;

/// Values of lines of an operand: bf16 patterns, or (`wide`) binary32 numbers that bf16 holds.
struct Bf16Lines {
  const void* values = nullptr;
  bool wide = false;
  /// True if a line's values are neighbors, false if the lines' values of one k are.
  bool along = false;
  std::int64_t stride = 0;  ///< of lines, or of values of k
};

/// `rows` x `columns` sums (columns at most kBf16Columns). A word holds two neighboring values of
/// k, the first in its lower half: word (row i, pair k) is a[i * a_stride + k], word (pair k,
/// column j) b[k * kBf16Columns + j].
struct Bf16Tile {
  std::int64_t rows = 0, columns = 0, pairs = 0;
  const std::uint32_t* a = nullptr;
  std::int64_t a_stride = 0;
  const std::uint32_t* b = nullptr;
  float* sums = nullptr;
  std::int64_t stride = 0;  ///< of rows of sums
  bool adds = false;        ///< to `sums`; else they begin at +0
};

/// Binary32 scales of rows, of columns (`by_column`), or one of all (row_stride 0).
struct Bf16Scales {
  const float* values = nullptr;  ///< null: no scales
  std::int64_t row_stride = 0;
  bool by_column = false;
};

/// Values that follow from `rows` x `columns` sums: a sum times its scales, in their order, plus
/// the bias of its column, each operation rounded to nearest-even in binary32; in bf16 rounded once
/// more.
struct Bf16Finish {
  std::int64_t rows = 0, columns = 0;
  const float* sums = nullptr;
  std::int64_t stride = 0;  ///< of rows of sums
  Bf16Scales scales[2] = {};
  const float* bias = nullptr;  ///< null: none
  void* out = nullptr;
  std::int64_t out_stride = 0;
  bool wide = false;  ///< `out` is binary32, else bf16
};

struct Bf16Table {
  /// Packs `count` values of each line in words of two; the last word has +0 if `count` is odd.
  /// Word k of line i is words[i * stride + k] if the lines are `along`, else words[k * stride +
  /// i]. Returns the least nonzero magnitude, as a bf16 pattern, minus 1; 2^32 - 1 if all are 0.
  std::uint32_t (*pair)(const Bf16Lines& x, std::int64_t lines, std::int64_t count,
                        std::uint32_t* words, std::int64_t stride);
  /// Adds exact products to sums, a word's upper half first; each addition is rounded to
  /// nearest-even in binary32. Subnormal operands and sums count as 0.
  void (*tile)(const Bf16Tile& tile);
  void (*finish)(const Bf16Finish& finish);
};

}  // namespace cpd
