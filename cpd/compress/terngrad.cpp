// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/terngrad.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

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
constexpr std::array<std::string_view, 2> kClipAt{"scaler", "workers"};
constexpr std::array<std::string_view, 2> kCoding{"fixed", "trits"};

void SetClip(TernGradOptions& options, std::string_view text) {
  options.clip = text == "none" ? 0 : ParseNumber("clip", text, kLeastClip, kMostClip);
}
FieldValue ClipOf(const TernGradOptions& options) {
  return FieldOf(options.clip == 0 ? "none" : NumberText(options.clip));
}
bool HasClip(const TernGradOptions& /*options*/) { return true; }

constexpr std::array<Key<TernGradOptions>, 6> kTernGradKeys{{
    {"clip", "number", &SetClip, &ClipOf, nullptr, &HasClip},
    ChoiceKey<"share", &TernGradOptions::share, kShare>(),
    BucketKey<&TernGradOptions::bucket>(),
    WholeKey<&TernGradOptions::bucket>(),
    ChoiceKey<"clip_at", &TernGradOptions::clips_own, kClipAt>(),
    ChoiceKey<"coding", &TernGradOptions::trits, kCoding>(),
}};
constexpr Keys<TernGradOptions> kTernGrad{"terngrad", kTernGradKeys};

LevelBlocks BlocksOf(const TernGradOptions& options, const RoundingOptions& rounding,
                     LevelCoding coding) {
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
    throw Error("terngrad: ranks share one scaler a tensor: give share=off with buckets");
  }
  if (options.clips_own && (!options.share || options.clip == 0)) {
    throw Error(
        std::string("terngrad: clip_at=workers is of ranks that clip and share a scaler; ") +
        (options.clip == 0 ? "with clip=none they do not clip"
                           : "with share=off each clips by its own already"));
  }
  return {
      {.bits = kBits, .steps = 1, .most = 1, .has_nan = true, .random_bits = rounding.random_bits},
      {.norm = LevelNorm::clipped,
       .clip = options.clip,
       .bucket = options.bucket,
       .stores_norms = !options.share,
       .coding = coding}};
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

/// A rank's own limit of a layer's values times 2^shift: its scaler before ranks share one.
struct TernGrad::Limit final : CodecState {
  explicit Limit(const TernGrad& codec) : blocks(codec.blocks_) {}
  void Begin(const Piece& layer, const float* x) override { value = blocks.Measure(layer, x); }
  void Commit() override {}

  LevelBlocks blocks;
  float value = 0;
};

TernGrad::TernGrad(const TernGradOptions& options, const RoundingOptions& rounding)
    : options_(options),
      rounding_(rounding),
      blocks_(BlocksOf(options, rounding, options.trits ? LevelCoding::trits : LevelCoding::fixed)),
      with_nan_(BlocksOf(options, rounding, LevelCoding::fixed)) {}

std::string TernGrad::name() const { return "terngrad" + TextOfKeys(kTernGrad, options_, {}); }

std::string TernGrad::text() const {
  return name() + " random_bits=" + std::to_string(rounding_.random_bits);
}

std::int64_t TernGrad::MostBytes(std::int64_t n, std::int64_t before) const {
  return blocks_.MostBytes(n, before);
}

std::int64_t TernGrad::bucket() const { return options_.bucket == 0 ? 1 : options_.bucket; }

Measured TernGrad::measured() const {
  if (options_.share) return Measured::shared;
  return options_.bucket == 0 ? Measured::own : Measured::nothing;
}

float TernGrad::Measure(const Piece& layer, CodecState* state, const float* x) const {
  if (options_.clips_own && state != nullptr) return dynamic_cast<const Limit&>(*state).value;
  return options_.bucket == 0 ? blocks_.Measure(layer, x) : 0;
}

bool TernGrad::Freezes(std::int64_t n) const {
  const std::int64_t last = options_.bucket == 0 ? n : n % options_.bucket;
  return options_.clip != 0 && n > 0 && (last == 1 || options_.bucket == 1);
}

std::int64_t TernGrad::EncodeBy(const LevelBlocks& blocks, const Piece& piece,
                                const CodecState* state, const float* x, std::uint8_t* to) const {
  if (!options_.clips_own) return blocks.Encode(piece, {.norm = piece.scale}, x, to);
  const float limit = dynamic_cast<const Limit&>(*state).value;
  std::vector<float> clipped(static_cast<std::size_t>(piece.n));
  Unscale(piece.shift, 1, piece.n, x, clipped.data());
  for (float& value : clipped) {
    if (std::isfinite(value)) value = std::clamp(value, -limit, limit);
  }
  Piece own = piece;
  own.shift = 0;
  return blocks.Encode(own, {.norm = piece.scale}, clipped.data(), to);
}

std::int64_t TernGrad::Encode(const Piece& piece, CodecState* state, const float* x,
                              std::uint8_t* to) const {
  return EncodeBy(blocks_, piece, state, x, to);
}

void TernGrad::Round(const Piece& piece, CodecState* state, const float* x, float* y) const {
  const std::int64_t before = piece.begin % bucket();
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(with_nan_.MostBytes(piece.n, before)));
  EncodeBy(with_nan_, piece, state, x, bytes.data());
  with_nan_.Decode(bytes, piece.n, 0, 1, y, before);
}

std::unique_ptr<CodecState> TernGrad::MakeState(std::int64_t /*size*/) const {
  return options_.clips_own ? std::make_unique<Limit>(*this) : nullptr;
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
    throw Error("tensor " + std::to_string(piece.layer) + ": a sum is beyond " +
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
  const std::vector<Option> given = words.Take(kTernGrad, options);
  if (ValueOf(given, "share") == nullptr) options.share = options.bucket == 0;
  words.End(kTernGrad.owner, NamesOf(kTernGrad));
  return std::make_shared<TernGrad>(options, rounding);
}

}  // namespace cpd
