// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/level_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "cpd/backend/roster.h"
#include "cpd/base/guarded.h"
#include "cpd/compress/words.h"

namespace cpd {
namespace {

constexpr std::int64_t kNormBytes = sizeof(float);
constexpr std::int64_t kNoBuckets = std::int64_t{1} << 62;

/// x * 2^shift; `scratch` holds them where that is not x itself.
const float* Shifted(int shift, std::int64_t n, const float* x, std::vector<float>& scratch) {
  if (shift == 0) return x;
  scratch.resize(static_cast<std::size_t>(n));
  Unscale(shift, 1, n, x, scratch.data());
  return scratch.data();
}

float FiniteOrNan(float norm) {
  return std::isfinite(norm) ? norm : std::numeric_limits<float>::quiet_NaN();
}

/// c times the population's standard deviation, rounded once: sum of squares about the mean, which
/// binary64 holds rounded, as do the sums, the quotients and the root.
float ClipOf(double clip, std::int64_t n, const float* x) {
  Moments about;
  Kernels().moments(n, x, 0, &about);
  if (about.finite == 0) return 0;
  const auto finite = static_cast<double>(about.finite);
  Kernels().moments(n, x, about.sum / finite, &about);
  return product_in_binary32(clip, std::sqrt(about.squares / finite));
}

}  // namespace

LevelBlocks::LevelBlocks(const LevelPlan& plan, const Options& options)
    : plan_(plan),
      options_(options),
      block_(BlockOfBucket(std::max<std::int64_t>(options.bucket, 1))) {
  plan_.bucket = options.bucket == 0 ? kNoBuckets : options.bucket;
}

std::int64_t LevelBlocks::NormsOf(std::int64_t n, std::int64_t before) const {
  if (!options_.stores_norms || n == 0) return 0;
  return options_.bucket == 0 ? 1 : (before + n + options_.bucket - 1) / options_.bucket;
}

std::int64_t LevelBlocks::Bytes(std::int64_t n, std::int64_t before) const {
  const auto bytes = [&](std::int64_t count) {
    return kNormBytes * NormsOf(count, before) + (count * plan_.bits + 7) / 8;
  };
  return n / block_ * bytes(block_) + bytes(n % block_);
}

float LevelBlocks::NormOf(std::int64_t n, const float* x) const {
  if (options_.norm == LevelNorm::euclidean) {
    Moments moments;
    Kernels().moments(n, x, 0, &moments);
    return moments.finite < n ? std::numeric_limits<float>::quiet_NaN()
                              : root_in_binary32(moments.squares);
  }
  std::int64_t non_finite = 0;
  float norm = Kernels().max_abs(n, x, &non_finite);
  if (options_.norm == LevelNorm::largest && non_finite > 0) {
    norm = std::numeric_limits<float>::quiet_NaN();
  }
  return options_.clip == 0 ? norm : std::min(norm, ClipOf(options_.clip, n, x));
}

void LevelBlocks::NormsOf(std::int64_t n, const float* x, float* norms) const {
  const std::int64_t bucket = options_.bucket;
  const std::int64_t buckets = (n + bucket - 1) / bucket;
  if (options_.norm == LevelNorm::largest) {
    Kernels().block_max(true, bucket, n, x, norms);
  } else {
    for (std::int64_t b = 0; b < buckets; ++b) {
      norms[b] = NormOf(std::min(bucket, n - b * bucket), x + b * bucket);
    }
  }
  for (std::int64_t b = 0; b < buckets; ++b) norms[b] = FiniteOrNan(norms[b]);
}

float LevelBlocks::Measure(const Piece& layer, const float* x) const {
  std::vector<float> scratch;
  x = Shifted(layer.shift, layer.n, x, scratch);
  return Guarded([&] { return FiniteOrNan(NormOf(layer.n, x)); });
}

std::int64_t LevelBlocks::Encode(const Piece& piece, float norm, const float* x,
                                 std::uint8_t* to) const {
  const std::uint8_t* const begin = to;
  const std::int64_t bucket = options_.bucket;
  const std::int64_t before = bucket == 0 ? 0 : piece.begin % bucket;
  const std::int64_t ahead = piece.size == 0 ? 0 : before;  // values of the first bucket to be read
  LevelPlan plan = plan_;
  plan.stream = piece.stream;
  std::vector<float> scratch;
  std::vector<float> norms(1, norm);
  for (std::int64_t i = 0; i < piece.n; i += block_) {
    const std::int64_t n = std::min(block_, piece.n - i);
    std::int64_t end = n;  // of the values that are read
    if (bucket != 0 && piece.size != 0) {
      end = std::min((before + n + bucket - 1) / bucket * bucket - before,
                     piece.size - piece.begin - i);
    }
    const float* const values = Shifted(piece.shift, ahead + end, x + i - ahead, scratch);
    if (bucket != 0) {
      norms.resize(static_cast<std::size_t>((before + n + bucket - 1) / bucket));
      Guarded([&] { NormsOf(ahead + end, values, norms.data()); });
    }
    const std::int64_t stored = kNormBytes * NormsOf(n, before);
    std::memcpy(to, norms.data(), static_cast<std::size_t>(stored));
    to += stored;
    Kernels().encode_levels(plan, piece.begin + i, before, n, values + ahead, norms.data(),
                            piece.random == nullptr ? nullptr : piece.random + i, to);
    to += (n * plan.bits + 7) / 8;
  }
  return to - begin;
}

void LevelBlocks::Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                         float divisor, float* y, std::int64_t before) const {
  if (static_cast<std::int64_t>(bytes.size()) != Bytes(n, before)) {
    throw DamagedBytes(std::to_string(n) + " values take " + std::to_string(Bytes(n, before)) +
                       " bytes, got " + std::to_string(bytes.size()));
  }
  const std::uint8_t* from = bytes.data();
  std::vector<float> norms(1, 1.0F);
  for (std::int64_t i = 0; i < n; i += block_) {
    const std::int64_t count = std::min(block_, n - i);
    if (options_.stores_norms) {
      norms.resize(static_cast<std::size_t>(NormsOf(count, before)));
      std::memcpy(norms.data(), from, norms.size() * sizeof(float));
      from += norms.size() * sizeof(float);
      const auto is_wrong = [](float norm) { return std::signbit(norm) || std::isinf(norm); };
      if (std::ranges::any_of(norms, is_wrong)) {
        throw DamagedBytes("a norm is negative or infinite");
      }
    }
    Kernels().decode_levels(plan_, before, count, from, norms.data(), y + i);
    from += (count * plan_.bits + 7) / 8;
  }
  if (shift != 0 || divisor != 1) Unscale(shift, divisor, n, y, y);
}

std::int64_t TakeBucket(CodecWords& words, std::int64_t otherwise) {
  const auto given = words.Option("bucket");
  if (!given) return otherwise;
  if (*given == "tensor") return 0;
  return CodecWords("bucket=" + *given).Integer("bucket", otherwise, 1, kMostBucket);
}

std::string BucketText(std::int64_t bucket) {
  return " bucket=" + (bucket == 0 ? "tensor" : std::to_string(bucket));
}

}  // namespace cpd
