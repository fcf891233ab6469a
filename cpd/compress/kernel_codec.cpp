// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/kernel_codec.h"

namespace cpd {

float KernelCodec::Measure(const Piece& layer, CodecState* state, const float* x) const {
  return MeasureOn(*HostQueue(), layer, state, x);
}
std::int64_t KernelCodec::Encode(const Piece& piece, CodecState* state, const float* x,
                                 std::uint8_t* to) const {
  return EncodeOn(*HostQueue(), piece, state, x, to);
}
void KernelCodec::Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                         float divisor, float* y, std::int64_t before) const {
  DecodeOn(*HostQueue(), bytes, n, shift, divisor, y, before);
}
void KernelCodec::Round(const Piece& piece, CodecState* state, const float* x, float* y) const {
  RoundOn(*HostQueue(), piece, state, x, y);
}
float KernelCodec::MeasureOn(const Queue& /*queue*/, const Piece& /*layer*/, CodecState* /*state*/,
                             const float* /*x*/) const {
  return 0;
}

void CheckFixedSize(const Codec& codec, std::span<const std::uint8_t> bytes, std::int64_t n,
                    std::int64_t before) {
  const std::int64_t expected = codec.MostBytes(n, before);
  if (static_cast<std::int64_t>(bytes.size()) == expected) return;
  throw DamagedBytes(std::to_string(n) + " values of " + codec.name() + " take " +
                     std::to_string(expected) + " bytes, got " + std::to_string(bytes.size()));
}

ValueRange BucketsAround(const Piece& piece, std::int64_t bucket) {
  const std::int64_t end = piece.begin + piece.n;
  if (piece.size == 0) return {piece.begin, end};
  const std::int64_t whole = (end + bucket - 1) / bucket * bucket;
  return {piece.begin / bucket * bucket, std::min(piece.size, whole)};
}

}  // namespace cpd
