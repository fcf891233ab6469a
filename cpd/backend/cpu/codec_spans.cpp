// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cpu/codec_spans.h"

#include <atomic>
#include <cmath>

#include "cpd/backend/roster.h"
#include "cpd/base/guarded.h"
#include "cpd/spec/format.h"

namespace cpd::cpu {

void ScaleSpan(int shift, float divisor, std::int64_t n, const float* x, float* y) {
  static constexpr RoundPlan kPlan = make_plan(kFp32, {});
  // A block's codes are read before its values are written.
  Kernels().decode({.n = n,
                    .plan = &kPlan,
                    .packed = reinterpret_cast<const std::uint8_t*>(x),
                    .out = Contiguous(y),
                    .shift = std::clamp(shift, -600, 600),
                    .divisor = divisor});
}

const float* Shifted(int shift, std::int64_t n, const float* x, std::vector<float>& scratch) {
  if (shift == 0) return x;
  scratch.resize(static_cast<std::size_t>(n));
  ScaleSpan(shift, 1, n, x, scratch.data());
  return scratch.data();
}

void AddLosses(std::int64_t n, const float* x, const float* y, SegmentCounts& counts) {
  SegmentCounts lost;
  Guarded([&] {
    for (std::int64_t i = 0; i < n; ++i) {
      lost.non_finite += std::isfinite(x[i]) ? 0 : 1;
      lost.zeros += y[i] == 0 ? 1 : 0;
      lost.underflowed += y[i] == 0 && x[i] != 0 ? 1 : 0;
    }
  });
  std::atomic_ref(counts.non_finite) += lost.non_finite;
  std::atomic_ref(counts.zeros) += lost.zeros;
  std::atomic_ref(counts.underflowed) += lost.underflowed;
}

}  // namespace cpd::cpu
