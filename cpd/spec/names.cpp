// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/names.h"

#include <algorithm>
#include <vector>

namespace cpd {
namespace {

constexpr std::size_t kLongest = 40;  // letters of a name that are compared and shown

/// Returns the number of letters that are left out, added, changed, or swapped with their neighbors
/// between a and b.
std::size_t Distance(std::string_view a, std::string_view b) {
  const std::size_t columns = b.size() + 1;
  std::vector<std::size_t> table((a.size() + 1) * columns);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& {
    return table[i * columns + j];
  };
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        at(i, j) = i + j;
        continue;
      }
      const std::size_t changed = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, changed});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      }
    }
  }
  return table.back();
}

}  // namespace

std::string Lower(std::string_view name) {
  std::string lower(name);
  for (char& letter : lower) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return lower;
}

std::string Quoted(std::string_view name) { return "'" + Shortened(name, 2 * kLongest) + "'"; }

std::string_view Nearest(std::string_view name, std::span<const std::string_view> names) {
  if (name.size() < 2 || name.size() > kLongest) return {};
  const std::string given = Lower(name);
  // Names count as near if their difference is below this number: at most 1, or at most 2 for names
  // of six letters or more.
  std::size_t least = name.size() < 6 ? 2 : 3;
  std::string_view nearest;
  for (const std::string_view one : names) {
    const std::size_t longer = std::max(given.size(), one.size());
    if (longer - std::min(given.size(), one.size()) >= least) continue;
    const std::size_t distance = Distance(given, one);
    if (distance >= least) continue;
    least = distance;
    nearest = one;
  }
  return nearest;
}

std::string DidYouMean(std::string_view name, std::span<const std::string_view> names) {
  const std::string_view nearest = Nearest(name, names);
  return nearest.empty() ? "" : "; did you mean '" + std::string(nearest) + "'?";
}

void RefuseOption(std::string_view name, std::string_view owner,
                  std::span<const std::string_view> names,
                  std::span<const std::string_view> others) {
  const auto listed = [](std::span<const std::string_view> all) {
    std::string text;
    for (const std::string_view one : all) text += (text.empty() ? "" : ", ") + std::string(one);
    return text;
  };
  std::vector<std::string_view> all(names.begin(), names.end());
  all.insert(all.end(), others.begin(), others.end());
  throw Error("unknown option " + Quoted(name) + " of " + std::string(owner) + "; there are " +
              listed(names) + (others.empty() ? "" : ", and of scaled formats " + listed(others)) +
              DidYouMean(name, all));
}

}  // namespace cpd
