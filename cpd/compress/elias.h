// SPDX-License-Identifier: Apache-2.0
//
// Elias recursive (omega) codes of the levels of a bucket: QSGD's (Alistarh et al. 2017, section
// 3.1 and appendix A), except for the front of a sparse bucket. There the paper has the bucket's
// norm, which is not part of these codes: write it to the same stream (BitWriter::Put), or
// elsewhere. These codes also have the number of nonzero levels, which the paper does not send. The
// number ends the bucket, and takes 1 to 17 bits of one of 512 values.
//
// Elias(k), k >= 1: write "0"; while k > 1, put k in binary in front and let k be the number of its
// bits less 1. Lengths: 1 takes 1 bit, 2…3 take 3, 4…7 6, 8…15 7, 16…31 11. A sign is one bit, 1
// for negative levels.
//   dense    every level as Elias(|level| + 1), and its sign unless it is 0
//   sparse   Elias(nonzeros + 1), then of each level that is not 0 Elias(gap), its sign and
//            Elias(|level|); the gap is its index less that of the one before, which for the first
//            is -1: its gap is 1 where the first level is not 0
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "cpd/compress/bits.h"
#include "cpd/export.h"

namespace cpd {

enum class EliasLayout : std::uint8_t { dense, sparse };

/// Bits of Elias(k), k >= 1.
constexpr int EliasLength(std::uint32_t k) {
  int length = 1;
  while (k > 1) {
    const int bits = std::bit_width(k);
    length += bits;
    k = static_cast<std::uint32_t>(bits - 1);
  }
  return length;
}

/// Writes Elias(k), k >= 1: at most 43 bits.
CPD_API void PutElias(std::uint32_t k, BitWriter& to);
/// Reads a number. Throws DamagedBytes unless it is 1…most.
CPD_API std::uint32_t ReadElias(BitReader& from, std::uint32_t most);

/// The most bits that n levels with |level| <= most < 2^31 take.
CPD_API std::int64_t EliasMostBits(EliasLayout layout, std::int64_t n, std::int32_t most);
/// Bits that EliasEncode writes for these levels. Level is here and below int8_t or int16_t, and
/// there are at most 2^16 levels.
template <class Level>
CPD_API std::int64_t EliasBits(EliasLayout layout, std::span<const Level> levels);
/// Writes the levels. Throws std::length_error where the writer is full.
template <class Level>
CPD_API void EliasEncode(EliasLayout layout, std::span<const Level> levels, BitWriter& to);
/// Fills `levels`, each |level| <= most, which a Level holds. Throws DamagedBytes if the bits do
/// not encode as many such levels, or end before them; `levels` is then unspecified. Reads nothing
/// but the reader's bytes, in time proportional to n.
template <class Level>
CPD_API void EliasDecode(EliasLayout layout, std::int32_t most, BitReader& from,
                         std::span<Level> levels);

}  // namespace cpd
