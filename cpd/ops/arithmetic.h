// SPDX-License-Identifier: Apache-2.0
//
// Elementwise operations that round once, and sums over a dimension.
#pragma once

#include "cpd/base/tensor.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// Computes an operation exactly and rounds the result once into `format`: out = round(x + y),
/// round(x * y), round(x * y + z), round(x / y), round(sqrt(x)). Operands are any values of their
/// types (fp32, fp64, bf16 or fp16). They have equal shapes and any strides; stride 0 broadcasts.
/// out, `key` and `random`: as in Cast (ops/cast.h).
CPD_API void Add(const TensorView& x, const TensorView& y, const Format& format,
                 const RoundingOptions& options, const TensorView& out, const RandomKey& key = {},
                 const TensorView* random = nullptr);
CPD_API void Mul(const TensorView& x, const TensorView& y, const Format& format,
                 const RoundingOptions& options, const TensorView& out, const RandomKey& key = {},
                 const TensorView* random = nullptr);
CPD_API void Fma(const TensorView& x, const TensorView& y, const TensorView& z,
                 const Format& format, const RoundingOptions& options, const TensorView& out,
                 const RandomKey& key = {}, const TensorView* random = nullptr);
CPD_API void Div(const TensorView& x, const TensorView& y, const Format& format,
                 const RoundingOptions& options, const TensorView& out, const RandomKey& key = {},
                 const TensorView* random = nullptr);
CPD_API void Sqrt(const TensorView& x, const Format& format, const RoundingOptions& options,
                  const TensorView& out, const RandomKey& key = {},
                  const TensorView* random = nullptr);

/// Computes the ordered sum of x over dimension `dim`, by ascending index. FoldStep (reduce.h)
/// defines the addition of each term.
///
/// Scheme fixed: each term is rounded to an integer number of units and added, each addition wraps
/// or saturates, and the sum is rounded into the accumulator's format. The sum is NaN if a term is
/// NaN or infinite.
///
/// out: x's shape without `dim`. An empty sum is +0. `random` (u32; stochastic rounding only) has
/// out's shape and a last dimension of DrawsOfSum(accumulator, x.shape[dim]). The integer at [i,
/// t], below 2^N, rounds draw t of element i in place of the integer of `key`.
CPD_API void Sum(const TensorView& x, int dim, const Accumulator& accumulator,
                 const TensorView& out, const RandomKey& key = {},
                 const TensorView* random = nullptr);

}  // namespace cpd
