// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/codec.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>

#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/cuda.h"
#include "cpd/backend/explain.h"
#include "cpd/backend/roster.h"
#include "cpd/base/parallel.h"
#include "cpd/base/plans.h"
#include "cpd/ops/checks.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

void CheckPacked(const TensorView& packed, const Format& format, std::int64_t n) {
  Check(packed, "packed");
  if (packed.dtype != DType::u8 || !packed.is_contiguous()) {
    throw Error("packed codes must be contiguous uint8, got " + ToString(packed.dtype));
  }
  if (packed.size() != PackedBytes(format, n)) {
    throw Error(std::to_string(n) + " codes of " + ToString(format) + " take " +
                std::to_string(PackedBytes(format, n)) + " bytes, got " +
                std::to_string(packed.size()));
  }
}

/// Encodes x in T; returns the least index of a NaN that has no code, or -1.
template <class T>
std::int64_t EncodeAs(const TensorView& x, const RoundPlan& plan, std::uint8_t* packed,
                      const TensorView* random) {
  const std::int64_t size = x.size();
  std::atomic<unsigned long long> first_nan{~0ULL};
  if (Explains()) NoteKernel("encode");
  parallel_for(size, kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Reader<T> reader(x);
    std::optional<Reader<std::uint32_t>> integers;
    if (random != nullptr) integers.emplace(*random);
    const bool direct = reader.is_direct() && (!integers || integers->is_direct());
    const std::int64_t step = direct ? end - begin : kStage;
    unsigned long long found = ~0ULL;
    for (std::int64_t i = begin; i < end && found == ~0ULL; i += step) {
      const std::int64_t n = std::min(step, end - i);
      Kernels().encode({.n = n,
                        .first = i,
                        .x = Contiguous(reader.Read(i, n)),
                        .random = Contiguous(integers ? integers->Read(i, n) : nullptr),
                        .plan = &plan,
                        .streaming = direct && size >= kStreamingFrom,
                        .packed = packed + i * plan.bits / 8,
                        .first_nan = &found});
    }
    unsigned long long least = first_nan;
    while (found < least && !first_nan.compare_exchange_weak(least, found)) {
    }
  });
  return static_cast<std::int64_t>(first_nan.load());
}

}  // namespace

std::int64_t PackedBytes(const Format& format, std::int64_t n) {
  Check(format);
  const std::int64_t bits = format.bits();
  if (n < 0 || n / 8 > (std::numeric_limits<std::int64_t>::max() - bits) / bits) {
    throw Error("a number of codes must be at least 0 and their bytes below 2^63, got " +
                std::to_string(n) + " codes of " + ToString(format));
  }
  return n / 8 * bits + (n % 8 * bits + 7) / 8;
}

void Encode(const TensorView& x, const Format& format, const RoundingOptions& options,
            const TensorView& packed, const RandomKey& key, const TensorView* random) {
  CheckFloat(x, "x");
  CheckPacked(packed, format, x.size());
  CheckSameDevice(x, packed);
  CheckRandom(random, x, options, key);
  const RoundPlan plan = PlanOf(format, options, key);
  if (Explains()) NotePath("encode", PathOf(format, options, x.dtype == DType::f64));
  if (x.size() == 0) return;
  std::int64_t nan = -1;
  auto* to = static_cast<std::uint8_t*>(packed.data);
  if (!x.on_host()) {
    return cuda::Encode(x, format, plan, packed, random, cuda::KeyOf(options, key));
  }
  if (x.dtype == DType::f64) {
    nan = EncodeAs<double>(x, plan, to, random);
  } else {
    nan = EncodeAs<float>(x, plan, to, random);
  }
  if (nan >= 0) {
    throw Error("element " + std::to_string(nan) + " is NaN, and " + ToString(format) +
                " has no code for NaN");
  }
}

void Decode(const TensorView& packed, const Format& format, const TensorView& out) {
  Check(out, "out");
  CheckStorage(out.dtype, format);
  CheckPacked(packed, format, out.size());
  CheckSameDevice(packed, out);
  const RoundPlan plan = PlanOf(format);
  const std::int64_t size = out.size();
  if (Explains()) NotePath("decode", {"codes", ""});
  if (size == 0) return;
  if (!out.on_host()) return cuda::Decode(packed, plan, out);
  const auto* from = static_cast<const std::uint8_t*>(packed.data);
  if (Explains()) NoteKernel("decode");
  parallel_for(size, kStage, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
    Writer<float> writer(out);
    const std::int64_t step = writer.is_direct() ? end - begin : kStage;
    for (std::int64_t i = begin; i < end; i += step) {
      const std::int64_t n = std::min(step, end - i);
      Kernels().decode({.n = n,
                        .plan = &plan,
                        .packed = from + i * plan.bits / 8,
                        .out = Contiguous(writer.Target(i, n)),
                        .streaming = writer.is_direct() && size >= kStreamingFrom});
      writer.Flush(i, n);
    }
  });
}

}  // namespace cpd
