// SPDX-License-Identifier: Apache-2.0
//
// Hadamard transforms along an axis.
#pragma once

#include "cpd/base/tensor.h"
#include "cpd/spec/hadamard.h"

namespace cpd {

/// out = x with each group of transform.size consecutive values along `axis` replaced by its
/// Hadamard transform, or the inverse one, rounded as spec/hadamard.h defines; a binary32 result is
/// then rounded once, to nearest-even, into x's type. x and out: fp32, bf16 or fp16 (a transform
/// into bf16: not fp16), of one type and shape, any strides; out may be x itself, any other overlap
/// is undefined. The extent along the axis must be a multiple of the size. Throws Error before
/// anything is written.
CPD_API void Transform(const TensorView& x, const Hadamard& transform, int axis, bool inverse,
                       const TensorView& out);

}  // namespace cpd
