// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpd/numeric/accumulator.h"

namespace cpd {

/// Where one ordered sum per element stands. `sum` and, for Kahan, `compensation` belong to the
/// caller, n values each; their content before the first term does not matter.
struct FoldState {
  float* sum = nullptr;
  float* compensation = nullptr;  ///< Kahan only
};

/// Adds term number k (0, 1, …, in this order) to the n sums of elements first … first + n - 1;
/// below 2^40; the range lies between two multiples of 2^32, or first is a multiple of kBlock.
/// k = 0: sum = round(term), compensation = +0. Later: as Scheme says, each operation one exact
/// result rounded once into accumulator.format; where sum becomes infinite or NaN the compensation
/// is +0 from there on. `terms` are any binary32 values. With stochastic rounding the draws of
/// element i come from accumulator.rounding's seed and stream, in program order (philox.h): draw k
/// (sequential), draws 0, then 4k - 3 … 4k (Kahan).
/// `terms_in` tells in which format the terms are known to lie (kFp32: nothing is known); it only
/// chooses the route, never the result.
CPD_API void FoldStep(const Accumulator& accumulator, const Format& terms_in, std::int64_t k,
                      std::int64_t first, std::int64_t n, const float* terms, FoldState state);

/// Throws Error where a stochastic sum of so many terms would run out of random bits (philox.h:
/// block numbers have 24 bits).
CPD_API void CheckFold(const Accumulator& accumulator, std::int64_t terms);

/// y[i] = x[i] * 2^shift rounded once into `format`; stochastic draws at index first + i, first a
/// multiple of kBlock.
CPD_API void CastScaled(const Format& format, const RoundingOptions& options, int shift,
                        std::int64_t first, std::int64_t n, const float* x, float* y);

}  // namespace cpd
