// SPDX-License-Identifier: Apache-2.0
//
// Scaled formats in messages. The values of a message are divided into blocks. Each block stores
// the scales of its buckets (values that share a scale), and then its elements. A bucket's scale is
// formed from its largest magnitude when its block is encoded.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cpd/backend/cpu/codec_spans.h"
#include "cpd/backend/cpu/cpu.h"
#include "cpd/backend/cpu/spans.h"
#include "cpd/backend/roster.h"
#include "cpd/base/guarded.h"
#include "cpd/numeric/scaled/scale_rules.h"

namespace cpd::cpu {
namespace {

constexpr std::int64_t kStep = 4096;  // values at a time: codes of any width end on a byte
constexpr std::int64_t kLong = 256;   // the least values of buckets that kernels take singly

/// Returns whether a bucket has at least 16 values and divides 512 values evenly. A kernel can then
/// process the values of several buckets in one call (ScaledRun).
bool IsRun(std::int64_t bucket) { return bucket >= 16 && bucket <= 512 && 512 % bucket == 0; }

constexpr std::array<float, kStep + 1> kOnes = [] {
  std::array<float, kStep + 1> ones{};
  ones.fill(1);
  return ones;
}();

/// Writes y[i] = elements[i] / scale. Every NaN becomes the quiet NaN.
void Divide(std::int64_t n, const float* elements, float scale, float* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = elements[i] / scale;
    y[i] = value == value ? value : std::numeric_limits<float>::quiet_NaN();
  }
}

/// The byte layout of one block of a message. The block has n values, up to call.block. `before` is
/// the number of values of its first bucket that precede the block.
struct ScaledPart {
  ScaledPart(const QuantizedCall& call, std::int64_t n, std::int64_t before)
      : n(n),
        before(before),
        buckets((before + n + call.bucket - 1) / call.bucket),
        elements((buckets * call.scaled.plan.scale.bits + 7) / 8),
        bytes(elements + (n * call.scaled.plan.element.bits + 7) / 8) {}
  std::int64_t n, before;
  std::int64_t buckets;
  std::int64_t elements, bytes;  ///< the offset of the elements; the size of the part
};

/// A step: `n` neighboring values that one call of a kernel processes. Their codes begin on a byte.
/// The first value has index `begin` in its message block (ScaledPart). It has index `place` in its
/// bucket (values that share a scale), which is number `bucket`. If `run` is positive, the kernel
/// takes one scale for every `run` values. If `run` is 0, a step may begin or end inside a bucket,
/// so the kernel takes one scale for each value.
struct Step {
  std::int64_t begin = 0, n = 0, bucket = 0, place = 0, run = 0;
};

/// Calls take(step) for the Steps (ranges for one kernel call) of a message block, in order.
template <class Take>
void ForSteps(const QuantizedCall& call, const ScaledPart& part, Take take) {
  const std::int64_t bucket = call.bucket;
  const bool runs = part.before % bucket == 0 && IsRun(bucket);
  const auto on_byte = [&](std::int64_t n) { return n * call.scaled.plan.element.bits % 8 == 0; };
  const bool single = bucket >= kLong && on_byte(bucket) && on_byte(part.before);
  for (Step step; step.begin < part.n; step.begin += step.n) {
    step.bucket = (part.before + step.begin) / bucket;
    step.place = (part.before + step.begin) % bucket;
    step.n = std::min(kStep, part.n - step.begin);
    step.run = runs ? bucket : 0;
    if (single && !runs) {
      step.n = std::min(step.n, bucket - step.place);
      step.run = kStep;
    }
    take(step);
  }
}

/// Calls run(b, i, n) for each bucket that has values of the step (the values of one kernel call).
/// Values i … i + n - 1 of the step are in bucket b; b is 0 for the step's first bucket.
template <class Run>
void ForStepBuckets(const Step& step, std::int64_t bucket, Run run) {
  for (std::int64_t b = 0, i = 0; i < step.n; ++b) {
    const std::int64_t n = std::min(step.n - i, bucket - (b == 0 ? step.place : 0));
    run(b, i, n);
    i += n;
  }
}

/// Expands one number for each bucket, such as its scale, to one number for each value of a step
/// (the values of one kernel call). `each` has the numbers of the message block's buckets. all[i]
/// is set to the number of the bucket of value i.
void Spread(const Step& step, std::int64_t bucket, const float* each, float* all) {
  each += step.bucket;
  const std::int64_t first = std::min(step.n, bucket - step.place);
  std::fill_n(all, first, *each);
  if (first < step.n) Kernels().spread(bucket, step.n - first, each + 1, all + first);
}

/// Three numbers for each bucket of a message block. `scale` is stored in the message. Elements are
/// divided or multiplied by `factor`. `decode` is the scale by which the elements are decoded.
/// There are up to kStep buckets, or one more if a bucket is incomplete.
struct PartScales {
  float scale[kStep + 1], factor[kStep + 1], decode[kStep + 1];
};

/// Computes the scales of buckets from their largest magnitudes. Returns the method by which
/// elements are divided by the scales.
ElementRoute FindScales(const QuantizedCall& call, std::int64_t buckets, const float* largest,
                        PartScales& scales) {
  const ScaledPlan& plan = call.scaled.plan;
  if (call.inverted) {
    const auto max = static_cast<float>(plan.max);
    Guarded([&] {
      for (std::int64_t b = 0; b < buckets; ++b) scales.scale[b] = row_multiplier(max, largest[b]);
    });
    std::copy_n(scales.scale, buckets, scales.factor);
    std::copy_n(scales.scale, buckets, scales.decode);
    return ElementRoute::multiply;
  }
  const ElementRoute route = call.scaled.route;
  const bool outside =
      Kernels().block_scales(plan, route, 1, buckets, largest, kOnes.data(), kOnes.data(),
                             scales.scale, scales.factor, scales.decode);
  return outside && plan.arithmetic == Arithmetic::exact ? ElementRoute::wide : route;
}

/// Encodes one block of a message. The block's first value is value number `begin` of `call`.
void EncodePart(const QuantizedCall& call, std::int64_t begin, const ScaledPart& part,
                std::uint8_t* to) {
  const ScaledPlan& plan = call.scaled.plan;
  std::vector<float> shifted;
  const float* const values = Shifted(call.shift, part.n, call.x + begin, shifted);
  PartScales scales;
  const float* const largest = call.scale + (call.before + begin) / call.bucket;
  const ElementRoute route = FindScales(call, part.buckets, largest, scales);
  if (plan.in_fp32) {
    std::memcpy(to, scales.scale, sizeof(float) * static_cast<std::size_t>(part.buckets));
  } else {
    Kernels().encode({.n = part.buckets,
                      .x = Contiguous(scales.scale),
                      .random = {},
                      .plan = &plan.scale,
                      .packed = to});
  }
  float all_factors[kStep], all_decode[kStep];
  std::uint32_t integers[kStep + kBlock];
  ForSteps(call, part, [&](const Step& step) {
    ScaledRun run{.n = step.n, .run = step.run, .x = values + step.begin};
    run.factor = scales.factor + step.bucket;
    run.scale = scales.decode + step.bucket;
    run.outer = kOnes.data();
    if (step.run == 0) {
      Spread(step, call.bucket, scales.factor, all_factors);
      Spread(step, call.bucket, scales.decode, all_decode);
      run.run = 1;
      run.factor = all_factors;
      run.scale = all_decode;
    }
    if (plan.element.mode == Rounding::stochastic) {
      const std::int64_t index = call.begin + begin + step.begin;
      const std::int64_t before = index % kBlock;
      run.random = integers + before;
      if (call.random != nullptr) {
        run.random = call.random + begin + step.begin;
      } else {
        Kernels().random_integers(plan.element.random_bits, plan.element.seed, call.stream,
                                  index - before, before + step.n, integers);
      }
    }
    run.streaming = call.streaming && call.bucket < kStep;
    Kernels().encode_blocks(plan, route, run,
                            to + part.elements + step.begin * plan.element.bits / 8);
  });
}

/// Decodes one block of a message. The block's first value is value number `begin` of `call`.
void DecodePart(const QuantizedCall& call, std::int64_t begin, const ScaledPart& part,
                const std::uint8_t* from, float* y) {
  const ScaledPlan& plan = call.scaled.plan;
  float scales[kStep + 1], all[kStep], elements[kStep];
  if (plan.in_fp32) {
    std::memcpy(scales, from, sizeof(float) * static_cast<std::size_t>(part.buckets));
  } else {
    Kernels().decode(
        {.n = part.buckets, .plan = &plan.scale, .packed = from, .out = Contiguous(scales)});
  }
  bool any_zero = false;
  Guarded([&] {
    for (std::int64_t b = 0; b < part.buckets; ++b) {
      any_zero = any_zero || scales[b] == 0;
      const bool is_wrong = scales[b] < 0 || (call.inverted && !std::isfinite(scales[b]));
      if (is_wrong) Note(call.damaged, begin + (b == 0 ? 0 : b * call.bucket - part.before));
    }
  });
  from += part.elements;
  for (std::int64_t i = 0; i < part.n; i += kStep) {
    const ScaledPart some(call, std::min(kStep, part.n - i), part.before + i);
    Kernels().decode({.n = some.n,
                      .plan = &plan.element,
                      .packed = from + i * plan.element.bits / 8,
                      .out = Contiguous(elements)});
    ForSteps(call, some, [&](const Step& step) {
      float* const to = y + i + step.begin;
      ScaledRun run{.n = step.n, .run = step.run, .x = elements + step.begin};
      run.factor = run.scale = scales + step.bucket;
      run.outer = kOnes.data();
      if (call.inverted) {
        return Guarded([&] {
          ForStepBuckets(step, call.bucket, [&](std::int64_t b, std::int64_t j, std::int64_t n) {
            Divide(n, run.x + j, scales[step.bucket + b], to + j);
          });
        });
      }
      if (step.run == 0) {
        Spread(step, call.bucket, scales, all);
        run.run = 1;
        run.factor = run.scale = all;
      }
      Kernels().scale_blocks(plan.wide_values, run, to);
    });
  }
  if (!call.inverted && any_zero) {
    Guarded([&] {
      for (std::int64_t i = 0; i < part.n; ++i) {
        if (scales[(part.before + i) / call.bucket] == 0) y[i] += 0.0F;  // -0 becomes +0
      }
    });
  }
}

/// Divides the call's values into the blocks of a message. Calls run(begin, part) for each block,
/// where `begin` is the index of the block's first value and `part` is the block's byte layout.
template <class Run>
void ForScaledParts(const QuantizedCall& call, Run run) {
  for (std::int64_t i = 0; i < call.n; i += call.block) {
    run(i, ScaledPart(call, std::min(call.block, call.n - i), call.before));
  }
}

}  // namespace

