// SPDX-License-Identifier: Apache-2.0
#include "cpd/study/roundoff.h"

#include <cmath>
#include <string>

#include "cpd/base/guarded.h"
#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

/// Sums in one thread and in ascending order of the index, so that means do not depend on the
/// number of threads.
Roundoff Measure(std::int64_t n, const double* high, const float* low) {
  Roundoff result;
  result.count = n;
  double relative = 0;
  std::int64_t counted = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (i % (1 << 20) == (1 << 20) - 1) CheckInterrupt();
    if (high[i] == 0) ++result.zero_references;
    if (!std::isfinite(low[i])) {
      ++result.non_finite;
      continue;
    }
    const double error = high[i] - low[i];
    result.error_squares += error * error;
    result.reference_squares += high[i] * high[i];
    if (high[i] == 0) continue;
    relative += std::fabs(error / high[i]);
    ++counted;
  }
  result.error = counted == 0 ? 0 : relative / static_cast<double>(counted);
  result.relative_rms = result.reference_squares == 0
                            ? 0
                            : std::sqrt(result.error_squares / result.reference_squares);
  return result;
}

constexpr std::int64_t kValuesAtOnce = 4096;

void CheckReference(const TensorView& sum) {
  Check(sum, "sum");
  if (sum.dtype != DType::f64 || !sum.is_contiguous() || !sum.on_host()) {
    throw Error("the reference must be contiguous fp64 on the CPU, got " + ToString(sum.dtype));
  }
}

template <class T>
void AddAs(const T* x, std::int64_t n, double* sum) {
  parallel_for(n, kValuesAtOnce, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) sum[i] += static_cast<double>(x[i]);
  });
}

}  // namespace

void AddToReference(const TensorView& x, const TensorView& sum) {
  CheckReference(sum);
  Check(x, "x");
  if ((x.dtype != DType::f32 && x.dtype != DType::f64) || !x.is_contiguous() || !x.on_host()) {
    throw Error("x must be contiguous fp32 or fp64 on the CPU, got " + ToString(x.dtype));
  }
  CheckSameShape(x, sum, "x and sum");
  auto* to = static_cast<double*>(sum.data);
  if (x.dtype == DType::f64) return AddAs(static_cast<const double*>(x.data), x.size(), to);
  AddAs(static_cast<const float*>(x.data), x.size(), to);
}

void DivideReference(const TensorView& sum, double divisor) {
  CheckReference(sum);
  if (!Guarded([&] { return divisor != 0; })) throw Error("divisor must not be 0");
  auto* values = static_cast<double*>(sum.data);
  parallel_for(sum.size(), kValuesAtOnce, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) values[i] /= divisor;
  });
}

Roundoff MeasureRoundoff(const TensorView& reference, const TensorView& value) {
  Check(reference, "reference");
  Check(value, "value");
  if (reference.dtype != DType::f64 || value.dtype != DType::f32 || !reference.is_contiguous() ||
      !value.is_contiguous()) {
    throw Error("the reference must be contiguous fp64 and the value contiguous fp32, got " +
                ToString(reference.dtype) + " and " + ToString(value.dtype) +
                (reference.is_contiguous() && value.is_contiguous() ? "" : ", not contiguous"));
  }
  CheckSameShape(reference, value, "reference and value");
  return Guarded([&] {
    return Measure(reference.size(), static_cast<const double*>(reference.data),
                   static_cast<const float*>(value.data));
  });
}

}  // namespace cpd
