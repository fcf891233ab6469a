// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/elias.h"

#include <algorithm>
#include <array>
#include <string>

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

/// Elias(k): the code of k's number of bits less 1 without its "0", then k in binary, then "0".
constexpr Code CodeOf(uint32_t k) {
  if (k == 1) return {0, 1};
  const int bits = std::bit_width(k);
  const Code front = CodeOf(static_cast<uint32_t>(bits - 1));
  return {front.bits >> 1 << (bits + 1) | uint64_t{k} << 1, front.length + bits};
}

constexpr uint32_t Magnitude(int32_t level) {
  return level < 0 ? 0U - static_cast<uint32_t>(level) : static_cast<uint32_t>(level);
}

/// The code of a level: the sign follows the number in the dense layout, precedes it in the sparse.
constexpr Code DenseCode(int32_t level) {
  const Code code = CodeOf(Magnitude(level) + 1);
  if (level == 0) return code;
  return {code.bits << 1 | (level < 0 ? 1U : 0U), code.length + 1};
}
constexpr Code SparseCode(int32_t level) {
  const Code code = CodeOf(Magnitude(level));
  return {code.bits | (level < 0 ? uint64_t{1} << code.length : 0), code.length + 1};
}

/// Levels up to kSmall have codes of at most 14 bits, so that four are held at once.
constexpr int32_t kSmall = 126;
constexpr int kLongestSmall = 14;
static_assert(4 * kLongestSmall <= BitWriter::kHeld);

template <class Of>
constexpr std::array<BitCode, 2 * kSmall + 1> TableOf(Of code_of) {
  std::array<BitCode, 2 * kSmall + 1> table;
  for (int32_t level = -kSmall; level <= kSmall; ++level) {
    const Code code = code_of(level);
    table[static_cast<std::size_t>(int64_t{level} + kSmall)] = {static_cast<uint32_t>(code.bits),
                                                                code.length};
  }
  return table;
}
constexpr auto kDenseCodes = TableOf(DenseCode);
constexpr auto kSparseCodes =
    TableOf([](int32_t level) { return level == 0 ? Code{} : SparseCode(level); });
/// The codes of gaps 1 … kSmall; entry 0 is not used.
constexpr auto kGapCodes = [] {
  std::array<BitCode, kSmall + 1> table{};
  for (uint32_t k = 1; k <= kSmall; ++k) {
    table[k] = {static_cast<uint32_t>(CodeOf(k).bits), CodeOf(k).length};
  }
  return table;
}();

constexpr bool IsSmall(int32_t level) {
  return static_cast<uint32_t>(level + kSmall) <= uint32_t{2 * kSmall};
}
const BitCode& Of(const std::array<BitCode, 2 * kSmall + 1>& table, int32_t level) {
  return table[static_cast<std::size_t>(int64_t{level} + kSmall)];
}

void Put(const Code& code, BitWriter& to) { to.Put(code.bits, code.length); }
void Hold(const BitCode& code, BitWriter& to) { to.Hold(code.bits, code.length); }

void EncodeDense(std::span<const int32_t> levels, BitWriter& to) {
  const auto n = levels.size();
  std::size_t i = 0;
  while (i < n) {
    if (n - i >= 4 && IsSmall(levels[i]) && IsSmall(levels[i + 1]) && IsSmall(levels[i + 2]) &&
        IsSmall(levels[i + 3])) [[likely]] {
      for (std::size_t j = 0; j < 4; ++j) Hold(Of(kDenseCodes, levels[i + j]), to);
      to.Flush();
      i += 4;
    } else {
      Put(DenseCode(levels[i++]), to);
    }
  }
}

/// Calls run(gap, level) for every level that is not 0, in order.
template <class Run>
void ForNonzero(std::span<const int32_t> levels, Run run) {
  constexpr std::size_t kPlaces = 512;
  std::array<std::size_t, kPlaces> places;
  std::size_t last = static_cast<std::size_t>(-1);
  for (std::size_t begin = 0; begin < levels.size(); begin += kPlaces) {
    const std::size_t end = std::min(levels.size(), begin + kPlaces);
    std::size_t count = 0;
    for (std::size_t i = begin; i < end; ++i) {  // no branch depends on a level
      places[count] = i;
      count += levels[i] != 0 ? 1 : 0;
    }
    for (std::size_t k = 0; k < count; ++k) {
      run(static_cast<uint32_t>(places[k] - last), levels[places[k]]);
      last = places[k];
    }
  }
}

