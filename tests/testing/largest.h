// SPDX-License-Identifier: Apache-2.0
//
// Finds the values of largest magnitude by the definition, which sorts all values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace cpd::testing {

/// Returns the indices of the k largest values by magnitude in ascending order. Of equal values,
/// the first ones are taken. Further NaN and infinities are included even if k is exceeded.
inline std::vector<std::int64_t> places_of_largest(std::span<const float> v, std::int64_t k) {
  std::vector<std::int64_t> order(v.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](std::int64_t i) { return v[static_cast<std::size_t>(i)]; };
  const auto size = [&](std::int64_t i) {
    return std::isnan(at(i)) ? std::pair{1, 0.0F} : std::pair{0, std::abs(at(i))};
  };
  std::ranges::stable_sort(order, [&](auto a, auto b) { return size(a) > size(b); });
  std::vector<std::int64_t> places(order.begin(), order.begin() + k);
  for (auto other = order.begin() + k; other != order.end(); ++other) {
    if (!std::isfinite(at(*other))) places.push_back(*other);
  }
  std::ranges::sort(places);
  return places;
}

}  // namespace cpd::testing
