// SPDX-License-Identifier: Apache-2.0
//
// The error of a candidate scale (ScaleChoice): '4 over 6' of TransformerEngine's NVFP4
// quantisation. One value at a time.
#pragma once

#include <cstdint>

#include "cpd/numeric/scaled/scaled_plan.h"

namespace cpd {

/// The other candidate's scale as a multiple of the first, so that the block's largest magnitude
/// becomes M / 1.5.
constexpr double kOtherShare = 1.5;

/// The scales by which a block's elements were divided. largest: te's largest |x| of the second
/// level, 0 where its scale is an argument.
struct DividedBy {
  float scale = 1, outer = 1, largest = 0;
};

/// The sum of the errors of n elements of x, in index order. Arithmetic te, q being elements: in
/// binary32, e = fl(fl(fl(q * scale) * largest) / fl(M * scale_max)) - x, then |e| or fl(e * e).
/// Arithmetic exact, q being their values: in binary64, each error exact.
inline double sum_of_errors(const ScaledPlan& plan, bool squares, std::int64_t n, const float* q,
                            const float* x, DividedBy at) {
  if (plan.arithmetic != Arithmetic::te) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double e = static_cast<double>(q[i]) - static_cast<double>(x[i]);
      sum += squares ? e * e : (e < 0 ? -e : e);
    }
    return sum;
  }
  const auto target = static_cast<float>(plan.target);
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const float scaled = q[i] * at.scale;
    const float value = at.largest > 0 ? scaled * at.largest / target : scaled * at.outer;
    const float e = value - x[i];
    const float error = squares ? e * e : (e < 0 ? -e : e);
    sum = sum + error;
  }
  return sum;
}

/// The sum of the errors of a block's rows, which it overwrites: the second half is added to the
/// first until one is left.
inline double sum_of_rows(const ScaledPlan& plan, std::int64_t rows, double* errors) {
  std::int64_t half = 1;
  while (half < rows) half *= 2;
  for (half /= 2; half > 0; half /= 2) {
    for (std::int64_t i = 0; i < half && i + half < rows; ++i) {
      const double sum = errors[i] + errors[i + half];
      errors[i] = plan.arithmetic == Arithmetic::te ? static_cast<float>(sum) : sum;
    }
  }
  return errors[0];
}

}  // namespace cpd
