// SPDX-License-Identifier: Apache-2.0
//
// A radix sort for codecs that sort 64-bit keys by a few of the keys' bits.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cpd {

/// Sorts keys by the `bits` bits from bit `begin` on. Keys whose bits are equal stay in their
/// order.
inline void SortByBits(std::vector<std::uint64_t>& keys, int begin, int bits) {
  constexpr int kDigit = 11;
  std::vector<std::uint64_t> sorted(keys.size());
  for (int at = begin; at < begin + bits; at += kDigit) {
    const std::uint64_t mask = (std::uint64_t{1} << std::min(kDigit, begin + bits - at)) - 1;
    std::array<std::size_t, std::size_t{1} << kDigit> places{};
    for (const std::uint64_t key : keys) ++places[key >> at & mask];
    std::size_t place = 0;
    for (std::size_t& each : places) {
      const std::size_t count = each;
      each = place;
      place += count;
    }
    for (const std::uint64_t key : keys) sorted[places[key >> at & mask]++] = key;
    keys.swap(sorted);
  }
}

}  // namespace cpd
