// SPDX-License-Identifier: Apache-2.0
//
// Describes a batched matrix product and its scales by strides; broadcast dimensions have stride 0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cpd/base/tensor.h"

namespace cpd {

/// One operand of a batched matrix product. Matrix (b0, b1, …) of the batch begins b0 *
/// batch_stride[0] + b1 * batch_stride[1] + … elements after `data`. Strides may be 0 or negative.
struct ProductOperand {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t row_stride = 0, column_stride = 0;
  std::array<std::int64_t, TensorView::kMaxRank> batch_stride{};
};

/// The batched product out = c + a * b. a is rows x depth, b is depth x columns, and c and out are
/// rows x columns. Without data c is +0. Strides describe all broadcasting. MakeProduct merges the
/// batch's dimensions, and turns them into rows if all operands allow that. The element at (batch,
/// row, column) keeps its row-major number in out.
struct MatrixProduct {
  std::int64_t rows = 0, columns = 0, depth = 0;
  int batch_rank = 0;
  std::array<std::int64_t, TensorView::kMaxRank> batch_shape{};
  ProductOperand a, b, c, out;
  std::int64_t first_element = 0;  ///< the number of out's first element, for random bits

  [[nodiscard]] constexpr std::int64_t batch() const {
    std::int64_t n = 1;
    for (int d = 0; d < batch_rank; ++d) n *= batch_shape[static_cast<std::size_t>(d)];
    return n;
  }
  /// Returns the index, counted from x.data, of the first element of the batch's matrix number
  /// `index`.
  [[nodiscard]] constexpr std::int64_t offset_of(const ProductOperand& x,
                                                 std::int64_t index) const {
    std::int64_t offset = 0;
    for (auto d = static_cast<std::size_t>(batch_rank); d-- > 0;) {
      offset += index % batch_shape[d] * x.batch_stride[d];
      index /= batch_shape[d];
    }
    return offset;
  }
};

/// The scales of one operand of a product, with strides over the product's batch. Each scale is for
/// `lines` neighboring lines (rows of a, columns of b) and for a block of `block` neighboring k. In
/// memory (`at`), the scales of neighboring groups of lines are at.row_stride elements apart, and
/// the scales of neighboring blocks of k are at.column_stride elements apart.
struct GridOfScales {
  ProductOperand at{};  ///< fp32; no data: every scale is 1
  std::int64_t lines = 1, block = 1;
};
struct GridsOfScales {
  GridOfScales a, b;
};

/// The scales by which the sums of a product are multiplied. k is divided into `sums` blocks. A
/// total begins at `start`, and each block adds to it (a's scale * b's scale) * (the block's sum),
/// with the scales in of_sums. The result is c + (a's scale * b's scale) * total, with the scales
/// in `factors`. add_scaled (numeric/scaled/scaled_sum.h) rounds each operation to binary32.
struct ProductScales {
  std::int64_t sums = 0;   ///< number of blocks of k
  std::int64_t block = 0;  ///< values of k in a block; the last block may be shorter
  std::int64_t draws = 0;  ///< random integers that a block's roundings use
  float start = 0;
  GridsOfScales of_sums, factors;
  GridsOfScales in_unit;  ///< scales that a matrix unit itself multiplies by
  ProductOperand c{};     ///< added to the total; without data -0
};

/// Selects what MakeProduct does with the dimensions of the batch: merges dimensions where strides
/// allow, or keeps the dimensions of `out`.
enum class Batch : std::uint8_t { merged, as_given };

/// Returns the description of the product out = c + a * b; c may be null. a, b and c are broadcast
/// to out's batch dimensions, and their shapes must fit. Computes nothing.
CPD_API MatrixProduct MakeProduct(const TensorView& a, const TensorView& b, const TensorView& out,
                                  const TensorView* c, Batch batch = Batch::merged);

/// Returns x, broadcast, as an operand of a product with `batch_rank` batch dimensions.
CPD_API ProductOperand OperandOf(const TensorView& x, int batch_rank);

}  // namespace cpd
