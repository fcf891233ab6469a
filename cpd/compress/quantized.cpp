// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/quantized.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "cpd/backend/roster.h"
#include "cpd/base/guarded.h"
#include "cpd/compress/codecs.h"
#include "cpd/compress/scaled_blocks.h"
#include "cpd/compress/words.h"
#include "cpd/numeric/scaled/scale_rules.h"
#include "cpd/ops/codec.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

using Kind = BlockShape::Kind;

constexpr std::int64_t kStep = 4096;  // values at a time: codes of any width end on a byte
/// From so many values of a piece on, elements are encoded in four pages at a time (pages.h),
/// unless the search for the maxima of long buckets has read them so.
constexpr std::int64_t kSideBySide = std::int64_t{1} << 16;
constexpr std::int64_t kLong = 256;  // a kernel takes buckets of at least so many values one by one
constexpr std::array<std::string_view, 4> kNames{"quantized", "int8_rows", "int4", "fp8_rows"};

/// The values that share a scale; 0: not given.
struct RowOption {
  std::int64_t values = 0;
};
constexpr std::array<Key<RowOption>, 1> kRowKeys{
    RangedKey<"row", &RowOption::values, 1, kMostBucket>()};
constexpr std::array<Key<RowOption>, 1> kBucketKeys{
    RangedKey<"bucket", &RowOption::values, 1, kMostBucket>()};

/// Returns true if a kernel's run of 512 values (ScaledRun) is a whole number of buckets.
bool IsRun(std::int64_t bucket) { return bucket >= 16 && bucket <= 512 && 512 % bucket == 0; }

void CheckForPieces(const Scaled& scaled) {
  Check(scaled);
  const auto refuse = [&](const std::string& why) {
    throw Error("quantized: " + why + ", got " + ToString(scaled));
  };
  if (scaled.block.kind == Kind::tensor || scaled.block.rows != 1 || scaled.tensor_scale) {
    refuse("results are encoded again piece by piece, so give rows or blocks of 1 x N, one level");
  }
  if (scaled.block.kind == Kind::tile && scaled.block.columns > kMostBucket) {
    refuse("blocks have at most " + std::to_string(kMostBucket) + " values");
  }
  if (scaled.choose != ScaleChoice::none || scaled.transform) {
    refuse("give no choose and no transform");
  }
  const bool of_block = scaled.non_finite == NonFinite::block && scaled.scale.has_nan() &&
                        scaled.arithmetic != Arithmetic::torchao &&
                        scaled.arithmetic != Arithmetic::deepgemm;
  if (!scaled.element.has_nan() && !(of_block && scaled.element.is_signed)) {
    refuse("elements, or with non_finite=block scales, must have NaN");
  }
}

constexpr std::array<float, kStep + 1> kOnes = [] {
  std::array<float, kStep + 1> ones{};
  ones.fill(1);
  return ones;
}();

/// Writes y[i] = elements[i] / scale, every NaN as the quiet one.
void Divide(std::int64_t n, const float* elements, float scale, float* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = elements[i] / scale;
    y[i] = value == value ? value : std::numeric_limits<float>::quiet_NaN();
  }
}

/// `n` neighbours whose codes begin on a byte, from the part's value `begin` on. The first is value
/// `place` of bucket number `bucket`. Each `run` of them share a scale; run 0: buckets may be cut.
struct Step {
  std::int64_t begin = 0, n = 0, bucket = 0, place = 0, run = 0;
};

/// Calls run(b, i, n) for the step's values i … i + n - 1 that are in its bucket number b.
template <class Run>
void ForBuckets(const Step& step, std::int64_t bucket, Run run) {
  for (std::int64_t b = 0, i = 0; i < step.n; ++b) {
    const std::int64_t n = std::min(step.n - i, bucket - (b == 0 ? step.place : 0));
    run(b, i, n);
    i += n;
  }
}

/// Writes to `all` the number in `each` of the bucket of each of the step's values.
void Spread(const Step& step, std::int64_t bucket, const float* each, float* all) {
  each += step.bucket;
  const std::int64_t first = std::min(step.n, bucket - step.place);
  std::fill_n(all, first, *each);
  if (first < step.n) Kernels().spread(bucket, step.n - first, each + 1, all + first);
}

}  // namespace

/// The layout of up to block() values whose first bucket has `before` values ahead of them.
struct Quantized::Part {
  std::int64_t n = 0, before = 0;
  std::int64_t buckets = 0;
  std::int64_t elements = 0, bytes = 0;  ///< the offset of the elements; the size of the part
};

