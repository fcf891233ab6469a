// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/one_bit.h"

#include <algorithm>
#include <optional>
#include <string>

#include "cpd/backend/cpu/elementwise.h"
#include "cpd/compress/buckets.h"
#include "cpd/compress/residual.h"
#include "cpd/compress/words.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

constexpr std::int64_t kMeanBytes = 2 * sizeof(float);  // the bytes of a bucket's two means

struct OneBitOptions {
  std::int64_t bucket = 0;  ///< the bucket's length; 0: buckets are columns
  std::optional<int> axis{};
};

constexpr std::array<Key<OneBitOptions>, 3> kOneBitKeys{{
    RangedKey<"bucket", &OneBitOptions::bucket, 1, kMostBucket>(),
    WholeKey<&OneBitOptions::bucket>(),
    AxisKey<&OneBitOptions::axis>(),
}};
constexpr Keys<OneBitOptions> kOneBit{"one_bit", kOneBitKeys};

/// Returns the number of values in a block of OneBit: the larger of 8 * bucket and BlockOfBucket's
/// result, because eight buckets are summed at the same time. If 8 * bucket is above kMostBucket,
/// returns BlockOfBucket's result.
std::int64_t EightBuckets(std::int64_t bucket) {
  const std::int64_t least = BlockOfBucket(std::max<std::int64_t>(bucket, 1));
  const std::int64_t eight = 8 * bucket;
  return least < eight && eight <= kMostBucket ? eight : least;
}

}  // namespace

OneBit::OneBit(std::int64_t bucket, std::optional<int> axis) : OneBit(false, axis, 0, bucket) {
  if (bucket >= 1 && bucket <= kMostBucket) return;
  throw Error("bucket must be 1…" + std::to_string(kMostBucket) + ", got " +
              std::to_string(bucket));
}

OneBit::OneBit(bool columns, std::optional<int> axis, std::int64_t row, std::int64_t bucket)
    : columns_(columns), axis_(axis), row_(row), bucket_(bucket), block_(EightBuckets(bucket)) {}

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

OneBitCall OneBit::CallOf(std::int64_t n, std::int64_t before) const {
  OneBitCall call;
  call.n = n;
  call.before = before;
  call.bucket = bucket_;
  call.block = block();
  call.words = columns_;
  return call;
}

template <class Run>
void OneBit::ForMeasured(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                         Run run) const {
  auto& residual = dynamic_cast<Residual&>(*state);
  OneBitCall call = CallOf(piece.n, piece.begin % bucket_);
  call.shift = piece.shift;
  call.streaming = residual.size() >= kStreamingFrom;
  std::optional<QueuedArray<float>> means;
  ForParts(queue, piece, bucket_, call.block, [&](const Piece& part, std::int64_t i) {
    if (!means) means.emplace(queue, 2 * BucketsOf(part, bucket_));  // the first is the longest
    const ValueRange around = BucketsAround(part, bucket_);
    call.means = means->data();
    call.n = around.size();
    call.before = around.begin % bucket_;
    call.x = x + (around.begin - piece.begin);
    call.kept = residual.kept(around.begin);
    queue.one_bit_means(call);
    call.n = part.n;
    call.before = part.begin % bucket_;
    call.x = x + i;
    call.kept = residual.kept(part.begin);
    call.next = residual.next(part.begin);
    run(call, i);
  });
}

std::int64_t OneBit::EncodeOn(const Queue& queue, const Piece& piece, CodecState* state,
                              const float* x, std::uint8_t* to) const {
  std::uint8_t* const start = to;
  ForMeasured(queue, piece, state, x, [&](OneBitCall& call, std::int64_t /*i*/) {
    call.to = to;
    queue.encode_one_bit(call);
    to += MostBytes(call.n, call.before);
  });
  return to - start;
}

void OneBit::RoundOn(const Queue& queue, const Piece& piece, CodecState* state, const float* x,
                     float* y, SegmentCounts* counts) const {
  ForMeasured(queue, piece, state, x, [&](OneBitCall& call, std::int64_t i) {
    call.y = y + i;
    call.counts = counts;
    queue.round_one_bit(call);
  });
}

void OneBit::DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n,
                      int shift, float divisor, float* y, std::int64_t before) const {
  CheckFixedSize(*this, bytes, n, before);
  OneBitCall call = CallOf(n, before);
  call.shift = shift;
  call.divisor = divisor;
  call.from = bytes.data();
  call.y = y;
  queue.decode_one_bit(call);
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
