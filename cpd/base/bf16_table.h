// SPDX-License-Identifier: Apache-2.0
//
// The table of kernels for products of bf16 numbers (backend/cpu/product_bf16.h). It is separate
// from KernelTable because only AVX-512 has an instruction for such products.
#pragma once

#include <cstdint>

namespace cpd {

/// The number of columns in a panel of packed bf16 numbers.
constexpr int kBf16Columns = 64;

/// The values of an operand's lines (rows of a, columns of b): bf16 patterns or, if `wide`,
/// binary32 numbers that are bf16 values.
struct Bf16Lines {
  const void* values = nullptr;
  bool wide = false;
  /// True if the values of each line (row of a, column of b) are contiguous in memory, and lines
  /// begin `stride` apart. False if lines are interleaved: for each k, the values of all lines are
  /// contiguous.
  bool along = false;
  std::int64_t stride = 0;  ///< between lines, or between values of k
};

/// A tile of `rows` x `columns` sums; `columns` is at most kBf16Columns. A 32-bit word holds two
/// neighboring values of k, the first in its lower half. Row i's word of pair k is a[i * a_stride +
/// k]. Column j's word of pair k is b[k * kBf16Columns + j].
struct Bf16Tile {
  std::int64_t rows = 0, columns = 0, pairs = 0;
  const std::uint32_t* a = nullptr;
  std::int64_t a_stride = 0;
  const std::uint32_t* b = nullptr;
  float* sums = nullptr;
  std::int64_t stride = 0;  ///< of rows of sums
  bool adds = false;        ///< true: adds to `sums`; false: starts at +0
};

/// Binary32 scales: one for each row, one for each column (`by_column`), or one for all (row_stride
/// 0).
struct Bf16Scales {
  const float* values = nullptr;  ///< null: no scales
  std::int64_t row_stride = 0;
  bool by_column = false;
};

/// Computes the outputs of `rows` x `columns` sums. Multiplies each sum by scales[0], multiplies
/// the product by scales[1], and adds the bias of the sum's column. Each operation is rounded to
/// nearest-even in binary32. A bf16 output is rounded once more.
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
  /// Packs `count` values of each line into words of two values. If `count` is odd, the last word's
  /// second value is +0. Word k of line i is written to words[i * stride + k] if x.along is true,
  /// else to words[k * stride + i]. Returns the least nonzero magnitude, as a bf16 pattern, minus
  /// 1; returns 2^32 - 1 if all values are 0.
  std::uint32_t (*pair)(const Bf16Lines& x, std::int64_t lines, std::int64_t count,
                        std::uint32_t* words, std::int64_t stride);
  /// Adds exact products to sums. A word holds two values; the product of the upper values is added
  /// first. Each addition is rounded to nearest-even in binary32. Subnormal operands and sums count
  /// as 0.
  void (*tile)(const Bf16Tile& tile);
  void (*finish)(const Bf16Finish& finish);
};

}  // namespace cpd
