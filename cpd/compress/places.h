// SPDX-License-Identifier: Apache-2.0
//
// Encodes the indices ("places") of the values that a message holds, among n values: their number,
// and the gaps between them in Rice codes (Golomb 1966, Rice 1979). A gap g before a place is g >>
// b in unary, ended by a 1, and the b low bits. b is computed from n and the number of places; it
// is about the best for random places. If half of the values are present, b is 0 and the codes are
// a bitmap.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpd/export.h"

namespace cpd {

/// The most bytes of a number, which has 7 bits per byte, the low ones first.
constexpr std::int64_t kMostNumberBytes = 9;
/// Writes a number >= 0 below 2^63. Returns the byte after.
CPD_API std::uint8_t* PutNumber(std::int64_t number, std::uint8_t* to);
/// Reads a number and removes it from the front of `bytes`. Throws DamagedBytes where it is above
/// `most` or cut off.
CPD_API std::int64_t TakeNumber(std::span<const std::uint8_t>& bytes, std::int64_t most);

/// The most bytes that PutPlaces writes for any number of n places.
constexpr std::int64_t MostPlaceBytes(std::int64_t n) { return kMostNumberBytes + (n + 15) / 8; }
/// Writes ascending places of begin … begin + n - 1, less `begin`. Returns the byte after.
CPD_API std::uint8_t* PutPlaces(std::span<const std::int64_t> places, std::int64_t begin,
                                std::int64_t n, std::uint8_t* to);
/// Reads places, ascending and below n, and removes them from the front of `bytes`. Throws
/// DamagedBytes.
CPD_API std::vector<std::int64_t> TakePlaces(std::span<const std::uint8_t>& bytes, std::int64_t n);

}  // namespace cpd
