// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace cpd {

/// The order in which ranks' values are added. With groups, the order in which the groups' sums are
/// added.
enum class Order : std::uint8_t {
  sequential,  ///< ranks in ascending order from rank 0
  /// A layer of n values is cut into W slices, one for each of W ranks. Each of the first n mod W
  /// slices has one value more than the others. The sum of slice s begins with the values of rank s
  /// + 1, and continues with the ranks after it, modulo W.
  ring,
  /// A binary tree: neighboring sums are added first, level by level. A sum without a neighbor
  /// passes to the next level. Every addition is rounded.
  tree,
};

/// Returns the first index of slice s, if n values are divided into `slices` slices. The first n
/// mod slices slices are one value longer. s = slices gives n.
constexpr std::int64_t SliceBegin(std::int64_t n, std::int64_t slices, std::int64_t s) {
  return n / slices * s + std::min(s, n % slices);
}

/// The order in which ranks contribute to a sum across ranks. A unit is a rank, or a group of ranks
/// if there are groups. One unit after the other adds its values to the sum; each such turn is
/// called a visit. At visit v, the unit with number unit(v) adds its values to each slice, as term
/// number term(v, slice).
struct Rounds {
  Order order = Order::sequential;
  std::int64_t units = 1;

  /// Returns the number of visits (turns of units). U is the number of units (ranks or groups). An
  /// order without a ring has U visits, one of each unit. In a ring, visit v is a turn of unit (v +
  /// 1) mod U. Slice s (0 … U - 1) takes its U terms at the visits s … s + U - 1. The last visit of
  /// the last slice is visit 2 U - 2, so a ring has 2 U - 1 visits.
  [[nodiscard]] constexpr std::int64_t visits() const {
    return order == Order::ring ? 2 * units - 1 : units;
  }
  [[nodiscard]] constexpr std::int64_t unit(std::int64_t visit) const {
    return order == Order::ring ? (visit + 1) % units : visit;
  }
  [[nodiscard]] constexpr std::int64_t slices() const { return order == Order::ring ? units : 1; }
  /// Returns k if a visit (the turn of one unit) adds term k of the sum of a slice, or a negative
  /// number if the visit adds nothing to the slice.
  [[nodiscard]] constexpr std::int64_t term(std::int64_t visit, std::int64_t slice) const {
    if (order != Order::ring) return visit;
    const std::int64_t term = visit - slice;
    return term < units ? term : -1;
  }
  /// Returns the unit (rank or group of ranks) that contributes term k of the sum of a slice.
  [[nodiscard]] constexpr std::int64_t unit_of_term(std::int64_t k, std::int64_t slice) const {
    return order == Order::ring ? (slice + 1 + k) % units : k;
  }
  /// Returns the first index of slice s, if n values are divided into slices() slices.
  [[nodiscard]] constexpr std::int64_t begin(std::int64_t n, std::int64_t s) const {
    return SliceBegin(n, slices(), s);
  }
  /// Returns the slice that holds value i, if n values are divided into slices() slices.
  [[nodiscard]] constexpr std::int64_t slice_of(std::int64_t n, std::int64_t i) const {
    const std::int64_t length = n / slices();
    const std::int64_t longer = n % slices() * (length + 1);
    return i < longer ? i / (length + 1) : n % slices() + (i - longer) / length;
  }
};

}  // namespace cpd
