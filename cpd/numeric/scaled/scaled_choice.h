// SPDX-License-Identifier: Apache-2.0
//
// Computes the error of a candidate scale (ScaleChoice), one value at a time. This is "4 over 6" of
// TransformerEngine's NVFP4 quantization.
#pragma once

#include <cstdint>

#include "cpd/numeric/lanes/isa.h"
#include "cpd/numeric/scaled/scaled_plan.h"

namespace cpd {
inline namespace CPD_ISA {

/// The ratio of the second candidate's scale to the first candidate's. Divided by the second scale,
/// the block's largest magnitude is M / 1.5, where M is the element format's max.
constexpr double kOtherShare = 1.5;

/// The scales by which a block's elements were divided. `largest` is the largest |x| from which
/// TransformerEngine's arithmetic (te) computed the outer scale, or 0 if the caller passed the
/// outer scale.
struct DividedBy {
  float scale = 1, outer = 1, largest = 0;
};

/// The sum of the errors of elements, added in index order. With TransformerEngine's arithmetic, q
/// is the rounded element, and every operation rounds to binary32. The error is |e| or e * e, with
/// e = q * scale * largest / (M * scale_max) - x. M is the element format's max, and scale_max is
/// the largest scale. With arithmetic exact, q is the element's value, e = q - x, and the sum is in
/// binary64.
class SumOfErrors {
 public:
  CPD_FN SumOfErrors(const ScaledPlan& plan, bool squares, DividedBy at)
      : at_(at),
        target_(static_cast<float>(plan.target)),
        in_binary32_(plan.arithmetic == Arithmetic::te),
        squares_(squares) {}

  CPD_FN void add(float q, float x) {
    if (!in_binary32_) {
      const double e = static_cast<double>(q) - static_cast<double>(x);
      sum_ += squares_ ? e * e : (e < 0 ? -e : e);
      return;
    }
    const float scaled = q * at_.scale;
    const float value = at_.largest > 0 ? scaled * at_.largest / target_ : scaled * at_.outer;
    const float e = value - x;
    const float error = squares_ ? e * e : (e < 0 ? -e : e);
    sum_ = static_cast<float>(sum_) + error;
  }
  [[nodiscard]] CPD_FN double value() const { return sum_; }

 private:
  DividedBy at_;
  float target_;
  bool in_binary32_, squares_;
  double sum_ = 0;
};

/// Returns the sum of the errors of a block's rows. Adds the second half of the rows to the first
/// half until one row is left. Overwrites `errors`.
CPD_FN double sum_of_rows(const ScaledPlan& plan, std::int64_t rows, double* errors) {
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

}  // namespace CPD_ISA
}  // namespace cpd
