// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/level_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cpd/base/guarded.h"
#include "cpd/compress/spacing.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

constexpr std::int64_t kNormBytes = sizeof(float);
constexpr std::int64_t kNoBuckets = std::int64_t{1} << 62;
// The number of values for which one thread finds the largest magnitude.
constexpr std::int64_t kSplit = 2048;
constexpr std::int64_t kTagBytes = 1;
constexpr std::int64_t kTrits = 5;          // levels in a byte
constexpr std::uint8_t kTritsOfByte = 243;  // 3^5
constexpr const char* kDamagedNorm = " of a message: its bucket's norm is negative or infinite";

/// Splits n values at the ends of buckets, and calls run(i, count) for each range of `count` values
/// from value i on.
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

/// Writes the levels of a block as integers of type Level.
template <class Level>
void LevelsOf(LevelCall call, std::vector<Level>& levels) {
  call.plan.bits = 8 * sizeof(Level);
  call.stores_norms = false;
  call.to = reinterpret_cast<std::uint8_t*>(levels.data());
  HostQueue()->encode_levels(call);
}

/// Decodes the levels of a block, which are integers of type Level, to values.
template <class Level>
void ValuesOf(LevelCall call, const std::vector<Level>& levels) {
  call.plan.bits = 8 * sizeof(Level);
  call.stores_norms = false;
  call.from = reinterpret_cast<const std::uint8_t*>(levels.data());
  HostQueue()->decode_levels(call);
}

}  // namespace

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

