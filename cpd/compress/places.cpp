// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/places.h"

#include <bit>
#include <string>

#include "cpd/compress/bits.h"
#include "cpd/compress/codec.h"
#include "cpd/numeric/scaled/gap_codes.h"

namespace cpd {

std::uint8_t* PutNumber(std::int64_t number, std::uint8_t* to) {
  auto rest = static_cast<std::uint64_t>(number);
  for (; rest >= 128; rest >>= 7) *to++ = static_cast<std::uint8_t>(128 | (rest & 127));
  *to++ = static_cast<std::uint8_t>(rest);
  return to;
}

std::int64_t TakeNumber(std::span<const std::uint8_t>& bytes, std::int64_t most) {
  std::uint64_t number = 0;
  for (std::int64_t i = 0; i < kMostNumberBytes; ++i) {
    if (bytes.empty()) break;
    const std::uint8_t byte = bytes.front();
    bytes = bytes.subspan(1);
    number |= std::uint64_t{byte & 127U} << (7 * i);
    if (byte >= 128) continue;
    if (number <= static_cast<std::uint64_t>(most)) return static_cast<std::int64_t>(number);
    break;
  }
  throw DamagedBytes("a number is cut off or more than " + std::to_string(most));
}

std::uint8_t* PutPlaces(std::span<const std::int64_t> places, std::int64_t begin, std::int64_t n,
                        std::uint8_t* to) {
  const auto count = static_cast<std::int64_t>(places.size());
  to = PutNumber(count, to);
  if (count == 0) return to;
  const int low = gap_low_bits(n, count);
  BitWriter bits(std::span(to, static_cast<std::size_t>(MostPlaceBytes(n) - kMostNumberBytes)));
  std::int64_t next = begin;
  for (const std::int64_t place : places) {
    const auto gap = static_cast<std::uint64_t>(place - next);
    std::uint64_t zeros = gap >> low;
    for (; zeros > 24; zeros -= 24) bits.Put(0, 24);
    bits.Put(1, static_cast<int>(zeros) + 1);
    if (low > 0) bits.Put(gap & ((std::uint64_t{1} << low) - 1), low);
    next = place + 1;
  }
  return to + bits.End();
}

std::vector<std::int64_t> TakePlaces(std::span<const std::uint8_t>& bytes, std::int64_t n) {
  const std::int64_t count = TakeNumber(bytes, n);
  if (count == 0) return {};
  const int low = gap_low_bits(n, count);
  if (static_cast<std::int64_t>(bytes.size()) < (count * (low + 1) + 7) / 8) {
    throw DamagedBytes("places are cut off");
  }
  std::vector<std::int64_t> places(static_cast<std::size_t>(count));
  BitReader bits(bytes);
  std::int64_t next = 0;
  for (std::int64_t& place : places) {
    std::int64_t zeros = 0;
    int here = std::countl_zero(bits.Peek());
    while (here >= BitReader::kSeen) {
      bits.Skip(BitReader::kSeen);
      zeros += BitReader::kSeen;
      bits.Check();
      if (zeros > n) throw DamagedBytes("a place lies behind the last value");
      here = std::countl_zero(bits.Peek());
    }
    bits.Skip(here + 1);
    zeros += here;
    const auto rest = low > 0 ? static_cast<std::int64_t>(bits.Read(low)) : std::int64_t{0};
    if (zeros > n >> low || (zeros << low) + rest >= n - next) {
      throw DamagedBytes("a place lies behind the last value");
    }
    place = next + (zeros << low) + rest;
    next = place + 1;
  }
  bytes = bytes.subspan(static_cast<std::size_t>(bits.End()));
  return places;
}

}  // namespace cpd
