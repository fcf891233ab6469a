// SPDX-License-Identifier: Apache-2.0
//
// Tests that MakeProduct finds every element of every operand at its position in the tensor. The
// tests do not fix which dimensions MakeProduct merges.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "cpd/base/product.h"

namespace cpd {
namespace {

using Shape = std::vector<std::int64_t>;

TensorView Contiguous(const float* data, const Shape& shape) {
  return View(data, DType::f32, shape);
}

/// Returns the offset in x of the element with row-major number `index` in a tensor of shape
/// `whole`. x is broadcast to that shape.
std::int64_t OffsetIn(const TensorView& x, const Shape& whole, std::int64_t index) {
  std::int64_t offset = 0;
  for (std::size_t d = whole.size(); d-- > 0;) {
    const std::int64_t at = index % whole[d];
    index /= whole[d];
    const int in_x = x.rank - static_cast<int>(whole.size() - d);
    if (in_x >= 0 && x.shape[static_cast<std::size_t>(in_x)] != 1) {
      offset += at * x.stride[static_cast<std::size_t>(in_x)];
    }
  }
  return offset;
}

/// Returns the offset of the element (`row`, `column`) of matrix number `batch`, by the strides
/// that MakeProduct chose for the operand x.
std::int64_t OffsetIn(const MatrixProduct& product, const ProductOperand& x, std::int64_t batch,
                      std::int64_t row, std::int64_t column) {
  std::int64_t offset = row * x.row_stride + column * x.column_stride;
  for (auto d = static_cast<std::size_t>(product.batch_rank); d-- > 0;) {
    offset += batch % product.batch_shape[d] * x.batch_stride[d];
    batch /= product.batch_shape[d];
  }
  return offset;
}

struct Case {
  Shape a, b, c, out;
  int batch_rank;  ///< after merging
  std::int64_t rows;
};

void ExpectSamePlaces(const TensorView& a, const TensorView& b, const TensorView& c,
                      const TensorView& out, const MatrixProduct& product) {
  const Shape shape(out.shape.begin(), out.shape.begin() + out.rank);
  const std::int64_t depth = product.depth;
  Shape with_depth = shape;  // a's matrices have depth columns, b's depth rows
  with_depth.back() = depth;
  Shape by_depth = shape;
  by_depth[shape.size() - 2] = depth;
  const std::int64_t m = shape[shape.size() - 2];
  const std::int64_t n = shape.back();
  for (std::int64_t i = 0; i < out.size(); ++i) {
    const std::int64_t row = i / n % product.rows;
    const std::int64_t batch = i / n / product.rows;
    const auto at = [&](const ProductOperand& x, std::int64_t r, std::int64_t s) {
      return OffsetIn(product, x, batch, r, s);
    };
    ASSERT_EQ(at(product.out, row, i % n), OffsetIn(out, shape, i));
    ASSERT_EQ(at(product.c, row, i % n), OffsetIn(c, shape, i));
    for (std::int64_t k = 0; k < depth; ++k) {
      ASSERT_EQ(at(product.a, row, k), OffsetIn(a, with_depth, i / n * depth + k));
      ASSERT_EQ(at(product.b, k, i % n),
                OffsetIn(b, by_depth, (i / n / m * depth + k) * n + i % n));
    }
  }
}

TEST(MatrixProduct, BroadcastsMergesAndFolds) {
  const std::vector<Case> cases = {
      {{5, 7}, {7, 4}, {4}, {5, 4}, 0, 5},
      {{3, 5, 7}, {7, 4}, {1}, {3, 5, 4}, 0, 15},  // one b: one tall matrix
      {{2, 3, 5, 7}, {7, 4}, {2, 3, 5, 4}, {2, 3, 5, 4}, 0, 30},
      {{3, 5, 7}, {7, 4}, {5, 4}, {3, 5, 4}, 1, 5},  // c begins anew in each matrix
      {{2, 3, 5, 7}, {2, 3, 7, 4}, {2, 3, 5, 4}, {2, 3, 5, 4}, 1, 5},
      {{2, 1, 5, 7}, {3, 7, 4}, {1}, {2, 3, 5, 4}, 2, 5},
      {{6, 1, 7}, {7, 4}, {4}, {6, 1, 4}, 0, 6},  // rows of one element each
      {{4, 1, 3, 9, 2}, {2, 1, 2, 5}, {2, 1, 9, 1}, {4, 2, 3, 9, 5}, 3, 9},
      {{1, 5, 7}, {1, 7, 4}, {1, 1, 1}, {1, 5, 4}, 0, 5},
  };
  const std::vector<float> memory(1);
  for (const Case& x : cases) {
    const TensorView a = Contiguous(memory.data(), x.a);
    const TensorView b = Contiguous(memory.data(), x.b);
    const TensorView c = Contiguous(memory.data(), x.c);
    const TensorView out = Contiguous(memory.data(), x.out);
    const MatrixProduct product = MakeProduct(a, b, out, &c);
    EXPECT_EQ(product.batch_rank, x.batch_rank);
    EXPECT_EQ(product.rows, x.rows);
    EXPECT_EQ(product.batch() * product.rows * product.columns, out.size());
    ExpectSamePlaces(a, b, c, out, product);
    const MatrixProduct as_given = MakeProduct(a, b, out, &c, Batch::as_given);
    EXPECT_EQ(as_given.batch_rank, out.rank - 2);
    EXPECT_EQ(as_given.rows, out.shape[static_cast<std::size_t>(out.rank) - 2]);
    ExpectSamePlaces(a, b, c, out, as_given);
  }
}

TEST(MatrixProduct, KeepsStrides) {
  const std::vector<float> memory(1);
  TensorView a = Contiguous(memory.data(), {3, 5, 7});
  a.stride = {1, -3, 15};
  TensorView b = Contiguous(memory.data(), {3, 7, 4});
  b.stride = {56, 8, 2};
  TensorView out = Contiguous(memory.data(), {3, 5, 4});
  out.stride = {5, 1, 15};
  const TensorView c = Contiguous(memory.data(), {5, 1});
  ExpectSamePlaces(a, b, c, out, MakeProduct(a, b, out, &c));
}

TEST(MatrixProduct, WithoutAddend) {
  const std::vector<float> memory(1);
  const TensorView a = Contiguous(memory.data(), {3, 5, 0});
  const TensorView b = Contiguous(memory.data(), {0, 4});
  const TensorView out = Contiguous(memory.data(), {3, 5, 4});
  const MatrixProduct product = MakeProduct(a, b, out, nullptr);
  EXPECT_EQ(product.c.data, nullptr);
  EXPECT_EQ(product.depth, 0);
  EXPECT_EQ(product.rows, 15);
}

}  // namespace
}  // namespace cpd
