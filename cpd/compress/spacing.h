// SPDX-License-Identifier: Apache-2.0
//
// Levels of least variance: as QSGD rounds values to the neighbours of theirs, each adds
// (u - a) (b - u) norm^2 to the expected squared error, u = |v| / norm between levels a and b
// (Grubic et al. 2018, section 2.3; Zhang et al., ZipML, 2017, section 3).
#pragma once

#include <array>
#include <cstdint>

#include "cpd/export.h"
#include "cpd/numeric/scaled/levels.h"

namespace cpd {

/// Sums over values by their unit floor(256 u): of norm^2, and of it times u and u^2.
class CPD_API SpacingSums {
 public:
  /// Of one bucket; a norm that is zero or NaN counts nothing.
  void Add(std::int64_t n, const float* x, float norm);
  /// The variance between levels at units a < b.
  [[nodiscard]] double Variance(int a, int b) const;
  /// The levels 0 … steps of least variance, among all whose places are units; of several the one
  /// whose places are smaller from the last on. steps: 1 … LevelSpacing::kMostSteps.
  [[nodiscard]] LevelSpacing Optimal(int steps) const;

 private:
  struct Sums {
    double weight = 0, first = 0, second = 0;
  };
  std::array<Sums, LevelSpacing::kUnits> units_{};
};

/// Fills `below` from the places. Throws DamagedBytes unless these ascend from 0 to 256.
CPD_API void CompleteSpacing(LevelSpacing& spacing, int steps);

}  // namespace cpd
