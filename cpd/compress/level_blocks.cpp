// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/level_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "cpd/backend/roster.h"
#include "cpd/base/guarded.h"
#include "cpd/compress/spacing.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

constexpr std::int64_t kNormBytes = sizeof(float);
constexpr std::int64_t kNoBuckets = std::int64_t{1} << 62;
constexpr int kLevelBits = 16;   // of a level before trits are written or after they are read
constexpr int kMostShift = 126;  // the largest |shift| that a kernel takes
constexpr std::int64_t kTagBytes = 1;
constexpr std::int64_t kTrits = 5;          // in a byte
constexpr std::uint8_t kTritsOfByte = 243;  // 3^5

/// Returns x * 2^shift: x itself for shift 0, else in `scratch`.
const float* Shifted(int shift, std::int64_t n, const float* x, std::vector<float>& scratch) {
  if (shift == 0) return x;
  scratch.resize(static_cast<std::size_t>(n));
  Unscale(shift, 1, n, x, scratch.data());
  return scratch.data();
}

float FiniteOrNan(float norm) {
  return std::isfinite(norm) ? norm : std::numeric_limits<float>::quiet_NaN();
}

/// Calls run(i, count) for each part of n values that is in one bucket.
template <class Run>
void ForBuckets(std::int64_t bucket, std::int64_t before, std::int64_t n, Run run) {
  for (std::int64_t i = 0; i < n;) {
    const std::int64_t count = std::min(n - i, bucket - (before + i) % bucket);
    run(i, count);
    i += count;
  }
}

EliasLayout LayoutOf(LevelCoding coding) {
  return coding == LevelCoding::dense ? EliasLayout::dense : EliasLayout::sparse;
}

}  // namespace

struct LevelBlocks::Block {
  LevelPlan plan;
  int layer = 0;  ///< for error texts
  std::int64_t before = 0, n = 0;
  const float* norms = nullptr;
  std::int64_t first = 0;                 ///< the first element's index, for random bits
  const std::uint32_t* random = nullptr;  ///< the caller's integers; null: the key's
  int shift = 0;                          ///< of decoded values
  float divisor = 1;
};

LevelBlocks::LevelBlocks(const LevelPlan& plan, const Options& options)
    : plan_(plan),
      options_(options),
      block_(BlockOfBucket(std::max<std::int64_t>(options.bucket, 1))) {
  plan_.bucket = options.bucket == 0 ? kNoBuckets : options.bucket;
}

LevelCall LevelBlocks::CallOf(std::int64_t n, std::int64_t begin) const {
  LevelCall call;
  call.plan = plan_;
  call.n = n;
  call.before = begin % plan_.bucket;
  call.block = block_;
  call.stores_norms = options_.stores_norms;
  return call;
}

// --- sizes ---------------------------------------------------------------------------------------

std::int64_t LevelBlocks::NormsOf(std::int64_t n, std::int64_t before) const {
  if (!options_.stores_norms || n == 0) return 0;
  return options_.bucket == 0 ? 1 : (before + n + options_.bucket - 1) / options_.bucket;
}

std::int64_t LevelBlocks::MostEliasBytes(EliasLayout layout, std::int64_t n,
                                         std::int64_t before) const {
  std::int64_t bits = 0;
  ForBuckets(plan_.bucket, before, n, [&](std::int64_t /*i*/, std::int64_t count) {
    bits += EliasMostBits(layout, count, plan_.most);
  });
  return (bits + 7) / 8;
}

std::int64_t LevelBlocks::MostLevelBytes(std::int64_t n, std::int64_t before) const {
  if (n == 0) return 0;
  switch (options_.coding) {
    case LevelCoding::fixed:
      return PlaceBytes() + FixedBytes(n);
    case LevelCoding::smallest:
      return PlaceBytes() + kTagBytes + FixedBytes(n);
    case LevelCoding::trits:
      return (n + kTrits - 1) / kTrits;
    default:
      return PlaceBytes() + MostEliasBytes(LayoutOf(options_.coding), n, before);
  }
}

std::int64_t LevelBlocks::MostBytes(std::int64_t n, std::int64_t before) const {
  const auto bytes = [&](std::int64_t count) {
    return kNormBytes * NormsOf(count, before) + MostLevelBytes(count, before);
  };
  return n / block_ * bytes(block_) + bytes(n % block_);
}

// --- norms ---------------------------------------------------------------------------------------

