// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/huffman.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "cpd/compress/elias.h"
#include "cpd/compress/radix.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

using std::int64_t;
using std::size_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

constexpr int64_t kValueBytes = 4;

using Counts = std::array<int64_t, kMostHuffmanLength + 1>;

Counts CountLengths(std::span<const uint8_t> lengths) {
  Counts counts{};
  for (const uint8_t length : lengths) ++counts[length];
  return counts;
}

/// Maps the integer `step`, of any sign, to an integer >= 0: 2 * step if step >= 0, else -2 * step
/// - 1.
uint32_t Folded(int step) { return static_cast<uint32_t>(step < 0 ? -2 * step - 1 : 2 * step); }
int Unfolded(uint32_t folded) {
  const auto half = static_cast<int>((folded + 1) / 2);
  return folded % 2 == 1 ? -half : half;
}

/// Calls run(number) for each number of the table that PutHuffmanCode writes, in the order in which
/// the numbers are written.
template <class Run>
void ForNumbers(const HuffmanCode& code, Run run) {
  run(static_cast<uint32_t>(code.symbols.size()) + 1);
  uint32_t next = 0;
  int length = 0;
  for (size_t i = 0; i < code.symbols.size(); ++i) {
    run(code.symbols[i] - next + 1);
    run(Folded(code.lengths[i] - length) + 1);
    next = code.symbols[i] + 1;
    length = code.lengths[i];
  }
}

void CheckFull(std::span<const uint8_t> lengths) {
  uint64_t taken = 0;
  for (const uint8_t length : lengths) taken += uint64_t{1} << (kMostHuffmanLength - length);
  const bool alone = lengths.size() == 1 && lengths[0] == 0;
  if (lengths.empty() || alone) return;
  if (taken != uint64_t{1} << kMostHuffmanLength || lengths.size() == 1) {
    throw DamagedBytes("the lengths are those of no full tree of codes");
  }
}

}  // namespace

std::vector<uint8_t> HuffmanLengths(std::span<const uint32_t> counts) {
  const size_t n = counts.size();
  if (n < 2) return std::vector<uint8_t>(n);
  std::vector<uint64_t> keys(n);  // count and index
  int64_t total = 0;
  for (size_t i = 0; i < n; ++i) {
    keys[i] = uint64_t{counts[i]} << 32 | i;
    total += counts[i];
  }
  if (total > kMostHuffmanValues) {
    throw Error("a Huffman code is made of at most " + std::to_string(kMostHuffmanValues) +
                " values, got " + std::to_string(total));
  }
  SortByBits(keys, 32, std::bit_width(static_cast<uint64_t>(total)));

  // Builds the code's tree: each iteration joins the two trees of smallest count to a new tree. One
  // queue holds the leaves, another queue the joined trees, both by ascending count. So the
  // smallest counts are at the fronts of the queues.
  std::vector<uint32_t> tree_counts(n - 1), tree_parents(n - 1), leaf_parents(n);
  size_t leaf = 0, tree = 0;
  for (size_t made = 0; made < n - 1; ++made) {
    for (int half = 0; half < 2; ++half) {
      const bool takes_leaf =
          leaf < n && (tree == made || keys[leaf] >> 32 <= uint64_t{tree_counts[tree]});
      tree_counts[made] += takes_leaf ? static_cast<uint32_t>(keys[leaf] >> 32) : tree_counts[tree];
      (takes_leaf ? leaf_parents[leaf++] : tree_parents[tree++]) = static_cast<uint32_t>(made);
    }
  }
  std::vector<uint8_t> depths(n - 1);
  for (size_t i = n - 2; i-- > 0;) {
    depths[i] = static_cast<uint8_t>(depths[tree_parents[i]] + 1);
  }
  std::vector<uint8_t> lengths(n);
  for (size_t i = 0; i < n; ++i) {
    lengths[static_cast<uint32_t>(keys[i])] = static_cast<uint8_t>(depths[leaf_parents[i]] + 1);
  }
  return lengths;
}

std::vector<BitCode> CanonicalCodes(std::span<const uint8_t> lengths) {
  const Counts counts = CountLengths(lengths);
  std::array<uint32_t, kMostHuffmanLength + 1> next{};
  for (size_t length = 1; length < kMostHuffmanLength; ++length) {
    next[length + 1] = (next[length] + static_cast<uint32_t>(counts[length])) << 1;
  }
  std::vector<BitCode> codes(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    codes[i] = {lengths[i] == 0 ? 0 : next[lengths[i]]++, lengths[i]};
  }
  return codes;
}

void PutHuffmanCode(const HuffmanCode& code, BitWriter& to) {
  ForNumbers(code, [&](uint32_t k) { PutElias(k, to); });
}

int64_t HuffmanCodeBits(const HuffmanCode& code) {
  int64_t bits = 0;
  ForNumbers(code, [&](uint32_t k) { bits += EliasLength(k); });
  return bits;
}

