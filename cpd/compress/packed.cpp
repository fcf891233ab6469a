// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/packed.h"

#include "cpd/ops/reduce.h"
#include "cpd/spec/error.h"

namespace cpd {

Packed::Packed(const Format& format, const RoundingOptions& rounding)
    : format_(format), rounding_(rounding) {
  Check(format_);
  Check(rounding_);
}

std::string Packed::name() const { return ToString(format_); }

std::string Packed::text() const {
  return "packed " + ToString(format_) + " rounding=" + ToString(rounding_.mode) +
         " overflow=" + ToString(rounding_.overflow) +
         " random_bits=" + std::to_string(rounding_.random_bits) +
         " variant=" + ToString(rounding_.variant);
}

std::int64_t Packed::MostBytes(std::int64_t n, std::int64_t /*before*/) const {
  return (n * format_.bits() + 7) / 8;
}

std::int64_t Packed::EncodeOn(const Queue& /*queue*/, const Piece& piece, CodecState* /*state*/,
                              const float* x, std::uint8_t* to) const {
  const std::int64_t nan =
      EncodeScaled(format_, rounding_, piece.shift, piece.begin, piece.n, x, to, piece.key);
  if (nan < 0) return MostBytes(piece.n, 0);
  throw Error("tensor " + std::to_string(piece.layer) + ", value " +
              std::to_string(piece.begin + nan) + " is NaN, and " + ToString(format_) +
              " has no code for NaN");
}

void Packed::DecodeOn(const Queue& /*queue*/, std::span<const std::uint8_t> bytes, std::int64_t n,
                      int shift, float divisor, float* y, std::int64_t /*before*/) const {
  if (static_cast<std::int64_t>(bytes.size()) != MostBytes(n, 0)) {
    throw DamagedBytes(std::to_string(n) + " values of " + ToString(format_) + " take " +
                       std::to_string(MostBytes(n, 0)) + " bytes, got " +
                       std::to_string(bytes.size()));
  }
  DecodeScaled(format_, shift, divisor, n, bytes.data(), y);
}

void Packed::RoundOn(const Queue& /*queue*/, const Piece& piece, CodecState* /*state*/,
                     const float* x, float* y, SegmentCounts* /*counts*/) const {
  CastScaled(format_, rounding_, piece.shift, piece.begin, piece.n, x, y, piece.key);
}

}  // namespace cpd
