// SPDX-License-Identifier: Apache-2.0
//
// Canonical Huffman codes (Huffman 1952) of symbols below 2^31, of which few are used. The lengths
// determine a code: shorter codes come first, and among equal lengths smaller symbols.
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
  std::vector<std::uint8_t> lengths;   ///< of their codes: 1…32, or 0 for the only symbol
};

/// The lengths of a prefix code with the fewest bits for symbols that occur `counts` times, each at
/// least once, at most kMostHuffmanValues in all. Of equal counts the smaller symbol is merged
/// first, and a symbol before a tree.
CPD_API std::vector<std::uint8_t> HuffmanLengths(std::span<const std::uint32_t> counts);
/// The codes with these lengths, in the order of the symbols.
CPD_API std::vector<BitCode> CanonicalCodes(std::span<const std::uint8_t> lengths);

/// Writes Elias(symbols + 1). For each symbol follow Elias(gap), where the gap is the symbol minus
/// the one before (-1 before the first), and Elias(z + 1), where z = 2 d for d >= 0, else -2 d - 1.
/// d is the symbol's length minus the previous length (0 before the first).
CPD_API void PutHuffmanCode(const HuffmanCode& code, BitWriter& to);
/// Bits that PutHuffmanCode writes.
CPD_API std::int64_t HuffmanCodeBits(const HuffmanCode& code);
/// Reads a code of at most `most` symbols, each below `alphabet`. Throws DamagedBytes unless the
/// lengths form a full tree.
CPD_API HuffmanCode ReadHuffmanCode(BitReader& from, std::uint32_t alphabet, std::int64_t most);

class CPD_API HuffmanDecoder {
 public:
  /// `lengths` form a full tree, or are a single 0; symbol i decodes to values[i].
  HuffmanDecoder(std::span<const std::uint8_t> lengths, std::span<const std::uint32_t> values);
  /// Decodes `count` codes of one stream and `behind` codes of another, interleaved, and writes the
  /// values of the first and then of the second to `to`, 4 bytes each. Throws DamagedBytes where a
  /// stream's bytes end before.
  void Decode(BitReader& from, std::int64_t count, BitReader& second, std::int64_t behind,
              void* to) const;

 private:
  static constexpr int kWindow = 12;
  struct Entry {
    std::uint32_t value = 0;
    std::int32_t length = 0;
  };
  /// The code that begins a window.
  [[nodiscard]] Entry Next(std::uint64_t window) const;

  /// The length and the value of a code, by its first kWindow bits; length 0 if it is longer.
  std::array<std::uint8_t, 1 << kWindow> window_lengths_{};
  std::array<std::uint32_t, 1 << kWindow> window_values_{};
  /// For each length: codes whose first 32 bits are below end_ are not longer; first_ is the index
  /// in values_ of the length's code 0.
  std::array<std::uint64_t, kMostHuffmanLength + 1> end_{};
  std::array<std::int64_t, kMostHuffmanLength + 1> first_{};
  std::vector<std::uint32_t> values_;  ///< in the order of the codes
};

}  // namespace cpd
