// SPDX-License-Identifier: Apache-2.0
#include "cpd/study/roundoff.h"

#include <cmath>

#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/numeric/error.h"

namespace cpd {
namespace {

/// One thread, index ascending: the means do not depend on how many there are.
Roundoff Measure(std::int64_t n, const double* high, const float* low) {
  Roundoff result;
  result.count = n;
  double relative = 0;
  double squares = 0;
  double reference_squares = 0;
  std::int64_t counted = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (i % (1 << 20) == (1 << 20) - 1) CheckInterrupt();
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

}  // namespace

Roundoff MeasureRoundoff(const TensorView& reference, const TensorView& value) {
  if (reference.dtype != DType::f64 || value.dtype != DType::f32 || !reference.is_contiguous() ||
      !value.is_contiguous()) {
    throw Error("the reference must be contiguous fp64 and the value contiguous fp32");
  }
  CheckSameShape(reference, value, "reference and value");
  Roundoff result;
  parallel_for(1, 1, 1, [&](std::int64_t, std::int64_t) {  // for its floating-point environment
    result = Measure(reference.size(), static_cast<const double*>(reference.data),
                     static_cast<const float*>(value.data));
  });
  return result;
}

}  // namespace cpd
