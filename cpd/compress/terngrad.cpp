// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/terngrad.h"

#include <array>
#include <bit>
#include <memory>
#include <string>

#include "cpd/backend/roster.h"
#include "cpd/compress/buckets.h"
#include "cpd/compress/words.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

constexpr int kBits = 2;
constexpr int kMostRanks = 1 << 16;
constexpr double kLeastClip = 1e-6, kMostClip = 1e6;
constexpr std::array<std::string_view, 2> kShare{"off", "on"};

LevelBlocks BlocksOf(const TernGradOptions& options, const RoundingOptions& rounding) {
  Check(rounding);
  if (options.clip != 0 && !(options.clip >= kLeastClip && options.clip <= kMostClip)) {
    throw Error("terngrad: clip must be a number from " + NumberText(kLeastClip) + " to " +
                NumberText(kMostClip) + ", or none, got " + NumberText(options.clip));
  }
  if (options.bucket < 0 || options.bucket > kMostBucket) {
    throw Error("terngrad: bucket must be 1…65536 values, or 'tensor', got " +
                std::to_string(options.bucket));
  }
  if (options.share && options.bucket != 0) {
    throw Error("terngrad: ranks share one scaler a layer: give share=off with buckets");
  }
  return {{.bits = kBits,
           .steps = 1,
           .most = 1,
           .has_nan = true,
           .random_bits = rounding.random_bits,
           .seed = rounding.seed},
          {.norm = LevelNorm::clipped,
           .clip = options.clip,
           .bucket = options.bucket,
           .stores_norms = !options.share}};
}

LevelBlocks SumsOf(int world) {
  if (world < 1 || world > kMostRanks) {
    throw Error("integer sums are of 1…65536 ranks, got " + std::to_string(world));
  }
  return {{.bits = static_cast<int>(std::bit_width(2 * static_cast<unsigned>(world))),
           .steps = 1,
           .most = world,
           .has_nan = true},
          {.stores_norms = false}};
}

}  // namespace

TernGrad::TernGrad(const TernGradOptions& options, const RoundingOptions& rounding)
    : options_(options), rounding_(rounding), blocks_(BlocksOf(options, rounding)) {}

std::string TernGrad::name() const {
  return "terngrad clip=" + (options_.clip == 0 ? "none" : NumberText(options_.clip)) +
         (options_.share ? "" : " share=off") +
         (options_.bucket == 0 ? "" : BucketText(options_.bucket));
}

std::string TernGrad::text() const {
  return name() + " random_bits=" + std::to_string(rounding_.random_bits) +
         " seed=" + std::to_string(rounding_.seed);
}

std::int64_t TernGrad::MostBytes(std::int64_t n, std::int64_t before) const {
  return blocks_.MostBytes(n, before);
}

std::int64_t TernGrad::bucket() const { return options_.bucket == 0 ? 1 : options_.bucket; }

Measured TernGrad::measured() const {
  if (options_.share) return Measured::shared;
  return options_.bucket == 0 ? Measured::own : Measured::nothing;
}

float TernGrad::Measure(const Piece& layer, CodecState* /*state*/, const float* x) const {
  return options_.bucket == 0 ? blocks_.Measure(layer, x) : 0;
}

std::int64_t TernGrad::Encode(const Piece& piece, CodecState* /*state*/, const float* x,
                              std::uint8_t* to) const {
  return blocks_.Encode(piece, {.norm = piece.scale}, x, to);
}

void TernGrad::Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift, float divisor,
                      float* y, std::int64_t before) const {
  blocks_.Decode(bytes, n, shift, divisor, y, before);
}

SharedCodec TernGrad::ForResults(const Format& format, int world) const {
  if (!options_.share || format != kFp32 || world > kMostRanks) return nullptr;
  return std::make_shared<IntegerSums>(world);
}

IntegerSums::IntegerSums(int world) : world_(world), blocks_(SumsOf(world)) {}

std::string IntegerSums::name() const { return "integers of " + std::to_string(world_) + " ranks"; }

std::int64_t IntegerSums::MostBytes(std::int64_t n, std::int64_t before) const {
  return blocks_.MostBytes(n, before);
}

std::int64_t IntegerSums::Encode(const Piece& piece, CodecState* /*state*/, const float* x,
                                 std::uint8_t* to) const {
  std::int64_t non_finite = 0;
  if (Kernels().max_abs(piece.n, x, &non_finite) > static_cast<float>(world_)) {
    throw Error("layer " + std::to_string(piece.layer) + ": a sum is beyond " +
                std::to_string(world_) + ", the number of ranks");
  }
  return blocks_.Encode(piece, {.norm = 1}, x, to);
}

void IntegerSums::Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                         float divisor, float* y, std::int64_t before) const {
  blocks_.Decode(bytes, n, shift, divisor, y, before);
}

SharedCodec MakeTernGrad(CodecWords& words, const RoundingOptions& rounding) {
  TernGradOptions options;
  const auto clip = words.Option("clip");
  if (clip) options.clip = *clip == "none" ? 0 : ParseNumber("clip", *clip, kLeastClip, kMostClip);
  options.bucket = TakeBucket(words, options.bucket);
  options.share = words.Choice("share", kShare, options.bucket == 0 ? 1 : 0) == 1;
  words.End("clip=2.5|none, share=on|off, bucket=tensor|1…65536 and whole=1…bucket");
  return std::make_shared<TernGrad>(options, rounding);
}

}  // namespace cpd
