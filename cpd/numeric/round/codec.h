// SPDX-License-Identifier: Apache-2.0
//
// Packs codes densely: code i of n bits takes bits i * n … i * n + n - 1 of the stream, with the
// least significant bit first, byte by byte. round.h defines the value of a code.
#pragma once

#include "cpd/numeric/lanes/lanes.h"

namespace cpd {
inline namespace CPD_ISA {

constexpr int kCodesPerGroup = 8;  ///< eight codes of any width end on a byte

/// Writes `count` <= 8 codes of `bits` bits to ceil(count * bits / 8) bytes. Unused bits of the
/// last byte are 0. This function is the definition of packing.
CPD_FN constexpr void pack_group(const std::uint32_t* codes, int count, int bits,
                                 std::uint8_t* packed) {
  std::uint64_t pending = 0;
  int filled = 0;
  for (int i = 0; i < count; ++i) {
    pending |= static_cast<std::uint64_t>(codes[i]) << filled;
    filled += bits;
    while (filled >= 8) {
      *packed++ = static_cast<std::uint8_t>(pending);
      pending >>= 8;
      filled -= 8;
    }
  }
  if (filled > 0) *packed = static_cast<std::uint8_t>(pending);
}

/// Reads `count` <= 8 codes of `bits` bits as pack_group wrote them. Reads no byte after the last
/// code's bytes.
CPD_FN constexpr void unpack_group(const std::uint8_t* packed, int count, int bits,
                                   std::uint32_t* codes) {
  std::uint64_t pending = 0;
  int filled = 0;
  const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << bits) - 1);
  for (int i = 0; i < count; ++i) {
    while (filled < bits) {
      pending |= static_cast<std::uint64_t>(*packed++) << filled;
      filled += 8;
    }
    codes[i] = static_cast<std::uint32_t>(pending) & mask;
    pending >>= bits;
    filled -= bits;
  }
}

/// The number of bytes after a packed block that a Packer may overwrite and an Unpacker may read.
constexpr int kPackSlack = 64;

/// Packs whole blocks of codes as pack_group does. The number of codes in a block is a multiple of
/// 32 times the lanes of U. U: a vector of 32-bit lanes.
template <class U>
class Packer;
/// Unpacks whole blocks of codes as unpack_group does. The number of codes in a block is a multiple
/// of 32 times the lanes of U. U: a vector of 32-bit lanes.
template <class U>
class Unpacker;

/// Packs codes in groups of eight by scalar code.
template <>
class Packer<std::uint32_t> {
 public:
  CPD_FN explicit Packer(int bits) : bits_(bits) {}
  CPD_CALL void pack(const std::uint32_t* codes, int count, std::uint8_t* packed) const {
    for (int i = 0; i < count; i += kCodesPerGroup, packed += bits_) {
      pack_group(codes + i, kCodesPerGroup, bits_, packed);
    }
  }

 private:
  int bits_;
};
template <>
class Unpacker<std::uint32_t> {
 public:
  CPD_FN explicit Unpacker(int bits) : bits_(bits) {}
  CPD_FN void unpack(const std::uint8_t* packed, int count, std::uint32_t* codes) const {
    for (int i = 0; i < count; i += kCodesPerGroup, packed += bits_) {
      unpack_group(packed, kCodesPerGroup, bits_, codes + i);
    }
  }

 private:
  int bits_;
};

/// Packs codes of n bits with vectors of 4, 8 or 16 lanes U of 32 bits. Neighboring codes are
/// merged, a | b << n, until a merged word has 8 bits or at least 16 bits. Merged words of 8 bits
/// are stored as bytes, merged words of 16 bits as 16-bit words, and codes of 4 bits as nibbles.
/// For all other sizes, every output word is the OR of at most three merged words, each moved by
/// one permutation and one shift. With 4 lanes, the bits of four merged words of odd size do not
/// fill whole bytes; such codes are packed in groups of eight by scalar code.
template <class U>
class Packer {
 public:
  CPD_CALL explicit Packer(int bits) : bits_(bits), piece_(bits) {
    for (; piece_ < 16 && piece_ != 8; piece_ *= 2) ++merges_;
    for (int word = 0; word < kLanes; ++word) {
      const int first = 32 * word / piece_;
      const int skip = 32 * word - first * piece_;
      for (int j = 0; j < 3; ++j) from_[j][word] = static_cast<unsigned>((first + j) % kLanes);
      right_[word] = static_cast<unsigned>(skip);
      left1_[word] = static_cast<unsigned>(piece_ - skip);
      left2_[word] = static_cast<unsigned>(2 * piece_ - skip);
    }
  }

