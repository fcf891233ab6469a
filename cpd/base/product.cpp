// SPDX-License-Identifier: Apache-2.0
#include "cpd/base/product.h"

#include <cstddef>

namespace cpd {
namespace {

/// Returns x's stride along the dimension that is `from_end` before out's last dimension; 0 if x is
/// broadcast along it.
std::int64_t BroadcastStride(const TensorView& x, int from_end) {
  const int d = x.rank - 1 - from_end;
  if (d < 0 || x.shape[static_cast<std::size_t>(d)] == 1) return 0;
  return x.stride[static_cast<std::size_t>(d)];
}

/// Removes the batch's dimensions of extent 1, and merges neighboring dimensions that have a common
/// stride in all operands.
void MergeBatch(MatrixProduct& product) {
  const std::array<ProductOperand*, 4> operands{&product.a, &product.b, &product.c, &product.out};
  std::size_t kept = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(product.batch_rank); ++d) {
    const std::int64_t n = product.batch_shape[d];
    if (n == 1) continue;
    bool merges = kept > 0;
    for (const ProductOperand* x : operands) {
      merges = merges && x->batch_stride[kept - 1] == n * x->batch_stride[d];
    }
    if (!merges) ++kept;
    product.batch_shape[kept - 1] = merges ? product.batch_shape[kept - 1] * n : n;
    for (ProductOperand* x : operands) x->batch_stride[kept - 1] = x->batch_stride[d];
  }
  product.batch_rank = static_cast<int>(kept);
}

/// Turns the batch's last dimension into rows, if b does not vary along it and the rows of a, c and
/// out continue with one stride from matrix to matrix. The elements' row-major numbers do not
/// change.
void FoldIntoRows(MatrixProduct& product) {
  if (product.batch_rank == 0) return;
  const auto last = static_cast<std::size_t>(product.batch_rank) - 1;
  const std::array<ProductOperand*, 3> tall{&product.a, &product.c, &product.out};
  bool folds = product.b.batch_stride[last] == 0;
  for (const ProductOperand* x : tall) {
    folds = folds && (product.rows == 1 || x->batch_stride[last] == product.rows * x->row_stride);
  }
  if (!folds) return;
  if (product.rows == 1) {
    for (ProductOperand* x : tall) x->row_stride = x->batch_stride[last];
  }
  product.rows *= product.batch_shape[last];
  --product.batch_rank;
}

}  // namespace

ProductOperand OperandOf(const TensorView& x, int batch_rank) {
  ProductOperand operand{x.data, x.dtype, BroadcastStride(x, 1), BroadcastStride(x, 0), {}};
  for (int d = 0; d < batch_rank; ++d) {
    operand.batch_stride[static_cast<std::size_t>(d)] = BroadcastStride(x, 2 + batch_rank - 1 - d);
  }
  return operand;
}

MatrixProduct MakeProduct(const TensorView& a, const TensorView& b, const TensorView& out,
                          const TensorView* c, Batch batch) {
  const auto rank = static_cast<std::size_t>(out.rank);
  MatrixProduct product;
  product.rows = out.shape[rank - 2];
  product.columns = out.shape[rank - 1];
  product.depth = a.shape[static_cast<std::size_t>(a.rank) - 1];
  product.batch_rank = out.rank - 2;
  for (std::size_t d = 0; d + 2 < rank; ++d) product.batch_shape[d] = out.shape[d];
  product.a = OperandOf(a, product.batch_rank);
  product.b = OperandOf(b, product.batch_rank);
  product.out = OperandOf(out, product.batch_rank);
  if (c != nullptr) product.c = OperandOf(*c, product.batch_rank);
  if (batch == Batch::merged) {
    MergeBatch(product);
    FoldIntoRows(product);
  }
  return product;
}

}  // namespace cpd
