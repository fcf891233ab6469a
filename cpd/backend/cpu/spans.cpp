// SPDX-License-Identifier: Apache-2.0
#include "cpd/backend/cpu/spans.h"

#include <atomic>
#include <bit>

#include "cpd/backend/cpu/elementwise.h"

namespace cpd {

void CastSpan(const RoundPlan& plan, int shift, std::int64_t first, std::int64_t n, const float* x,
              float* y) {
  WithIntegers(plan, first, n,
               [&](std::int64_t i, std::int64_t count, const std::uint32_t* random) {
                 Kernels().cast({.n = count,
                                 .first = first + i,
                                 .x = Contiguous(x + i),
                                 .random = Contiguous(random),
                                 .out = Contiguous(y + i),
                                 .plan = &plan,
                                 .shift = BoundedShift(shift),
                                 .streaming = n >= kStreamingFrom && x != y});
               });
}

void UnscaleSpan(int shift, float divisor, std::int64_t n, const float* x, float* y) {
  static constexpr RoundPlan kPlan = make_plan(kFp32, {});
  // y may be x: the kernel reads a block's codes before it writes the block's values.
  Kernels().decode({.n = n,
                    .plan = &kPlan,
                    .packed = reinterpret_cast<const std::uint8_t*>(x),
                    .out = Contiguous(y),
                    .shift = BoundedShift(shift),
                    .divisor = divisor});
}

void CountLosses(std::int64_t n, const float* x, const float* terms, SegmentCounts& counts) {
  constexpr std::int64_t kRun = 4096;  // values whose counts fit 32-bit lanes
  constexpr std::uint32_t kExponent = 0x7F800000;
  for (std::int64_t begin = 0; begin < n; begin += kRun) {
    std::uint32_t non_finite = 0;
    std::uint32_t underflowed = 0;
    std::uint32_t zeros = 0;
    for (std::int64_t i = begin; i < std::min(begin + kRun, n); ++i) {
      const auto given = std::bit_cast<std::uint32_t>(x[i]);
      const auto term = std::bit_cast<std::uint32_t>(terms[i]);
      non_finite += static_cast<std::uint32_t>((given & kExponent) == kExponent);
      underflowed +=
          static_cast<std::uint32_t>(given << 1 != 0) & static_cast<std::uint32_t>(term << 1 == 0);
      zeros += static_cast<std::uint32_t>(term << 1 == 0);
    }
    counts.non_finite += non_finite;
    counts.underflowed += underflowed;
    counts.zeros += zeros;
  }
}

void AddCounts(const SegmentCounts& counts, SegmentCounts& to) {
  const auto add = [](unsigned long long n, unsigned long long& sum) {
    if (n != 0) std::atomic_ref(sum).fetch_add(n, std::memory_order_relaxed);
  };
  add(counts.non_finite, to.non_finite);
  add(counts.underflowed, to.underflowed);
  add(counts.zeros, to.zeros);
}

void AddTerms(const SumPlan& plan, std::int64_t count, std::int64_t k,
              std::span<const float* const> terms, std::int64_t first, std::int64_t n,
              float* planes, std::int64_t stride) {
  const PlansOfSum plans{plan};
  FoldSpans<float, const PlansOfSum> spans(plans, first, n, terms.data(), {planes, stride});
  SumWalk walk(plan.order, k);
  const auto added = static_cast<std::int64_t>(terms.size());
  walk.take(spans, added);
  if (k + added < count) return;
  walk.end(spans);
  if (plan.rounds) CastSpan(plan.result, 0, first, n, planes, planes);
}

}  // namespace cpd