float LevelBlocks::NormOf(std::int64_t n, const float* x) const {
  const bool sums = options_.norm == LevelNorm::euclidean || options_.clip != 0;
  Moments moments;
  if (sums) {
    const auto is_finite = [](float value) { return std::isfinite(value); };
    const float* const first = options_.clip == 0 ? x + n : std::find_if(x, x + n, is_finite);
    Kernels().moments(n, x, first == x + n ? 0.0 : static_cast<double>(*first), &moments);
  } else {
    std::int64_t non_finite = 0;
    moments.largest = Kernels().max_abs(n, x, &non_finite);
    moments.finite = n - non_finite;
  }
  return norm_of(options_.norm, options_.clip, moments, n);
}

void LevelBlocks::NormsOf(std::int64_t n, const float* x, float* norms) const {
  const std::int64_t bucket = options_.bucket;
  const std::int64_t buckets = (n + bucket - 1) / bucket;
  if (options_.norm == LevelNorm::largest) {
    Kernels().block_max(true, bucket, n, x, norms);
    for (std::int64_t b = 0; b < buckets; ++b) norms[b] = FiniteOrNan(norms[b]);
    return;
  }
  for (std::int64_t b = 0; b < buckets; ++b) {
    norms[b] = NormOf(std::min(bucket, n - b * bucket), x + b * bucket);
  }
}

float LevelBlocks::Measure(const Piece& layer, const float* x) const {
  std::vector<float> scratch;
  x = Shifted(layer.shift, layer.n, x, scratch);
  return Guarded([&] { return NormOf(layer.n, x); });
}

LayerLevels LevelBlocks::MeasureLevels(const Piece& layer, const float* x) const {
  std::vector<float> scratch;
  x = Shifted(layer.shift, layer.n, x, scratch);
  LayerLevels levels;
  Guarded([&] {
    if (options_.bucket == 0) levels.norm = NormOf(layer.n, x);
    if (!options_.spaced) return;
    SpacingSums sums;
    std::vector<float> norms(1, levels.norm);
    if (options_.bucket != 0) {
      norms.resize(static_cast<std::size_t>(NormsOf(layer.n, 0)));
      NormsOf(layer.n, x, norms.data());
    }
    ForBuckets(plan_.bucket, 0, layer.n, [&](std::int64_t i, std::int64_t count) {
      sums.Add(count, x + i, norms[static_cast<std::size_t>(i / plan_.bucket)]);
    });
    levels.spacing = sums.Optimal(plan_.steps);
  });
  return levels;
}

// --- levels --------------------------------------------------------------------------------------

void LevelBlocks::EncodeTrits(const Block& block, const float* x, std::uint8_t* to) const {
  LevelPlan plan = block.plan;
  plan.bits = kLevelBits;
  std::vector<std::int16_t> levels(static_cast<std::size_t>(block.n));
  Kernels().encode_levels(plan, block.first, block.before, block.n, x, block.norms, block.random,
                          reinterpret_cast<std::uint8_t*>(levels.data()));
  levels.resize(static_cast<std::size_t>((block.n + kTrits - 1) / kTrits * kTrits));
  for (std::size_t i = 0; i < levels.size(); i += kTrits) {
    int byte = 0;
    for (std::size_t j = kTrits; j-- > 0;) {
      const int level = levels[i + j];
      if (level < -1) {
        throw Error("tensor " + std::to_string(block.layer) +
                    " has NaN or infinities, for which coding=trits has no code");
      }
      byte = 3 * byte + (level < 0 ? 2 : level);
    }
    *to++ = static_cast<std::uint8_t>(byte);
  }
}

void LevelBlocks::DecodeTrits(const Block& block, const std::uint8_t* from, float* y) const {
  std::vector<std::int16_t> levels(
      static_cast<std::size_t>((block.n + kTrits - 1) / kTrits * kTrits));
  for (std::size_t i = 0; i < levels.size(); i += kTrits) {
    int byte = *from++;
    if (byte >= kTritsOfByte) {
      throw DamagedBytes("a byte of five levels must be below " + std::to_string(kTritsOfByte) +
                         ", got " + std::to_string(byte));
    }
    for (std::size_t j = 0; j < kTrits; ++j, byte /= 3) {
      levels[i + j] = static_cast<std::int16_t>(byte % 3 == 2 ? -1 : byte % 3);
    }
  }
  const auto end = levels.begin() + block.n;
  if (std::any_of(end, levels.end(), [](std::int16_t level) { return level != 0; })) {
    throw DamagedBytes("levels behind the last value must be 0");
  }
  LevelPlan plan = block.plan;
  plan.bits = kLevelBits;
  Kernels().decode_levels(plan, block.shift, block.divisor, block.before, block.n,
                          reinterpret_cast<const std::uint8_t*>(levels.data()), block.norms, y);
}