LevelCall LevelBlocks::CallOf(const Piece& piece, const LayerLevels& layer) const {
  LevelCall call = CallOf(piece.n, piece.begin);
  call.plan.seed = piece.key.seed;
  call.plan.stream = piece.key.stream;
  if (options_.spaced) call.plan.spacing = &layer.spacing;
  call.begin = piece.begin;
  call.shift = piece.shift;
  call.norm = layer.norm;
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

NormCall LevelBlocks::NormsCall(std::int64_t n, int shift, const float* x) const {
  NormCall call;
  call.norm = options_.norm;
  call.clip = options_.clip;
  call.n = n;
  call.bucket = options_.bucket;
  call.shift = shift;
  call.x = x;
  return call;
}

float LevelBlocks::Measure(const Queue& queue, const Piece& layer, const float* x) const {
  if (layer.n == 0) return 0;
  // The largest magnitude is computed from parts of kSplit values. Euclidean norms and clipping
  // limits need sums over the layer in one order, so the layer then is one part.
  const bool sums = options_.norm == LevelNorm::euclidean || options_.clip != 0;
  const std::int64_t part = sums ? layer.n : kSplit;
  const std::int64_t parts = (layer.n + part - 1) / part;
  const QueuedArray<float> norms(queue, parts + (parts + part - 1) / part);
  NormCall call = NormsCall(layer.n, layer.shift, x);
  call.norms = norms.data();
  for (;;) {
    call.bucket = std::min(call.n, part);
    queue.level_norms(call);
    call.x = call.norms;
    call.n = (call.n + call.bucket - 1) / call.bucket;
    call.shift = 0;
    if (call.n == 1) break;
    call.norms = call.norms == norms.data() ? norms.data() + parts : norms.data();
  }
  float norm = 0;
  queue.Copy(&norm, call.norms, sizeof(norm));
  return norm;
}

LayerLevels LevelBlocks::MeasureLevels(const Queue& queue, const Piece& layer,
                                       const float* x) const {
  LayerLevels levels;
  if (options_.bucket == 0) levels.norm = Measure(queue, layer, x);
  if (!options_.spaced) return levels;
  std::vector<float> shifted(static_cast<std::size_t>(layer.shift == 0 ? 0 : layer.n));
  if (layer.shift != 0) {
    Unscale(layer.shift, 1, layer.n, x, shifted.data());
    x = shifted.data();
  }
  std::vector<float> norms(1, levels.norm);
  if (options_.bucket != 0) {
    norms.resize(static_cast<std::size_t>(NormsOf(layer.n, 0)));
    NormCall call = NormsCall(layer.n, 0, x);
    call.norms = norms.data();
    queue.level_norms(call);
  }
  Guarded([&] {
    SpacingSums sums;
    ForBuckets(plan_.bucket, 0, layer.n, [&](std::int64_t i, std::int64_t count) {
      sums.Add(count, x + i, norms[static_cast<std::size_t>(i / plan_.bucket)]);
    });
    levels.spacing = sums.Optimal(plan_.steps);
  });
  return levels;
}

template <class Run>
void LevelBlocks::ForMeasured(const Queue& queue, const Piece& piece, const LayerLevels& layer,
                              const float* x, Run run) const {
  const std::int64_t bucket = std::max<std::int64_t>(options_.bucket, 1);
  LevelCall call = CallOf(piece, layer);
  std::optional<QueuedArray<float>> norms;
  ForParts(queue, piece, bucket, block_, [&](const Piece& part, std::int64_t i) {
    call.n = part.n;
    call.begin = part.begin;
    call.x = x + i;
    call.random = part.random;
    if (options_.bucket != 0) {
      if (!norms) norms.emplace(queue, BucketsOf(part, bucket));
      const ValueRange around = BucketsAround(part, bucket);
      NormCall of = NormsCall(around.size(), part.shift, x + (around.begin - piece.begin));
      of.norms = norms->data();
      queue.level_norms(of);
      call.norms = norms->data();
    }
    run(call, i);
  });
}

// --- levels, on the host -------------------------------------------------------------------------

void LevelBlocks::EncodeTrits(const LevelCall& call, int layer, std::uint8_t* to) const {
  std::vector<std::int16_t> levels(static_cast<std::size_t>(call.n));
  LevelsOf(call, levels);
  levels.resize(static_cast<std::size_t>((call.n + kTrits - 1) / kTrits * kTrits));
  for (std::size_t i = 0; i < levels.size(); i += kTrits) {
    int byte = 0;
    for (std::size_t j = kTrits; j-- > 0;) {
      const int level = levels[i + j];
      if (level < -1) {
        throw Error("tensor " + std::to_string(layer) +
                    " has NaN or infinities, for which coding=trits has no code");
      }
      byte = 3 * byte + (level < 0 ? 2 : level);
    }
    *to++ = static_cast<std::uint8_t>(byte);
  }
}

void LevelBlocks::DecodeTrits(const LevelCall& call, const std::uint8_t* from) const {
  std::vector<std::int16_t> levels(
      static_cast<std::size_t>((call.n + kTrits - 1) / kTrits * kTrits));
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
  const auto end = levels.begin() + call.n;
  if (std::any_of(end, levels.end(), [](std::int16_t level) { return level != 0; })) {
    throw DamagedBytes("levels behind the last value must be 0");
  }
  ValuesOf(call, levels);
}

std::int64_t LevelBlocks::EncodeBlock(const LevelCall& call, int layer, std::uint8_t* to) const {
  const std::uint8_t* const begin = to;
  const std::int64_t stored = kNormBytes * NormsOf(call.n, call.before);
  std::memcpy(to, call.norms, static_cast<std::size_t>(stored));
  to += stored;
  if (options_.spaced) to = std::copy_n(call.plan.spacing->place + 1, PlaceBytes(), to);
  switch (options_.coding) {
    case LevelCoding::fixed: {
      LevelCall alone = call;
      alone.stores_norms = false;
      alone.to = to;
      HostQueue()->encode_levels(alone);
      return to + FixedBytes(call.n) - begin;
    }
    case LevelCoding::trits:
      EncodeTrits(call, layer, to);
      return to + MostLevelBytes(call.n, call.before) - begin;
    default:
      to += plan_.most <= std::numeric_limits<std::int8_t>::max()
                ? EncodeElias<std::int8_t>(call, to)
                : EncodeElias<std::int16_t>(call, to);
      return to - begin;
  }
}

template <class Level>
std::int64_t LevelBlocks::EncodeElias(const LevelCall& call, std::uint8_t* to) const {
  std::vector<Level> levels(static_cast<std::size_t>(call.n));
  LevelsOf(call, levels);
  const auto for_parts = [&](auto run) {
    ForBuckets(plan_.bucket, call.before, call.n, [&](std::int64_t i, std::int64_t count) {
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
  std::int64_t room = FixedBytes(call.n);
  if (coding != LevelCoding::smallest) {
    room = MostEliasBytes(LayoutOf(coding), call.n, call.before);
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
      LevelCall alone = call;
      alone.stores_norms = false;
      alone.to = at;
      HostQueue()->encode_levels(alone);
      return kTagBytes + room;
    }
  }
  BitWriter writer({at, static_cast<std::size_t>(room)});
  for_parts([&](std::span<const Level> part) { EliasEncode(LayoutOf(coding), part, writer); });
  return at - to + writer.End();
}

std::int64_t LevelBlocks::DecodeLevels(const LevelCall& call,
                                       std::span<const std::uint8_t> bytes) const {
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
    const std::int64_t size = is_trits ? MostLevelBytes(call.n, call.before) : FixedBytes(call.n);
    if (static_cast<std::int64_t>(bytes.size()) < size) {
      throw DamagedBytes(std::to_string(call.n) + " levels take " + std::to_string(size) +
                         " bytes, got " + std::to_string(bytes.size()));
    }
    if (is_trits) {
      DecodeTrits(call, bytes.data());
    } else {
      LevelCall alone = call;
      alone.from = bytes.data();
      HostQueue()->decode_levels(alone);
    }
    return tag + size;
  }
  return tag + (plan_.most <= std::numeric_limits<std::int8_t>::max()
                    ? DecodeElias<std::int8_t>(LayoutOf(coding), call, bytes)
                    : DecodeElias<std::int16_t>(LayoutOf(coding), call, bytes));
}

template <class Level>
std::int64_t LevelBlocks::DecodeElias(EliasLayout layout, LevelCall call,
                                      std::span<const std::uint8_t> bytes) const {
  std::vector<Level> levels(static_cast<std::size_t>(call.n));
  BitReader reader(bytes);
  ForBuckets(plan_.bucket, call.before, call.n, [&](std::int64_t i, std::int64_t count) {
    EliasDecode(layout, plan_.most, reader,
                std::span<Level>(levels.data() + i, static_cast<std::size_t>(count)));
  });
  const std::int64_t used = reader.End();
  call.plan.most = std::numeric_limits<Level>::max();  // EliasDecode has checked the levels
  ValuesOf(call, levels);
  return used;
}

// --- blocks --------------------------------------------------------------------------------------

std::int64_t LevelBlocks::EncodeOn(const Queue& queue, const Piece& piece, const LayerLevels& layer,
                                   const float* x, std::uint8_t* to) const {
  const std::int64_t before = piece.begin % plan_.bucket;
  std::uint8_t* const begin = to;
  ForMeasured(queue, piece, layer, x, [&](LevelCall& call, std::int64_t /*i*/) {
    if (kernels() == KernelSupport::all) {
      call.to = to;
      queue.encode_levels(call);
      to += MostBytes(call.n, before);
      return;
    }
    if (call.norms == nullptr) call.norms = &layer.norm;
    LevelCall block = call;
    for (std::int64_t i = 0; i < call.n; i += block_) {
      block.n = std::min(block_, call.n - i);
      block.begin = call.begin + i;
      block.x = call.x + i;
      block.norms = call.norms + i / plan_.bucket;
      block.random = call.random == nullptr ? nullptr : call.random + i;
      to += EncodeBlock(block, piece.layer, to);
    }
  });
  return to - begin;
}

void LevelBlocks::RoundOn(const Queue& queue, const Piece& piece, const LayerLevels& layer,
                          const float* x, float* y, SegmentCounts* counts) const {
  ForMeasured(queue, piece, layer, x, [&](LevelCall& call, std::int64_t i) {
    call.y = y + i;
    call.counts = counts;
    queue.round_levels(call);
  });
}

void LevelBlocks::DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n,
                           int shift, float divisor, float* y, std::int64_t before) const {
  const auto size = static_cast<std::int64_t>(bytes.size());
  const std::int64_t most = MostBytes(n, before);
  if (is_fixed() ? size != most : size > most) {
    throw DamagedBytes(std::to_string(n) + " values take " + (is_fixed() ? "" : "at most ") +
                       std::to_string(most) + " bytes, got " + std::to_string(size));
  }
  LevelCall call = CallOf(n, before);
  call.shift = shift;
  call.divisor = divisor;
  call.from = bytes.data();
  call.y = y;
  if (kernels() == KernelSupport::none) return DecodeBlocks(bytes, call, n);
  DamageNote damage(queue, kDamagedNorm);
  call.damaged = damage.place();
  queue.decode_levels(call);
  if (damage.is_noted()) throw DamagedBytes("a norm is negative or infinite");
}

void LevelBlocks::DecodeBlocks(std::span<const std::uint8_t> bytes, LevelCall call,
                               std::int64_t n) const {
  std::size_t at = 0;
  const auto take = [&](std::int64_t count, void* to) {
    const auto size = static_cast<std::size_t>(count);
    if (bytes.size() - at < size) {
      throw DamagedBytes(std::to_string(n) + " values take at most " +
                         std::to_string(MostBytes(n, call.before)) + " bytes, got " +
                         std::to_string(bytes.size()));
    }
    std::memcpy(to, bytes.data() + at, size);
    at += size;
  };
  LevelSpacing spacing;
  if (options_.spaced) call.plan.spacing = &spacing;
  std::vector<float> norms(1, call.norm);
  float* const y = call.y;
  for (std::int64_t i = 0; i < n; i += block_) {
    call.n = std::min(block_, n - i);
    call.y = y + i;
    if (options_.stores_norms) {
      norms.resize(static_cast<std::size_t>(NormsOf(call.n, call.before)));
      take(kNormBytes * static_cast<std::int64_t>(norms.size()), norms.data());
      const auto is_wrong = [](float norm) { return std::signbit(norm) || std::isinf(norm); };
      if (std::ranges::any_of(norms, is_wrong))
        throw DamagedBytes("a norm is negative or infinite");
    }
    call.norms = norms.data();
    if (options_.spaced) {
      std::uint8_t places[LevelSpacing::kMostSteps];
      take(PlaceBytes(), places);
      std::copy_n(places, PlaceBytes(), spacing.place + 1);
      spacing.place[plan_.steps] = LevelSpacing::kUnits;
      CompleteSpacing(spacing, plan_.steps);
    }
    LevelCall alone = call;
    alone.stores_norms = false;
    at += static_cast<std::size_t>(DecodeLevels(alone, bytes.subspan(at)));
  }
  if (at != bytes.size()) {
    throw DamagedBytes(std::to_string(bytes.size() - at) + " bytes follow the last level");
  }
}

}  // namespace cpd
