// SPDX-License-Identifier: Apache-2.0
//
// Finds the values of largest magnitude in a layer, for the operations of top-k.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpd/export.h"

namespace cpd {

/// n values from which to select. Value i is x[i] if r is null. Otherwise value i is x[i] + r[i],
/// which is also written to sum[i].
struct Summands {
  std::int64_t n = 0;
  const float* x = nullptr;
  const float* r = nullptr;
  float* sum = nullptr;
};

/// A range of the values in a Selection: those with ranks first … last - 1. The rank of a value is
/// its index in the Selection's lists `places` and `values`.
struct RankRange {
  std::int64_t first = 0, last = 0;
  [[nodiscard]] std::int64_t size() const { return last - first; }
};

/// Some of n values, with their indices in ascending order.
struct Selection {
  /// Returns the range of the selected values whose indices in the layer are in [begin, end).
  [[nodiscard]] RankRange Within(std::int64_t begin, std::int64_t end) const {
    const auto rank_of = [&](std::int64_t i) {
      return std::ranges::lower_bound(places, i) - places.begin();
    };
    return {rank_of(begin), rank_of(end)};
  }

  std::vector<std::int64_t> places;
  std::vector<float> values;
};

/// Selects the k values of largest magnitude; among equal magnitudes it selects the lower index.
/// Also selects every NaN and infinity, even if these are more than k. 0 <= k <= n. Usually takes
/// one pass over memory: if a sample of the values gives a good first limit, and few values equal
/// the lowest selected magnitude.
CPD_API void FindLargest(const Summands& of, std::int64_t k, Selection& largest);

}  // namespace cpd
