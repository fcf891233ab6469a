// SPDX-License-Identifier: Apache-2.0
//
// Sums and matrix products, on the CPU, that also return the exceptions of their roundings.
#pragma once

#include "cpd/base/tensor.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/operation.h"
#include "cpd/spec/random_key.h"

namespace cpd {

/// Computes the ordered sums of Sum (ops/arithmetic.h) with the same arguments and results. Also
/// writes to `flags` (u8, of out's shape), for each element, the bitwise or of the exceptions of
/// all roundings in its sum (numeric/units/flagged_sums.h). Throws Error before anything is
/// written; also throws for tensors that are not on the CPU.
CPD_API void SumFlagged(const TensorView& x, int dim, const Accumulator& accumulator,
                        soft::Tininess tininess, const TensorView& out, const TensorView& flags,
                        const RandomKey& key = {}, const TensorView* random = nullptr);

/// Computes the matrix product of Gemm (ops/gemm.h) with the same arguments and results. Also
/// writes to `flags` (u8, of out's shape), for each element, the bitwise or of the exceptions of
/// all roundings in its sum, including the rounding of c. Throws Error for a matrix unit whose
/// adder is not `aligned`.
CPD_API void GemmFlagged(const TensorView& a, const TensorView& b, const Accumulator& accumulator,
                         soft::Tininess tininess, const TensorView& out, const TensorView& flags,
                         const TensorView* c = nullptr, const RandomKey& key = {},
                         const TensorView* random = nullptr);

}  // namespace cpd
