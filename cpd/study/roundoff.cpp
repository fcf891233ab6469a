// SPDX-License-Identifier: Apache-2.0
#include "cpd/study/roundoff.h"

#include <cmath>

#include "cpd/numeric/error.h"

namespace cpd {

Roundoff MeasureRoundoff(const TensorView& reference, const TensorView& value) {
  if (reference.dtype != DType::f64 || value.dtype != DType::f32 || !reference.is_contiguous() ||
      !value.is_contiguous()) {
    throw Error("the reference must be contiguous fp64 and the value contiguous fp32");
  }
  CheckSameShape(reference, value, "reference and value");
  const auto* high = static_cast<const double*>(reference.data);
  const auto* low = static_cast<const float*>(value.data);
  Roundoff result;
  result.count = reference.size();
  double relative = 0;
  double squares = 0;
  double reference_squares = 0;
  std::int64_t counted = 0;
  for (std::int64_t i = 0; i < result.count; ++i) {
    if (high[i] == 0) ++result.zero_references;
    if (!std::isfinite(low[i])) {
      ++result.non_finite;
      continue;
    }
    const double error = high[i] - low[i];
    squares += error * error;
    reference_squares += high[i] * high[i];
    if (high[i] == 0) continue;
    relative += std::fabs(error / high[i]);
    ++counted;
  }
  result.error = counted == 0 ? 0 : relative / static_cast<double>(counted);
  result.relative_rms = reference_squares == 0 ? 0 : std::sqrt(squares / reference_squares);
  return result;
}

}  // namespace cpd
