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
#include "cpd/base/guarded.h"
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
       .coding = options.trits ? LevelCoding::trits : LevelCoding::fixed}};
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

/// The limit to which a rank clips a layer's values times 2^shift. The limit is the rank's own
/// scaler, before ranks agree on a common scaler.
struct TernGrad::Limit final : CodecState {
  explicit Limit(const TernGrad& codec) : blocks(codec.blocks_) {}
  void BeginOn(const SharedQueue& queue, const Piece& layer, const float* x) override {
    value = blocks.Measure(*queue, layer, x);
  }
  void Commit() override {}

  LevelBlocks blocks;
  float value = 0;
};

TernGrad::TernGrad(const TernGradOptions& options, const RoundingOptions& rounding)
    : options_(options), rounding_(rounding), blocks_(BlocksOf(options, rounding)) {}

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

float TernGrad::MeasureOn(const Queue& queue, const Piece& layer, CodecState* state,
                          const float* x) const {
  if (options_.clips_own && state != nullptr) return dynamic_cast<const Limit&>(*state).value;
  return options_.bucket == 0 ? blocks_.Measure(queue, layer, x) : 0;
}

bool TernGrad::Freezes(std::int64_t n) const {
  const std::int64_t last = options_.bucket == 0 ? n : n % options_.bucket;
  return options_.clip != 0 && n > 0 && (last == 1 || options_.bucket == 1);
}

template <class Run>
void TernGrad::WithClipped(Piece piece, const CodecState* state, const float* x, Run run) const {
  if (!options_.clips_own) return run(piece, x);
  const float limit = dynamic_cast<const Limit&>(*state).value;
  std::vector<float> clipped(static_cast<std::size_t>(piece.n));
  Unscale(piece.shift, 1, piece.n, x, clipped.data());
  Guarded([&] {  // comparisons read subnormal numbers
    for (float& value : clipped) {
      if (std::isfinite(value)) value = std::clamp(value, -limit, limit);
    }
  });
  piece.shift = 0;
  run(piece, clipped.data());
}

std::int64_t TernGrad::EncodeOn(const Queue& queue, const Piece& piece, CodecState* state,
                                const float* x, std::uint8_t* to) const {
  std::int64_t bytes = 0;
  WithClipped(piece, state, x, [&](const Piece& own, const float* values) {
    bytes = blocks_.EncodeOn(queue, own, {.norm = own.scale}, values, to);
  });
  return bytes;
}

void TernGrad::RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                       float* y, SegmentCounts* counts) const {
  WithClipped(piece, state, x, [&](const Piece& own, const float* values) {
    blocks_.RoundOn(queue, own, {.norm = own.scale}, values, y, counts);
  });
}

std::unique_ptr<CodecState> TernGrad::MakeState(std::int64_t /*size*/) const {
  return options_.clips_own ? std::make_unique<Limit>(*this) : nullptr;
}

void TernGrad::DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n,
                        int shift, float divisor, float* y, std::int64_t before) const {
  blocks_.DecodeOn(queue, bytes, n, shift, divisor, y, before);
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

void IntegerSums::CheckSums(const Queue& queue, const Piece& piece, const float* x) const {
  std::int64_t non_finite = 0;
  if (!queue.on_host()) return;
  if (Kernels().max_abs(piece.n, x, &non_finite) > static_cast<float>(world_)) {
    throw Error("tensor " + std::to_string(piece.layer) + ": a sum is beyond " +
                std::to_string(world_) + ", the number of ranks");
  }
}

std::int64_t IntegerSums::EncodeOn(const Queue& queue, const Piece& piece, CodecState* /*state*/,
                                   const float* x, std::uint8_t* to) const {
  CheckSums(queue, piece, x);
  return blocks_.EncodeOn(queue, piece, {.norm = 1}, x, to);
}

void IntegerSums::RoundOn(const Queue& queue, const Piece& piece, CodecState* /*state*/,
                          const float* x, float* y, SegmentCounts* counts) const {
  CheckSums(queue, piece, x);
  blocks_.RoundOn(queue, piece, {.norm = 1}, x, y, counts);
}

void IntegerSums::DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n,
                           int shift, float divisor, float* y, std::int64_t before) const {
  blocks_.DecodeOn(queue, bytes, n, shift, divisor, y, before);
}

SharedCodec MakeTernGrad(CodecWords& words, const RoundingOptions& rounding) {
  TernGradOptions options;
  const std::vector<Option> given = words.Take(kTernGrad, options);
  if (ValueOf(given, "share") == nullptr) options.share = options.bucket == 0;
  words.End(kTernGrad.owner, NamesOf(kTernGrad));
  return std::make_shared<TernGrad>(options, rounding);
}

}  // namespace cpd