/// Numbers of a part's buckets, which are at most kStep, or one more where a bucket is cut.
struct Quantized::Scales {
  /// The largest magnitudes; the scales in the message; the numbers that elements are divided or
  /// multiplied by; the numbers that decode them.
  float largest[kStep + 1], scale[kStep + 1], factor[kStep + 1], decode[kStep + 1];
};

Quantized::Part Quantized::PartOf(std::int64_t n, std::int64_t before) const {
  if (n == 0) return {};
  Part part{.n = n, .before = before, .buckets = (before + n + bucket_ - 1) / bucket_};
  part.elements = PackedBytes(scaled_.scale, part.buckets);
  part.bytes = part.elements + PackedBytes(scaled_.element, n);
  return part;
}

template <class Take>
void Quantized::ForSteps(const Part& part, Take take) const {
  const bool runs = part.before % bucket_ == 0 && IsRun(bucket_);
  const auto on_byte = [&](std::int64_t n) { return n * scaled_.element.bits() % 8 == 0; };
  const bool single = bucket_ >= kLong && on_byte(bucket_) && on_byte(part.before);
  for (Step step; step.begin < part.n; step.begin += step.n) {
    step.bucket = (part.before + step.begin) / bucket_;
    step.place = (part.before + step.begin) % bucket_;
    step.n = std::min(kStep, part.n - step.begin);
    step.run = runs ? bucket_ : 0;
    if (single && !runs) {
      step.n = std::min(step.n, bucket_ - step.place);
      step.run = kStep;
    }
    take(step);
  }
}

Quantized::Quantized(Name name, const Scaled& scaled, const RoundingOptions& rounding)
    : name_(name), scaled_(scaled), rounding_(rounding) {
  CheckForPieces(scaled_);
  Check(rounding_);
  rounding_.overflow = Overflow::saturate;
  plan_ = Guarded([&] { return make_scaled_plan(scaled_, rounding_, false); });
  bucket_ = scaled_.block.kind == Kind::row ? kMostBucket : scaled_.block.columns;
}

std::string Quantized::name() const {
  std::string text(kNames[static_cast<std::size_t>(name_)]);
  if (name_ == Name::quantized) {
    text += " " + ToString(scaled_);
  } else if (name_ == Name::int4) {
    text += " bucket=" + std::to_string(bucket_);
  } else if (!by_rows()) {
    text += " row=" + std::to_string(bucket_);
  }
  return text + (rounding_.mode == Rounding::stochastic ? " stochastic" : "");
}

std::string Quantized::text() const {
  if (rounding_.mode != Rounding::stochastic) return name();
  return name() + " random_bits=" + std::to_string(rounding_.random_bits);
}

std::int64_t Quantized::MostBytes(std::int64_t n, std::int64_t before) const {
  return n / block() * PartOf(block(), before).bytes + PartOf(n % block(), before).bytes;
}

ElementRoute Quantized::FindScales(std::int64_t buckets, Scales& scales) const {
  if (name_ == Name::fp8_rows) {
    const auto max = static_cast<float>(plan_.max);
    Guarded([&] {
      for (std::int64_t b = 0; b < buckets; ++b) {
        scales.scale[b] = row_multiplier(max, scales.largest[b]);
      }
    });
    std::copy_n(scales.scale, buckets, scales.factor);
    std::copy_n(scales.scale, buckets, scales.decode);
    return ElementRoute::multiply;
  }
  const ElementRoute route = route_of(plan_);
  const bool outside =
      Kernels().block_scales(plan_, route, 1, buckets, scales.largest, kOnes.data(), kOnes.data(),
                             scales.scale, scales.factor, scales.decode);
  return outside && plan_.arithmetic == Arithmetic::exact ? ElementRoute::wide : route;
}

