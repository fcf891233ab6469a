// SPDX-License-Identifier: Apache-2.0
//
// Encodes and decodes tiles of codes in shared memory, one tile for each thread block. Encoding
// visits elements in the order of for_elements, decoding in ascending order. One thread packs or
// unpacks a group of eight codes; neighboring threads copy neighboring bytes.
#pragma once

#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/device.cuh"

namespace cpd::cuda {

/// Packs n codes, one tile at a time. All threads call fill(begin, count, codes), which must store
/// the `count` codes from element `begin` on.
template <class Fill>
CPD_DEVICE void pack_tiles(int bits, std::int64_t n, std::uint8_t* packed, Fill fill) {
  __shared__ CodeTile tile;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t step = std::int64_t{gridDim.x} * kCodeTile;
  for (std::int64_t begin = std::int64_t{blockIdx.x} * kCodeTile; begin < n; begin += step) {
    const int count = tile_count(begin, n);
    fill(begin, count, tile.codes);
    __syncthreads();
    pack_tile(tile.codes, count, bits, tile.bytes, thread);
    __syncthreads();
    copy_bytes(packed + begin / 8 * bits, tile.bytes, byte_count(count, bits),
               thread);  // complete before the next iteration's barrier
  }
}

/// Packs the codes code(i, R) of n elements, where R is the random integer of element i.
template <Rounding mode, class Code>
CPD_DEVICE void encode_tiles(const RoundPlan& plan, const Source& source, std::int64_t n,
                             std::uint8_t* packed, Code code) {
  const int draws = draws_of(mode, plan.random_bits);
  const int indices = kCodeTile / (4 * draws);  // Philox indices of a tile's elements
  pack_tiles(plan.bits, n, packed, [&](std::int64_t begin, int count, std::uint32_t* codes) {
    const auto put = [&](std::int64_t i, std::uint32_t r) { codes[i - begin] = code(i, r); };
    if constexpr (mode == Rounding::stochastic) {
      for (int at = static_cast<int>(threadIdx.x); at < indices; at += kThreads) {
        for_elements<mode>(begin / (4 * draws) + at, n, plan, source, put);
      }
    } else {
      for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) put(begin + i, 0);
    }
  });
}

/// Unpacks n codes, one tile at a time. All threads call take(begin, count, codes) for the `count`
/// codes from element `begin` on.
template <class Take>
CPD_DEVICE void unpack_tiles(int bits, std::int64_t n, const std::uint8_t* packed, Take take) {
  __shared__ CodeTile tile;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t step = std::int64_t{gridDim.x} * kCodeTile;
  for (std::int64_t begin = std::int64_t{blockIdx.x} * kCodeTile; begin < n; begin += step) {
    const int count = tile_count(begin, n);
    copy_bytes(tile.bytes, packed + begin / 8 * bits, byte_count(count, bits), thread);
    __syncthreads();
    unpack_tile(tile.bytes, count, bits, tile.codes, thread);
    __syncthreads();
    take(begin, count, tile.codes);  // complete before the next iteration's first barrier
  }
}

/// Calls take(i, code) for each of n packed codes.
template <class Take>
CPD_DEVICE void decode_tiles(int bits, std::int64_t n, const std::uint8_t* packed, Take take) {
  const auto each = [&](std::int64_t begin, int count, const std::uint32_t* codes) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) take(begin + i, codes[i]);
  };
  unpack_tiles(bits, n, packed, each);
}

/// Four neighboring codes of a tile.
struct alignas(16) FourCodes {
  std::uint32_t code[4];
};

// --- codes of 4 and 8 bits: four codes fill half a word or a word --------------------------------

/// Returns whether kernels may read and write the codes at `packed` four at a time.
inline bool has_four_codes(int bits, const std::uint8_t* packed) {
  return (bits == 4 || bits == 8) && is_word_aligned(packed);
}

/// Loads codes number 4 q … 4 q + 3.
CPD_DEVICE FourCodes load_four(const std::uint8_t* packed, int bits, std::int64_t q) {
  const std::uint32_t word = bits == 8 ? reinterpret_cast<const std::uint32_t*>(packed)[q]
                                       : reinterpret_cast<const std::uint16_t*>(packed)[q];
  const std::uint32_t mask = (1U << bits) - 1;
  return {{word & mask, word >> bits & mask, word >> 2 * bits & mask, word >> 3 * bits & mask}};
}
CPD_DEVICE void store_four(std::uint8_t* packed, int bits, std::int64_t q, FourCodes c) {
  const std::uint32_t word =
      c.code[0] | c.code[1] << bits | c.code[2] << 2 * bits | c.code[3] << 3 * bits;
  if (bits == 8) {
    reinterpret_cast<std::uint32_t*>(packed)[q] = word;
  } else {
    reinterpret_cast<std::uint16_t*>(packed)[q] = static_cast<std::uint16_t>(word);
  }
}

/// Packs n codes; a thread packs four codes at a time. four(q) must return codes 4 q … 4 q + 3, and
/// one(i) code i.
template <class Four, class One>
CPD_DEVICE void pack_fours(int bits, std::int64_t n, std::uint8_t* packed, Four four, One one) {
  const std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t q = first; q < n / 4; q += step) store_four(packed, bits, q, four(q));
  if (first > 0) return;
  std::uint32_t word = 0;
  const int rest = static_cast<int>(n % 4);
  CPD_ROLLED for (int k = 0; k < rest; ++k) word |= one(n - rest + k) << k * bits;
  CPD_ROLLED for (int b = 0; b < byte_count(rest, bits); ++b) {
    packed[n / 4 * bits / 2 + b] = static_cast<std::uint8_t>(word >> 8 * b);
  }
}
/// Unpacks n codes; a thread unpacks four codes at a time. Calls four(q, codes) with codes 4 q … 4
/// q + 3, and one(i, code) for each remaining code i.
template <class Four, class One>
CPD_DEVICE void unpack_fours(int bits, std::int64_t n, const std::uint8_t* packed, Four four,
                             One one) {
  const std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t q = first; q < n / 4; q += step) four(q, load_four(packed, bits, q));
  const std::int64_t i = n / 4 * 4 + first;
  if (i < n) one(i, packed[i * bits / 8] >> i * bits % 8 & ((1U << bits) - 1));
}

/// Sets *first to the minimum of *first and i. *first may be in device or pinned memory.
CPD_DEVICE void note_first(unsigned long long* first, std::int64_t i) {
  atomicMin(first, static_cast<unsigned long long>(i));
}

}  // namespace cpd::cuda
