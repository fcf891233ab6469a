// SPDX-License-Identifier: Apache-2.0
//
// Element-wise operations that have no kernel. The CPU computes them in soft-float
// (numeric/round/soft_float.h).
#pragma once

#include "cpd/base/tensor.h"
#include "cpd/ops/checks.h"
#include "cpd/spec/format.h"
#include "cpd/spec/operation.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// Writes to flags[i] the exceptions that Cast, Add, Mul, Fma, Div or Sqrt raises for element i, as
/// a sum of the constants of operation.h. Operands, `key` and `random` have the same meaning as the
/// arguments of Add (ops/arithmetic.h). flags: u8, of the operands' shape. Throws Error before
/// anything is written; also throws for tensors that are not on the CPU.
CPD_API void Flags(soft::Operation operation, const Operands& operands, const Format& format,
                   const RoundingOptions& options, soft::Tininess tininess, const TensorView& flags,
                   const RandomKey& key = {}, const TensorView* random = nullptr);

/// Computes an operation's values into `out`. The caller has checked all arguments except the
/// device.
void Compute(soft::Operation operation, const Operands& operands, const Format& format,
             const RoundingOptions& options, const TensorView& out, const RandomKey& key,
             const TensorView* random);

}  // namespace cpd