std::int64_t LevelBlocks::EncodeLevels(const Block& block, const float* x, std::uint8_t* to) const {
  if (options_.coding == LevelCoding::fixed) {
    Kernels().encode_levels(block.plan, block.first, block.before, block.n, x, block.norms,
                            block.random, to);
    return FixedBytes(block.n);
  }
  if (options_.coding == LevelCoding::trits) {
    EncodeTrits(block, x, to);
    return MostLevelBytes(block.n, block.before);
  }
  return plan_.most <= std::numeric_limits<std::int8_t>::max()
             ? EncodeElias<std::int8_t>(block, x, to)
             : EncodeElias<std::int16_t>(block, x, to);
}

template <class Level>
std::int64_t LevelBlocks::EncodeElias(const Block& block, const float* x, std::uint8_t* to) const {
  std::vector<Level> levels(static_cast<std::size_t>(block.n));
  LevelPlan plan = block.plan;
  plan.bits = 8 * sizeof(Level);
  Kernels().encode_levels(plan, block.first, block.before, block.n, x, block.norms, block.random,
                          reinterpret_cast<std::uint8_t*>(levels.data()));
  const auto for_parts = [&](auto run) {
    ForBuckets(plan.bucket, block.before, block.n, [&](std::int64_t i, std::int64_t count) {
      run(std::span<const Level>(levels.data() + i, static_cast<std::size_t>(count)));
    });
  };
  const auto bytes_of = [&](EliasLayout layout) {
    std::int64_t bits = 0;
    for_parts([&](std::span<const Level> part) { bits += EliasBits(layout, part); });
    return (bits + 7) / 8;
  };
  LevelCoding coding = options_.coding;
  std::uint8_t* at = to;
  std::int64_t room = FixedBytes(block.n);
  if (coding != LevelCoding::smallest) {
    room = MostEliasBytes(LayoutOf(coding), block.n, block.before);
  } else {
    coding = LevelCoding::fixed;
    for (const LevelCoding each : {LevelCoding::dense, LevelCoding::sparse}) {
      const std::int64_t bytes = bytes_of(LayoutOf(each));
      if (bytes >= room) continue;
      room = bytes;
      coding = each;
    }
    *at++ = static_cast<std::uint8_t>(coding);
    if (coding == LevelCoding::fixed) {
      Kernels().encode_levels(block.plan, block.first, block.before, block.n, x, block.norms,
                              block.random, at);
      return kTagBytes + room;
    }
  }
  BitWriter writer({at, static_cast<std::size_t>(room)});
  for_parts([&](std::span<const Level> part) { EliasEncode(LayoutOf(coding), part, writer); });
  return at - to + writer.End();
}

std::int64_t LevelBlocks::DecodeLevels(const Block& block, std::span<const std::uint8_t> bytes,
                                       float* y) const {
  LevelCoding coding = options_.coding;
  std::int64_t tag = 0;
  if (coding == LevelCoding::smallest) {
    if (bytes.empty() || bytes[0] > static_cast<std::uint8_t>(LevelCoding::sparse)) {
      throw DamagedBytes("a block must begin with the coding of its levels, 0…" +
                         std::to_string(static_cast<int>(LevelCoding::sparse)) + ", got " +
                         (bytes.empty() ? "no byte" : std::to_string(bytes[0])));
    }
    coding = static_cast<LevelCoding>(bytes[0]);
    tag = kTagBytes;
    bytes = bytes.subspan(1);
  }
  if (coding == LevelCoding::fixed || coding == LevelCoding::trits) {
    const bool is_trits = coding == LevelCoding::trits;
    const std::int64_t size =
        is_trits ? MostLevelBytes(block.n, block.before) : FixedBytes(block.n);
    if (static_cast<std::int64_t>(bytes.size()) < size) {
      throw DamagedBytes(std::to_string(block.n) + " levels take " + std::to_string(size) +
                         " bytes, got " + std::to_string(bytes.size()));
    }
    if (is_trits) {
      DecodeTrits(block, bytes.data(), y);
    } else {
      Kernels().decode_levels(block.plan, block.shift, block.divisor, block.before, block.n,
                              bytes.data(), block.norms, y);
    }
    return tag + size;
  }
  return tag + (plan_.most <= std::numeric_limits<std::int8_t>::max()
                    ? DecodeElias<std::int8_t>(LayoutOf(coding), block, bytes, y)
                    : DecodeElias<std::int16_t>(LayoutOf(coding), block, bytes, y));
}

