// SPDX-License-Identifier: Apache-2.0
//
// The values of largest magnitude by their definition: a sort of all.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace cpd::testing {

/// The places of the k largest values by magnitude, of equal ones the first, and of all that are
/// not finite; ascending.
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
