// SPDX-License-Identifier: Apache-2.0
//
// Estimates how much slower than a BLAS's a product is, before anything runs.
#pragma once

#include "cpd/export.h"
#include "cpd/spec/accumulator.h"

namespace cpd {

/// Estimates the time of Gemm on this CPU as a multiple of the time of a BLAS's fp32 product of the
/// same shapes. It holds for operands and sums that are normal numbers, and for matrices that are
/// neither small nor flat. It uses figures of a Xeon with AVX-512; nothing is timed.
CPD_API double SlowdownOf(const Accumulator& accumulator);

}  // namespace cpd
