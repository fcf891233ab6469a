// SPDX-License-Identifier: Apache-2.0
//
// The codecs that round each value to a level, a fraction of its bucket's norm
// (numeric/scaled/levels.h). Computes norms, rounds, encodes and decodes, one block of a message
// after the other.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "cpd/backend/cpu/codec_spans.h"
#include "cpd/backend/cpu/cpu.h"
#include "cpd/backend/cpu/spans.h"
#include "cpd/backend/roster.h"
#include "cpd/base/guarded.h"

namespace cpd::cpu {
namespace {

constexpr int kMostLevelShift = 126;   // the largest |shift| that a kernel takes
constexpr std::int64_t kSpan = 4096;   // values that are rounded at once: codes end on a byte
constexpr int kMostLevelBits = 16;     // the maximum bits of a code
constexpr std::int64_t kNorms = 4112;  // maximum buckets of a block, one of them cut
constexpr float kUnit = 1;             // the norm of levels given as multiples of a norm

float FiniteOrNan(float norm) {
  return std::isfinite(norm) ? norm : std::numeric_limits<float>::quiet_NaN();
}

float NormOf(const NormCall& call, std::int64_t n, const float* x) {
  const bool sums = call.norm == LevelNorm::euclidean || call.clip != 0;
  Moments moments;
  if (sums) {
    const auto is_finite = [](float value) { return std::isfinite(value); };
    const float* const first = call.clip == 0 ? x + n : std::find_if(x, x + n, is_finite);
    Kernels().moments(n, x, first == x + n ? 0.0 : static_cast<double>(*first), &moments);
  } else {
    std::int64_t non_finite = 0;
    moments.largest = Kernels().max_abs(n, x, &non_finite);
    moments.finite = n - non_finite;
  }
  return norm_of(call.norm, call.clip, moments, n);
}

/// Returns the norms of the buckets of `call`, starting with the bucket that contains value i of
/// `call`.
const float* NormsFrom(const LevelCall& call, std::int64_t i) {
  return call.norms == nullptr ? &call.norm : call.norms + (call.before + i) / call.plan.bucket;
}

/// Returns the number of norms that a message of n values stores.
std::int64_t StoredNorms(const LevelCall& call, std::int64_t n) {
  if (!call.stores_norms) return 0;
  return (call.before + n + call.plan.bucket - 1) / call.plan.bucket;
}

void CheckNorms(const LevelCall& call, std::int64_t i, std::int64_t count, const float* norms) {
  for (std::int64_t b = 0; b < count; ++b) {
    if (!std::signbit(norms[b]) && !std::isinf(norms[b])) continue;
    Note(call.damaged, i + (b == 0 ? 0 : b * call.plan.bucket - call.before));
  }
}

}  // namespace

int level_norms(const Launch& /*launch*/, const NormCall& call) {
  return Guarded([&] {
    const std::int64_t buckets = (call.n + call.bucket - 1) / call.bucket;
    if (call.norm == LevelNorm::largest) {
      // Multiplies only each bucket's largest magnitude by 2^shift, not all values. The result is
      // the same, because the multiplication and its rounding preserve the order of magnitudes.
      Kernels().block_max(true, call.bucket, call.n, call.x, call.norms);
      if (call.shift != 0) UnscaleSpan(call.shift, 1, buckets, call.norms, call.norms);
      std::transform(call.norms, call.norms + buckets, call.norms, FiniteOrNan);
      return 0;
    }
    std::vector<float> scratch;
    for (std::int64_t b = 0; b < buckets; ++b) {
      const std::int64_t begin = b * call.bucket;
      const std::int64_t n = std::min(call.bucket, call.n - begin);
      call.norms[b] = NormOf(call, n, Shifted(call.shift, n, call.x + begin, scratch));
    }
    return 0;
  });
}

int round_levels(const Launch& /*launch*/, const LevelCall& call) {
  std::uint8_t codes[kSpan * kMostLevelBits / 8];
  float kept[kSpan];
  std::vector<float> scratch;
  for (std::int64_t i = 0; i < call.n; i += kSpan) {
    const std::int64_t n = std::min(kSpan, call.n - i);
    const std::int64_t before = (call.before + i) % call.plan.bucket;
    const float* const norms = NormsFrom(call, i);
    if (call.counts != nullptr) std::copy_n(call.x + i, n, kept);
    Kernels().encode_levels(call.plan, call.begin + i, before, n,
                            Shifted(call.shift, n, call.x + i, scratch), norms,
                            call.random == nullptr ? nullptr : call.random + i, codes);
    Kernels().decode_levels(call.plan, 0, 1, before, n, codes, call.stores_norms ? norms : &kUnit,
                            call.y + i);
    if (call.counts != nullptr) AddLosses(n, kept, call.y + i, *call.counts);
  }
  return 0;
}

int encode_levels(const Launch& /*launch*/, const LevelCall& call) {
  std::uint8_t* to = call.to;
  std::vector<float> scratch;
  for (std::int64_t i = 0; i < call.n; i += call.block) {
    const std::int64_t n = std::min(call.block, call.n - i);
    const float* const norms = NormsFrom(call, i);
    const auto stored = static_cast<std::size_t>(StoredNorms(call, n)) * sizeof(float);
    if (stored > 0) std::memcpy(to, norms, stored);
    to += stored;
    Kernels().encode_levels(call.plan, call.begin + i, call.before, n,
                            Shifted(call.shift, n, call.x + i, scratch), norms,
                            call.random == nullptr ? nullptr : call.random + i, to);
    to += (n * call.plan.bits + 7) / 8;
  }
  return 0;
}

int decode_levels(const Launch& /*launch*/, const LevelCall& call) {
  const bool is_direct = std::abs(call.shift) <= kMostLevelShift;
  const std::uint8_t* from = call.from;
  float stored[kNorms];
  for (std::int64_t i = 0; i < call.n; i += call.block) {
    const std::int64_t n = std::min(call.block, call.n - i);
    const float* norms = NormsFrom(call, i);
    if (call.stores_norms) {
      const std::int64_t count = StoredNorms(call, n);
      std::memcpy(stored, from, static_cast<std::size_t>(count) * sizeof(float));
      CheckNorms(call, i, count, stored);
      from += count * static_cast<std::int64_t>(sizeof(float));
      norms = stored;
    }
    Kernels().decode_levels(call.plan, is_direct ? call.shift : 0, is_direct ? call.divisor : 1,
                            call.before, n, from, norms, call.y + i);
    from += (n * call.plan.bits + 7) / 8;
  }
  if (!is_direct) UnscaleSpan(call.shift, call.divisor, call.n, call.y, call.y);
  return 0;
}

}  // namespace cpd::cpu