template <class Level>
std::int64_t LevelBlocks::DecodeElias(EliasLayout layout, const Block& block,
                                      std::span<const std::uint8_t> bytes, float* y) const {
  std::vector<Level> levels(static_cast<std::size_t>(block.n));
  BitReader reader(bytes);
  ForBuckets(plan_.bucket, block.before, block.n, [&](std::int64_t i, std::int64_t count) {
    EliasDecode(layout, plan_.most, reader,
                std::span<Level>(levels.data() + i, static_cast<std::size_t>(count)));
  });
  const std::int64_t used = reader.End();
  LevelPlan plan = block.plan;
  plan.bits = 8 * sizeof(Level);
  plan.most = std::numeric_limits<Level>::max();  // EliasDecode has checked the levels
  Kernels().decode_levels(plan, block.shift, block.divisor, block.before, block.n,
                          reinterpret_cast<const std::uint8_t*>(levels.data()), block.norms, y);
  return used;
}

// --- blocks --------------------------------------------------------------------------------------

std::int64_t LevelBlocks::Encode(const Piece& piece, const LayerLevels& layer, const float* x,
                                 std::uint8_t* to) const {
  const std::uint8_t* const begin = to;
  const std::int64_t bucket = options_.bucket;
  Block block{
      .plan = plan_, .layer = piece.layer, .before = bucket == 0 ? 0 : piece.begin % bucket};
  block.plan.seed = piece.key.seed;
  block.plan.stream = piece.key.stream;
  if (options_.spaced) block.plan.spacing = &layer.spacing;
  const std::int64_t ahead = piece.size == 0 ? 0 : block.before;  // values read before the piece
  std::vector<float> scratch;
  std::vector<float> norms(1, layer.norm);
  for (std::int64_t i = 0; i < piece.n; i += block_) {
    block.n = std::min(block_, piece.n - i);
    block.first = piece.begin + i;
    block.random = piece.random == nullptr ? nullptr : piece.random + i;
    const std::int64_t touched = bucket == 0 ? 1 : (block.before + block.n + bucket - 1) / bucket;
    std::int64_t end = block.n;  // of the values that are read
    if (bucket != 0 && piece.size != 0) {
      end = std::min(touched * bucket - block.before, piece.size - block.first);
    }
    const float* const values = Shifted(piece.shift, ahead + end, x + i - ahead, scratch);
    if (bucket != 0) {
      norms.resize(static_cast<std::size_t>(touched));
      Guarded([&] { NormsOf(ahead + end, values, norms.data()); });
    }
    block.norms = norms.data();
    const std::int64_t stored = kNormBytes * NormsOf(block.n, block.before);
    std::memcpy(to, norms.data(), static_cast<std::size_t>(stored));
    to = std::copy_n(layer.spacing.place + 1, PlaceBytes(), to + stored);
    to += EncodeLevels(block, values + ahead, to);
  }
  return to - begin;
}

void LevelBlocks::Decode(std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                         float divisor, float* y, std::int64_t before) const {
  const auto check = [&](bool fits) {
    if (fits) return;
    throw DamagedBytes(std::to_string(n) + " values take " + (is_fixed() ? "" : "at most ") +
                       std::to_string(MostBytes(n, before)) + " bytes, got " +
                       std::to_string(bytes.size()));
  };
  const auto size = static_cast<std::int64_t>(bytes.size());
  check(is_fixed() ? size == MostBytes(n, before) : size <= MostBytes(n, before));
  const bool direct = std::abs(shift) <= kMostShift;
  Block block{.plan = plan_, .before = before};
  if (direct) block.shift = shift, block.divisor = divisor;
  LevelSpacing spacing;
  if (options_.spaced) block.plan.spacing = &spacing;
  std::vector<float> norms(1, 1.0F);
  std::size_t at = 0;
  for (std::int64_t i = 0; i < n; i += block_) {
    block.n = std::min(block_, n - i);
    if (options_.stores_norms) {
      norms.resize(static_cast<std::size_t>(NormsOf(block.n, before)));
      const std::size_t stored = norms.size() * sizeof(float);
      check(bytes.size() - at >= stored);
      std::memcpy(norms.data(), bytes.data() + at, stored);
      at += stored;
      const auto is_wrong = [](float norm) { return std::signbit(norm) || std::isinf(norm); };
      if (std::ranges::any_of(norms, is_wrong))
        throw DamagedBytes("a norm is negative or infinite");
    }
    block.norms = norms.data();
    if (options_.spaced) {
      const auto places = static_cast<std::size_t>(PlaceBytes());
      check(bytes.size() - at >= places);
      std::copy_n(bytes.data() + at, places, spacing.place + 1);
      spacing.place[plan_.steps] = LevelSpacing::kUnits;
      CompleteSpacing(spacing, plan_.steps);
      at += places;
    }
    at += static_cast<std::size_t>(DecodeLevels(block, bytes.subspan(at), y + i));
  }
  if (at != bytes.size()) {
    throw DamagedBytes(std::to_string(bytes.size() - at) + " bytes follow the last level");
  }
  if (!direct) Unscale(shift, divisor, n, y, y);
}

}  // namespace cpd
