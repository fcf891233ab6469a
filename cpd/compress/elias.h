// SPDX-License-Identifier: Apache-2.0
//
// Elias recursive (omega) codes of the levels of a bucket, as in QSGD (Alistarh et al. 2017,
// section 3.1 and appendix A), except for the first number of a sparse bucket. In the QSGD paper,
// that number is the bucket's norm. These codes do not contain the norm: write it to the same
// stream (BitWriter::Put), or elsewhere. Here the first number is the number of nonzero levels,
// which the paper does not send. That number shows where the bucket ends, and takes 1 to 17 bits
// for a bucket of 512 values.
//
// Elias(k), k >= 1: write "0"; while k > 1, put k in binary in front, and let k be one less than
// the number of its bits. The lengths are 1 bit for 1; 3 bits for 2…3; 6 for 4…7; 7 for 8…15; 11
// for 16…31. A sign is one bit, 1 for negative levels. There are two layouts:
// - dense: every level as Elias(|level| + 1), followed by its sign unless the level is 0;
// - sparse: Elias(nonzeros + 1), then, for each nonzero level, Elias(gap), its sign and
//   Elias(|level|). The gap is the level's index minus the index of the nonzero level before. For
//   the first nonzero level, the index before is -1; so if level 0 of the bucket is nonzero, its
//   gap is 1.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "cpd/compress/bits.h"
#include "cpd/export.h"

namespace cpd {

enum class EliasLayout : std::uint8_t { dense, sparse };

/// Returns the number of bits of Elias(k), k >= 1.
constexpr int EliasLength(std::uint32_t k) {
  int length = 1;
  while (k > 1) {
    const int bits = std::bit_width(k);
    length += bits;
    k = static_cast<std::uint32_t>(bits - 1);
  }
  return length;
}

/// Writes Elias(k), k >= 1, in at most 43 bits.
CPD_API void PutElias(std::uint32_t k, BitWriter& to);
/// Reads a number that PutElias wrote. Throws DamagedBytes unless the number is 1…most.
CPD_API std::uint32_t ReadElias(BitReader& from, std::uint32_t most);

/// Returns the largest number of bits that n levels can take if |level| <= most < 2^31.
CPD_API std::int64_t EliasMostBits(EliasLayout layout, std::int64_t n, std::int32_t most);
/// Returns the number of bits that EliasEncode writes for these levels. In this function and in the
/// functions below, Level is int8_t or int16_t, and there are at most 2^16 levels.
template <class Level>
CPD_API std::int64_t EliasBits(EliasLayout layout, std::span<const Level> levels);
/// Writes the levels. Throws std::length_error if the writer is full.
template <class Level>
CPD_API void EliasEncode(EliasLayout layout, std::span<const Level> levels, BitWriter& to);
/// Reads levels until `levels` is full. Each |level| is at most `most`, which must fit a Level.
/// Throws DamagedBytes if the bits do not encode that number of such levels, or end too early;
/// `levels` is then unspecified. Reads only the reader's bytes, in time proportional to the number
/// of levels.
template <class Level>
CPD_API void EliasDecode(EliasLayout layout, std::int32_t most, BitReader& from,
                         std::span<Level> levels);

}  // namespace cpd