  /// `codes` holds `count` codes and is overwritten. `packed` receives count * bits / 8 bytes;
  /// kPackSlack more bytes must be writable.
  CPD_CALL void pack(std::uint32_t* codes, int count, std::uint8_t* packed) const {
    if (bits_ == 4) return narrow<store_nibbles<U>>(codes, count, 4, packed);
    if constexpr (kLanes == 4) {
      if (piece_ % 2 != 0) return Packer<std::uint32_t>(bits_).pack(codes, count, packed);
    }
    int bits = bits_;
    for (int merge = 0; merge < merges_; ++merge, bits *= 2, count /= 2) {
      for (int i = 0; i < count; i += 2 * kLanes) {
        const U a = merge_pairs(load<U>(codes + i), bits);
        const U b = merge_pairs(load<U>(codes + i + kLanes), bits);
        store(codes + i / 2, even_words(a, b));
      }
    }
    if (piece_ == 8) return narrow<store_bytes<U>>(codes, count, 8, packed);
    if (piece_ == 16) return narrow<store_halves<U>>(codes, count, 16, packed);
    for (int i = 0; i < count; i += kLanes, packed += piece_ * kLanes / 8) {
      const U x = load<U>(codes + i);
      store(packed, shift_right(permute(x, from_[0]), right_) |
                        shift_left(permute(x, from_[1]), left1_) |
                        shift_left(permute(x, from_[2]), left2_));
    }
  }

 private:
  static constexpr int kLanes = sizeof(U) / 4;

  template <auto kStore>
  CPD_FN static void narrow(const std::uint32_t* codes, int count, int bits, std::uint8_t* packed) {
    for (int i = 0; i < count; i += kLanes) kStore(packed + i * bits / 8, load<U>(codes + i));
  }

  int bits_, piece_;
  int merges_ = 0;
  U from_[3] = {};
  U right_ = {}, left1_ = {}, left2_ = {};
};

/// Unpacks with vectors. Code j of n bits begins in word floor(j n / 32) at bit j n mod 32, so each
/// lane needs two permutations and two shifts. Codes of 8 and 16 bits are zero-extended. Eight
/// codes of less than 16 bits fill at most 16 bytes. Instruction sets that can gather bytes load
/// into each lane the four bytes from byte floor(j n / 8) on, and shift once. With 4 lanes, the
/// bits of four codes of odd size do not fill whole bytes; such codes are unpacked in groups of
/// eight by scalar code.
template <class U>
class Unpacker {
 public:
  CPD_FN explicit Unpacker(int bits)
      : bits_(bits), mask_(splat<U>((std::uint64_t{1} << bits) - 1)) {
    for (int j = 0; j < kLanes; ++j) {
      const auto bit = static_cast<unsigned>(j * bits);
      for (unsigned k = 0; k < 4; ++k) bytes_[j] |= (bit / 8 + k) % 16 << (8 * k);
      bit_[j] = bit % 8;
      word_[j] = bit / 32;
      next_[j] = (bit / 32 + 1) % kLanes;
      right_[j] = bit % 32;
      left_[j] = 32 - bit % 32;
    }
  }

  /// Reads count * bits / 8 bytes of `packed`; kPackSlack more bytes must be readable.
  CPD_FN void unpack(const std::uint8_t* packed, int count, std::uint32_t* codes) const {
    if (bits_ == 8) return widen<load_bytes<U>>(packed, count, codes);
    if (bits_ == 16) return widen<load_halves<U>>(packed, count, codes);
    if constexpr (kLanes == 4) {
      if (bits_ % 2 != 0) return Unpacker<std::uint32_t>(bits_).unpack(packed, count, codes);
    }
    if constexpr (kGathersBytes<U>) {
      if (bits_ < 16) {
        return each(packed, count, codes, [&](const std::uint8_t* from) {
          return shift_right(gather_bytes(from, bytes_), bit_);
        });
      }
    }
    each(packed, count, codes, [&](const std::uint8_t* from) {
      const U x = load<U>(from);
      return shift_right(permute(x, word_), right_) | shift_left(permute(x, next_), left_);
    });
  }

 private:
  static constexpr int kLanes = sizeof(U) / 4;

  /// Unpacks `count` codes, one vector at a time. read(p) must return lanes whose low bits are the
  /// codes that begin at byte p.
  template <class Read>
  CPD_FN void each(const std::uint8_t* packed, int count, std::uint32_t* codes, Read read) const {
    for (int i = 0; i < count; i += kLanes, packed += bits_ * kLanes / 8) {
      store(codes + i, read(packed) & mask_);
    }
  }

  template <auto kLoad>
  CPD_FN void widen(const std::uint8_t* packed, int count, std::uint32_t* codes) const {
    for (int i = 0; i < count; i += kLanes) store(codes + i, kLoad(packed + i * bits_ / 8));
  }

  int bits_;
  U mask_;
  U bytes_ = {}, bit_ = {};
  U word_ = {}, next_ = {}, right_ = {}, left_ = {};
};

}  // namespace CPD_ISA
}  // namespace cpd
