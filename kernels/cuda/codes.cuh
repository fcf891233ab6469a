// SPDX-License-Identifier: Apache-2.0
//
// A block of threads handles a tile of codes through shared memory: codes in for_elements' order
// (encode) or ascending (decode), a group of eight codes packed or unpacked by one thread, and
// neighbouring bytes copied by neighbouring threads.
#pragma once

#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/device.cuh"

namespace cpd::cuda {

/// Packs code(i, R), the code of element i for its random integer R, of n elements.
template <Rounding mode, class Code>
CPD_DEVICE void encode_tiles(const RoundPlan& plan, const Source& source, std::int64_t n,
                             std::uint8_t* packed, Code code) {
  __shared__ CodeTile tile;
  const int draws = draws_of(mode, plan.random_bits);
  const int indices = kTile / (4 * draws);  // Philox indices of a tile's elements
  const std::int64_t step = std::int64_t{gridDim.x} * kTile;
  for (std::int64_t begin = std::int64_t{blockIdx.x} * kTile; begin < n; begin += step) {
    const std::int64_t first = begin / (4 * draws);
    const int count = tile_count(begin, n);
    const auto put = [&](std::int64_t i, std::uint32_t r) { tile.codes[i - begin] = code(i, r); };
    if constexpr (mode == Rounding::stochastic) {
      for (int at = static_cast<int>(threadIdx.x); at < indices; at += kThreads) {
        for_elements<mode>(first + at, n, plan, source, put);
      }
    } else {
      for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) put(begin + i, 0);
    }
    __syncthreads();
    pack_tile(tile.codes, count, plan.bits, tile.bytes, static_cast<int>(threadIdx.x));
    __syncthreads();
    copy_bytes(packed + begin / 8 * plan.bits, tile.bytes, byte_count(count, plan.bits),
               static_cast<int>(threadIdx.x));  // complete before the next iteration's barrier
  }
}

/// Calls take(i, code) for each of n packed codes.
template <class Take>
CPD_DEVICE void decode_tiles(int bits, std::int64_t n, const std::uint8_t* packed, Take take) {
  __shared__ CodeTile tile;
  const std::int64_t step = std::int64_t{gridDim.x} * kTile;
  for (std::int64_t begin = std::int64_t{blockIdx.x} * kTile; begin < n; begin += step) {
    const int count = tile_count(begin, n);
    copy_bytes(tile.bytes, packed + begin / 8 * bits, byte_count(count, bits),
               static_cast<int>(threadIdx.x));
    __syncthreads();
    for (int g = static_cast<int>(threadIdx.x); g * kCodesPerGroup < count; g += kThreads) {
      unpack_group(tile.bytes + g * bits, group_count(count, g), bits,
                   tile.codes + kCodesPerGroup * g);
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      take(begin + i, tile.codes[i]);
    }  // complete before the next iteration's first barrier
  }
}

/// Keeps the least element that any thread notes, in device or pinned memory.
CPD_DEVICE void note_first(unsigned long long* first, std::int64_t i) {
  atomicMin(first, static_cast<unsigned long long>(i));
}

}  // namespace cpd::cuda
