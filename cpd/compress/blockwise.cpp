// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/blockwise.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cpd/backend/roster.h"
#include "cpd/compress/bits.h"
#include "cpd/compress/codecs.h"
#include "cpd/compress/pieces.h"
#include "cpd/compress/words.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

constexpr std::int64_t kSizeBytes = 4;

/// Splits values at the ends of buckets and of blocks, and calls part(i, n) for each range of n
/// values from value i on. Blocks and buckets have `bucket` values each. The first block begins at
/// value 0. The first bucket begins `before` values before value 0.
template <class Part>
void ForParts(std::int64_t bucket, std::int64_t n, std::int64_t before, Part part) {
  for (std::int64_t i = 0; i < n; i += bucket) {
    const std::int64_t values = std::min(bucket, n - i);
    const std::int64_t first = std::min(values, bucket - before);
    part(i, first);
    if (first < values) part(i + first, values - first);
  }
}

}  // namespace

/// Memory for one bucket that is encoded: its values times 2^shift, and their random integers.
struct Blockwise::Values {
  std::vector<float> x;
  std::vector<std::uint32_t> random;
};

Blockwise::Blockwise(SharedCodec inner, const RoundingOptions& random, std::int64_t bucket)
    : inner_(std::move(inner)), random_(random), bucket_(bucket) {
  const auto refuse = [&](const std::string& why) {
    throw Error(
        "blockwise takes a codec of whole tensors, as uniform or a scaled format with one "
        "scale of the tensor; '" +
        inner_->name() + "' " + why);
  };
  if (inner_->measured() == Measured::shared) refuse("takes a scale that ranks share");
  if (inner_->ForResults(kFp32, 1) != nullptr) refuse("says by itself how sums travel");
  if (inner_->bucket() != 1 || inner_->by_rows()) refuse("has buckets or rows of its own");
  const auto state = inner_->MakeState(1);
  if (state != nullptr && !state->Kept().empty()) refuse("feeds its errors back");
  if (inner_->needs_gradient()) refuse("needs a gradient, which is not known of sums");
  if (!inner_->has_scales()) refuse("has no scale: give result=… for sums in a format");
}

std::string Blockwise::text() const {
  const std::string size = bucket_ == kBucket ? "" : std::to_string(bucket_) + " ";
  return "blockwise " + size + inner_->text() +
         " random_bits=" + std::to_string(random_.random_bits);
}

std::int64_t Blockwise::HeadBytes() const {
  return (inner_->is_fixed() ? 0 : kSizeBytes) + (inner_->has_nan() ? 0 : 1);
}

std::int64_t Blockwise::MostBytes(std::int64_t n, std::int64_t before) const {
  if (before == 0) {
    const std::int64_t rest = n % bucket_;
    return n / bucket_ * (HeadBytes() + inner_->MostBytes(bucket_)) +
           (rest == 0 ? 0 : HeadBytes() + inner_->MostBytes(rest));
  }
  std::int64_t bytes = 0;
  ForParts(bucket_, n, before, [&](std::int64_t /*i*/, std::int64_t values) {
    bytes += HeadBytes() + inner_->MostBytes(values);
  });
  return bytes;
}

/// Encodes `part`, a range of values within one bucket. `values` holds all values of the bucket; if
/// the size of the layer is not known, only the values of the part.
std::int64_t Blockwise::EncodeInner(const Piece& part, const Values& values,
                                    std::uint8_t* to) const {
  Piece all = part;
  all.begin = 0;
  all.n = all.size;
  all.random = values.random.data();
  const auto state = inner_->MakeState(all.size);
  if (state != nullptr) state->Begin(all, values.x.data());
  Piece own = part;
  own.random = values.random.data() + part.begin;
  if (inner_->measured() == Measured::own) {
    own.scale = inner_->Measure(all, state.get(), values.x.data());
  }
  return inner_->Encode(own, state.get(), values.x.data() + part.begin, to);
}

