// SPDX-License-Identifier: Apache-2.0
//
// 1-bit SGD and error feedback on a GPU. A thread adds the values of one bucket, because the order
// of these sums is fixed, or processes the values of one byte of a message.
#include "cpd/numeric/scaled/one_bit.h"
#include "kernels/cuda/message_tile.cuh"
#include "kernels/cuda/thread_block.cuh"

namespace cpd::cuda {
namespace {

// --- error feedback ------------------------------------------------------------------------------

CPD_FN float with_residual(float x, int shift, const float* kept, std::int64_t i) {
  const float v = shifted(x, shift);
  return kept == nullptr ? v : v + kept[i];
}

// --- means ---------------------------------------------------------------------------------------

/// Returns x rounded to binary32. A NaN becomes the quiet NaN.
CPD_FN float narrowed(double x) {
  return x == x ? static_cast<float>(x) : bits_as<float>(Pattern<float>::quiet_nan);
}

/// Returns two sums over values begin … end - 1: of all values >= 0, and of all other values. Loads
/// several values before it adds them.
CPD_FN OneBitSums<double> one_bit_sums(const OneBitCall& call, const float* x, std::int64_t begin,
                                       std::int64_t end) {
  constexpr int kLoads = 8;
  OneBitSums<double> sums;
  const auto value = [&](std::int64_t i) { return with_residual(x[i], call.shift, call.kept, i); };
  std::int64_t i = begin;
  CPD_ROLLED for (; i + kLoads <= end; i += kLoads) {
    float v[kLoads];
    for (int k = 0; k < kLoads; ++k) v[k] = value(i + k);
    for (int k = 0; k < kLoads; ++k) sums.take(static_cast<double>(v[k]));
  }
  CPD_ROLLED for (; i < end; ++i) sums.take(static_cast<double>(value(i)));
  return sums;
}

// --- values and bits -----------------------------------------------------------------------------

/// Returns the mean to which the bit of value i decodes. Stores the error of value i as its next
/// residual, which the next call adds to the value. In a bucket with a NaN, the residual does not
/// change.
CPD_FN float one_bit_mean(const OneBitCall& call, const float* x, std::int64_t i, bool* is_above) {
  const std::int64_t b = bucket_of(call.before + i, call.bucket);
  const float v = with_residual(x[i], call.shift, call.kept, i);
  *is_above = v >= 0;
  const float mean = call.means[2 * b + (*is_above ? 0 : 1)];
  call.next[i] = mean == mean ? v - mean : call.kept[i];
  return mean;
}

/// Returns the number of bytes that the bits of n values of one bucket take, padded to whole words
/// of 32 bits.
CPD_FN std::int64_t word_bytes(std::int64_t n) { return (n + 31) / 32 * 4; }

/// One block of a message: its number of values, the number of values of its first bucket, and its
/// number of buckets.
struct OneBitPart {
  std::int64_t n = 0, first = 0, buckets = 0;
};
CPD_FN OneBitPart part_of(const OneBitCall& call, std::int64_t number) {
  OneBitPart part{.n = bucket_count(call.n, call.block, number)};
  const std::int64_t left = call.bucket - call.before;
  part.first = part.n < left ? part.n : left;
  part.buckets = (call.before + part.n + call.bucket - 1) / call.bucket;
  return part;
}
/// Returns the number of bytes that the bits of the block's values take.
CPD_FN std::int64_t bit_bytes(const OneBitCall& call, const OneBitPart& part) {
  if (!call.words) return (part.n + 7) / 8;
  const std::int64_t rest = part.n - part.first;
  return word_bytes(part.first) + rest / call.bucket * word_bytes(call.bucket) +
         word_bytes(rest % call.bucket);
}
constexpr std::int64_t kMeansBytes = 2 * sizeof(float);
CPD_FN std::int64_t part_bytes(const OneBitCall& call, const OneBitPart& part) {
  return kMeansBytes * part.buckets + bit_bytes(call, part);
}

/// Returns the position of the bit of a block's value j among all bits of the block.
CPD_FN std::int64_t bit_of(const OneBitCall& call, const OneBitPart& part, std::int64_t j) {
  if (!call.words || j < part.first) return j;
  const std::int64_t rest = j - part.first;
  return 8 * (word_bytes(part.first) + rest / call.bucket * word_bytes(call.bucket)) +
         rest % call.bucket;
}
/// A range of up to eight values of a block, begin … end - 1, whose bits one byte holds.
struct OneBitByte {
  std::int64_t begin = 0, end = 0;
};
CPD_FN OneBitByte byte_of(const OneBitCall& call, const OneBitPart& part, std::int64_t k) {
  std::int64_t bucket_begin = 0;
  std::int64_t bucket_end = part.n;
  if (call.words) {
    bucket_end = part.first;
    if (k >= word_bytes(part.first)) {
      k -= word_bytes(part.first);
      bucket_begin = part.first + k / word_bytes(call.bucket) * call.bucket;
      bucket_end = bucket_begin + call.bucket;
      k %= word_bytes(call.bucket);
    }
  }
  const auto least = [](std::int64_t a, std::int64_t b) { return a < b ? a : b; };
  const std::int64_t most = least(bucket_end, part.n);
  return {least(bucket_begin + 8 * k, most), least(bucket_begin + 8 * k + 8, most)};
}

// --- kernels -----------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads)
    form_means(const __grid_constant__ OneBitCall call, const float* x, float* means) {
  const ThreadBlock block;
  const std::int64_t buckets = (call.n + call.bucket - 1) / call.bucket;
  const std::int64_t step = block.count * kThreads;
  CPD_ROLLED for (std::int64_t at = block.number * kThreads; at < buckets; at += step) {
    block.each([&](int thread) {
      const std::int64_t b = at + thread;
      if (b >= buckets) return;
      const std::int64_t first = b * call.bucket;
      const std::int64_t count = bucket_count(call.n, call.bucket, b);
      const OneBitSums<double> sums = one_bit_sums(call, x, first, first + count);
      means[2 * b] = narrowed(sums.mean_above());
      means[2 * b + 1] = narrowed(sums.mean_below(count));
    });
  }
}
__global__ void __launch_bounds__(kThreads)
    round_to_means(const __grid_constant__ OneBitCall call, const float* x, float* y,
                   SegmentCounts* counts) {
  const ThreadBlock block;
  round_values(block, call.n, x, y, counts, [&](std::int64_t i) {
    bool is_above = false;
    return one_bit_mean(call, x, i, &is_above);
  });
}
__global__ void __launch_bounds__(kThreads)
    encode_as_bits(const __grid_constant__ OneBitCall call, const float* x, std::uint8_t* to) {
  const ThreadBlock block;
  const OneBitPart whole = part_of(call, 0);  // all but the last are as long
  const std::int64_t per = bit_bytes(call, whole);
  const std::int64_t parts = (call.n + call.block - 1) / call.block;
  for_tiles_of(block, parts * per, [&](std::int64_t begin, int count) {
    block.each([&](int thread) {
      CPD_ROLLED for (int j = thread; j < count; j += kThreads) {
        const std::int64_t number = (begin + j) / per;
        const std::int64_t k = (begin + j) % per;
        const OneBitPart part = part_of(call, number);
        const std::int64_t first = number * call.block;
        std::uint8_t* const at = to + number * part_bytes(call, whole);
        const float* const means = call.means + (call.before + first) / call.bucket * 2;
        CPD_ROLLED for (std::int64_t m = k; m < 2 * part.buckets; m += per) {
          store_word(at + 4 * m, bits_as<std::uint32_t>(means[m]));
        }
        if (k >= bit_bytes(call, part)) continue;
        const OneBitByte of = byte_of(call, part, k);
        std::uint32_t bits = 0;
        CPD_ROLLED for (std::int64_t i = of.begin; i < of.end; ++i) {
          bool is_above = false;
          one_bit_mean(call, x, first + i, &is_above);
          bits |= (is_above ? 1U : 0U) << (i - of.begin);
        }
        at[kMeansBytes * part.buckets + k] = static_cast<std::uint8_t>(bits);
      }
    });
  });
}
__global__ void __launch_bounds__(kThreads)
    decode_from_bits(const __grid_constant__ OneBitCall call, const std::uint8_t* from, float* y) {
  const ThreadBlock block;
  const std::int64_t bytes = part_bytes(call, part_of(call, 0));
  for_tiles_of(block, call.n, [&](std::int64_t begin, int count) {
    block.each([&](int thread) {
      CPD_ROLLED for (int j = thread; j < count; j += kThreads) {
        const std::int64_t number = (begin + j) / call.block;
        const std::int64_t i = (begin + j) % call.block;
        const OneBitPart part = part_of(call, number);
        const std::uint8_t* const at = from + number * bytes;
        const std::int64_t bit = bit_of(call, part, i);
        const std::uint8_t byte = at[kMeansBytes * part.buckets + bit / 8];
        const std::int64_t below = (byte >> bit % 8 & 1) == 0 ? 1 : 0;
        const std::int64_t b = bucket_of(call.before + i, call.bucket);
        const auto mean = bits_as<float>(load_word(at + 4 * (2 * b + below)));
        y[begin + j] = unscaled(mean, -call.shift, call.divisor);
      }
    });
  });
}
__global__ void __launch_bounds__(kThreads) add_kept(const __grid_constant__ FeedbackCall call) {
  const ThreadBlock block;
  for_tiles_of(block, call.n, [&](std::int64_t begin, int count) {
    block.each([&](int thread) {
      CPD_ROLLED for (int j = thread; j < count; j += kThreads) {
        const std::int64_t i = begin + j;
        call.v[i] = with_residual(call.x[i], call.shift, call.kept, i);
      }
    });
  });
}
__global__ void __launch_bounds__(kThreads)
    keep_errors(const __grid_constant__ FeedbackCall call, const float* decoded, float* next,
                SegmentCounts* counts) {
  const ThreadBlock block;
  for_tiles_of(block, call.n, [&](std::int64_t begin, int count) {
    block.each([&](int thread) {
      LossCounts lost;
      CPD_ROLLED for (int j = thread; j < count; j += kThreads) {
        const std::int64_t i = begin + j;
        const float error = call.v[i] - decoded[i];
        next[i] = error - error == 0 ? error : 0;
        if (counts != nullptr) lost.take(call.x[i], decoded[i]);
      }
      if (counts != nullptr) lost.add_to(block, *counts);
    });
  });
}

}  // namespace

int one_bit_means(const Launch& launch, const OneBitCall& call) {
  const std::int64_t buckets = (call.n + call.bucket - 1) / call.bucket;
  return start_tiles(launch, form_means, (buckets + kThreads - 1) / kThreads, call, call.x,
                     call.means);
}

int round_one_bit(const Launch& launch, const OneBitCall& call) {
  return start_tiles(launch, round_to_means, tiles_of(call.n), call, call.x, call.y, call.counts);
}

int encode_one_bit(const Launch& launch, const OneBitCall& call) {
  return start_tiles(launch, encode_as_bits, tiles_of(call.n), call, call.x, call.to);
}

int decode_one_bit(const Launch& launch, const OneBitCall& call) {
  return start_tiles(launch, decode_from_bits, tiles_of(call.n), call, call.from, call.y);
}

int add_residual(const Launch& launch, const FeedbackCall& call) {
  return start_tiles(launch, add_kept, tiles_of(call.n), call);
}

int take_errors(const Launch& launch, const FeedbackCall& call) {
  return start_tiles(launch, keep_errors, tiles_of(call.n), call, call.decoded, call.next,
                     call.counts);
}

}  // namespace cpd::cuda
