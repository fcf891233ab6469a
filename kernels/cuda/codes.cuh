// SPDX-License-Identifier: Apache-2.0
//
// A block of threads handles a tile of codes through shared memory: codes in for_elements' order
// (encode) or ascending (decode), a group of eight codes packed or unpacked by one thread, and
// neighbouring bytes copied by neighbouring threads.
#pragma once

#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/device.cuh"

namespace cpd::cuda {

/// Packs n codes, a tile at a time: all threads call fill(begin, count, codes), which sets `count`
/// codes from element `begin` on.
template <class Fill>
CPD_DEVICE void pack_tiles(int bits, std::int64_t n, std::uint8_t* packed, Fill fill) {
  __shared__ CodeTile tile;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t step = std::int64_t{gridDim.x} * kTile;
  for (std::int64_t begin = std::int64_t{blockIdx.x} * kTile; begin < n; begin += step) {
    const int count = tile_count(begin, n);
    fill(begin, count, tile.codes);
    __syncthreads();
    pack_tile(tile.codes, count, bits, tile.bytes, thread);
    __syncthreads();
    copy_bytes(packed + begin / 8 * bits, tile.bytes, byte_count(count, bits),
               thread);  // complete before the next iteration's barrier
  }
}

/// Packs code(i, R), the code of element i for its random integer R, of n elements.
template <Rounding mode, class Code>
CPD_DEVICE void encode_tiles(const RoundPlan& plan, const Source& source, std::int64_t n,
                             std::uint8_t* packed, Code code) {
  const int draws = draws_of(mode, plan.random_bits);
  const int indices = kTile / (4 * draws);  // Philox indices of a tile's elements
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

/// Unpacks n codes, a tile at a time: all threads call take(begin, count, codes) for `count` codes
/// from element `begin` on.
template <class Take>
CPD_DEVICE void unpack_tiles(int bits, std::int64_t n, const std::uint8_t* packed, Take take) {
  __shared__ CodeTile tile;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t step = std::int64_t{gridDim.x} * kTile;
  for (std::int64_t begin = std::int64_t{blockIdx.x} * kTile; begin < n; begin += step) {
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

/// Four codes of a tile.
struct alignas(16) FourCodes {
  std::uint32_t code[4];
};

/// Keeps the least element that any thread notes, in device or pinned memory.
CPD_DEVICE void note_first(unsigned long long* first, std::int64_t i) {
  atomicMin(first, static_cast<unsigned long long>(i));
}

}  // namespace cpd::cuda
