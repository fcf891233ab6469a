// SPDX-License-Identifier: Apache-2.0
//
// Canonical Huffman codes (Huffman 1952). Symbols are numbers below 2^31; the table of a code lists
// only the symbols that have a code. The lengths determine the codes: shorter codes come first;
// among codes of equal length, smaller symbols come first.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cpd/compress/bits.h"
#include "cpd/export.h"

namespace cpd {

/// The largest length of a code. A tree of depth d has at least Fibonacci(d + 2) values, and
/// Fibonacci(35) > kMostHuffmanValues.
constexpr int kMostHuffmanLength = 32;
constexpr std::int64_t kMostHuffmanValues = std::int64_t{1} << 23;

struct HuffmanCode {
  std::vector<std::uint32_t> symbols;  ///< the symbols that are used, ascending
  /// The lengths of the symbols' codes: 1…32, or 0 if there is only one symbol.
  std::vector<std::uint8_t> lengths;
};

/// Returns the lengths of a prefix code with the fewest bits for symbols that occur `counts` times.
/// Each count must be at least 1, and their sum at most kMostHuffmanValues. Among equal counts, the
/// smaller symbol is merged first, and a symbol before a tree.
CPD_API std::vector<std::uint8_t> HuffmanLengths(std::span<const std::uint32_t> counts);
/// Returns the canonical codes with these lengths, in the order of the symbols.
CPD_API std::vector<BitCode> CanonicalCodes(std::span<const std::uint8_t> lengths);

/// Writes Elias(symbols + 1), where `symbols` is the number of symbols. Then writes two numbers for
/// each symbol. The first is Elias(gap), where the gap is the symbol minus the symbol before (-1
/// before the first). The second is Elias(z + 1), where d is the length minus the previous length
/// (0 before the first), and z = 2 d for d >= 0, else -2 d - 1.
CPD_API void PutHuffmanCode(const HuffmanCode& code, BitWriter& to);
/// Returns the number of bits that PutHuffmanCode writes.
CPD_API std::int64_t HuffmanCodeBits(const HuffmanCode& code);
/// Reads the table of a code of at most `most` symbols, each below `alphabet`. Throws DamagedBytes
/// unless the lengths form a full tree.
CPD_API HuffmanCode ReadHuffmanCode(BitReader& from, std::uint32_t alphabet, std::int64_t most);

class CPD_API HuffmanDecoder {
 public:
  /// Makes the decoder of a code from the lengths of its symbols' codes, in bits. They must form a
  /// full binary tree, or be a single 0 for one symbol. The code of symbol i decodes to values[i].
  HuffmanDecoder(std::span<const std::uint8_t> lengths, std::span<const std::uint32_t> values);
  /// Decodes two streams in one loop, which takes codes from both in turn: `count` codes of the
  /// stream `from` and `behind` codes of the stream `second`. Writes the values of the first
  /// stream, then the values of the second stream, to `to`, 4 bytes each. Throws DamagedBytes if
  /// the bytes of a stream end too early.
  void Decode(BitReader& from, std::int64_t count, BitReader& second, std::int64_t behind,
              void* to) const;

 private:
  static constexpr int kWindow = 12;
  struct Entry {
    std::uint32_t value = 0;
    std::int32_t length = 0;
  };
  /// Returns the code at the beginning of a window (the next bits of a stream).
  [[nodiscard]] Entry Next(std::uint64_t window) const;

  /// Two tables, indexed by the first kWindow bits of a window: the length and the value of the
  /// code at its beginning. The length is 0 if the code is longer than kWindow bits.
  std::array<std::uint8_t, 1 << kWindow> window_lengths_{};
  std::array<std::uint32_t, 1 << kWindow> window_values_{};
  /// end_ and first_ are indexed by the length n of a code. If the first 32 bits of a window (the
  /// next bits of a stream) are below end_[n], the window begins with a code of at most n bits. The
  /// sum of a code of n bits and first_[n] is the index in values_ of the code's value.
  std::array<std::uint64_t, kMostHuffmanLength + 1> end_{};
  std::array<std::int64_t, kMostHuffmanLength + 1> first_{};
  std::vector<std::uint32_t> values_;  ///< the values in the order of their codes
};

}  // namespace cpd
