// SPDX-License-Identifier: Apache-2.0
//
// Computes the lengths of the codes for the indices of selected values (compress/places.h). Numbers
// are encoded with seven bits a byte, and gaps between selected indices in Rice codes.
#pragma once

#include <cstdint>

namespace cpd {

/// Returns the number of bytes that encode a number >= 0.
constexpr std::int64_t number_bytes(std::int64_t number) {
  std::int64_t bytes = 1;
  for (; number >= 128; number >>= 7) ++bytes;
  return bytes;
}

/// Returns b, the number of low bits of the Rice code for the gaps between `count` >= 1 of n
/// indices. 2^b is about ln 2 times the mean gap.
constexpr int gap_low_bits(std::int64_t n, std::int64_t count) {
  const std::int64_t median = n / count * 45 / 64;
  int low = 0;
  while (median >> low > 1) ++low;
  return low;
}

/// Returns the length, in bits, of the Rice code of a gap: (gap >> low) + 1 bits in unary, then the
/// `low` lowest bits.
constexpr std::int64_t gap_bits(std::int64_t gap, int low) { return (gap >> low) + 1 + low; }

}  // namespace cpd
