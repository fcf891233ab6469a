// SPDX-License-Identifier: Apache-2.0
//
// The operations of error feedback on the CPU. One adds the errors of the last call to a layer's
// values. The other computes the errors of these sums after they are encoded and decoded.
#include <bit>

#include "cpd/backend/cpu/codec_spans.h"
#include "cpd/backend/cpu/cpu.h"
#include "cpd/backend/cpu/spans.h"
#include "cpd/base/guarded.h"

namespace cpd::cpu {
namespace {

void AddEach(std::int64_t n, const float* x, const float* y, float* sum) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = x[i] + y[i];
}

/// Writes errors[i] = v[i] - decoded[i], or 0 if the difference is not finite.
void TakeErrors(std::int64_t n, const float* v, const float* decoded, float* errors) {
  constexpr std::uint32_t kInfinity = 0x7F800000;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto error = std::bit_cast<std::uint32_t>(v[i] - decoded[i]);
    errors[i] = std::bit_cast<float>((error & kInfinity) == kInfinity ? 0 : error);
  }
}

}  // namespace

int add_residual(const Launch& /*launch*/, const FeedbackCall& call) {
  const float* x = call.x;
  if (call.shift != 0 || call.kept == nullptr) {
    UnscaleSpan(call.shift, 1, call.n, x, call.v);
    x = call.v;
  }
  if (call.kept != nullptr) Guarded([&] { AddEach(call.n, x, call.kept, call.v); });
  return 0;
}

int take_errors(const Launch& /*launch*/, const FeedbackCall& call) {
  Guarded([&] { TakeErrors(call.n, call.v, call.decoded, call.next); });
  if (call.counts != nullptr) AddLosses(call.n, call.x, call.decoded, *call.counts);
  return 0;
}

}  // namespace cpd::cpu
