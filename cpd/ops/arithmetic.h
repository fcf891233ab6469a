// SPDX-License-Identifier: Apache-2.0
//
// Elementwise operations with one rounding, and sums over a dimension.
#pragma once

#include "cpd/base/tensor.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// The exact result of an operation rounded once into `format`: out = round(x + y), round(x * y),
/// round(x * y + z), round(x / y), round(sqrt(x)). Operands are any values of their type (fp32,
/// fp64, bf16 or fp16), of equal shapes and any strides (0 broadcasts). out, `key` and `random`: as
/// in Cast.
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

/// Computes the ordered sum of x over dimension `dim`, index ascending. FoldStep (reduce.h) defines
/// each step. Scheme fixed: each term is rounded to an integer of units and added, each addition
/// wraps or saturates, and the sum is rounded into the accumulator's format; NaN if a term is NaN
/// or infinite. out: x's shape without `dim`. An empty sum is +0. `random` (u32; stochastic only)
/// has out's shape and a last dimension of DrawsOfSum(accumulator, x.shape[dim]). Its integer [i,
/// t] is the R < 2^N of draw t of element i, and replaces the integer of `key`.
CPD_API void Sum(const TensorView& x, int dim, const Accumulator& accumulator,
                 const TensorView& out, const RandomKey& key = {},
                 const TensorView* random = nullptr);

}  // namespace cpd
