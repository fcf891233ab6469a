// SPDX-License-Identifier: Apache-2.0
//
// Whether a matrix unit's operands are values of its formats, as its rule requires.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpd/backend/kernel_table.h"
#include "cpd/base/plans.h"

namespace cpd {

/// The least i for which x[i] is not a value of the format, or -1. NaN and Inf are values where the
/// format has them, -0 always. It compares values, and so requires the default floating-point
/// environment.
inline std::int64_t FirstOutside(const KernelTable& kernels, const Format& format, std::int64_t n,
                                 const float* x) {
  if (format == kFp32) return -1;
  constexpr std::int64_t kRun = 4 * kBlock;
  const RoundPlan plan = PlanOf(format);
  float rounded[kRun];
  for (std::int64_t begin = 0; begin < n; begin += kRun) {
    const std::int64_t count = std::min(kRun, n - begin);
    kernels.cast({.n = count,
                  .x = Contiguous(x + begin),
                  .random = {},
                  .out = Contiguous(rounded),
                  .plan = &plan});
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = x[begin + i];
      const bool is_nan = value != value;
      if (is_nan ? !format.has_nan() : rounded[i] != value) return begin + i;
    }
  }
  return -1;
}

}  // namespace cpd
