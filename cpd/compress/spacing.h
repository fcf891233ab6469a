// SPDX-License-Identifier: Apache-2.0
//
// Chooses levels of least variance. Consider a value v that QSGD rounds to one of the levels a and
// b around u = |v| / norm. The value adds (u - a) (b - u) norm^2 to the expected squared error
// (Grubic et al. 2018, section 2.3; Zhang et al., ZipML, 2017, section 3).
#pragma once

#include <array>
#include <cstdint>

#include "cpd/export.h"
#include "cpd/numeric/scaled/levels.h"

namespace cpd {

/// Sums from which the variance of any choice of levels follows. The range of u = |v| / norm is
/// divided into units of length 1/256, and value v is in unit floor(256 u). Each unit has the sums
/// of norm^2, norm^2 u and norm^2 u^2 over its values.
class CPD_API SpacingSums {
 public:
  /// Adds each value of one bucket to the sums of its unit, the interval that contains |v| / norm.
  /// Adds nothing if the bucket's norm is zero or NaN.
  void Add(std::int64_t n, const float* x, float norm);
  /// Returns the variance of the values between two neighboring levels, which are at a / 256 and b
  /// / 256 of the norm (a < b).
  [[nodiscard]] double Variance(int a, int b) const;
  /// Returns the levels 0 … steps of least variance, among all levels that are at multiples of
  /// 1/256 of the norm. Among equal variances, smaller positions are preferred, and the last level
  /// is compared first. `steps` must be 1 … LevelSpacing::kMostSteps.
  [[nodiscard]] LevelSpacing Optimal(int steps) const;

 private:
  struct Sums {
    double weight = 0, first = 0, second = 0;
  };
  std::array<Sums, LevelSpacing::kUnits> units_{};
};

/// Computes `spacing.below`, the table of the last level at or below each position, from the
/// positions of levels 0 … steps. Throws DamagedBytes unless the positions ascend from 0 to 256.
CPD_API void CompleteSpacing(LevelSpacing& spacing, int steps);

}  // namespace cpd
