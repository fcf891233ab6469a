// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/quantized.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "cpd/base/guarded.h"
#include "cpd/compress/codecs.h"
#include "cpd/compress/scaled_blocks.h"
#include "cpd/compress/words.h"
#include "cpd/ops/codec.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

using Kind = BlockShape::Kind;

/// The least number of values of a piece (a range of a layer's values) that is encoded by loops
/// over four memory pages in turn (kernels/cpu/pages.h). Long buckets are not encoded in this way,
/// because the search for their maxima has already read four pages at a time.
constexpr std::int64_t kSideBySide = std::int64_t{1} << 16;
constexpr std::array<std::string_view, 4> kNames{"quantized", "int8_rows", "int4", "fp8_rows"};

/// The option for the number of values that share a scale. 0: not given.
struct RowOption {
  std::int64_t values = 0;
};
constexpr std::array<Key<RowOption>, 1> kRowKeys{
    RangedKey<"row", &RowOption::values, 1, kMostBucket>()};
constexpr std::array<Key<RowOption>, 1> kBucketKeys{
    RangedKey<"bucket", &RowOption::values, 1, kMostBucket>()};

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

}  // namespace

Quantized::Quantized(Name name, const Scaled& scaled, const RoundingOptions& rounding)
    : name_(name), scaled_(scaled), rounding_(rounding) {
  CheckForPieces(scaled_);
  Check(rounding_);
  rounding_.overflow = Overflow::saturate;
  plan_ = Guarded([&] { return make_scaled_plan(scaled_, rounding_, false); });
  bucket_ = scaled_.block.kind == Kind::row ? kMostBucket : scaled_.block.columns;
  block_ = BlockOfBucket(bucket_);
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

std::int64_t Quantized::BlockBytes(std::int64_t n, std::int64_t before) const {
  if (n == 0) return 0;
  const std::int64_t buckets = (before + n + bucket_ - 1) / bucket_;
  return PackedBytes(scaled_.scale, buckets) + PackedBytes(scaled_.element, n);
}

std::int64_t Quantized::MostBytes(std::int64_t n, std::int64_t before) const {
  return n / block() * BlockBytes(block(), before) + BlockBytes(n % block(), before);
}

KernelSupport Quantized::kernels() const {
  const bool has_kernels =
      rounding_.mode == Rounding::nearest_even || rounding_.mode == Rounding::stochastic;
  return has_kernels ? KernelSupport::all : KernelSupport::none;
}

QuantizedCall Quantized::CallOf(std::int64_t n, std::int64_t before) const {
  QuantizedCall call;
  call.scaled.plan = plan_;
  call.scaled.route = route_of(plan_);
  call.inverted = name_ == Name::fp8_rows;
  call.n = n;
  call.before = before;
  call.bucket = bucket_;
  call.block = block();
  return call;
}

template <class Run>
void Quantized::ForMeasured(const Queue& queue, const Piece& piece, const float* x, Run run) const {
  QuantizedCall call = CallOf(piece.n, piece.begin % bucket_);
  call.scaled.plan.element.seed = piece.key.seed;
  call.stream = piece.key.stream;
  call.shift = piece.shift;
  call.streaming = piece.n >= kSideBySide;
  std::optional<QueuedArray<float>> scales;
  ForParts(queue, piece, bucket_, call.block, [&](const Piece& part, std::int64_t i) {
    if (!scales) {  // the first part is the longest
      const std::int64_t buckets = BucketsOf(part, bucket_);
      scales.emplace(queue, 2 * buckets);
      call.scale = scales->data();
      call.factor = scales->data() + buckets;
    }
    const ValueRange around = BucketsAround(part, bucket_);
    call.begin = around.begin;
    call.n = around.size();
    call.before = around.begin % bucket_;
    call.x = x + (around.begin - piece.begin);
    queue.bucket_scales(call);
    call.begin = part.begin;
    call.n = part.n;
    call.before = part.begin % bucket_;
    call.x = x + i;
    call.random = part.random;
    run(call, i);
  });
}

std::int64_t Quantized::EncodeOn(const Queue& queue, const Piece& piece, CodecState* /*state*/,
                                 const float* x, std::uint8_t* to) const {
  std::uint8_t* const start = to;
  ForMeasured(queue, piece, x, [&](QuantizedCall& call, std::int64_t /*i*/) {
    call.to = to;
    queue.encode_quantized(call);
    to += MostBytes(call.n, call.before);
  });
  return to - start;
}

void Quantized::RoundOn(const Queue& queue, const Piece& piece, CodecState* /*state*/,
                        const float* x, float* y, SegmentCounts* counts) const {
  ForMeasured(queue, piece, x, [&](QuantizedCall& call, std::int64_t i) {
    call.y = y + i;
    call.counts = counts;
    queue.round_quantized(call);
  });
}

void Quantized::DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n,
                         int shift, float divisor, float* y, std::int64_t before) const {
  CheckFixedSize(*this, bytes, n, before);
  DamageNote damage(queue, " of a message: its bucket's scale is negative or no number");
  QuantizedCall call = CallOf(n, before);
  call.shift = shift;
  call.divisor = divisor;
  call.from = bytes.data();
  call.y = y;
  call.damaged = damage.place();
  queue.decode_quantized(call);
  if (damage.is_noted()) {
    throw DamagedBytes("a scale of " + name() + " is negative or no number");
  }
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
