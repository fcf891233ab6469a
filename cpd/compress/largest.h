// SPDX-License-Identifier: Apache-2.0
//
// Which values of a layer are the largest.
#pragma once

#include <cstdint>
#include <vector>

#include "cpd/export.h"

namespace cpd {

/// n values: x[i], or where there is an `r` the sums x[i] + r[i], which are written to `sum`.
struct Summands {
  std::int64_t n = 0;
  const float* x = nullptr;
  const float* r = nullptr;
  float* sum = nullptr;
};

/// Some of them: their places, ascending, and what stands there.
struct Selection {
  std::vector<std::int64_t> places;
  std::vector<float> values;
};

/// The k values of largest magnitude, of equal ones those of lower index, and every NaN and
/// infinity, even where that is more. 0 <= k <= n. One pass over memory where a sample tells about
/// how large they are, and where they are not among many equals.
CPD_API void FindLargest(const Summands& of, std::int64_t k, Selection& largest);

}  // namespace cpd
