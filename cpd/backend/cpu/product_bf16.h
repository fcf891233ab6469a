// SPDX-License-Identifier: Apache-2.0
//
// Computes products of bf16 numbers by the CPU's own instructions, in their order of summation.
// It says so where the CPU or the values do not allow that; callers then compute another way.
#pragma once

#include "cpd/base/tensor.h"

namespace cpd {

/// The operations of ProductOfBf16 on each sum: times `first`, times `second`, plus `bias`, each
/// operation rounded to nearest-even in binary32; the last result is rounded once more where `out`
/// is bf16. All are fp32 on the CPU, or null. The scales are M x L, the same for each n, with a
/// stride of 0 along one dimension at least and of 1 or 0 along L; the bias has L neighbors.
struct ProductFinish {
  const TensorView* first = nullptr;
  const TensorView* second = nullptr;
  const TensorView* bias = nullptr;
};

/// Computes out[n] = a[n] b[n], matrix products of bf16 numbers. Products are exact, and each
/// addition is rounded to nearest-even in binary32. A sum begins at +0 and takes products in the
/// order of k, with neighbors exchanged: 1, 0, 3, 2, …; if K is odd, +0 comes before the last.
/// `finish` follows. Threads change no bit. a: N x M x K and b: N x K x L on the CPU, of bf16 or of
/// fp32 numbers that bf16 holds; one of a matrix's two strides is 1. out: N x M x L, contiguous
/// fp32 or bf16; it must not overlap the others.
///
/// Returns false, with unspecified values in out, if this CPU has no instruction for such products,
/// or if a sum might be subnormal, which the instruction would make 0: the product of the least
/// magnitudes of a and b is below 2^-112.
CPD_API bool ProductOfBf16(const TensorView& a, const TensorView& b, const TensorView& out,
                           const ProductFinish& finish = {});

}  // namespace cpd
