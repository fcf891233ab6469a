// SPDX-License-Identifier: Apache-2.0
//
// Bit streams for prefix codes: the first bit is the most significant of its byte.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>

#include "cpd/compress/codec.h"

namespace cpd {

/// A code: the low `length` bits of `bits`; the bits above are 0.
struct BitCode {
  std::uint32_t bits = 0;
  std::int32_t length = 0;
};

/// Reads 32 bits from four bytes, little-endian.
inline std::uint32_t Word(const std::uint8_t* from) {
  return from[0] | std::uint32_t{from[1]} << 8 | std::uint32_t{from[2]} << 16 |
         std::uint32_t{from[3]} << 24;
}
inline void PutWord(std::uint32_t word, std::uint8_t* to) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::uint8_t>(word >> 8 * i);
}

namespace detail {

inline std::uint64_t FirstUppermost(std::uint64_t word) {
  if constexpr (std::endian::native == std::endian::little) return __builtin_bswap64(word);
  return word;
}

}  // namespace detail

/// Writes bits to the caller's memory.
class BitWriter {
 public:
  explicit BitWriter(std::span<std::uint8_t> to)
      : begin_(to.data()), at_(to.data()), end_(to.data() + to.size()) {}

  /// The most bits that may be held between two calls of Flush.
  static constexpr int kHeld = 56;

  /// Appends `length` bits without writing them, at most kHeld since the last Flush.
  void Hold(std::uint64_t bits, int length) {
    held_ = held_ << length | bits;
    count_ += length;
  }
  /// Writes the whole bytes that are held. Throws std::length_error where the memory is full.
  void Flush() {
    if (count_ == 0) return;
    const std::uint64_t word = detail::FirstUppermost(held_ << (64 - count_));
    if (end_ - at_ >= 8) {
      std::memcpy(at_, &word, 8);
      at_ += count_ / 8;
    } else {
      FlushBytes(word);
    }
    count_ %= 8;
  }
  /// Appends and writes `length` bits, at most kHeld.
  void Put(std::uint64_t bits, int length) {
    Hold(bits, length);
    Flush();
  }
  void Put(BitCode code) { Put(code.bits, code.length); }

  /// Bits appended so far.
  [[nodiscard]] std::int64_t bits() const { return 8 * (at_ - begin_) + count_; }
  /// Fills the last byte with zeros. Returns the number of bytes written in all.
  std::int64_t End() {
    Flush();
    if (count_ > 0) Put(0, 8 - count_);
    return at_ - begin_;
  }

 private:
  /// Writes the whole bytes and nothing behind them: the memory ends within 8 bytes.
  void FlushBytes(std::uint64_t word) {
    const std::int64_t whole = count_ / 8;
    if (whole == 0) return;
    if (end_ - at_ < whole) throw std::length_error("more bits than there is room for");
    std::memcpy(at_, &word, static_cast<std::size_t>(whole));
    at_ += whole;
  }

  std::uint8_t* begin_;
  std::uint8_t* at_;
  std::uint8_t* end_;
  std::uint64_t held_ = 0;  ///< its low count_ bits are not yet written
  int count_ = 0;
};

/// Reads bits of `bytes` and no memory behind them: bits past the end read as 0, which Check
/// reports.
class BitReader {
 public:
  explicit BitReader(std::span<const std::uint8_t> bytes)
      : bytes_(bytes.data()), size_(static_cast<std::int64_t>(bytes.size())) {}

  /// The least number of valid bits that Peek returns.
  static constexpr int kSeen = 57;

  /// The next bits, the first one most significant.
  [[nodiscard]] std::uint64_t Peek() const {
    const std::int64_t byte = at_ >> 3;
    std::uint64_t word = 0;
    if (size_ - byte >= 8) [[likely]] {
      std::memcpy(&word, bytes_ + byte, 8);
    } else if (byte < size_) {
      std::memcpy(&word, bytes_ + byte, static_cast<std::size_t>(size_ - byte));
    }
    return detail::FirstUppermost(word) << (at_ & 7);
  }
  void Skip(int bits) { at_ += bits; }
  /// Reads 1…57 bits.
  std::uint64_t Read(int bits) {
    const std::uint64_t read = Peek() >> (64 - bits);
    Skip(bits);
    return read;
  }

  /// Throws DamagedBytes where bits past the end were read.
  void Check() const {
    if (at_ > 8 * size_) throw DamagedBytes("codes end behind the last byte");
  }
  /// Skips to the next byte. Returns the number of bytes up to there. Throws DamagedBytes as Check
  /// does, or where a skipped bit is not 0.
  std::int64_t End() {
    Check();
    const int rest = static_cast<int>(-at_ & 7);
    if (rest > 0 && Read(rest) != 0) throw DamagedBytes("bits behind the last code are not 0");
    return at_ >> 3;
  }
  /// Bits read so far.
  [[nodiscard]] std::int64_t at() const { return at_; }

 private:
  const std::uint8_t* bytes_;
  std::int64_t size_;
  std::int64_t at_ = 0;
};

}  // namespace cpd
