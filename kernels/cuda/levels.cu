// SPDX-License-Identifier: Apache-2.0
//
// Quantizes values on a GPU: rounds each value to a level, a fraction of its bucket's norm. Sixteen
// threads compute a bucket's norm, because norms are defined with sixteen partial sums (Moments in
// levels.h). In encoding and decoding, a thread computes one code or value at a time.
#include "cpd/numeric/draws/philox.h"
#include "cpd/numeric/scaled/levels.h"
#include "kernels/cuda/message_tile.cuh"
#include "kernels/cuda/thread_block.cuh"

namespace cpd::cuda {
namespace {

// --- norms ---------------------------------------------------------------------------------------

constexpr int kBucketsAtOnce = kThreads / kPartialSums;

/// One thread's part in a bucket's norm, from every sixteenth value: the sum of differences from a
/// mean, the sum of their squares, the number of finite values, and the largest magnitude.
struct PartMoments {
  double sum, squares;
  std::int64_t finite;
  float largest;
};

/// The shared memory of a thread block.
struct NormTile {
  PartMoments parts[kThreads];
  std::int64_t first[kThreads];
  float values[kCodeTile];  ///< of a bucket that one block of threads has alone
};

CPD_FN bool is_finite(float x) { return x - x == 0; }

/// Adds every sixteenth of n values, from number `lane` on, to a thread's part in a bucket's norm.
/// `mean` is subtracted from each value.
CPD_FN void add_moments(int shift, std::int64_t n, const float* x, double mean, int lane,
                        PartMoments& to) {
  PartMoments part = to;
  for (std::int64_t i = lane; i < n; i += kPartialSums) {
    const float v = shifted(x[i], shift);
    if (!is_finite(v)) continue;
    const float size = v < 0 ? -v : v;
    const double d = static_cast<double>(v) - mean;
    part.sum = part.sum + d;
    part.squares = fma(d, d, part.squares);
    if (size > part.largest) part.largest = size;
    ++part.finite;
  }
  to = part;
}

/// Returns the index of the first finite value among every sixteenth of n values, from number
/// `lane` on. Returns n if no such value is finite.
CPD_FN std::int64_t first_finite(int shift, std::int64_t n, const float* x, int lane) {
  std::int64_t i = lane;
  while (i < n && !is_finite(shifted(x[i], shift))) i += kPartialSums;
  return i < n ? i : n;
}
CPD_FN std::int64_t least(const std::int64_t* all, int n) {
  std::int64_t found = all[0];
  for (int i = 1; i < n; ++i) found = all[i] < found ? all[i] : found;
  return found;
}

CPD_FN float joined_norm(const NormCall& call, const PartMoments* parts, std::int64_t n) {
  double sums[kPartialSums];
  double squares[kPartialSums];
  Moments moments;
  for (int t = 0; t < kPartialSums; ++t) {
    sums[t] = parts[t].sum;
    squares[t] = parts[t].squares;
    moments.finite += parts[t].finite;
    if (parts[t].largest > moments.largest) moments.largest = parts[t].largest;
  }
  moments.sum = add_partial_sums(sums);
  moments.squares = add_partial_sums(squares);
  return norm_of(call.norm, call.clip, moments, n);
}

/// Computes the norms of short buckets, sixteen buckets at a time.
CPD_DEVICE void short_norms_block(const ThreadBlock& block, const NormCall& call, const float* x,
                                  float* norms, NormTile& tile) {
  const std::int64_t buckets = (call.n + call.bucket - 1) / call.bucket;
  const std::int64_t step = block.count * kBucketsAtOnce;
  CPD_ROLLED for (std::int64_t at = block.number * kBucketsAtOnce; at < buckets; at += step) {
    const auto each = [&](auto run) {
      block.each([&](int thread) {
        const std::int64_t b = at + thread / kPartialSums;
        if (b >= buckets) return;
        run(thread, thread % kPartialSums, b, x + b * call.bucket,
            bucket_count(call.n, call.bucket, b));
      });
    };
    each([&](int thread, int lane, std::int64_t, const float* from, std::int64_t n) {
      tile.first[thread] = call.clip == 0 ? n : first_finite(call.shift, n, from, lane);
    });
    each([&](int thread, int lane, std::int64_t, const float* from, std::int64_t n) {
      const std::int64_t first = least(tile.first + (thread - lane), kPartialSums);
      const double mean = first < n ? static_cast<double>(shifted(from[first], call.shift)) : 0.0;
      tile.parts[thread] = {};
      add_moments(call.shift, n, from, mean, lane, tile.parts[thread]);
    });
    each([&](int thread, int lane, std::int64_t b, const float*, std::int64_t n) {
      if (lane == 0) norms[b] = joined_norm(call, tile.parts + thread, n);
    });
  }
}

/// Computes the norm of one long bucket. All threads of the block read values, and sixteen threads
/// add.
CPD_DEVICE void long_norm_block(const ThreadBlock& block, const NormCall& call, const float* x,
                                std::int64_t n, float* norm, NormTile& tile) {
  block.each([&](int thread) {
    if (thread >= kPartialSums) return;
    tile.first[thread] = call.clip == 0 ? n : first_finite(call.shift, n, x, thread);
    tile.parts[thread] = {};
  });
  CPD_ROLLED for (std::int64_t begin = 0; begin < n; begin += kCodeTile) {
    const int count = tile_count(begin, n);
    block.each([&](int thread) {
      CPD_ROLLED for (int j = thread; j < count; j += kThreads) tile.values[j] = x[begin + j];
    });
    block.each([&](int thread) {
      if (thread >= kPartialSums) return;
      const std::int64_t first = least(tile.first, kPartialSums);
      const double mean = first < n ? static_cast<double>(shifted(x[first], call.shift)) : 0.0;
      add_moments(call.shift, count, tile.values, mean, thread, tile.parts[thread]);
    });
  }
  block.each([&](int thread) {
    if (thread == 0) *norm = joined_norm(call, tile.parts, n);
  });
}

// --- codes and values ----------------------------------------------------------------------------

CPD_FN float norm_at(const LevelCall& call, std::int64_t i) {
  return call.norms == nullptr ? call.norm
                               : call.norms[bucket_of(call.before + i, call.plan.bucket)];
}

CPD_FN std::uint32_t level_code_at(const LevelCall& call, const float* x, std::int64_t i) {
  const LevelPlan& plan = call.plan;
  const std::uint32_t random = plan.random_bits == 0
                                   ? 0
                                   : random_integer(plan.random_bits, plan.seed, plan.stream,
                                                    static_cast<std::uint64_t>(call.begin + i));
  return level_code(plan, shifted(x[i], call.shift), norm_at(call, i), random);
}

// --- messages ------------------------------------------------------------------------------------

CPD_FN MessageLayout layout_of(const LevelCall& call) {
  constexpr int kNormBits = 32;
  return {
      call.n,        call.before, call.plan.bucket, call.block, call.stores_norms ? kNormBits : 0,
      call.plan.bits};
}

// --- kernels -----------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads)
    form_norms(const __grid_constant__ NormCall call, const float* x, float* norms) {
  __shared__ NormTile tile;
  const ThreadBlock block;
  if (call.bucket <= kCodeTile) return short_norms_block(block, call, x, norms, tile);
  const std::int64_t buckets = (call.n + call.bucket - 1) / call.bucket;
  CPD_ROLLED for (std::int64_t b = block.number; b < buckets; b += block.count) {
    long_norm_block(block, call, x + b * call.bucket, bucket_count(call.n, call.bucket, b),
                    norms + b, tile);
  }
}
__global__ void __launch_bounds__(kThreads)
    round_to_levels(const __grid_constant__ LevelCall call, const float* x, float* y,
                    SegmentCounts* counts) {
  const ThreadBlock block;
  round_values(block, call.n, x, y, counts, [&](std::int64_t i) {
    const float norm = call.stores_norms ? norm_at(call, i) : 1;  // else in units of it
    return level_value(call.plan, level_code_at(call, x, i), norm);
  });
}
__global__ void __launch_bounds__(kThreads)
    encode_as_levels(const __grid_constant__ LevelCall call, const float* x, std::uint8_t* to) {
  __shared__ CodeTile memory;
  const ThreadBlock block;
  encode_message(
      block, layout_of(call), to, memory, [&](std::int64_t i) { return level_code_at(call, x, i); },
      [&](const MessageTile& tile, std::int64_t first, int thread) {
        CPD_ROLLED for (std::int64_t b = thread; b < tile.buckets; b += kThreads) {
          const float norm = norm_at(call, first + b * call.plan.bucket);
          store_word(to + tile.at + 4 * b, bits_as<std::uint32_t>(norm));
        }
      });
}
__global__ void __launch_bounds__(kThreads)
    decode_from_levels(const __grid_constant__ LevelCall call, const std::uint8_t* from, float* y,
                       unsigned long long* damaged) {
  __shared__ CodeTile memory;
  const ThreadBlock block;
  decode_message(
      block, layout_of(call), from, y, memory,
      [&](std::uint32_t code, const std::uint8_t* norms, std::int64_t b, std::int64_t i) {
        float norm = call.norm;
        if (call.stores_norms) {
          const std::uint32_t word = load_word(norms + 4 * b);
          norm = bits_as<float>(word);
          if (word >> 31 != 0 || word == Pattern<float>::infinity) block.note(damaged, i);
        }
        return unscaled(level_value(call.plan, code, norm), -call.shift, call.divisor);
      });
}

}  // namespace

int level_norms(const Launch& launch, const NormCall& call) {
  const std::int64_t buckets = (call.n + call.bucket - 1) / call.bucket;
  const std::int64_t at_once = call.bucket <= kCodeTile ? kBucketsAtOnce : 1;
  return start_tiles(launch, form_norms, (buckets + at_once - 1) / at_once, call, call.x,
                     call.norms);
}

int round_levels(const Launch& launch, const LevelCall& call) {
  return start_tiles(launch, round_to_levels, tiles_of(call.n), call, call.x, call.y, call.counts);
}

int encode_levels(const Launch& launch, const LevelCall& call) {
  return start_tiles(launch, encode_as_levels, message_tiles(call.n, call.block), call, call.x,
                     call.to);
}

int decode_levels(const Launch& launch, const LevelCall& call) {
  return start_tiles(launch, decode_from_levels, message_tiles(call.n, call.block), call, call.from,
                     call.y, call.damaged);
}

}  // namespace cpd::cuda
