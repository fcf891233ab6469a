// SPDX-License-Identifier: Apache-2.0
#include "cpd/scale/aps.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <string>

#include "cpd/backend/roster.h"
#include "cpd/base/parallel.h"
#include "cpd/spec/error.h"

namespace cpd {

LayerRange MeasureRange(const TensorView& x) {
  Check(x, "x");
  if (x.dtype != DType::f32 || !x.is_contiguous() || !x.on_host()) {
    throw Error("a tensor must be contiguous fp32 on the CPU, got " + ToString(x.dtype));
  }
  const auto* values = static_cast<const float*>(x.data);
  LayerRange range;
  std::mutex mutex;
  parallel_for(x.size(), 4096, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t non_finite = 0;
    const float most = Kernels().max_abs(end - begin, values + begin, &non_finite);
    const std::lock_guard<std::mutex> lock(mutex);
    range.max_abs = LargerMagnitude(range.max_abs, most);
    range.non_finite += non_finite;
  });
  return range;
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
