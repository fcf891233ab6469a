// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpd/base/tensor.h"

namespace cpd {

/// Forms out[n] = a[n] b[n], matrix products of bf16 numbers. Products are exact, and each addition
/// is rounded to nearest-even in binary32. A sum begins at +0 and takes products in the order of k,
/// but for neighbors: 1, 0, 3, 2, …; where K is odd, +0 comes before the last. Threads change no
/// bit. a: N x M x K and b: N x K x L on the CPU, of bf16 or of fp32 numbers that bf16 holds; one
/// of a matrix's two strides is 1. out: N x M x L, contiguous fp32; it must not overlap a or b.
///
/// Returns false, with unspecified values in out, where this CPU has no instruction for such
/// products, or where a sum might be subnormal, which the instruction would make 0: where the
/// product of the least magnitudes of a and b is below 2^-112.
CPD_API bool ProductOfBf16(const TensorView& a, const TensorView& b, const TensorView& out);

}  // namespace cpd
