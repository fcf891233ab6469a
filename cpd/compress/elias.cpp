// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/elias.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>

namespace cpd {
namespace {

using std::int32_t;
using std::int64_t;
using std::uint32_t;
using std::uint64_t;

struct Code {
  uint64_t bits = 0;
  int length = 0;
};

/// Returns Elias(k) for k > 1: `front` without its final "0", then k in binary, then "0". `front`
/// is Elias(b - 1), where b is the number of bits of k.
constexpr Code Behind(const Code& front, uint32_t k) {
  const int bits = std::bit_width(k);
  return {front.bits >> 1 << (bits + 1) | uint64_t{k} << 1, front.length + bits};
}
constexpr Code kCodeOfOne{0, 1};
/// kFronts[b] is Elias(b - 1), from which Behind makes the Elias codes of all numbers of b bits.
constexpr auto kFronts = [] {
  std::array<Code, 33> fronts;
  fronts[2] = kCodeOfOne;
  for (uint32_t bits = 3; bits < fronts.size(); ++bits) {
    fronts[bits] = Behind(fronts[static_cast<std::size_t>(std::bit_width(bits - 1))], bits - 1);
  }
  return fronts;
}();
constexpr Code CodeOf(uint32_t k) {
  return k == 1 ? kCodeOfOne : Behind(kFronts[static_cast<std::size_t>(std::bit_width(k))], k);
}

constexpr uint32_t Magnitude(int32_t level) {
  return level < 0 ? 0U - static_cast<uint32_t>(level) : static_cast<uint32_t>(level);
}

/// The code of a level: an Elias code for its magnitude, and a sign bit unless the level is 0. The
/// sign bit follows the Elias code in the dense layout, and precedes it in the sparse layout.
constexpr Code DenseCode(int32_t level) {
  const Code code = CodeOf(Magnitude(level) + 1);
  if (level == 0) return code;
  return {code.bits << 1 | (level < 0 ? 1U : 0U), code.length + 1};
}
constexpr Code SparseCode(int32_t level) {
  const Code code = CodeOf(Magnitude(level));
  return {code.bits | (level < 0 ? uint64_t{1} << code.length : 0), code.length + 1};
}

/// Returns the code of a nonzero level and of its gap, the number of zeros before the level:
/// Elias(zeros + 1), then the level's code.
constexpr Code SparseCode(uint32_t zeros, int32_t level) {
  const Code gap = CodeOf(zeros + 1), code = SparseCode(level);
  return {gap.bits << code.length | code.bits, gap.length + code.length};
}

/// The dense code of each 8-bit level. The index is the level in two's complement, as an unsigned
/// number.
constexpr auto kDenseCodes = [] {
  std::array<BitCode, 256> codes;
  for (int32_t level = -128; level < 128; ++level) {
    const Code code = DenseCode(level);
    codes[static_cast<std::uint8_t>(level)] = {static_cast<uint32_t>(code.bits), code.length};
  }
  return codes;
}();

/// The sparse codes of nonzero 8-bit levels that follow fewer than kFewZeros zeros. The index is
/// 256 times the number of zeros, plus the level in two's complement.
constexpr uint32_t kFewZeros = 32;
constexpr auto kSparseCodes = [] {
  std::array<BitCode, 256 * kFewZeros> codes{};
  for (uint32_t zeros = 0; zeros < kFewZeros; ++zeros) {
    for (int32_t level = -128; level < 128; ++level) {
      if (level == 0) continue;
      const Code code = SparseCode(zeros, level);
      codes[256 * zeros + static_cast<std::uint8_t>(level)] = {static_cast<uint32_t>(code.bits),
                                                               code.length};
    }
  }
  return codes;
}();

template <class Level>
constexpr bool IsSmall(Level level) {
  return static_cast<std::int8_t>(level) == level;
}

void Put(const Code& code, BitWriter& to) { to.Put(code.bits, code.length); }

/// Encodes with a copy of the writer, and returns the copy. The compiler can keep the members of
/// the copy in registers, because a written byte cannot overwrite these members.
template <class Level>
BitWriter EncodeDense(std::span<const Level> levels, BitWriter to) {
  const auto code_of = [](Level level) { return kDenseCodes[static_cast<std::uint8_t>(level)]; };
  const Level* level = levels.data();
  const Level* const end = level + levels.size();
  for (; end - level >= 4; level += 4) {
    if (std::all_of(level, level + 4, IsSmall<Level>)) [[likely]] {
      to.Put(code_of(level[0]), code_of(level[1]), code_of(level[2]), code_of(level[3]));
    } else {
      for (int j = 0; j < 4; ++j) Put(DenseCode(level[j]), to);
    }
  }
  for (; level < end; ++level) Put(DenseCode(*level), to);
  return to;
}

bool IsZeroWord(const void* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word == 0;
}

template <class Level>
uint32_t Nonzeros(std::span<const Level> levels) {
  uint32_t count = 0;
  for (const Level level : levels) count += level != 0 ? 1 : 0;
  return count;
}

/// As EncodeDense.
template <class Level>
BitWriter EncodeSparse(std::span<const Level> levels, BitWriter to) {
  Put(CodeOf(Nonzeros(levels) + 1), to);
  const Level* level = levels.data();
  const Level* const end = level + levels.size();
  constexpr int kWord = sizeof(uint64_t) / sizeof(Level);
  uint32_t row = 0;  // 256 times the zeros before the level, so that it is a row of kSparseCodes
  while (level < end) {
    if (end - level >= kWord && IsZeroWord(level)) {
      row += 256 * kWord;
      level += kWord;
    } else if (end - level >= 4 && row <= 256 * (kFewZeros - 4) &&
               std::all_of(level, level + 4, IsSmall<Level>)) {
      std::array<BitCode, 4> codes;
      for (std::size_t j = 0; j < 4; ++j) {
        codes[j] = kSparseCodes[row + static_cast<std::uint8_t>(level[j])];
        const uint32_t is_one = level[j] != 0 ? 1 : 0;
        row = (row + 256) & (is_one - 1);  // without a jump
      }
      to.Put(codes[0], codes[1], codes[2], codes[3]);
      level += 4;
    } else if (*level++ == 0) {
      row += 256;
    } else {
      Put(CodeOf(row / 256 + 1), to);
      Put(SparseCode(level[-1]), to);
      row = 0;
    }
  }
  return to;
}

template <class Level>
int64_t DenseBits(std::span<const Level> levels) {
  int64_t bits = 0;
  for (const Level level : levels) {
    bits += IsSmall(level) ? kDenseCodes[static_cast<std::uint8_t>(level)].length
                           : DenseCode(level).length;
  }
  return bits;
}

template <class Level>
int64_t SparseBits(std::span<const Level> levels) {
  int64_t bits = EliasLength(Nonzeros(levels) + 1);
  uint32_t zeros = 0;
  for (const Level level : levels) {
    if (zeros < kFewZeros && IsSmall(level)) {
      bits += kSparseCodes[256 * zeros + static_cast<std::uint8_t>(level)].length;
    } else if (level != 0) {
      bits += SparseCode(zeros, level).length;
    }
    const uint32_t is_zero = level == 0 ? 1 : 0;
    zeros = (zeros + 1) & (0U - is_zero);  // without a jump
  }
  return bits;
}

// ---- decoders: what the next kWindow bits hold

constexpr int kWindow = 11;
constexpr int kWindows = BitReader::kSeen / kWindow;
/// The largest level in the decoding tables. A table is indexed by a window, the next kWindow bits
/// of the stream. Codes of larger levels seldom end within a window.
constexpr int32_t kShort = 15;

/// The number whose Elias code begins a window (the next bits of a stream). `length` is 0 if the
/// code does not end within the bits of the window, or if the number is at least 2^32.
struct Number {
  uint32_t k = 0;
  int length = 0;
};
constexpr Number NumberIn(uint64_t window, int bits) {
  uint32_t k = 1;
  int at = 0;
  while (at < bits) {
    if ((window >> (63 - at) & 1) == 0) return {k, at + 1};
    if (k >= 32) break;
    const int next = static_cast<int>(k) + 1;
    k = static_cast<uint32_t>(window << at >> (64 - next));
    at += next;
  }
  return {};
}

/// The position of a number k < 2^16 within its Elias code. Decoders read it from a table that is
/// indexed by the first kFirst bits of the code.
struct NumberEntry {
  std::uint8_t before = 0;  ///< the number of bits before k
  std::uint8_t above = 0;   ///< 64 minus the number of bits of k
  /// The number of bits of k's Elias code, which ends with a 0. If a decoder finds a 1 there, k is
  /// 2^16 or more and the table does not apply.
  std::uint8_t length = 0;
  std::uint8_t one = 0;  ///< 1: k is 1, which the code does not contain
};
constexpr int kFirst = 7;
constexpr NumberEntry NumberEntryOf(uint64_t window) {
  uint32_t k = 1;
  int at = 0, before = 0, bits = 1;
  while (at < kFirst && (window >> (63 - at) & 1) != 0) {
    before = at;
    bits = static_cast<int>(k) + 1;
    at += bits;
    if (at > kFirst) break;
    k = static_cast<uint32_t>(window << before >> (64 - bits));
  }
  return {static_cast<std::uint8_t>(before), static_cast<std::uint8_t>(64 - bits),
          static_cast<std::uint8_t>(at + 1), static_cast<std::uint8_t>(at == 0 ? 1 : 0)};
}
constexpr auto kNumbers = [] {
  std::array<NumberEntry, 1 << kFirst> entries{};
  for (uint64_t i = 0; i < entries.size(); ++i) entries[i] = NumberEntryOf(i << (64 - kFirst));
  return entries;
}();

[[noreturn]] void ThrowAbove(uint32_t most) {
  throw DamagedBytes("a number is above " + std::to_string(most));
}

/// Returns the number whose code begins a window (the next bits of a stream). The window must have
/// at least as many valid bits as the code of `most`. Throws DamagedBytes for a number above
/// `most`.
[[gnu::always_inline]] inline Number NextNumber(uint64_t window, uint32_t most) {
  const NumberEntry& entry = kNumbers[window >> (64 - kFirst)];
  Number number{static_cast<uint32_t>(window << entry.before >> entry.above) | entry.one,
                entry.length};
  if ((window << (entry.length - 1) >> 63) != 0) number = NumberIn(window, BitReader::kSeen);
  if (number.length == 0 || number.k > most) [[unlikely]]
    ThrowAbove(most);
  return number;
}

/// Up to six levels whose codes begin in a window (the next kWindow bits of a stream) and end
/// there. `count` is 0 if the first code does not end in the window.
struct DenseEntry {
  std::array<std::int8_t, 6> levels{};
  std::uint8_t count = 0, bits = 0;
};
constexpr DenseEntry DenseEntryOf(uint64_t window) {
  DenseEntry entry;
  while (entry.count < entry.levels.size()) {
    const int rest = kWindow - entry.bits;
    const Number number = NumberIn(window << entry.bits, rest);
    const int with_sign = number.length + (number.k > 1 ? 1 : 0);
    if (number.length == 0 || with_sign > rest) break;
    const bool negative = number.k > 1 && (window << (entry.bits + number.length) >> 63) == 1;
    const auto magnitude = static_cast<int>(number.k) - 1;
    entry.levels[entry.count++] = static_cast<std::int8_t>(negative ? -magnitude : magnitude);
    entry.bits = static_cast<std::uint8_t>(entry.bits + with_sign);
  }
  return entry;
}

/// Up to three nonzero levels in a window (the next kWindow bits of a stream), each with its
/// distance from the last nonzero level before the window. If there are fewer levels, the last
/// level is repeated.
struct SparseEntry {
  std::array<std::uint8_t, 3> distances{};
  std::array<std::int8_t, 3> levels{};
  std::uint8_t count = 0, bits = 0;
};
constexpr SparseEntry SparseEntryOf(uint64_t window) {
  SparseEntry entry;
  uint32_t distance = 0;
  while (entry.count < entry.levels.size()) {
    const uint64_t rest = window << entry.bits;
    const Number gap = NumberIn(rest, kWindow - entry.bits);
    const int left = kWindow - entry.bits - gap.length - 1;
    if (gap.length == 0 || left <= 0) break;
    const Number level = NumberIn(rest << (gap.length + 1), left);
    if (level.length == 0) break;
    const bool negative = (rest << gap.length >> 63) == 1;
    const auto magnitude = static_cast<int>(level.k);
    distance += gap.k;
    for (std::size_t i = entry.count; i < entry.levels.size(); ++i) {
      entry.distances[i] = static_cast<std::uint8_t>(distance);
      entry.levels[i] = static_cast<std::int8_t>(negative ? -magnitude : magnitude);
    }
    ++entry.count;
    entry.bits = static_cast<std::uint8_t>(entry.bits + gap.length + 1 + level.length);
  }
  return entry;
}

template <class Entry>
const std::array<Entry, 1 << kWindow>& EntriesOf(Entry (*of)(uint64_t)) {
  static const auto table = [of] {
    std::array<Entry, 1 << kWindow> entries;
    for (std::size_t i = 0; i < entries.size(); ++i) entries[i] = of(uint64_t{i} << (64 - kWindow));
    return entries;
  }();
  return table;
}

/// Applies the sign without a branch, because a CPU would mispredict the branch every other time.
int32_t Signed(uint32_t magnitude, bool negative) {
  const uint32_t sign = negative ? ~0U : 0U;
  return static_cast<int32_t>((magnitude ^ sign) - sign);
}

template <class Level>
void CheckRange(std::span<const Level> levels, int32_t most) {
  using Unsigned = std::make_unsigned_t<Level>;
  Unsigned largest = 0;  // of as many bits as a level, so that vectors have many lanes
  for (const Level level : levels) {
    largest = std::max(largest, static_cast<Unsigned>(level < 0 ? -level : level));
  }
  if (largest > most) {
    throw DamagedBytes("level " + std::to_string(largest) + " is above " + std::to_string(most));
  }
}

/// Decodes with a copy of the reader, and returns the copy. The compiler can keep the members of
/// the copy in registers, because a written level cannot overwrite these members.
template <class Level>
BitReader DecodeDense(int32_t most, BitReader from, std::span<Level> levels) {
  const auto& entries = EntriesOf<DenseEntry>(DenseEntryOf);
  const uint32_t largest = static_cast<uint32_t>(most) + 1;
  // One call of Peek returns at least this number of whole codes if all levels are at most `most`.
  // The decoder throws for a longer code, because its level is above `most`.
  const int in_window = BitReader::kSeen / (EliasLength(largest) + 1);
  Level* to = levels.data();
  Level* const end = to + levels.size();
  while (to < end) {
    uint64_t window = from.Peek();
    int bits = 0;
    if constexpr (sizeof(Level) == 1) {
      static_assert(sizeof(DenseEntry) == 8);
      const int lookups = most <= kShort ? kWindows : 0;
      for (int i = 0; i < lookups && end - to >= 8; ++i) {
        const DenseEntry& entry = entries[window >> (64 - kWindow)];
        if (entry.count == 0) break;
        std::memcpy(to, &entry, 8);  // the levels, and two bytes that the next ones replace
        to += entry.count;
        window <<= entry.bits;
        bits += entry.bits;
      }
    }
    const int left = bits == 0 ? in_window : 0;
    for (int i = 0; i < left && to < end; ++i) {
      const Number number = NextNumber(window, largest);
      const bool negative = window << number.length >> 63 != 0;
      *to++ = static_cast<Level>(Signed(number.k - 1, negative));
      const int length = number.length + static_cast<int>(window >> 63);  // 1 alone begins with 0
      window <<= length;
      bits += length;
    }
    from.Skip(bits);
  }
  return from;
}

/// As DecodeDense.
template <class Level>
BitReader DecodeSparse(int32_t most, BitReader from, std::span<Level> levels) {
  const auto& entries = EntriesOf<SparseEntry>(SparseEntryOf);
  std::ranges::fill(levels, Level{0});
  const auto n = static_cast<int64_t>(levels.size());
  const Number count = NextNumber(from.Peek(), static_cast<uint32_t>(n) + 1);
  from.Skip(count.length);
  int64_t left = int64_t{count.k} - 1;
  Level* const begin = levels.data();
  int64_t last = -1;
  while (left > 0) {
    if constexpr (sizeof(Level) == 1) {
      uint64_t window = from.Peek();
      int bits = 0;
      const int lookups = most <= kShort ? kWindows : 0;
      for (int i = 0; i < lookups && left >= 3; ++i) {
        const SparseEntry& entry = entries[window >> (64 - kWindow)];
        if (entry.count == 0 || last + entry.distances[2] >= n) break;
        for (std::size_t j = 0; j < 3; ++j) begin[last + entry.distances[j]] = entry.levels[j];
        last += entry.distances[2];
        left -= entry.count;
        window <<= entry.bits;
        bits += entry.bits;
      }
      from.Skip(bits);
      if (bits > 0) continue;
    }
    static_assert(EliasLength(1 << 16) + 1 + EliasLength(32767) <= BitReader::kSeen);
    const uint64_t window = from.Peek();
    const Number gap = NextNumber(window, static_cast<uint32_t>(n - 1 - last));
    const bool negative = window << gap.length >> 63 != 0;
    const Number level = NextNumber(window << gap.length << 1, static_cast<uint32_t>(most));
    last += gap.k;
    begin[last] = static_cast<Level>(Signed(level.k, negative));
    from.Skip(gap.length + 1 + level.length);
    --left;
  }
  return from;
}

}  // namespace

void PutElias(uint32_t k, BitWriter& to) { Put(CodeOf(k), to); }

uint32_t ReadElias(BitReader& from, uint32_t most) {
  const Number number = NextNumber(from.Peek(), most);
  from.Skip(number.length);
  return number.k;
}

int64_t EliasMostBits(EliasLayout layout, int64_t n, int32_t most) {
  const auto largest = static_cast<uint32_t>(most);
  if (layout == EliasLayout::dense) return n * (EliasLength(largest + 1) + (most > 0 ? 1 : 0));
  // The code is longest if all levels are nonzero. The g - 1 zero levels of a gap g lengthen the
  // gap's code by at most 2 (g - 1) bits. As nonzero levels, they would take at least 3 bits each.
  const int64_t each = most > 0 ? 2 + EliasLength(largest) : 0;
  return EliasLength(static_cast<uint32_t>(n) + 1) + n * each;
}

template <class Level>
int64_t EliasBits(EliasLayout layout, std::span<const Level> levels) {
  return layout == EliasLayout::dense ? DenseBits(levels) : SparseBits(levels);
}

template <class Level>
void EliasEncode(EliasLayout layout, std::span<const Level> levels, BitWriter& to) {
  to = layout == EliasLayout::dense ? EncodeDense(levels, to) : EncodeSparse(levels, to);
}

template <class Level>
void EliasDecode(EliasLayout layout, int32_t most, BitReader& from, std::span<Level> levels) {
  from = layout == EliasLayout::dense ? DecodeDense(most, from, levels)
                                      : DecodeSparse(most, from, levels);
  from.Check();
  CheckRange<Level>(levels, most);
}

template int64_t EliasBits(EliasLayout, std::span<const std::int8_t>);
template int64_t EliasBits(EliasLayout, std::span<const std::int16_t>);
template void EliasEncode(EliasLayout, std::span<const std::int8_t>, BitWriter&);
template void EliasEncode(EliasLayout, std::span<const std::int16_t>, BitWriter&);
template void EliasDecode(EliasLayout, int32_t, BitReader&, std::span<std::int8_t>);
template void EliasDecode(EliasLayout, int32_t, BitReader&, std::span<std::int16_t>);

}  // namespace cpd
