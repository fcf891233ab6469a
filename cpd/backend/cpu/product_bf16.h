// SPDX-License-Identifier: Apache-2.0
//
// Computes products of bf16 numbers by the CPU's own instruction, in that instruction's order of
// summation. Returns false if the CPU or the values do not allow this; callers then use another
// way.
#pragma once

#include "cpd/base/tensor.h"

namespace cpd {

/// Operations of ProductOfBf16 on each sum: times `first`, times `second`, plus `bias`. Each
/// operation is rounded to nearest-even in binary32. If `out` is bf16, the last result is rounded
/// once more.
///
/// Each tensor is null or fp32 on the CPU. The scales are M x L, the same for each n. At least one
/// of their strides is 0, and the stride along L is 1 or 0. The bias has L contiguous values.
struct ProductFinish {
  const TensorView* first = nullptr;
  const TensorView* second = nullptr;
  const TensorView* bias = nullptr;
};

/// Computes out[n] = a[n] b[n], matrix products of bf16 numbers, and then `finish`.
///
/// Products are exact, and each addition is rounded to nearest-even in binary32. A sum starts at +0
/// and takes products in the order of k with neighbors exchanged: 1, 0, 3, 2, …. If K is odd, +0 is
/// added before the last product. The number of threads changes no bit.
///
/// a: N x M x K and b: N x K x L, on the CPU, of bf16 or of fp32 numbers that are bf16 values. One
/// of a matrix's two strides is 1. out: N x M x L, contiguous fp32 or bf16, and overlaps no input.
///
/// Returns false, with unspecified values in out, in two cases. This CPU may lack the instruction
/// for such products. Or a sum might be subnormal, which the instruction would replace by 0: the
/// powers of two at or below the least magnitudes of a and b have a product below 2^-112.
CPD_API bool ProductOfBf16(const TensorView& a, const TensorView& b, const TensorView& out,
                           const ProductFinish& finish = {});

}  // namespace cpd
