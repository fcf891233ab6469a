// SPDX-License-Identifier: Apache-2.0
//
// Which of n values a message holds: their number, and the gaps between them in Rice codes
// (Golomb 1966, Rice 1979): a gap g in front of a place is g >> b in unary, ended by a 1, and b
// low bits. b follows from the two numbers, for places without an order about the best there is;
// where half of the values are there, b is 0 and the codes are a bitmap.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpd/export.h"

namespace cpd {

/// Of a number, 7 bits a byte, the low ones first.
constexpr std::int64_t kMostNumberBytes = 9;
/// Writes a number >= 0 below 2^63. Returns the byte after.
CPD_API std::uint8_t* PutNumber(std::int64_t number, std::uint8_t* to);
/// Takes one that is at most `most` off the front of `bytes`. Throws DamagedBytes.
CPD_API std::int64_t TakeNumber(std::span<const std::uint8_t>& bytes, std::int64_t most);

/// What PutPlaces needs at most, however many of n places.
constexpr std::int64_t MostPlaceBytes(std::int64_t n) { return kMostNumberBytes + (n + 15) / 8; }
/// Writes ascending places begin … begin + n - 1, less `begin`. Returns the byte after.
CPD_API std::uint8_t* PutPlaces(std::span<const std::int64_t> places, std::int64_t begin,
                                std::int64_t n, std::uint8_t* to);
/// Takes them off the front of `bytes`: ascending, below n. Throws DamagedBytes.
CPD_API std::vector<std::int64_t> TakePlaces(std::span<const std::uint8_t>& bytes, std::int64_t n);

}  // namespace cpd
