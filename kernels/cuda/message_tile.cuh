// SPDX-License-Identifier: Apache-2.0
//
// Tiles of a codec's message whose codes have a fixed width. A message consists of blocks of
// `block` values that are encoded independently; each block begins with the numbers (norms or
// scales) of its buckets.
#pragma once

#include "cpd/backend/message_calls.h"
#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/reduce_tile.cuh"

namespace cpd::cuda {

CPD_FN float shifted(float x, int shift) { return shift == 0 ? x : unscaled(x, -shift, 1); }

/// Returns the number of the bucket that holds value number `at`, if a bucket has `bucket` values.
/// Divides 32-bit integers if `at` and `bucket` are small enough.
CPD_FN std::int64_t bucket_of(std::int64_t at, std::int64_t bucket) {
  if ((at | bucket) >> 32 != 0) return at / bucket;
  return static_cast<std::uint32_t>(at) / static_cast<std::uint32_t>(bucket);
}

/// Returns the number of values in bucket number b, for n values in buckets.
CPD_FN std::int64_t bucket_count(std::int64_t n, std::int64_t bucket, std::int64_t b) {
  const std::int64_t left = n - b * bucket;
  return left < bucket ? left : bucket;
}

struct MessageLayout {
  /// n: the number of values in the message. before: the number of values of the first bucket that
  /// precede the message's first value.
  std::int64_t n = 0, before = 0;
  std::int64_t bucket = 1, block = 0;
  int head = 0;  ///< bits of a bucket's number, 0: there are none
  int bits = 0;  ///< of a value's code
};

/// Returns the number of buckets to which the n values of a message's block belong. Returns 0 if
/// the message has no norms or scales of buckets.
CPD_FN std::int64_t buckets_of(const MessageLayout& layout, std::int64_t n) {
  return layout.head > 0 ? (layout.before + n + layout.bucket - 1) / layout.bucket : 0;
}
/// Returns the number of bytes that the norms or scales of `buckets` buckets take.
CPD_FN std::int64_t head_bytes(const MessageLayout& layout, std::int64_t buckets) {
  return (buckets * layout.head + 7) / 8;
}

/// The position of a tile in a message: a range of values whose codes one thread block packs
/// together.
struct MessageTile {
  std::int64_t block = 0, begin = 0;  ///< the message's block; the first value's number in it
  int count = 0;
  std::int64_t buckets = 0;        ///< of the block
  std::int64_t at = 0, codes = 0;  ///< bytes: where the block begins, and the tile's codes
};

/// Returns the number of tiles of a message.
CPD_FN std::int64_t message_tiles(std::int64_t n, std::int64_t block) {
  return (n + block - 1) / block * tiles_of(block);
}

/// Calls run(tile) for those tiles of a message that belong to this thread block.
template <class Run>
CPD_DEVICE void for_message_tiles(const ThreadBlock& block, const MessageLayout& layout, Run run) {
  const std::int64_t of_block = tiles_of(layout.block);
  const std::int64_t all = message_tiles(layout.n, layout.block);
  const std::int64_t bytes = head_bytes(layout, buckets_of(layout, layout.block)) +
                             layout.block / kCodesPerGroup * layout.bits;
  CPD_ROLLED for (std::int64_t t = block.number; t < all; t += block.count) {
    MessageTile tile{.block = t / of_block, .begin = t % of_block * kCodeTile};
    const std::int64_t n = bucket_count(layout.n, layout.block, tile.block);
    if (tile.begin >= n) continue;
    tile.count = tile_count(tile.begin, n);
    tile.buckets = buckets_of(layout, n);
    tile.at = tile.block * bytes;
    tile.codes =
        tile.at + head_bytes(layout, tile.buckets) + tile.begin / kCodesPerGroup * layout.bits;
    run(tile);
  }
}

/// Stores y[i] = rounded(i) for values 0 … n - 1. Unless `counts` is null, adds to *counts the
/// numbers of values that are not finite, become zero, or are zero afterwards (LossCounts).
template <class Rounded>
CPD_DEVICE void round_values(const ThreadBlock& block, std::int64_t n, const float* x, float* y,
                             SegmentCounts* counts, Rounded rounded) {
  for_tiles_of(block, n, [&](std::int64_t begin, int count) {
    block.each([&](int thread) {
      LossCounts lost;
      CPD_ROLLED for (int j = thread; j < count; j += kThreads) {
        const std::int64_t i = begin + j;
        const float value = x[i];
        y[i] = rounded(i);
        lost.take(value, y[i]);
      }
      if (counts != nullptr) lost.add_to(block, *counts);
    });
  });
}

/// Writes a message. code_of(i) must return the code of value i. put_numbers(tile, first, thread)
/// must write a thread's share of the numbers (norms, means or scales) of the buckets in a block.
/// `first` is the index of the block's first value.
template <class CodeOf, class PutNumbers>
CPD_DEVICE void encode_message(const ThreadBlock& block, const MessageLayout& layout,
                               std::uint8_t* to, CodeTile& memory, CodeOf code_of,
                               PutNumbers put_numbers) {
  for_message_tiles(block, layout, [&](const MessageTile& tile) {
    const std::int64_t first = tile.block * layout.block + tile.begin;
    block.each([&](int thread) {
      CPD_ROLLED for (int j = thread; j < tile.count; j += kThreads) {
        memory.codes[j] = code_of(first + j);
      }
    });
    block.each([&](int thread) {
      pack_tile(memory.codes, tile.count, layout.bits, memory.bytes, thread);
    });
    block.each([&](int thread) {
      copy_bytes(to + tile.codes, memory.bytes, byte_count(tile.count, layout.bits), thread);
      if (tile.begin == 0) put_numbers(tile, first, thread);
    });
  });
}

/// Reads a message: stores y[i] = value_of(code, numbers, b, i). `numbers` points to the numbers
/// (norms, means or scales) of the buckets in the value's block, and b is the index of the value's
/// bucket. b is 0 if there are no numbers.
template <class ValueOf>
CPD_DEVICE void decode_message(const ThreadBlock& block, const MessageLayout& layout,
                               const std::uint8_t* from, float* y, CodeTile& memory,
                               ValueOf value_of) {
  for_message_tiles(block, layout, [&](const MessageTile& tile) {
    const std::int64_t first = tile.block * layout.block + tile.begin;
    block.each([&](int thread) {
      copy_bytes(memory.bytes, from + tile.codes, byte_count(tile.count, layout.bits), thread);
    });
    block.each([&](int thread) {
      unpack_tile(memory.bytes, tile.count, layout.bits, memory.codes, thread);
    });
    block.each([&](int thread) {
      CPD_ROLLED for (int j = thread; j < tile.count; j += kThreads) {
        const std::int64_t at = layout.before + tile.begin + j;
        const std::int64_t b = layout.head > 0 ? bucket_of(at, layout.bucket) : 0;
        y[first + j] = value_of(memory.codes[j], from + tile.at, b, first + j);
      }
    });
  });
}

}  // namespace cpd::cuda
