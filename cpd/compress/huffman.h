// SPDX-License-Identifier: Apache-2.0
//
// Canonical Huffman codes (Huffman 1952): of symbols below 2^31 of which few are used. A code is
// known by the lengths: shorter codes come first, and among equal lengths smaller symbols.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cpd/compress/bits.h"
#include "cpd/export.h"

namespace cpd {

/// No code is longer: a tree of depth d has at least Fibonacci(d + 2) values, and
/// Fibonacci(35) > kMostHuffmanValues.
constexpr int kMostHuffmanLength = 32;
constexpr std::int64_t kMostHuffmanValues = std::int64_t{1} << 23;

struct HuffmanCode {
  std::vector<std::uint32_t> symbols;  ///< those in use, ascending
  std::vector<std::uint8_t> lengths;   ///< of their codes: 1…32, or 0 of a symbol that is alone
};

/// Lengths for symbols that occur so often, each at least once, kMostHuffmanValues in all: of all
/// prefix codes one with the fewest bits. Of equal counts the smaller symbol joins first, and a
/// symbol before a tree.
CPD_API std::vector<std::uint8_t> HuffmanLengths(std::span<const std::uint32_t> counts);
/// The codes of such lengths, in the order of the symbols.
CPD_API std::vector<BitCode> CanonicalCodes(std::span<const std::uint8_t> lengths);

/// Elias(symbols + 1); then of each symbol Elias(gap), where the gap is the symbol less the one
/// before, the first's counted from -1, and Elias(z + 1), where z is twice the length's step up
/// from the symbol before (the first's from 0), or twice its step down less 1.
CPD_API void PutHuffmanCode(const HuffmanCode& code, BitWriter& to);
/// Bits that it takes.
CPD_API std::int64_t HuffmanCodeBits(const HuffmanCode& code);
/// At most `most` symbols, each below `alphabet`. Throws DamagedBytes for lengths of no full tree.
CPD_API HuffmanCode ReadHuffmanCode(BitReader& from, std::uint32_t alphabet, std::int64_t most);

class CPD_API HuffmanDecoder {
 public:
  /// Lengths of a full tree, or one that is 0; values[i] is what symbol i stands for.
  HuffmanDecoder(std::span<const std::uint8_t> lengths, std::span<const std::uint32_t> values);
  /// The values of `count` codes of one stream and of `behind` codes of another, side by side, 4
  /// bytes each, to `to`. Throws DamagedBytes where the bytes of one end before.
  void Decode(BitReader& from, std::int64_t count, BitReader& second, std::int64_t behind,
              void* to) const;

 private:
  static constexpr int kWindow = 11;
  struct Entry {
    std::uint32_t value = 0;
    std::int32_t length = 0;  ///< 0: the code is longer than the window
  };
  [[nodiscard]] Entry Next(std::uint64_t window) const;

  std::array<Entry, 1 << kWindow> entries_{};
  /// Of each length: codes whose first 32 bits are below this one are no longer; the place of code
  /// 0.
  std::array<std::uint64_t, kMostHuffmanLength + 1> end_{};
  std::array<std::int64_t, kMostHuffmanLength + 1> first_{};
  std::vector<std::uint32_t> values_;  ///< in the order of the codes
};

}  // namespace cpd