uint32_t Nonzeros(std::span<const int32_t> levels) {
  return static_cast<uint32_t>(levels.size() -
                               static_cast<std::size_t>(std::ranges::count(levels, 0)));
}

void EncodeSparse(std::span<const int32_t> levels, BitWriter& to) {
  PutElias(Nonzeros(levels) + 1, to);
  ForNonzero(levels, [&](uint32_t gap, int32_t level) {
    if (gap <= kSmall && IsSmall(level)) [[likely]] {
      Hold(kGapCodes[gap], to);
      Hold(Of(kSparseCodes, level), to);
      to.Flush();
    } else {
      PutElias(gap, to);
      Put(SparseCode(level), to);
    }
  });
}

int64_t DenseBits(std::span<const int32_t> levels) {
  int64_t bits = 0;
  for (const int32_t level : levels) {
    bits += IsSmall(level) ? Of(kDenseCodes, level).length : DenseCode(level).length;
  }
  return bits;
}

int64_t SparseBits(std::span<const int32_t> levels) {
  int64_t bits = EliasLength(Nonzeros(levels) + 1);
  ForNonzero(levels, [&](uint32_t gap, int32_t level) {
    bits += gap <= kSmall ? kGapCodes[gap].length : EliasLength(gap);
    bits += IsSmall(level) ? Of(kSparseCodes, level).length : SparseCode(level).length;
  });
  return bits;
}

// ---- decoders: what the next kWindow bits hold

constexpr int kWindow = 12;
constexpr int kWindows = BitReader::kSeen / kWindow;
/// Codes of larger levels seldom end within a window.
constexpr int32_t kShort = 15;

/// The number whose code begins a window; `length` 0: the code does not end within the window's
/// bits, or the number is at least 2^32.
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

