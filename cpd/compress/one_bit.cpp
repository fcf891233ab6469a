// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/one_bit.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "cpd/backend/cpu/elementwise.h"
#include "cpd/backend/roster.h"
#include "cpd/compress/buckets.h"
#include "cpd/compress/residual.h"
#include "cpd/compress/words.h"
#include "cpd/numeric/scaled/one_bit.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

constexpr std::int64_t kMeanBytes = 2 * sizeof(float);  // of a bucket's two means

struct OneBitOptions {
  std::int64_t bucket = 0;  ///< 0: columns
  std::optional<int> axis{};
};

constexpr std::array<Key<OneBitOptions>, 3> kOneBitKeys{{
    RangedKey<"bucket", &OneBitOptions::bucket, 1, kMostBucket>(),
    WholeKey<&OneBitOptions::bucket>(),
    AxisKey<&OneBitOptions::axis>(),
}};
constexpr Keys<OneBitOptions> kOneBit{"one_bit", kOneBitKeys};

}  // namespace

OneBit::OneBit(std::int64_t bucket, std::optional<int> axis) : OneBit(false, axis, 0, bucket) {
  if (bucket >= 1 && bucket <= kMostBucket) return;
  throw Error("bucket must be 1…" + std::to_string(kMostBucket) + ", got " +
              std::to_string(bucket));
}

OneBit::OneBit(bool columns, std::optional<int> axis, std::int64_t row, std::int64_t bucket)
    : columns_(columns), axis_(axis), row_(row), bucket_(bucket) {}

SharedCodec OneBit::Columns(std::optional<int> axis) {
  return SharedCodec(new OneBit(true, axis, 0, kMostBucket));
}

RowLayout OneBit::LayoutOf(std::span<const std::int64_t> shape) const {
  return by_rows() ? ColumnLayout(axis_, shape, name()) : Codec::LayoutOf(shape);
}

SharedCodec OneBit::ForRows(std::int64_t row) const {
  if (!by_rows()) return nullptr;
  row = std::clamp<std::int64_t>(row, 1, kMostBucket);
  return SharedCodec(new OneBit(columns_, axis_, row, columns_ ? row : bucket_));
}

SharedCodec OneBit::ForResults(const Format& /*format*/, int /*world*/) const {
  return SharedCodec(new OneBit(columns_, axis_, row_, bucket_));
}

std::string OneBit::name() const {
  const OneBitOptions options{.bucket = columns_ ? 0 : bucket_, .axis = axis_};
  return "one_bit" + TextOfKeys(kOneBit, options, {});
}

std::string OneBit::text() const {
  return row_ == 0 ? name() : name() + " of columns of " + std::to_string(row_);
}

std::int64_t OneBit::block() const {
  const std::int64_t least = BlockOfBucket(bucket_);
  const std::int64_t eight = 8 * bucket_;
  return least < eight && eight <= kMostBucket ? eight : least;
}

std::int64_t OneBit::Buckets(std::int64_t n, std::int64_t before) const {
  return (before + n + bucket_ - 1) / bucket_;
}

std::int64_t OneBit::BitBytes(std::int64_t n, std::int64_t before) const {
  if (!columns_) return (n + 7) / 8;
  const auto bytes = [](std::int64_t count) { return (count + 31) / 32 * 4; };
  const std::int64_t first = std::min(n, bucket_ - before);
  return bytes(first) + (n - first) / bucket_ * bytes(bucket_) + bytes((n - first) % bucket_);
}

std::int64_t OneBit::BlockBytes(std::int64_t n, std::int64_t before) const {
  return n == 0 ? 0 : kMeanBytes * Buckets(n, before) + BitBytes(n, before);
}

std::int64_t OneBit::MostBytes(std::int64_t n, std::int64_t before) const {
  return n / block() * BlockBytes(block(), before) + BlockBytes(n % block(), before);
}

std::int64_t OneBit::Encode(const Piece& piece, CodecState* state, const float* x,
                            std::uint8_t* to) const {
  auto& residual = dynamic_cast<Residual&>(*state);
  const std::uint8_t* const start = to;
  std::vector<float> means, shifted;
  for (std::int64_t i = 0; i < piece.n; i += block()) {
    Piece part = piece;
    part.begin += i;
    part.n = std::min(block(), piece.n - i);
    const ValueRange whole = piece.size == 0 ? ValueRange{part.begin, part.begin + part.n}
                                             : BucketsAround(part, bucket_);
    const float* from = x + (whole.begin - piece.begin);
    if (piece.shift != 0) {
      shifted.resize(static_cast<std::size_t>(whole.size()));
      Unscale(piece.shift, 1, whole.size(), from, shifted.data());
      from = shifted.data();
    }
    const std::int64_t before = part.begin % bucket_;
    const auto mean_bytes = static_cast<std::size_t>(kMeanBytes * Buckets(part.n, before));
    means.resize(mean_bytes / sizeof(float));
    const OneBitRun all{whole.size(), bucket_, whole.begin % bucket_, columns_};
    Kernels().one_bit_means(all, from, residual.kept(whole.begin), means.data());
    std::memcpy(to, means.data(), mean_bytes);
    to += mean_bytes;
    const std::int64_t bytes = BitBytes(part.n, before);
    std::fill_n(to, bytes, std::uint8_t{0});
    const OneBitRun own{part.n, bucket_, before, columns_, residual.size() >= kStreamingFrom};
    Kernels().one_bit_encode(own, from + (part.begin - whole.begin), residual.kept(part.begin),
                             means.data(), to, residual.next(part.begin));
    to += bytes;
  }
  return to - start;
}

void OneBit::Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift, float divisor,
                    float* y, std::int64_t before) const {
  if (static_cast<std::int64_t>(bytes.size()) != MostBytes(n, before)) {
    throw DamagedBytes(std::to_string(n) + " values of " + name() + " take " +
                       std::to_string(MostBytes(n, before)) + " bytes, got " +
                       std::to_string(bytes.size()));
  }
  const std::uint8_t* from = bytes.data();
  std::vector<float> means;
  for (std::int64_t i = 0; i < n; i += block()) {
    const std::int64_t count = std::min(block(), n - i);
    means.resize(static_cast<std::size_t>(2 * Buckets(count, before)));
    std::memcpy(means.data(), from, means.size() * sizeof(float));
    Unscale(shift, divisor, static_cast<std::int64_t>(means.size()), means.data(), means.data());
    const std::uint8_t* const bits = from + means.size() * sizeof(float);
    Kernels().one_bit_decode({count, bucket_, before, columns_}, bits, means.data(), y + i);
    from += BlockBytes(count, before);
  }
}

std::unique_ptr<CodecState> OneBit::MakeState(std::int64_t size) const {
  return std::make_unique<Residual>(size);
}

SharedCodec OneBit::Make(CodecWords& words, const RoundingOptions& /*rounding*/) {
  OneBitOptions options;
  (void)words.Take(kOneBit, options);
  words.End(kOneBit.owner, NamesOf(kOneBit));
  if (options.bucket == 0) return Columns(options.axis);
  return std::make_shared<OneBit>(options.bucket, options.axis);
}

}  // namespace cpd
