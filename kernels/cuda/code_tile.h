// SPDX-License-Identifier: Apache-2.0
//
// Packs and unpacks a tile of codes in shared memory, one tile for each thread block. One thread
// packs or unpacks a group of eight codes; neighboring threads copy neighboring bytes from and to
// global memory. Compiles for host and device.
#pragma once

#include <cstdint>

#include "cpd/backend/message_calls.h"
#include "cpd/numeric/round/codec.h"

namespace cpd::cuda {

constexpr int kThreads = 256;

/// A tile's memory.
struct CodeTile {
  alignas(16) std::uint32_t codes[kCodeTile];
  alignas(16) std::uint8_t bytes[4 * kCodeTile];
};

CPD_FN bool is_word_aligned(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % sizeof(std::uint32_t) == 0;
}

/// Returns the four bytes at `from` as a word, the lowest byte first. The address need not be
/// aligned.
CPD_FN std::uint32_t load_word(const std::uint8_t* from) {
  if (is_word_aligned(from)) return *reinterpret_cast<const std::uint32_t*>(from);
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= std::uint32_t{from[i]} << (8 * i);
  return word;
}
CPD_FN void store_word(std::uint8_t* to, std::uint32_t word) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::uint8_t>(word >> (8 * i));
}

/// Copies this thread's share of `count` bytes between global memory and the aligned memory of a
/// tile.
CPD_FN void copy_bytes(std::uint8_t* to, const std::uint8_t* from, int count, int thread) {
  const int words = is_word_aligned(to) && is_word_aligned(from) ? count / 4 : 0;
  for (int i = thread; i < words; i += kThreads) {
    reinterpret_cast<std::uint32_t*>(to)[i] = reinterpret_cast<const std::uint32_t*>(from)[i];
  }
  for (int i = 4 * words + thread; i < count; i += kThreads) to[i] = from[i];
}

/// Returns the number of codes in the tile that begins at code `begin` of n codes.
CPD_FN int tile_count(std::int64_t begin, std::int64_t n) {
  return n - begin < kCodeTile ? static_cast<int>(n - begin) : kCodeTile;
}
CPD_FN int group_count(int count, int group) {
  const int rest = count - kCodesPerGroup * group;
  return rest < kCodesPerGroup ? rest : kCodesPerGroup;
}
CPD_FN int byte_count(int count, int bits) { return (count * bits + 7) / 8; }

/// Packs a group of eight codes of at most 8 bits, which fit into one 64-bit integer.
CPD_FN void pack_short(const std::uint32_t* codes, int bits, std::uint8_t* packed) {
  std::uint64_t all = 0;
  for (int i = 0; i < kCodesPerGroup; ++i) all |= std::uint64_t{codes[i]} << (i * bits);
  for (int i = 0; i < bits; ++i) packed[i] = static_cast<std::uint8_t>(all >> (8 * i));
}
/// Unpacks a group of eight codes of at most 8 bits.
CPD_FN void unpack_short(const std::uint8_t* packed, int bits, std::uint32_t* codes) {
  std::uint64_t all = 0;
  for (int i = 0; i < bits; ++i) all |= std::uint64_t{packed[i]} << (8 * i);
  const std::uint32_t mask = (1U << bits) - 1;
  for (int i = 0; i < kCodesPerGroup; ++i) {
    codes[i] = static_cast<std::uint32_t>(all >> (i * bits)) & mask;
  }
}

/// Packs this thread's share of `count` codes.
CPD_FN void pack_tile(const std::uint32_t* codes, int count, int bits, std::uint8_t* bytes,
                      int thread) {
  for (int g = thread; g * kCodesPerGroup < count; g += kThreads) {
    const std::uint32_t* group = codes + kCodesPerGroup * g;
    const int size = group_count(count, g);
    if (bits <= 8 && size == kCodesPerGroup) {
      pack_short(group, bits, bytes + g * bits);
    } else {
      pack_group(group, size, bits, bytes + g * bits);
    }
  }
}
/// Unpacks this thread's share of `count` codes.
CPD_FN void unpack_tile(const std::uint8_t* bytes, int count, int bits, std::uint32_t* codes,
                        int thread) {
  for (int g = thread; g * kCodesPerGroup < count; g += kThreads) {
    std::uint32_t* group = codes + kCodesPerGroup * g;
    const int size = group_count(count, g);
    if (bits <= 8 && size == kCodesPerGroup) {
      unpack_short(bytes + g * bits, bits, group);
    } else {
      unpack_group(bytes + g * bits, size, bits, group);
    }
  }
}

}  // namespace cpd::cuda