int bucket_scales(const Launch& /*launch*/, const QuantizedCall& call) {
  const bool with_nan = call.scaled.plan.makes_nan;
  const std::int64_t ahead = call.before % call.bucket;
  const std::int64_t first = ahead == 0 ? 0 : std::min(call.n, call.bucket - ahead);
  if (first > 0) Kernels().block_max(with_nan, call.bucket, first, call.x, call.scale);
  float* const rest = call.scale + (first > 0 ? 1 : 0);
  Kernels().block_max(with_nan, call.bucket, call.n - first, call.x + first, rest);
  // Multiplies only each bucket's largest magnitude by 2^shift, not all values. The result is the
  // same, because the multiplication and its rounding preserve the order of magnitudes.
  const std::int64_t buckets = (ahead + call.n + call.bucket - 1) / call.bucket;
  if (call.shift != 0) UnscaleSpan(call.shift, 1, buckets, call.scale, call.scale);
  return 0;
}

int round_quantized(const Launch& /*launch*/, const QuantizedCall& call) {
  const ScaledPart most(call, std::min(call.block, call.n), call.before);
  RoundByBlocks(
      call, most.bytes,
      [&](std::int64_t begin, std::int64_t n, std::uint8_t* to) {
        EncodePart(call, begin, {call, n, call.before}, to);
      },
      [&](std::int64_t begin, std::int64_t n, const std::uint8_t* from, float* y) {
        DecodePart(call, begin, {call, n, call.before}, from, y);
      });
  return 0;
}

int encode_quantized(const Launch& /*launch*/, const QuantizedCall& call) {
  std::uint8_t* to = call.to;
  ForScaledParts(call, [&](std::int64_t begin, const ScaledPart& part) {
    EncodePart(call, begin, part, to);
    to += part.bytes;
  });
  return 0;
}

int decode_quantized(const Launch& /*launch*/, const QuantizedCall& call) {
  const std::uint8_t* from = call.from;
  ForScaledParts(call, [&](std::int64_t begin, const ScaledPart& part) {
    DecodePart(call, begin, part, from, call.y + begin);
    from += part.bytes;
  });
  if (call.shift != 0 || call.divisor != 1) {
    UnscaleSpan(call.shift, call.divisor, call.n, call.y, call.y);
  }
  return 0;
}

}  // namespace cpd::cpu
