// SPDX-License-Identifier: Apache-2.0
//
// Encodes the indices ("places") of the values that a message holds, among n values. The code
// consists of the number of indices, and of the gaps between indices in Rice codes (Golomb 1966,
// Rice 1979). A gap g before an index is g >> b in unary, ended by a 1, followed by the b low bits
// of g. b follows from n and the number of indices, and is nearly optimal for random indices. If
// half of the values are present, b is 0 and the codes are a bitmap.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpd/export.h"

namespace cpd {

/// The largest number of bytes that PutNumber writes. Each byte holds 7 bits of the number, the low
/// bits first.
constexpr std::int64_t kMostNumberBytes = 9;
/// Writes a number, at least 0 and below 2^63. Returns the address after its last byte.
CPD_API std::uint8_t* PutNumber(std::int64_t number, std::uint8_t* to);
/// Reads a number and removes it from the front of `bytes`. Throws DamagedBytes if the number is
/// above `most` or its bytes are cut off.
CPD_API std::int64_t TakeNumber(std::span<const std::uint8_t>& bytes, std::int64_t most);

/// Returns the largest number of bytes that PutPlaces writes for the indices of any selection from
/// n values.
constexpr std::int64_t MostPlaceBytes(std::int64_t n) { return kMostNumberBytes + (n + 15) / 8; }
/// Encodes the differences between some indices and `begin`. The indices (`places`) must ascend and
/// lie in begin … begin + n - 1. Returns the address after the last byte.
CPD_API std::uint8_t* PutPlaces(std::span<const std::int64_t> places, std::int64_t begin,
                                std::int64_t n, std::uint8_t* to);
/// Decodes indices from the front of `bytes`, and removes their bytes. Throws DamagedBytes unless
/// the bytes encode ascending indices below n.
CPD_API std::vector<std::int64_t> TakePlaces(std::span<const std::uint8_t>& bytes, std::int64_t n);

}  // namespace cpd
