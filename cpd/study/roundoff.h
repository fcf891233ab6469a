// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpd/base/tensor.h"

namespace cpd {

/// Round-off of a reduced layer against its binary64 reference.
struct Roundoff {
  double error = 0;         ///< APS paper, Eq. 5: mean of |(h - l) / h| over h != 0
  double relative_rms = 0;  ///< sqrt(sum (h - l)^2 / sum h^2), zero references included
  std::int64_t count = 0;   ///< values
  std::int64_t zero_references = 0;
  std::int64_t non_finite = 0;   ///< values where l is not finite, which all sums leave out
  double error_squares = 0;      ///< sum (h - l)^2
  double reference_squares = 0;  ///< sum h^2
};

/// sum += x, each addition in binary64, to compute a reference. sum: fp64, x: fp32 or fp64, both
/// contiguous and of the same shape. Throws Error.
CPD_API void AddToReference(const TensorView& x, const TensorView& sum);

/// sum /= divisor, in binary64; sum: fp64, contiguous. Throws Error for a divisor of 0.
CPD_API void DivideReference(const TensorView& sum, double divisor);

/// Measures the round-off of `value` (fp32) against `reference` (fp64), both contiguous and of the
/// same shape. Throws Error.
CPD_API Roundoff MeasureRoundoff(const TensorView& reference, const TensorView& value);

}  // namespace cpd
