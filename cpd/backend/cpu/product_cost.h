// SPDX-License-Identifier: Apache-2.0
//
// Estimates, before a matrix product runs, how much longer the product takes than a BLAS would.
#pragma once

#include "cpd/export.h"
#include "cpd/spec/accumulator.h"

namespace cpd {

/// Returns an estimate of Gemm's time on this CPU, relative to the time of a BLAS's fp32 product of
/// the same shapes. The estimate holds if operands and sums are normal numbers and the matrices are
/// neither small nor flat. It uses figures that were measured on a Xeon with AVX-512. Nothing is
/// timed. Throws Error for an invalid accumulator.
CPD_API double SlowdownOf(const Accumulator& accumulator);

}  // namespace cpd
