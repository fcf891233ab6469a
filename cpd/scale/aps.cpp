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
namespace {

constexpr int kMaxExponent = 255 - kApsOffset;

/// ceil(log2(x * world)) for finite x > 0, exactly.
int CeilLog2(float x, int world) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t field = bits >> 23;
  const std::uint64_t significand = (bits & 0x7FFFFF) | (field != 0 ? 0x800000U : 0U);
  const int exponent = static_cast<int>(std::max(field, 1U)) - 127 - 23;
  const std::uint64_t product = significand * static_cast<std::uint64_t>(world);
  return std::bit_width(product - 1) + exponent;
}

/// Whether a sum in this mode may be larger than the scaled bound allows.
bool RoundsOutward(const Format& format, Rounding mode) {
  return mode == Rounding::stochastic || mode == Rounding::up || mode == Rounding::down ||
         (mode == Rounding::nearest_away && format.exp <= 2);
}

}  // namespace

LayerRange MeasureRange(const TensorView& x) {
  Check(x, "x");
  if (x.dtype != DType::f32 || !x.is_contiguous() || x.device != Device::cpu) {
    throw Error("a layer must be contiguous fp32 on the CPU, got " + ToString(x.dtype));
  }
  const auto* values = static_cast<const float*>(x.data);
  LayerRange range;
  std::mutex mutex;
  parallel_for(x.size(), 4096, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t non_finite = 0;
    const float most = Kernels().max_abs(end - begin, values + begin, &non_finite);
    const std::lock_guard<std::mutex> lock(mutex);
    range.max_abs = std::max(range.max_abs, most);
    range.non_finite += non_finite;
  });
  return range;
}

std::uint8_t ApsExponent(float max_abs, int world) {
  // Tests the bits: a comparison would take a subnormal for zero where the program flushes them.
  if (std::bit_cast<std::uint32_t>(max_abs) << 1 == 0) return 0;
  if (world < 1) throw Error("world must be at least 1, got " + std::to_string(world));
  const int e = CeilLog2(max_abs, world);
  if (e > kMaxExponent) {
    throw Error("APS: largest gradient times ranks is above 2^" + std::to_string(kMaxExponent) +
                "; the sum may not fit in binary32");
  }
  return static_cast<std::uint8_t>(std::max(e + kApsOffset, 1));
}

void Check(Aps aps) {
  if (aps == Aps::off || aps == Aps::on || aps == Aps::paper) return;
  throw Error("aps must be off, on or paper, got number " + std::to_string(static_cast<int>(aps)));
}

int ApsShift(std::uint8_t exponent, const Format& format, Rounding mode, Aps aps) {
  Check(format);
  Check(aps);
  if (exponent == 0 || aps == Aps::off) return 0;
  const bool reserve = aps == Aps::on && RoundsOutward(format, mode);
  return format.emax() - (reserve ? 1 : 0) - (static_cast<int>(exponent) - kApsOffset);
}

}  // namespace cpd
