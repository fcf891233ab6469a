// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>

#include "cpd/backend/blas.h"
#include "cpd/backend/cuda.h"
#include "cpd/backend/explain.h"
#include "cpd/base/product.h"
#include "cpd/ops/checks.h"
#include "cpd/ops/gemm.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

void CheckFp32(const TensorView& x, const char* name) {
  if (x.dtype != DType::f32) {
    throw Error(std::string("a BLAS takes fp32, got ") + name + " in " + ToString(x.dtype));
  }
}

/// Throws Error unless the accumulator is fp32's own arithmetic: the library rounds sums to fp32,
/// nearest-even, and products too or (fma) not at all.
void CheckIsFp32(const Accumulator& accumulator) {
  const bool rounds_so = accumulator.rounding.mode == Rounding::nearest_even &&
                         accumulator.rounding.overflow == Overflow::ieee;
  const bool products_fit =
      accumulator.exact_products || accumulator.product.value_or(kFp32) == kFp32;
  if (accumulator.format != kFp32 || accumulator.scheme != Scheme::sequential || !rounds_so ||
      !products_fit) {
    throw Error(
        "a BLAS has one accumulator: fp32, sequential, rounded nearest_even, overflow ieee, "
        "products fp32 or exact; got " +
        ToString(accumulator));
  }
}

/// The operand's matrix that begins at element `offset`.
blas::Matrix MatrixAt(const ProductOperand& x, std::int64_t offset, std::int64_t rows,
                      std::int64_t columns) {
  return {static_cast<float*>(x.data) + offset, rows, columns, x.row_stride, x.column_stride};
}

void Copy(const blas::Matrix& from, const blas::Matrix& to) {
  for (std::int64_t i = 0; i < to.rows; ++i) {
    for (std::int64_t j = 0; j < to.columns; ++j) {
      to.data[i * to.row_stride + j * to.column_stride] =
          from.data[i * from.row_stride + j * from.column_stride];
    }
  }
}

/// The element at which matrix number `index` of the batch begins.
std::int64_t OffsetOf(const ProductOperand& x, const MatrixProduct& product, std::int64_t index) {
  std::int64_t offset = 0;
  for (auto d = static_cast<std::size_t>(product.batch_rank); d-- > 0;) {
    offset += index % product.batch_shape[d] * x.batch_stride[d];
    index /= product.batch_shape[d];
  }
  return offset;
}

void MultiplyOnCpu(const MatrixProduct& product) {
  const blas::Library& library = blas::Cpu();
  const std::int64_t rows = product.rows;
  const std::int64_t columns = product.columns;
  const bool adds = product.c.data != nullptr;
  for (std::int64_t i = 0, batch = product.batch(); i < batch; ++i) {
    const auto at = [&](const ProductOperand& x) { return OffsetOf(x, product, i); };
    const blas::Matrix out = MatrixAt(product.out, at(product.out), rows, columns);
    if (adds) Copy(MatrixAt(product.c, at(product.c), rows, columns), out);
    library.Multiply(MatrixAt(product.a, at(product.a), rows, product.depth),
                     MatrixAt(product.b, at(product.b), product.depth, columns), out, adds);
  }
}

}  // namespace

void GemmByBlas(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
                const TensorView& out, const TensorView* c) {
  Check(accumulator);
  CheckIsFp32(accumulator);
  CheckProduct(a, b, out, c);
  CheckFp32(a, "a");
  CheckFp32(b, "b");
  CheckFp32(out, "out");
  if (c != nullptr) CheckFp32(*c, "c");
  if (Explains()) NotePath("gemm", {"blas", "blas=True: the order of summation is the library's"});
  if (out.size() == 0) return;
  if (!out.on_host()) return cuda::GemmByBlas(a, b, out, c);
  if (Explains()) return Explaining::Current()->Run(std::string(blas::Cpu().name()), "sgemm");
  MultiplyOnCpu(MakeProduct(a, b, out, c));
}

std::string_view CpuBlas() {
  try {
    return blas::Cpu().name();
  } catch (const MachineError&) {
    return {};
  }
}

}  // namespace cpd
