// SPDX-License-Identifier: Apache-2.0
//
// Describes a batched matrix product by strides, with all broadcasting in them, and its scales.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cpd/base/tensor.h"

namespace cpd {

/// One operand of a batched matrix product: matrix number (b0, b1, …) of the batch begins
/// b0 * batch_stride[0] + b1 * batch_stride[1] + … elements after data. Strides may be 0 or
/// negative.
struct ProductOperand {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t row_stride = 0, column_stride = 0;
  std::array<std::int64_t, TensorView::kMaxRank> batch_stride{};
};

/// out = c + a * b, batched: a is rows x depth, b depth x columns, c and out rows x columns; c may
/// have no data. All broadcasting is in the strides. The batch's dimensions are merged, and become
/// rows if all operands allow it. (batch, row, column) has the same row-major element number of out
/// before and after.
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
  /// The element, from x.data on, at which matrix number `index` of the batch begins.
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

/// One operand's scales, broadcast to the product. Strides: row_stride from one group of lines
/// (rows of a, columns of b) to the next, column_stride from one block of k to the next.
struct GridOfScales {
  ProductOperand at{};  ///< fp32; no data: every scale is 1
  std::int64_t lines = 1, block = 1;
};
struct GridsOfScales {
  GridOfScales a, b;
};

/// The scales of a product's sums. With add_scaled of numeric/scaled/scaled_sum.h,
///   total = start; for each of `sums` blocks of k: total = add_scaled(total, of_sums, its sum);
///   result = add_scaled(c, factors, total).
struct ProductScales {
  std::int64_t sums = 0;   ///< how many blocks of k there are
  std::int64_t block = 0;  ///< values of k of each but the last
  std::int64_t draws = 0;  ///< random integers that the roundings of such a block use
  float start = 0;
  GridsOfScales of_sums, factors;
  GridsOfScales in_unit;  ///< of a matrix unit that takes scales
  ProductOperand c{};     ///< no data: -0
};

/// The treatment of a batch's dimensions by MakeProduct: merged where strides allow, or as `out`
/// has them.
enum class Batch : std::uint8_t { merged, as_given };

/// Broadcasts a, b and c (which may be null) to out; the shapes must fit.
CPD_API MatrixProduct MakeProduct(const TensorView& a, const TensorView& b, const TensorView& out,
                                  const TensorView* c, Batch batch = Batch::merged);

/// Returns x, broadcast, as an operand of a product with `batch_rank` batch dimensions.
CPD_API ProductOperand OperandOf(const TensorView& x, int batch_rank);

}  // namespace cpd
