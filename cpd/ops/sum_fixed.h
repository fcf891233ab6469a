// SPDX-License-Identifier: Apache-2.0
//
// Sums in integers (Scheme::fixed), for Sum.
#pragma once

#include <cstdint>

#include "cpd/base/tensor.h"
#include "cpd/spec/accumulator.h"

namespace cpd {

/// out[i] = the sum of `terms` terms, term k being x shifted by k * stride elements: each is
/// rounded to an integer of units and added, each addition wraps or saturates, and the sum is
/// rounded into the accumulator's format. NaN where a term is NaN or infinite. x: any float type.
void SumFixed(const TensorView& x, std::int64_t terms, std::int64_t stride,
              const Accumulator& accumulator, const TensorView& out);

}  // namespace cpd
