// SPDX-License-Identifier: Apache-2.0
//
// Hadamard transforms along an axis.
#pragma once

#include "cpd/base/tensor.h"
#include "cpd/spec/hadamard.h"

namespace cpd {

/// Replaces each group of transform.size consecutive values of x along `axis` by its Hadamard
/// transform or its inverse, and writes the result to `out`. Roundings are as spec/hadamard.h
/// defines. A binary32 result is then rounded once, to nearest-even, into x's type.
///
/// x and out have one shape, any strides, and one type: fp32, bf16 or fp16 (a transform into bf16
/// does not accept fp16). out may be x itself; any other overlap is undefined. The extent along the
/// axis must be a multiple of the size. Throws Error before anything is written.
CPD_API void Transform(const TensorView& x, const Hadamard& transform, int axis, bool inverse,
                       const TensorView& out);

}  // namespace cpd
