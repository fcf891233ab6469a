// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/spacing.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "cpd/compress/codec.h"

namespace cpd {
namespace {

constexpr int kUnits = LevelSpacing::kUnits;

}  // namespace

void SpacingSums::Add(std::int64_t n, const float* x, float norm) {
  if (!(norm > 0)) return;
  const double weight = static_cast<double>(norm) * norm;
  for (std::int64_t i = 0; i < n; ++i) {
    const double u = std::min(std::fabs(static_cast<double>(x[i])) / norm, 1.0);
    Sums& sums = units_[static_cast<std::size_t>(std::min(u * kUnits, kUnits - 1.0))];
    sums.weight += weight;
    sums.first += weight * u;
    sums.second += weight * u * u;
  }
}

double SpacingSums::Variance(int a, int b) const {
  Sums sums;
  for (int unit = a; unit < b; ++unit) {
    const Sums& each = units_[static_cast<std::size_t>(unit)];
    sums.weight += each.weight;
    sums.first += each.first;
    sums.second += each.second;
  }
  const double low = static_cast<double>(a) / kUnits;
  const double high = static_cast<double>(b) / kUnits;
  return (low + high) * sums.first - sums.second - low * high * sums.weight;
}

LevelSpacing SpacingSums::Optimal(int steps) const {
  // Finds the levels by dynamic programming. least[j][b] is the least variance of levels 0 … j if
  // level j is at b / 256. from[j][b] / 256 is the position of level j - 1 in that case.
  constexpr std::size_t kPlaces = kUnits + 1;
  std::vector<double> between(kPlaces * kPlaces);
  for (int a = 0; a < kUnits; ++a) {
    for (int b = a + 1; b <= kUnits; ++b) {
      between[static_cast<std::size_t>(a) * kPlaces + static_cast<std::size_t>(b)] = Variance(a, b);
    }
  }
  std::vector<double> least(kPlaces, std::numeric_limits<double>::infinity());
  least[0] = 0;
  std::vector<std::vector<int>> from;
  for (int j = 1; j <= steps; ++j) {
    std::vector<double> next(kPlaces, std::numeric_limits<double>::infinity());
    std::vector<int> best(kPlaces);
    for (std::size_t b = static_cast<std::size_t>(j); b < kPlaces; ++b) {
      for (std::size_t a = static_cast<std::size_t>(j) - 1; a < b; ++a) {
        const double variance = least[a] + between[a * kPlaces + b];
        if (variance >= next[b]) continue;
        next[b] = variance;
        best[b] = static_cast<int>(a);
      }
    }
    least = std::move(next);
    from.push_back(std::move(best));
  }
  LevelSpacing spacing;
  int place = kUnits;
  for (int j = steps; j > 0; --j) {
    spacing.place[j] = static_cast<std::uint16_t>(place);
    place = from[static_cast<std::size_t>(j) - 1][static_cast<std::size_t>(place)];
  }
  CompleteSpacing(spacing, steps);
  return spacing;
}

void CompleteSpacing(LevelSpacing& spacing, int steps) {
  const auto end = spacing.place + steps + 1;
  if (spacing.place[0] != 0 || spacing.place[steps] != kUnits ||
      std::adjacent_find(spacing.place, end, std::greater_equal<>()) != end) {
    throw DamagedBytes("the places of levels do not ascend");
  }
  int level = 0;
  for (int unit = 0; unit < kUnits; ++unit) {
    if (unit == spacing.place[level + 1]) ++level;
    spacing.below[unit] = static_cast<std::uint8_t>(level);
  }
}

}  // namespace cpd
