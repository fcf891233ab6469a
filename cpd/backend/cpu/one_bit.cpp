// SPDX-License-Identifier: Apache-2.0
//
// 1-bit SGD in messages. The values of a message are divided into blocks. Each block stores two
// means for each of its buckets, and then the bits of its values.
#include "cpd/numeric/scaled/one_bit.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpd/backend/cpu/codec_spans.h"
#include "cpd/backend/cpu/cpu.h"
#include "cpd/backend/cpu/spans.h"
#include "cpd/backend/roster.h"

namespace cpd::cpu {
namespace {

constexpr std::int64_t kMeanBytes = 2 * sizeof(float);  // of a bucket's two means

std::int64_t BucketsOf(const OneBitCall& call, std::int64_t n) {
  return (call.before + n + call.bucket - 1) / call.bucket;
}

/// Returns the number of bytes that the bits of n values take.
std::int64_t BitBytes(const OneBitCall& call, std::int64_t n) {
  if (!call.words) return (n + 7) / 8;
  const auto bytes = [](std::int64_t count) { return (count + 31) / 32 * 4; };
  const std::int64_t first = std::min(n, call.bucket - call.before);
  const std::int64_t rest = n - first;
  return bytes(first) + rest / call.bucket * bytes(call.bucket) + bytes(rest % call.bucket);
}

/// Encodes n values, from value number `begin` of `call` on: the means of their buckets, then their
/// bits. Returns the end of the written bytes.
std::uint8_t* EncodeBits(const OneBitCall& call, std::int64_t begin, std::int64_t n,
                         std::vector<float>& scratch, std::uint8_t* to) {
  const float* const means = call.means + 2 * ((call.before + begin) / call.bucket);
  const std::int64_t mean_bytes = kMeanBytes * BucketsOf(call, n);
  std::memcpy(to, means, static_cast<std::size_t>(mean_bytes));
  to += mean_bytes;
  const std::int64_t bytes = BitBytes(call, n);
  std::fill_n(to, bytes, std::uint8_t{0});
  Kernels().one_bit_encode({n, call.bucket, call.before, call.words, call.streaming},
                           Shifted(call.shift, n, call.x + begin, scratch), call.kept + begin,
                           means, to, call.next + begin);
  return to + bytes;
}

/// Decodes n values that EncodeBits has encoded. Returns the end of the bytes read.
const std::uint8_t* DecodeBits(const OneBitCall& call, std::int64_t n, std::vector<float>& means,
                               const std::uint8_t* from, float* y) {
  means.resize(static_cast<std::size_t>(2 * BucketsOf(call, n)));
  const std::size_t mean_bytes = means.size() * sizeof(float);
  std::memcpy(means.data(), from, mean_bytes);
  UnscaleSpan(call.shift, call.divisor, static_cast<std::int64_t>(means.size()), means.data(),
              means.data());
  from += mean_bytes;
  Kernels().one_bit_decode({n, call.bucket, call.before, call.words}, from, means.data(), y);
  return from + BitBytes(call, n);
}

}  // namespace

int one_bit_means(const Launch& /*launch*/, const OneBitCall& call) {
  std::vector<float> scratch;
  Kernels().one_bit_means({call.n, call.bucket, call.before, call.words},
                          Shifted(call.shift, call.n, call.x, scratch), call.kept, call.means);
  return 0;
}

int round_one_bit(const Launch& /*launch*/, const OneBitCall& call) {
  const std::int64_t most = std::min(call.block, call.n);
  std::vector<float> scratch;
  OneBitCall decoded = call;
  decoded.shift = 0;
  RoundByBlocks(
      call, kMeanBytes * BucketsOf(call, most) + BitBytes(call, most),
      [&](std::int64_t begin, std::int64_t n, std::uint8_t* to) {
        EncodeBits(call, begin, n, scratch, to);
      },
      [&](std::int64_t /*begin*/, std::int64_t n, const std::uint8_t* from, float* y) {
        DecodeBits(decoded, n, scratch, from, y);
      });
  return 0;
}

int encode_one_bit(const Launch& /*launch*/, const OneBitCall& call) {
  std::vector<float> scratch;
  std::uint8_t* to = call.to;
  for (std::int64_t i = 0; i < call.n; i += call.block) {
    to = EncodeBits(call, i, std::min(call.block, call.n - i), scratch, to);
  }
  return 0;
}

int decode_one_bit(const Launch& /*launch*/, const OneBitCall& call) {
  std::vector<float> means;
  const std::uint8_t* from = call.from;
  for (std::int64_t i = 0; i < call.n; i += call.block) {
    from = DecodeBits(call, std::min(call.block, call.n - i), means, from, call.y + i);
  }
  return 0;
}

}  // namespace cpd::cpu