void Quantized::EncodePart(const Piece& piece, std::int64_t begin, const Part& part, const float* x,
                           std::uint8_t* to) const {
  // The values of the part's buckets that can be read.
  const std::int64_t at = piece.begin + begin;
  const std::int64_t least = piece.size > 0 ? 0 : piece.begin;
  const std::int64_t most = piece.size > 0 ? piece.size : piece.begin + piece.n;
  const std::int64_t bucket_begin = at - part.before;
  const std::int64_t from = std::max(least, bucket_begin);
  const std::int64_t n = std::min(most, bucket_begin + part.buckets * bucket_) - from;
  const float* values = x + (from - piece.begin);
  std::vector<float> shifted;
  if (piece.shift != 0) {
    shifted.resize(static_cast<std::size_t>(n));
    Unscale(piece.shift, 1, n, values, shifted.data());
    values = shifted.data();
  }
  Scales scales;
  const std::int64_t first =
      from > bucket_begin ? std::min(n, bucket_begin + bucket_ - from) : std::int64_t{0};
  if (first > 0) Kernels().block_max(plan_.makes_nan, bucket_, first, values, scales.largest);
  Kernels().block_max(plan_.makes_nan, bucket_, n - first, values + first,
                      scales.largest + (first > 0 ? 1 : 0));
  const ElementRoute route = FindScales(part.buckets, scales);
  if (scaled_.scale == kFp32) {
    std::memcpy(to, scales.scale, sizeof(float) * static_cast<std::size_t>(part.buckets));
  } else {
    Kernels().encode({.n = part.buckets,
                      .x = Contiguous(scales.scale),
                      .random = {},
                      .plan = &plan_.scale,
                      .packed = to});
  }
  float all_factors[kStep], all_decode[kStep];
  std::uint32_t integers[kStep + kBlock];
  ForSteps(part, [&](const Step& step) {
    ScaledRun run{.n = step.n, .run = step.run, .x = values + (at - from) + step.begin};
    run.factor = scales.factor + step.bucket;
    run.scale = scales.decode + step.bucket;
    run.outer = kOnes.data();
    if (step.run == 0) {
      Spread(step, bucket_, scales.factor, all_factors);
      Spread(step, bucket_, scales.decode, all_decode);
      run.run = 1;
      run.factor = all_factors;
      run.scale = all_decode;
    }
    if (rounding_.mode == Rounding::stochastic) {
      const std::int64_t index = at + step.begin;
      const std::int64_t before = index % kBlock;
      run.random = integers + before;
      if (piece.random != nullptr) {
        run.random = piece.random + begin + step.begin;
      } else {
        Kernels().random_integers(rounding_.random_bits, piece.key.seed, piece.key.stream,
                                  index - before, before + step.n, integers);
      }
    }
    run.streaming = piece.n >= kSideBySide && bucket_ < kStep;
    Kernels().encode_blocks(plan_, route, run,
                            to + part.elements + step.begin * scaled_.element.bits() / 8);
  });
}

std::int64_t Quantized::Encode(const Piece& piece, CodecState* /*state*/, const float* x,
                               std::uint8_t* to) const {
  const std::uint8_t* const start = to;
  const std::int64_t before = piece.begin % bucket_;
  for (std::int64_t i = 0; i < piece.n; i += block()) {
    const Part part = PartOf(std::min(block(), piece.n - i), before);
    EncodePart(piece, i, part, x, to);
    to += part.bytes;
  }
  return to - start;
}

void Quantized::CheckScales(std::span<const float> scales) const {
  const bool fine = Guarded([&] {
    return std::ranges::none_of(scales, [&](float scale) {
      return scale < 0 || (name_ == Name::fp8_rows && !std::isfinite(scale));
    });
  });
  if (!fine) throw DamagedBytes("a scale of " + name() + " is negative or no number");
}

void Quantized::DecodePart(const std::uint8_t* bytes, const Part& part, float* y) const {
  float scales[kStep + 1], all[kStep], elements[kStep];
  if (scaled_.scale == kFp32) {
    std::memcpy(scales, bytes, sizeof(float) * static_cast<std::size_t>(part.buckets));
  } else {
    Kernels().decode(
        {.n = part.buckets, .plan = &plan_.scale, .packed = bytes, .out = Contiguous(scales)});
  }
  const std::span known(scales, static_cast<std::size_t>(part.buckets));
  CheckScales(known);
  bytes += part.elements;
  for (std::int64_t begin = 0; begin < part.n; begin += kStep) {
    const Part some{.n = std::min(kStep, part.n - begin), .before = part.before + begin};
    Kernels().decode({.n = some.n,
                      .plan = &plan_.element,
                      .packed = bytes + begin * scaled_.element.bits() / 8,
                      .out = Contiguous(elements)});
    ForSteps(some, [&](const Step& step) {
      float* const to = y + begin + step.begin;
      ScaledRun run{.n = step.n, .run = step.run, .x = elements + step.begin};
      run.factor = run.scale = scales + step.bucket;
      run.outer = kOnes.data();
      if (name_ == Name::fp8_rows) {
        return Guarded([&] {
          ForBuckets(step, bucket_, [&](std::int64_t b, std::int64_t i, std::int64_t n) {
            Divide(n, run.x + i, scales[step.bucket + b], to + i);
          });
        });
      }
      if (step.run == 0) {
        Spread(step, bucket_, scales, all);
        run.run = 1;
        run.factor = run.scale = all;
      }
      Kernels().scale_blocks(plan_.wide_values, run, to);
    });
  }
  if (name_ != Name::fp8_rows && std::ranges::find(known, 0.0F) != known.end()) {
    Guarded([&] {
      for (std::int64_t i = 0; i < part.n; ++i) {
        if (scales[(part.before + i) / bucket_] == 0) y[i] += 0.0F;  // -0 becomes +0
      }
    });
  }
}

