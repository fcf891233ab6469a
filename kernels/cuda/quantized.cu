// SPDX-License-Identifier: Apache-2.0
//
// Encodes and decodes messages in scaled formats on a GPU. A thread computes one code or value at a
// time.
#include "kernels/cuda/message_tile.cuh"
#include "kernels/cuda/scaled_tile.h"
#include "kernels/cuda/thread_block.cuh"

namespace cpd::cuda {
namespace {

// --- scales --------------------------------------------------------------------------------------

/// The shared memory of a thread block: the bit patterns of the largest magnitudes that its threads
/// found.
struct LargestTile {
  std::uint32_t most[kThreads];
};

CPD_FN ElementScale<float> bucket_scale(const QuantizedCall& call, float largest) {
  const ScaledPlan& plan = call.scaled.plan;
  if (call.inverted) {
    const float multiplier = row_multiplier(static_cast<float>(plan.max), largest);
    return {multiplier, multiplier, 1};
  }
  const OuterScale<double> outer{1, 1};
  const BlockScale<double> block = block_scale(static_cast<double>(largest), outer, 1.0, plan);
  return {static_cast<float>(element_by(call.scaled.route, block)), static_cast<float>(block.scale),
          1};
}

// --- codes and values ----------------------------------------------------------------------------

/// Returns the code of x[i], value number i of the call.
template <Rounding mode>
CPD_FN std::uint32_t quantized_code(const QuantizedCall& call, const float* x, std::int64_t i) {
  const RoundPlan& element = call.scaled.plan.element;
  const std::int64_t bucket = bucket_of(call.before + i, call.bucket);
  const ElementScale<float> at{call.factor[bucket], call.scale[bucket], 1};
  const float value = shifted(x[i], call.shift);
  const std::uint32_t random = element_draw<mode>(element, call.stream, call.begin + i);
  if (call.inverted) return round_to_whole_code<mode>(value * at.factor, random, element);
  return by_route(call.scaled, call.scaled.plan, value, at,
                  [&]<class V>(V quotient, ElementScale<V>) {
                    return static_cast<std::uint32_t>(
                        round_to_whole_code<mode>(quotient, Unsigned<V>{random}, element));
                  });
}

/// Returns the value of a code in a bucket with this scale.
CPD_FN float quantized_value(const QuantizedCall& call, std::uint32_t code, float scale) {
  const float element = value_of(code, call.scaled.plan.element);
  if (call.inverted) return unscaled(element, 0, scale);
  const float value =
      call.scaled.plan.wide_values
          ? scaled_value(static_cast<double>(element), ElementScale<double>{scale, scale, 1})
          : scaled_value(element, ElementScale<float>{scale, scale, 1});
  return scale == 0 ? value + 0.0F : value;  // -0 becomes +0
}

// --- messages ------------------------------------------------------------------------------------

CPD_FN MessageLayout layout_of(const QuantizedCall& call) {
  const ScaledPlan& plan = call.scaled.plan;
  return {call.n, call.before, call.bucket, call.block, plan.scale.bits, plan.element.bits};
}

/// Writes this thread's share of the scales of `count` buckets in one block of a message. The first
/// bucket has number `first` among all buckets of the call.
CPD_FN void put_scales(const QuantizedCall& call, std::int64_t first, std::int64_t count,
                       std::uint8_t* to, int thread) {
  const RoundPlan& plan = call.scaled.plan.scale;
  const std::int64_t groups = (count + kCodesPerGroup - 1) / kCodesPerGroup;
  CPD_ROLLED for (std::int64_t g = thread; g < groups; g += kThreads) {
    std::uint32_t codes[kCodesPerGroup];
    const std::int64_t rest = count - g * kCodesPerGroup;
    const int size = rest < kCodesPerGroup ? static_cast<int>(rest) : kCodesPerGroup;
    CPD_ROLLED for (int k = 0; k < size; ++k) {
      const float scale = call.scale[first + g * kCodesPerGroup + k];
      codes[k] = call.scaled.plan.in_fp32 ? bits_as<std::uint32_t>(scale) : code_of(scale, plan);
    }
    pack_group(codes, size, plan.bits, to + g * plan.bits);
  }
}

/// Returns scale number b of a message's block. Records value i in *damaged if the scale is
/// negative or, for inverted scales, not finite.
CPD_DEVICE float take_scale(const ThreadBlock& block, const QuantizedCall& call,
                            const std::uint8_t* from, std::int64_t b, std::int64_t i,
                            unsigned long long* damaged) {
  const RoundPlan& plan = call.scaled.plan.scale;
  const std::uint32_t code = code_at(from, b, plan.bits);
  const float scale = call.scaled.plan.in_fp32 ? bits_as<float>(code) : value_of(code, plan);
  if (scale < 0 || (call.inverted && scale - scale != 0)) block.note(damaged, i);
  return scale;
}

// --- kernels -----------------------------------------------------------------------------------

/// Computes the scale of each bucket. Sixteen threads share a short bucket; a thread block shares a
/// long bucket.
__global__ void __launch_bounds__(kThreads)
    form_bucket_scales(const __grid_constant__ QuantizedCall call, const float* x, float* scale,
                       float* factor) {
  __shared__ LargestTile tile;
  const ThreadBlock block;
  const int lanes = call.bucket <= kCodeTile ? 16 : kThreads;
  const int at_once = kThreads / lanes;
  const std::int64_t buckets = (call.n + call.bucket - 1) / call.bucket;
  const std::int64_t step = block.count * at_once;
  CPD_ROLLED for (std::int64_t at = block.number * at_once; at < buckets; at += step) {
    block.each([&](int thread) {
      const std::int64_t b = at + thread / lanes;
      std::uint32_t most = 0;
      const std::int64_t count = b < buckets ? bucket_count(call.n, call.bucket, b) : 0;
      CPD_ROLLED for (std::int64_t i = thread % lanes; i < count; i += lanes) {
        const std::uint32_t bits =
            magnitude_bits(shifted(x[b * call.bucket + i], call.shift), call.scaled.plan.makes_nan);
        most = bits > most ? bits : most;
      }
      tile.most[thread] = most;
    });
    block.each([&](int thread) {
      const std::int64_t b = at + thread / lanes;
      if (thread % lanes != 0 || b >= buckets) return;
      std::uint32_t most = 0;
      CPD_ROLLED for (int k = 0; k < lanes; ++k) {
        most = tile.most[thread + k] > most ? tile.most[thread + k] : most;
      }
      const ElementScale<float> found = bucket_scale(call, bits_as<float>(most));
      scale[b] = found.scale;
      factor[b] = found.factor;
    });
  }
}
template <Rounding mode>
__global__ void __launch_bounds__(kThreads)
    round_by_buckets(const __grid_constant__ QuantizedCall call, const float* x, float* y,
                     SegmentCounts* counts) {
  const ThreadBlock block;
  round_values(block, call.n, x, y, counts, [&](std::int64_t i) {
    const float scale = call.scale[bucket_of(call.before + i, call.bucket)];
    return quantized_value(call, quantized_code<mode>(call, x, i), scale);
  });
}
template <Rounding mode>
__global__ void __launch_bounds__(kThreads)
    encode_by_buckets(const __grid_constant__ QuantizedCall call, const float* x,
                      std::uint8_t* to) {
  __shared__ CodeTile memory;
  const ThreadBlock block;
  encode_message(
      block, layout_of(call), to, memory,
      [&](std::int64_t i) { return quantized_code<mode>(call, x, i); },
      [&](const MessageTile& tile, std::int64_t first, int thread) {
        const std::int64_t bucket = bucket_of(call.before + first, call.bucket);
        put_scales(call, bucket, tile.buckets, to + tile.at, thread);
      });
}
__global__ void __launch_bounds__(kThreads)
    decode_by_buckets(const __grid_constant__ QuantizedCall call, const std::uint8_t* from,
                      float* y, unsigned long long* damaged) {
  __shared__ CodeTile memory;
  const ThreadBlock block;
  decode_message(
      block, layout_of(call), from, y, memory,
      [&](std::uint32_t code, const std::uint8_t* scales, std::int64_t b, std::int64_t i) {
        const float scale = take_scale(block, call, scales, b, i, damaged);
        return unscaled(quantized_value(call, code, scale), -call.shift, call.divisor);
      });
}

bool draws(const QuantizedCall& call) {
  return call.scaled.plan.element.mode == Rounding::stochastic;
}

}  // namespace

int bucket_scales(const Launch& launch, const QuantizedCall& call) {
  return start_tiles(launch, form_bucket_scales, tiles_of(call.n), call, call.x, call.scale,
                     call.factor);
}

int round_quantized(const Launch& launch, const QuantizedCall& call) {
  const auto kernel = draws(call) ? round_by_buckets<Rounding::stochastic>
                                  : round_by_buckets<Rounding::nearest_even>;
  return start_tiles(launch, kernel, tiles_of(call.n), call, call.x, call.y, call.counts);
}

int encode_quantized(const Launch& launch, const QuantizedCall& call) {
  const auto kernel = draws(call) ? encode_by_buckets<Rounding::stochastic>
                                  : encode_by_buckets<Rounding::nearest_even>;
  return start_tiles(launch, kernel, message_tiles(call.n, call.block), call, call.x, call.to);
}

int decode_quantized(const Launch& launch, const QuantizedCall& call) {
  return start_tiles(launch, decode_by_buckets, message_tiles(call.n, call.block), call, call.from,
                     call.y, call.damaged);
}

}  // namespace cpd::cuda
