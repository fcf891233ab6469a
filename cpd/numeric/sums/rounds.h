// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace cpd {

/// Order of summation across ranks (or, with groups, across the groups' masters).
enum class Order : std::uint8_t {
  sequential,  ///< rank ascending from rank 0
  ring,  ///< a layer is cut into W slices, the first n mod W one longer; slice s from rank s + 1
  tree,  ///< neighbours first, an odd one passes up; every merge rounded into the accumulator
};

/// Where slice s of n values begins, of `slices`: the first n mod slices are one longer; s = slices
/// gives n.
constexpr std::int64_t SliceBegin(std::int64_t n, std::int64_t slices, std::int64_t s) {
  return n / slices * s + std::min(s, n % slices);
}

/// Units (ranks, or groups) across which the outer fold runs, in the order in which they come. Unit
/// u's values are term `term(visit, slice)` of a slice, or none of its.
struct Rounds {
  Order order = Order::sequential;
  std::int64_t units = 1;

  /// A ring's slice s runs from unit s + 1 around to s, so that its terms come at visits s … s + U
  /// - 1.
  [[nodiscard]] constexpr std::int64_t visits() const {
    return order == Order::ring ? 2 * units - 1 : units;
  }
  [[nodiscard]] constexpr std::int64_t unit(std::int64_t visit) const {
    return order == Order::ring ? (visit + 1) % units : visit;
  }
  [[nodiscard]] constexpr std::int64_t slices() const { return order == Order::ring ? units : 1; }
  /// -1 where the visit is no term of the slice.
  [[nodiscard]] constexpr std::int64_t term(std::int64_t visit, std::int64_t slice) const {
    if (order != Order::ring) return visit;
    const std::int64_t term = visit - slice;
    return term < units ? term : -1;
  }
  /// The unit whose values are term k of the slice.
  [[nodiscard]] constexpr std::int64_t unit_of_term(std::int64_t k, std::int64_t slice) const {
    return order == Order::ring ? (slice + 1 + k) % units : k;
  }
  /// Where slice s of n values begins.
  [[nodiscard]] constexpr std::int64_t begin(std::int64_t n, std::int64_t s) const {
    return SliceBegin(n, slices(), s);
  }
  /// The slice that holds value i.
  [[nodiscard]] constexpr std::int64_t slice_of(std::int64_t n, std::int64_t i) const {
    const std::int64_t length = n / slices();
    const std::int64_t longer = n % slices() * (length + 1);
    return i < longer ? i / (length + 1) : n % slices() + (i - longer) / length;
  }
};

}  // namespace cpd
