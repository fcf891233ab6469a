// SPDX-License-Identifier: Apache-2.0
//
// A block's tile of codes in shared memory: one thread packs or unpacks a group of eight codes,
// neighbouring threads copy neighbouring bytes from and to global memory. For host and device.
#pragma once

#include <cstdint>

#include "cpd/numeric/round/codec.h"

namespace cpd::cuda {

constexpr int kThreads = 256;
constexpr int kTile = 2048;  ///< codes in a tile; a multiple of kBlock

/// A tile's memory.
struct CodeTile {
  std::uint32_t codes[kTile];
  alignas(16) std::uint8_t bytes[4 * kTile];
};

CPD_FN bool is_word_aligned(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % sizeof(std::uint32_t) == 0;
}

/// A thread's share of copying `count` bytes between global memory and a tile's memory, which is
/// aligned.
CPD_FN void copy_bytes(std::uint8_t* to, const std::uint8_t* from, int count, int thread) {
  const int words = is_word_aligned(to) && is_word_aligned(from) ? count / 4 : 0;
  for (int i = thread; i < words; i += kThreads) {
    reinterpret_cast<std::uint32_t*>(to)[i] = reinterpret_cast<const std::uint32_t*>(from)[i];
  }
  for (int i = 4 * words + thread; i < count; i += kThreads) to[i] = from[i];
}

/// The number of tiles of n codes.
CPD_FN std::int64_t tiles_of(std::int64_t n) { return (n + kTile - 1) / kTile; }
/// The number of codes of the tile that begins at code `begin` of n.
CPD_FN int tile_count(std::int64_t begin, std::int64_t n) {
  return n - begin < kTile ? static_cast<int>(n - begin) : kTile;
}
CPD_FN int group_count(int count, int group) {
  const int rest = count - kCodesPerGroup * group;
  return rest < kCodesPerGroup ? rest : kCodesPerGroup;
}
CPD_FN int byte_count(int count, int bits) { return (count * bits + 7) / 8; }

/// A thread's share of packing `count` codes.
CPD_FN void pack_tile(const std::uint32_t* codes, int count, int bits, std::uint8_t* bytes,
                      int thread) {
  for (int g = thread; g * kCodesPerGroup < count; g += kThreads) {
    pack_group(codes + kCodesPerGroup * g, group_count(count, g), bits, bytes + g * bits);
  }
}

}  // namespace cpd::cuda
