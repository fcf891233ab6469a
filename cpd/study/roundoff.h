// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpd/base/tensor.h"

namespace cpd {

/// The round-off of a reduced layer: the differences between its values l and the values h of a
/// binary64 reference.
struct Roundoff {
  double error = 0;         ///< APS paper, Eq. 5: mean of |(h - l) / h| over h != 0
  double relative_rms = 0;  ///< sqrt(sum (h - l)^2 / sum h^2), zero references included
  std::int64_t count = 0;   ///< values
  std::int64_t zero_references = 0;
  std::int64_t non_finite = 0;   ///< values where l is not finite, which all sums leave out
  double error_squares = 0;      ///< sum (h - l)^2
  double reference_squares = 0;  ///< sum h^2
};

/// Adds x to `sum`, element by element and in binary64, to compute a reference. `sum` is fp64 and
/// `x` fp32 or fp64; both are contiguous and of the same shape. Throws Error otherwise.
CPD_API void AddToReference(const TensorView& x, const TensorView& sum);

/// Divides `sum` by `divisor` in binary64. `sum` is fp64 and contiguous. Throws Error for another
/// type or layout, or if `divisor` is 0.
CPD_API void DivideReference(const TensorView& sum, double divisor);

/// Measures the round-off of `value` (fp32) against `reference` (fp64). Both are contiguous and of
/// the same shape. Throws Error otherwise.
CPD_API Roundoff MeasureRoundoff(const TensorView& reference, const TensorView& value);

}  // namespace cpd
