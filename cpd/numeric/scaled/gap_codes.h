// SPDX-License-Identifier: Apache-2.0
//
// The lengths of the codes for the places of some of n values (compress/places.h): numbers of seven
// bits a byte, and gaps in Rice codes.
#pragma once

#include <cstdint>

namespace cpd {

/// The bytes of a number >= 0.
constexpr std::int64_t number_bytes(std::int64_t number) {
  std::int64_t bytes = 1;
  for (; number >= 128; number >>= 7) ++bytes;
  return bytes;
}

/// The low bits b of the gaps before `count` >= 1 of n places: 2^b is about ln 2 times the mean
/// gap.
constexpr int gap_low_bits(std::int64_t n, std::int64_t count) {
  const std::int64_t median = n / count * 45 / 64;
  int low = 0;
  while (median >> low > 1) ++low;
  return low;
}

/// The bits of the code of a gap.
constexpr std::int64_t gap_bits(std::int64_t gap, int low) { return (gap >> low) + 1 + low; }

}  // namespace cpd
