// SPDX-License-Identifier: Apache-2.0
//
// Finds the largest values of a layer.
#pragma once

#include <cstdint>
#include <vector>

#include "cpd/export.h"

namespace cpd {

/// n values: x[i], or where r is not null the sums x[i] + r[i], which are written to `sum`.
struct Summands {
  std::int64_t n = 0;
  const float* x = nullptr;
  const float* r = nullptr;
  float* sum = nullptr;
};

/// Some of n values and their indices, ascending.
struct Selection {
  std::vector<std::int64_t> places;
  std::vector<float> values;
};

/// Selects the k values of largest magnitude, of equal ones those of lower index, and every NaN and
/// infinity, even where that is more. 0 <= k <= n. Takes one pass over memory where a sample shows
/// about how large they are and few values equal the least of them.
CPD_API void FindLargest(const Summands& of, std::int64_t k, Selection& largest);

}  // namespace cpd
