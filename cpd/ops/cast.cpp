// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/cast.h"

#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"
#include "cpd/base/parallel.h"
#include "cpd/base/plans.h"
#include "cpd/ops/call.h"
#include "cpd/ops/checks.h"
#include "cpd/ops/exact.h"
#include "cpd/spec/error.h"
#include "cpd/spec/wide_format.h"

namespace cpd {

void Cast(const TensorView& x, const Format& format, const RoundingOptions& options,
          const TensorView& out, const RandomKey& key, const TensorView* random) {
  CheckFloat(x, "x");
  Check(out, "out");
  CheckStorage(out.dtype, format);
  CheckSameShape(x, out, "x and out");
  CheckSameDevice(x, out);
  CheckRandom(random, x, options, key);
  if (is_wide(format)) {
    return Compute(soft::Operation::cast, {x}, format, options, out, key, random);
  }
  const RoundPlan plan = PlanOf(format, options, key);
  if (Explains()) NotePath("cast", PathOf(format, options, x.dtype == DType::f64));
  if (x.size() == 0) return;
  if (Notes(x, "cast")) return;
  const bool along_memory =
      options.mode != Rounding::stochastic && !x.is_contiguous() && FillAlike(x, out);
  QueueOf(x).cast({.n = x.size(),
                   .x = along_memory ? Merge(AlongMemory(x)) : Merge(x),
                   .random = Merge(random),
                   .out = along_memory ? Merge(AlongMemory(out)) : Merge(out),
                   .plan = &plan,
                   .key = KeyOf(options, key)});
}

void RandomIntegers(const RoundingOptions& options, std::uint64_t first, const TensorView& out,
                    const RandomKey& key) {
  Check(options);
  Check(key, false);
  Check(out, "out");
  Check(OnCpuAlone::random_integers, out);
  if (out.dtype != DType::u32 || !out.is_contiguous()) {
    throw Error("out must be contiguous uint32 on the CPU, got " + ToString(out.dtype) +
                (out.is_contiguous() ? "" : ", not contiguous"));
  }
  if (first % kBlock != 0) {
    throw Error("first must be a multiple of " + std::to_string(kBlock) + ", got " +
                std::to_string(first));
  }
  auto* to = static_cast<std::uint32_t*>(out.data);
  parallel_for(out.size(), kBlock, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Kernels().random_integers(options.random_bits, key.seed, key.stream,
                              static_cast<std::int64_t>(first) + begin, end - begin, to + begin);
  });
}

}  // namespace cpd
