// SPDX-License-Identifier: Apache-2.0
#include "cpd/ops/codec.h"

#include <limits>

#include "cpd/backend/explain.h"
#include "cpd/base/plans.h"
#include "cpd/ops/call.h"
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
  if (Notes(x, "encode")) return;
  const Queue queue = QueueOf(x);
  EncodeCall call{.n = x.size(),
                  .x = Merge(x),
                  .random = Merge(random),
                  .plan = &plan,
                  .key = KeyOf(options, key),
                  .packed = static_cast<std::uint8_t*>(packed.data)};
  if (format.has_nan()) return queue.encode(call);
  const auto lost = [&](std::int64_t) { return LostNan(format); };
  RunChecked(queue, lost, [&](unsigned long long* first) {
    call.first_nan = first;
    queue.encode(call);
  });
}

void Decode(const TensorView& packed, const Format& format, const TensorView& out) {
  Check(out, "out");
  CheckStorage(out.dtype, format);
  CheckPacked(packed, format, out.size());
  CheckSameDevice(packed, out);
  const RoundPlan plan = PlanOf(format);
  if (Explains()) NotePath("decode", {"codes", ""});
  if (out.size() == 0 || Notes(out, "decode")) return;
  QueueOf(out).decode({.n = out.size(),
                       .plan = &plan,
                       .packed = static_cast<const std::uint8_t*>(packed.data),
                       .out = Merge(out)});
}

}  // namespace cpd