std::int64_t Blockwise::EncodePart(const Piece& part, const Values& values,
                                   std::uint8_t* to) const {
  std::uint8_t* const codes = to + HeadBytes();
  std::int64_t bytes = 0;
  if (inner_->has_nan() || IsFinite(part.size, values.x.data())) {
    if (!inner_->has_nan()) codes[-1] = 0;
    bytes = EncodeInner(part, values, codes);
  } else {
    codes[-1] = 1;
    bytes = inner_->is_fixed() ? inner_->MostBytes(part.n) : 0;
    std::fill_n(codes, bytes, std::uint8_t{0});
  }
  if (!inner_->is_fixed()) PutWord(static_cast<std::uint32_t>(bytes), to);
  return HeadBytes() + bytes;
}

std::int64_t Blockwise::EncodeOn(const Queue& /*queue*/, const Piece& piece, CodecState* /*state*/,
                                 const float* x, std::uint8_t* to) const {
  const std::uint8_t* const start = to;
  Values values;
  ForParts(bucket_, piece.n, piece.begin % bucket_, [&](std::int64_t i, std::int64_t n) {
    Piece part = piece;
    part.begin += i;
    part.n = n;
    const ValueRange around = BucketsAround(part, bucket_);
    const auto size = static_cast<std::size_t>(around.size());
    values.x.resize(size);
    Unscale(piece.shift, 1, around.size(), x + (around.begin - piece.begin), values.x.data());
    // Random integers are generated in whole blocks of kBlock values, counted from the layer's
    // first value. So the first integers belong to values before around.begin, and are erased.
    const std::int64_t ahead = around.begin % kBlock;
    values.random.resize(static_cast<std::size_t>(ahead) + size);
    Kernels().random_integers(random_.random_bits, piece.key.seed, piece.key.stream,
                              around.begin - ahead, ahead + around.size(), values.random.data());
    values.random.erase(values.random.begin(), values.random.begin() + ahead);
    part.begin -= around.begin;
    if (piece.random != nullptr) {
      std::copy_n(piece.random + i, n, values.random.begin() + part.begin);
    }
    part.shift = 0;
    part.size = around.size();
    to += EncodePart(part, values, to);
  });
  return to - start;
}

std::int64_t Blockwise::DecodePart(std::span<const std::uint8_t> bytes, std::int64_t n,
                                   float* y) const {
  const std::int64_t head = HeadBytes();
  const std::int64_t left = static_cast<std::int64_t>(bytes.size()) - head;
  if (left < 0) throw DamagedBytes("a block of " + name() + " ends in its head");
  const std::int64_t size =
      inner_->is_fixed() ? inner_->MostBytes(n) : std::int64_t{Word(bytes.data())};
  if (size > left) throw DamagedBytes("a block of " + name() + " ends in its codes");
  const std::uint8_t* const codes = bytes.data() + head;
  const int is_nan = inner_->has_nan() ? 0 : codes[-1];
  if (is_nan > 1) {
    throw DamagedBytes("a block of " + name() + " must have kind 0 or 1, got " +
                       std::to_string(is_nan));
  }
  if (is_nan == 1) {
    std::fill_n(y, n, std::numeric_limits<float>::quiet_NaN());
  } else {
    inner_->Decode({codes, static_cast<std::size_t>(size)}, n, 0, 1, y);
  }
  return head + size;
}

void Blockwise::DecodeOn(const Queue& /*queue*/, std::span<const std::uint8_t> bytes,
                         std::int64_t n, int shift, float divisor, float* y,
                         std::int64_t before) const {
  ForParts(bucket_, n, before, [&](std::int64_t i, std::int64_t values) {
    const std::int64_t used = DecodePart(bytes, values, y + i);
    bytes = bytes.subspan(static_cast<std::size_t>(used));
  });
  if (!bytes.empty()) {
    throw DamagedBytes("there is more than " + std::to_string(n) + " values of " + name());
  }
  if (shift != 0 || divisor != 1) Unscale(shift, divisor, n, y, y);
}

SharedCodec Blockwise::ForResults(const Format& /*format*/, int /*world*/) const {
  return std::make_shared<Blockwise>(inner_, random_, bucket_);
}

SharedCodec Blockwise::Make(CodecWords& words, const RoundingOptions& rounding) {
  if (words.IsEmpty()) throw Error("blockwise takes a codec, as in 'blockwise nvfp4'");
  return std::make_shared<Blockwise>(MakeInner(words, "", rounding), rounding);
}

}  // namespace cpd
