// SPDX-License-Identifier: Apache-2.0
//
// Binary32 products by the system's BLAS.
#include <cstdint>

#include "cpd/backend/blas.h"
#include "cpd/backend/cpu/cpu.h"
#include "cpd/base/explaining.h"

namespace cpd::cpu {
namespace {

/// Returns the operand's matrix that begins at element `offset`.
blas::Matrix MatrixAt(const ProductOperand& x, std::int64_t offset, std::int64_t rows,
                      std::int64_t columns) {
  return {static_cast<float*>(x.data) + offset, rows, columns, x.row_stride, x.column_stride};
}

void CopyMatrix(const blas::Matrix& from, const blas::Matrix& to) {
  for (std::int64_t i = 0; i < to.rows; ++i) {
    for (std::int64_t j = 0; j < to.columns; ++j) {
      to.data[i * to.row_stride + j * to.column_stride] =
          from.data[i * from.row_stride + j * from.column_stride];
    }
  }
}

}  // namespace

int blas(const Launch& /*launch*/, const BlasCall& call) {
  const blas::Library& library = blas::Cpu();
  if (Explains()) {
    Explaining::Current()->Run(library.name(), "sgemm");
    return 0;
  }
  const MatrixProduct& product = call.product;
  const std::int64_t rows = product.rows;
  const std::int64_t columns = product.columns;
  const bool adds = product.c.data != nullptr;
  for (std::int64_t i = 0, batch = product.batch(); i < batch; ++i) {
    const auto at = [&](const ProductOperand& x) { return product.offset_of(x, i); };
    const blas::Matrix out = MatrixAt(product.out, at(product.out), rows, columns);
    if (adds) CopyMatrix(MatrixAt(product.c, at(product.c), rows, columns), out);
    library.Multiply(MatrixAt(product.a, at(product.a), rows, product.depth),
                     MatrixAt(product.b, at(product.b), product.depth, columns), out, adds);
  }
  return 0;
}

}  // namespace cpd::cpu
