// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/cast.h"

#include <algorithm>
#include <optional>

#include "cpd/backend/cpu/cast_boxes.h"
#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/cuda.h"
#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"
#include "cpd/base/interrupt.h"
#include "cpd/base/parallel.h"
#include "cpd/base/plans.h"
#include "cpd/ops/checks.h"
#include "cpd/ops/exact.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

template <class T>
void CastAs(const TensorView& x, const RoundPlan& plan, const TensorView& out,
            const TensorView* random) {
  const std::int64_t size = x.size();
  const bool streaming = size >= kStreamingFrom && x.data != out.data;
  if (Explains()) NoteKernel("cast");
  parallel_for(size, kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Reader<T> reader(x);
    Writer<T> writer(out);
    std::optional<Reader<std::uint32_t>> integers;
    if (random != nullptr) integers.emplace(*random);
    const bool direct =
        reader.is_direct() && writer.is_direct() && (!integers || integers->is_direct());
    const std::int64_t step = direct ? end - begin : kStage;
    for (std::int64_t i = begin; i < end; i += step) {
      const std::int64_t n = std::min(step, end - i);
      Kernels().cast({.n = n,
                      .first = i,
                      .x = Contiguous(reader.Read(i, n)),
                      .random = Contiguous(integers ? integers->Read(i, n) : nullptr),
                      .out = Contiguous(writer.Target(i, n)),
                      .plan = &plan,
                      .streaming = streaming && direct});
      writer.Flush(i, n);
    }
  });
}

/// Whether x and out are contiguous bf16 and `random`, if not null, contiguous: one kernel casts
/// them in one pass.
bool IsPlainBf16(const TensorView& x, const RoundPlan& plan, const TensorView& out,
                 const TensorView* random) {
  const auto is_plain = [](const TensorView& t) {
    return t.dtype == DType::bf16 && t.is_contiguous();
  };
  return is_plain(x) && is_plain(out) && !plan.wide &&
         (random == nullptr || random->is_contiguous());
}

void CastBf16(const TensorView& x, const RoundPlan& plan, const TensorView& out,
              const TensorView* random) {
  const auto* from = static_cast<const std::uint16_t*>(x.data);
  const auto* integers = random == nullptr ? nullptr : static_cast<std::uint32_t*>(random->data);
  auto* to = static_cast<std::uint16_t*>(out.data);
  if (Explains()) NoteKernel("cast");
  parallel_for(x.size(), kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Kernels().cast({.n = end - begin,
                    .first = begin,
                    .x = Contiguous(from + begin, DType::bf16),
                    .random = Contiguous(integers == nullptr ? nullptr : integers + begin),
                    .out = Contiguous(to + begin, DType::bf16),
                    .plan = &plan});
  });
}

}  // namespace

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
  const bool along_memory = options.mode != Rounding::stochastic && FillAlike(x, out);
  const TensorView from = along_memory ? AlongMemory(x) : x;
  const TensorView to = along_memory ? AlongMemory(out) : out;
  if (!x.on_host()) return cuda::Cast(from, plan, to, random, cuda::KeyOf(options, key));
  if (const auto boxes = Boxes::Of(from, to, random)) {
    return CastBoxes(from, plan, to, random, *boxes);
  }
  if (IsPlainBf16(from, plan, to, random)) return CastBf16(from, plan, to, random);
  if (x.dtype == DType::f64) return CastAs<double>(from, plan, to, random);
  CastAs<float>(from, plan, to, random);
}

void RandomIntegers(const RoundingOptions& options, std::uint64_t first, const TensorView& out,
                    const RandomKey& key) {
  Check(options);
  Check(key, false);
  Check(out, "out");
  if (out.dtype != DType::u32 || !out.is_contiguous() || !out.on_host()) {
    throw Error("out must be contiguous uint32 on the CPU, got " + ToString(out.dtype) +
                (out.on_host() ? "" : " on a GPU") +
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
