// SPDX-License-Identifier: Apache-2.0
#include "cpd/scale/aps.h"

#include <algorithm>
#include <bit>
#include <string>

#include "cpd/backend/segments.h"
#include "cpd/spec/error.h"

namespace cpd {

LayerRange MeasureRange(const TensorView& x) {
  Check(x, "x");
  if (x.dtype != DType::f32 || !x.is_contiguous() || !x.on_host()) {
    throw Error("a tensor must be contiguous fp32 on the CPU, got " + ToString(x.dtype));
  }
  return MeasureRanges(Queue(x), {&x, 1})[0];
}

std::vector<LayerRange> MeasureRanges(const Queue& queue, std::span<const TensorView> x) {
  std::vector<std::int64_t> sizes;
  for (const TensorView& layer : x) sizes.push_back(layer.size());
  std::vector<ReduceSegment> segments = WholeLayers(sizes);
  for (std::size_t l = 0; l < x.size(); ++l) segments[l].x = static_cast<const float*>(x[l].data);
  std::vector<SegmentCounts> counts(x.size());
  CountCall call;
  call.counts = counts.data();
  Walk(call.reduce, segments);
  queue.count(call);
  std::vector<LayerRange> ranges;
  for (const SegmentCounts& of : counts) {
    ranges.push_back({std::bit_cast<float>(of.largest), static_cast<std::int64_t>(of.non_finite)});
  }
  return ranges;
}

int ApsExponent(float max_abs, int ranks) {
  if (ranks < 1) throw Error("ranks must be at least 1, got " + std::to_string(ranks));
  const auto bits = std::bit_cast<std::uint32_t>(max_abs);
  const std::uint32_t field = bits >> 23;
  const std::uint64_t significand = (bits & 0x7FFFFF) | (field != 0 ? 0x800000U : 0U);
  const int exponent = static_cast<int>(std::max(field, 1U)) - 127 - 23;
  return std::bit_width(significand * static_cast<std::uint64_t>(ranks) - 1) + exponent;
}

float LargerMagnitude(float a, float b) {
  return std::bit_cast<float>(
      std::max(std::bit_cast<std::uint32_t>(a), std::bit_cast<std::uint32_t>(b)));
}

bool RoundsOutward(const Format& format, Rounding mode) {
  return mode == Rounding::stochastic || mode == Rounding::up || mode == Rounding::down ||
         (mode == Rounding::nearest_away && format.exp <= 2);
}

void Check(Aps aps) {
  if (aps == Aps::off || aps == Aps::on || aps == Aps::paper) return;
  throw Error("aps must be off, on or paper, got number " + std::to_string(static_cast<int>(aps)));
}

}  // namespace cpd