/// Where a code contains its number k, by the code's first bits, for numbers below 2^16.
struct NumberEntry {
  std::uint8_t before = 0;  ///< bits in front of k
  std::uint8_t above = 0;   ///< 64 less k's bits
  std::uint8_t length = 0;  ///< of the code, whose last bit is 0 unless the number is larger
  std::uint8_t one = 0;     ///< 1: k is 1, which the code does not contain
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

/// Throws DamagedBytes for a number above `most`.
Number NextNumber(uint64_t window, uint32_t most) {
  const NumberEntry& entry = kNumbers[window >> (64 - kFirst)];
  Number number{static_cast<uint32_t>(window << entry.before >> entry.above) | entry.one,
                entry.length};
  if ((window << (entry.length - 1) >> 63) != 0) number = NumberIn(window, BitReader::kSeen);
  if (number.length > 0 && number.k <= most) [[likely]]
    return number;
  throw DamagedBytes("a number is above " + std::to_string(most));
}

/// Up to four levels that a window holds. `count` 0: the first does not end in it.
struct DenseEntry {
  std::array<std::int8_t, 4> levels{};
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

/// Up to two levels that are not 0. Where there is one, the second repeats it, with a gap of 0.
struct SparseEntry {
  std::array<std::uint8_t, 2> gaps{};
  std::array<std::int8_t, 2> levels{};
  std::uint8_t count = 0, bits = 0;
};
constexpr SparseEntry SparseEntryOf(uint64_t window) {
  SparseEntry entry;
  while (entry.count < 2) {
    const uint64_t rest = window << entry.bits;
    const Number gap = NumberIn(rest, kWindow - entry.bits);
    const int left = kWindow - entry.bits - gap.length - 1;
    if (gap.length == 0 || left <= 0) break;
    const Number level = NumberIn(rest << (gap.length + 1), left);
    if (level.length == 0) break;
    const bool negative = (rest << gap.length >> 63) == 1;
    const auto magnitude = static_cast<int>(level.k);
    entry.gaps[entry.count] = static_cast<std::uint8_t>(gap.k);
    entry.levels[entry.count++] = static_cast<std::int8_t>(negative ? -magnitude : magnitude);
    entry.bits = static_cast<std::uint8_t>(entry.bits + gap.length + 1 + level.length);
  }
  if (entry.count == 1) entry.levels[1] = entry.levels[0];
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

/// Applies the sign without a branch, which would be mispredicted every other time.
int32_t Signed(uint32_t magnitude, bool negative) {
  const uint32_t sign = negative ? ~0U : 0U;
  return static_cast<int32_t>((magnitude ^ sign) - sign);
}

void CheckRange(std::span<const int32_t> levels, int32_t most) {
  uint32_t largest = 0;
  for (const int32_t level : levels) largest = std::max(largest, Magnitude(level));
  if (largest > static_cast<uint32_t>(most)) {
    throw DamagedBytes("level " + std::to_string(largest) + " is above " + std::to_string(most));
  }
}

void DecodeDense(int32_t most, BitReader& from, std::span<int32_t> levels) {
  const auto& entries = EntriesOf<DenseEntry>(DenseEntryOf);
  const int lookups = most <= kShort ? kWindows : 0;
  int32_t* to = levels.data();
  int32_t* const end = to + levels.size();
  while (to < end) {
    uint64_t window = from.Peek();
    int bits = 0;
    for (int i = 0; i < lookups && end - to >= 4; ++i) {
      const DenseEntry& entry = entries[window >> (64 - kWindow)];
      if (entry.count == 0) break;
      for (std::size_t j = 0; j < 4; ++j) to[j] = +entry.levels[j];
      to += entry.count;
      window <<= entry.bits;
      bits += entry.bits;
    }
    if (bits == 0) {
      const Number number = NextNumber(window, static_cast<uint32_t>(most) + 1);
      const bool negative = window << number.length >> 63 != 0;
      *to++ = Signed(number.k - 1, negative);
      bits = number.length + (number.k > 1 ? 1 : 0);
    }
    from.Skip(bits);
  }
}

void DecodeSparse(int32_t most, BitReader& from, std::span<int32_t> levels) {
  const auto& entries = EntriesOf<SparseEntry>(SparseEntryOf);
  std::ranges::fill(levels, 0);
  const auto n = static_cast<int64_t>(levels.size());
  int64_t left = int64_t{ReadElias(from, static_cast<uint32_t>(n) + 1)} - 1;
  int64_t last = -1;
  const int lookups = most <= kShort ? kWindows : 0;
  while (left > 0) {
    uint64_t window = from.Peek();
    int bits = 0;
    for (int i = 0; i < lookups && left >= 2; ++i) {
      const SparseEntry& entry = entries[window >> (64 - kWindow)];
      const int64_t first = last + entry.gaps[0];
      const int64_t second = first + entry.gaps[1];
      if (entry.count == 0 || second >= n) break;
      levels[static_cast<std::size_t>(first)] = +entry.levels[0];
      levels[static_cast<std::size_t>(second)] = +entry.levels[1];
      last = second;
      left -= entry.count;
      window <<= entry.bits;
      bits += entry.bits;
    }
    from.Skip(bits);
    if (bits > 0) continue;
    last += ReadElias(from, static_cast<uint32_t>(n - 1 - last));
    const bool negative = from.Read(1) == 1;
    levels[static_cast<std::size_t>(last)] =
        Signed(ReadElias(from, static_cast<uint32_t>(most)), negative);
    --left;
  }
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
  // A gap g takes at most 2 g - 1 bits, so that the code is longest where no level is 0.
  const int64_t each = most > 0 ? 2 + EliasLength(largest) : 0;
  return EliasLength(static_cast<uint32_t>(n) + 1) + n * each;
}

int64_t EliasBits(EliasLayout layout, std::span<const int32_t> levels) {
  return layout == EliasLayout::dense ? DenseBits(levels) : SparseBits(levels);
}

void EliasEncode(EliasLayout layout, std::span<const int32_t> levels, BitWriter& to) {
  BitWriter own = to;  // a local copy, which the bytes written cannot alias
  if (layout == EliasLayout::dense) {
    EncodeDense(levels, own);
  } else {
    EncodeSparse(levels, own);
  }
  to = own;
}

void EliasDecode(EliasLayout layout, int32_t most, BitReader& from, std::span<int32_t> levels) {
  if (layout == EliasLayout::dense) {
    DecodeDense(most, from, levels);
  } else {
    DecodeSparse(most, from, levels);
  }
  from.Check();
  CheckRange(levels, most);
}

}  // namespace cpd