void Quantized::Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                       float divisor, float* y, std::int64_t before) const {
  if (static_cast<std::int64_t>(bytes.size()) != MostBytes(n, before)) {
    throw DamagedBytes(std::to_string(n) + " values of " + name() + " take " +
                       std::to_string(MostBytes(n, before)) + " bytes, got " +
                       std::to_string(bytes.size()));
  }
  const std::uint8_t* from = bytes.data();
  for (std::int64_t i = 0; i < n; i += block()) {
    const Part part = PartOf(std::min(block(), n - i), before);
    DecodePart(from, part, y + i);
    from += part.bytes;
  }
  if (shift != 0 || divisor != 1) Unscale(shift, divisor, n, y, y);
}

bool Quantized::by_rows() const { return scaled_.block.kind == Kind::row; }

SharedCodec Quantized::ForRows(std::int64_t row) const {
  if (!by_rows()) return nullptr;
  Scaled of_row = scaled_;
  of_row.block = {.columns = std::clamp(row, std::int64_t{1}, kMostBucket)};
  return std::make_shared<Quantized>(name_, of_row, rounding_);
}

SharedCodec Quantized::ForResults(const Format& /*format*/, int /*world*/) const {
  return std::make_shared<Quantized>(name_, scaled_, rounding_);
}

SharedCodec Quantized::Make(Name name, Scaled scaled, CodecWords& words,
                            const RoundingOptions& rounding) {
  RoundingOptions mine = rounding;
  mine.mode = Rounding::nearest_even;
  const bool may_draw = name != Name::fp8_rows;
  if (may_draw && words.Flag("stochastic")) mine.mode = Rounding::stochastic;
  const std::string_view codec = kNames[static_cast<std::size_t>(name)];
  std::vector<std::string_view> names;
  if (scaled.block.kind == Kind::row) {
    const Keys<RowOption> keys{codec, kRowKeys};
    names = NamesOf(keys);
    RowOption option;
    (void)words.Take(keys, option);
    if (option.values > 0) scaled.block = {.columns = option.values};
  }
  words.End(codec, names, may_draw ? "stochastic" : "");
  return std::make_shared<Quantized>(name, scaled, mine);
}

SharedCodec Quantized::MakeScaled(CodecWords& words, const RoundingOptions& rounding) {
  const bool draws = words.Flag("stochastic");
  CodecWords left(draws ? "stochastic" : "");
  return Make(Name::quantized, ParseScaled(words.Rest()), left, rounding);
}

SharedCodec Quantized::MakeInt8Rows(CodecWords& words, const RoundingOptions& rounding) {
  return Make(Name::int8_rows, ParseScaled("int8 row"), words, rounding);
}

SharedCodec Quantized::MakeFp8Rows(CodecWords& words, const RoundingOptions& rounding) {
  return Make(Name::fp8_rows, ParseScaled("fp8-row non_finite=element"), words, rounding);
}

SharedCodec Quantized::MakeInt4(CodecWords& words, const RoundingOptions& rounding) {
  RowOption option;
  (void)words.Take({"int4", kBucketKeys}, option);
  const std::int64_t bucket = option.values;
  const bool draws = words.Flag("stochastic");
  const std::string rest = words.Rest();
  if (!rest.empty() && bucket == 0 && !draws) {
    return std::make_shared<ScaledBlocks>(ParseScaled(words.text()), rounding);
  }
  CodecWords left(rest + (draws ? " stochastic" : ""));
  const std::string text = "int4 " + std::to_string(bucket > 0 ? bucket : 32) + " scale=fp32";
  return Make(Name::int4, ParseScaled(text), left, rounding);
}

}  // namespace cpd
