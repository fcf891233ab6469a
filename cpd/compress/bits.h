// SPDX-License-Identifier: Apache-2.0
//
// Bit streams for prefix codes. The first bit of the stream is the most significant bit of its
// byte.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>

#include "cpd/compress/codec.h"

namespace cpd {

/// A code: the low `length` bits of `bits`. The other bits are 0.
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

  /// The largest number of bits that one call of Put takes.
  static constexpr int kMost = 56;

  /// Appends the low `length` bits of `bits` to the stream. `length` is at most kMost, and the
  /// other bits must be 0. Throws std::length_error if the memory is full.
  [[gnu::always_inline]] void Put(std::uint64_t bits, int length) {
    held_ = held_ << length | bits;
    count_ += length;
    const std::uint64_t word = detail::FirstUppermost(held_ << (-count_ & 63));
    if (end_ - at_ >= 8) [[likely]] {
      std::memcpy(at_, &word, 8);
    } else {
      PutBytes(word, count_ >> 3, at_, end_);
    }
    at_ += count_ >> 3;
    count_ &= 7;
  }
  void Put(BitCode code) { Put(code.bits, code.length); }
  /// Appends four codes. The codes are first joined in pairs, so that only one append waits for the
  /// bits before it.
  [[gnu::always_inline]] void Put(BitCode a, BitCode b, BitCode c, BitCode d) {
    const int first = a.length + b.length, second = c.length + d.length;
    if (first + second > kMost) [[unlikely]] {
      for (const BitCode code : {a, b, c, d}) Put(code);
      return;
    }
    const std::uint64_t upper = std::uint64_t{a.bits} << b.length | b.bits;
    const std::uint64_t lower = std::uint64_t{c.bits} << d.length | d.bits;
    Put(upper << second | lower, first + second);
  }

  /// Returns the number of bits appended so far.
  [[nodiscard]] std::int64_t bits() const { return 8 * (at_ - begin_) + count_; }
  /// Fills the last byte with zeros. Returns the total number of bytes written.
  std::int64_t End() {
    if (count_ > 0) Put(0, 8 - count_);
    return at_ - begin_;
  }

 private:
  /// Writes the first `count` bytes of a word. Put calls this function near the end of the memory,
  /// where a whole word does not fit. It is static, so that compilers can keep the writer's members
  /// in registers.
  [[gnu::noinline]] static void PutBytes(std::uint64_t word, int count, std::uint8_t* at,
                                         const std::uint8_t* end) {
    if (end - at < count) throw std::length_error("more bits than there is room for");
    std::memcpy(at, &word, static_cast<std::size_t>(count));
  }

  std::uint8_t* begin_;
  std::uint8_t* at_;
  std::uint8_t* end_;
  std::uint64_t held_ = 0;  ///< its low count_ bits, fewer than 8, are not yet written
  int count_ = 0;
};

/// Reads the bits of `bytes`, and no memory after them. Bits past the end read as 0. Check throws
/// DamagedBytes if such bits were read.
class BitReader {
 public:
  explicit BitReader(std::span<const std::uint8_t> bytes)
      : bytes_(bytes.data()), size_(static_cast<std::int64_t>(bytes.size())) {}

  /// The least number of valid bits in the result of Peek.
  static constexpr int kSeen = 56;

  /// Returns the next bits as a word. The first bit is the most significant. The previous call of
  /// Peek determines which word this call loads. So the load does not wait until the codes between
  /// the two calls are decoded (Giesen 2018, "Reading bits in far too many ways").
  [[gnu::always_inline]] std::uint64_t Peek() {
    window_ |= WordAt(byte_) >> count_;
    byte_ += (63 - count_) >> 3;
    count_ |= 56;
    return window_;
  }
  /// Skips up to kSeen bits that Peek returned.
  void Skip(int bits) {
    window_ <<= bits;
    count_ -= bits;
  }
  /// Reads 1…56 bits.
  std::uint64_t Read(int bits) {
    const std::uint64_t read = Peek() >> (64 - bits);
    Skip(bits);
    return read;
  }

  /// Throws DamagedBytes if bits past the end were read.
  void Check() const {
    if (at() > 8 * size_) throw DamagedBytes("codes end behind the last byte");
  }
  /// Skips to the next byte. Returns the number of bytes before that byte. Throws DamagedBytes if
  /// bits past the end were read, or if a skipped bit is not 0.
  std::int64_t End() {
    Check();
    const int rest = static_cast<int>(-at() & 7);
    if (rest > 0 && Read(rest) != 0) throw DamagedBytes("bits behind the last code are not 0");
    return at() >> 3;
  }
  /// Returns the number of bits read so far.
  [[nodiscard]] std::int64_t at() const { return 8 * byte_ - count_; }

 private:
  /// Returns eight bytes as a word. The first byte is the most significant. Bytes past the end are
  /// 0.
  [[nodiscard]] std::uint64_t WordAt(std::int64_t byte) const {
    std::uint64_t word = 0;
    if (size_ - byte >= 8) [[likely]] {
      std::memcpy(&word, bytes_ + byte, 8);
    } else if (byte < size_) {
      std::memcpy(&word, bytes_ + byte, static_cast<std::size_t>(size_ - byte));
    }
    return detail::FirstUppermost(word);
  }

  const std::uint8_t* bytes_;
  std::int64_t size_;
  std::int64_t byte_ = 0;     ///< the first byte not counted in `window_`
  std::uint64_t window_ = 0;  ///< its upper count_ bits are valid; lower bits may be valid too
  int count_ = 0;
};

}  // namespace cpd