HuffmanCode ReadHuffmanCode(BitReader& from, uint32_t alphabet, int64_t most) {
  const auto largest = static_cast<uint32_t>(std::min(int64_t{alphabet}, most));
  const size_t n = ReadElias(from, largest + 1) - 1;
  HuffmanCode code;
  code.symbols.resize(n);
  code.lengths.resize(n);
  uint32_t next = 0;
  int length = 0;
  for (size_t i = 0; i < n; ++i) {
    next += ReadElias(from, alphabet - next);
    length += Unfolded(ReadElias(from, 2 * kMostHuffmanLength + 1) - 1);
    if (length < (n > 1 ? 1 : 0) || length > kMostHuffmanLength) {
      throw DamagedBytes("a code of " + std::to_string(length) + " bits");
    }
    code.symbols[i] = next - 1;
    code.lengths[i] = static_cast<uint8_t>(length);
  }
  from.Check();
  CheckFull(code.lengths);
  return code;
}

HuffmanDecoder::HuffmanDecoder(std::span<const uint8_t> lengths, std::span<const uint32_t> values)
    : values_(values.size()) {
  const Counts counts = CountLengths(lengths);
  Counts places{};
  uint64_t end = 0;
  for (size_t length = 1; length <= kMostHuffmanLength; ++length) {
    places[length] = places[length - 1] + counts[length - 1];
    const int behind = kMostHuffmanLength - static_cast<int>(length);
    first_[length] = places[length] - static_cast<int64_t>(end >> behind);
    end += static_cast<uint64_t>(counts[length]) << behind;
    end_[length] = end;
  }
  const std::vector<BitCode> codes = CanonicalCodes(lengths);
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto& [bits, length] = codes[i];
    values_[static_cast<size_t>(places[static_cast<size_t>(length)]++)] = values[i];
    if (length == 0 || length > kWindow) continue;
    const size_t run = size_t{1} << (kWindow - length);
    std::fill_n(&window_lengths_[bits * run], run, static_cast<uint8_t>(length));
    std::fill_n(&window_values_[bits * run], run, values[i]);
  }
}

HuffmanDecoder::Entry HuffmanDecoder::Next(uint64_t window) const {
  const uint64_t first = window >> (64 - kWindow);
  if (window_lengths_[first] > 0) return {window_values_[first], window_lengths_[first]};
  size_t length = kWindow + 1;
  while (window >> (64 - kMostHuffmanLength) >= end_[length]) ++length;
  const auto place = static_cast<int64_t>(window >> (64 - length)) + first_[length];
  return {values_[static_cast<size_t>(place)], static_cast<std::int32_t>(length)};
}

void HuffmanDecoder::Decode(BitReader& from, int64_t count, BitReader& second, int64_t behind,
                            void* to) const {
  if (count + behind == 0) return;
  if (values_.empty()) {
    throw DamagedBytes("a code without symbols cannot hold " + std::to_string(count + behind) +
                       " values");
  }
  auto* const bytes = static_cast<uint8_t*>(to);
  const auto put = [](uint32_t value, uint8_t* at) { std::memcpy(at, &value, kValueBytes); };
  if (values_.size() == 1) {
    for (int64_t i = 0; i < count + behind; ++i) put(values_[0], bytes + kValueBytes * i);
    return;
  }
  static_assert(kMostHuffmanLength <= BitReader::kSeen);
  BitReader a = from, b = second;  // local copies, which the bytes written cannot alias
  uint8_t* const bytes_behind = bytes + kValueBytes * count;
  const int64_t both = std::min(count, behind);
  int64_t i = 0;
  while (i < both) {
    uint64_t window_a = a.Peek(), window_b = b.Peek();
    int bits_a = 0, bits_b = 0;
    const int64_t end = std::min(both, i + BitReader::kSeen / kWindow);
    for (; i < end; ++i) {
      const uint64_t first_a = window_a >> (64 - kWindow), first_b = window_b >> (64 - kWindow);
      const int length_a = window_lengths_[first_a], length_b = window_lengths_[first_b];
      if (length_a == 0 || length_b == 0) break;
      put(window_values_[first_a], bytes + kValueBytes * i);
      put(window_values_[first_b], bytes_behind + kValueBytes * i);
      window_a <<= length_a;
      window_b <<= length_b;
      bits_a += length_a;
      bits_b += length_b;
    }
    if (bits_a == 0) {
      const Entry entry_a = Next(window_a), entry_b = Next(window_b);
      put(entry_a.value, bytes + kValueBytes * i);
      put(entry_b.value, bytes_behind + kValueBytes * i);
      bits_a = entry_a.length;
      bits_b = entry_b.length;
      ++i;
    }
    a.Skip(bits_a);
    b.Skip(bits_b);
  }
  const auto rest = [&](BitReader& reader, int64_t n, uint8_t* at) {
    for (int64_t k = both; k < n; ++k) {
      const Entry entry = Next(reader.Peek());
      put(entry.value, at + kValueBytes * k);
      reader.Skip(entry.length);
    }
    reader.Check();
  };
  rest(a, count, bytes);
  rest(b, behind, bytes_behind);
  from = a;
  second = b;
}

}  // namespace cpd
