// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/stream.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "cpd/base/parallel.h"
#include "cpd/compress/codecs.h"
#include "cpd/compress/words.h"
#include "cpd/ops/reduce.h"
#include "cpd/spec/error.h"
#include "cpd/spec/names.h"

namespace cpd {
namespace {

constexpr std::uint32_t kMagic = 0x53445043;  // "CPDS"
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kMostName = 1024;

struct Head {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t name = 0;
  std::uint32_t options = 0;
  std::int32_t shift = 0;
  std::int64_t count = 0, row = 0, bytes = 0;
  float scale = 0;
  std::uint32_t sizes = 0;
};
static_assert(sizeof(Head) == 48);
using Sizes = std::vector<std::uint32_t>;

std::uint32_t CrcOf(std::string_view text) {
  return Crc32c(0, static_cast<std::int64_t>(text.size()), text.data());
}

/// A layer's blocks.
struct Blocks {
  Blocks(const Codec& codec, std::int64_t values) : count(values), block(codec.block()) {}
  [[nodiscard]] std::int64_t number() const { return count / block + (count % block != 0 ? 1 : 0); }
  [[nodiscard]] std::int64_t ValuesOf(std::int64_t k) const {
    return std::min(block, count - k * block);
  }
  /// Calls body(k) for the index k of each block of a stream, in parallel.
  template <class Body>
  void ForEach(const Body& body) const {
    parallel_for(count, block, kSerialBelow, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t k = begin / block; k * block < end; ++k) body(k);
    });
  }
  std::int64_t count, block;
};

/// Returns the bytes of all blocks if the codec is_fixed(); -1 if the number is too large for any
/// memory.
std::int64_t FixedBytes(const Codec& codec, const Blocks& blocks) {
  const std::int64_t whole = codec.MostBytes(blocks.block);
  const std::int64_t number = blocks.count / blocks.block;
  if (whole > 0 && number > std::numeric_limits<std::int64_t>::max() / 2 / whole) return -1;
  const std::int64_t rest = blocks.count % blocks.block;
  return number * whole + (rest == 0 ? 0 : codec.MostBytes(rest));
}

template <class T>
std::uint8_t* Put(const T* from, std::size_t count, std::uint8_t* to) {
  if (count > 0) std::memcpy(to, from, count * sizeof(T));
  return to + count * sizeof(T);
}

[[noreturn]] void Damaged(const std::string& what) {
  throw DamagedBytes("the stream is damaged: " + what);
}

/// A stream whose header was checked. It can be decoded.
struct Opened {
  StreamInfo info;
  SharedCodec codec;
  std::int64_t fixed = 0;  // the bytes of a whole block, if all blocks have equal sizes
  // If blocks have different sizes: the offset of each block, and of the end of the last block.
  std::vector<std::int64_t> begins;
  std::span<const std::uint8_t> blocks;

  [[nodiscard]] std::span<const std::uint8_t> Block(std::int64_t k) const {
    if (begins.empty()) {
      const auto left = blocks.subspan(static_cast<std::size_t>(k * fixed));
      return left.first(std::min(left.size(), static_cast<std::size_t>(fixed)));
    }
    const std::int64_t* const at = begins.data() + k;
    return blocks.subspan(static_cast<std::size_t>(at[0]), static_cast<std::size_t>(at[1] - at[0]));
  }
};

Head HeadOf(std::span<const std::uint8_t> bytes) {
  Head head;
  if (bytes.size() < sizeof(Head) + sizeof(std::uint32_t)) Damaged("it is cut off");
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.magic != kMagic) throw DamagedBytes("these bytes are no stream of a codec");
  if (head.version != kVersion) {
    throw DamagedBytes("the stream has version " + std::to_string(head.version) +
                       ", this library reads " + std::to_string(kVersion));
  }
  const auto body = static_cast<std::int64_t>(bytes.size() - sizeof(std::uint32_t));
  std::uint32_t crc = 0;
  std::memcpy(&crc, bytes.data() + body, sizeof(crc));
  if (crc != Crc32c(0, body, bytes.data())) Damaged("its CRC-32C is another");
  const std::int64_t before = static_cast<std::int64_t>(sizeof(Head)) + head.name +
                              std::int64_t{4} * static_cast<std::int64_t>(head.sizes);
  if (head.bytes < 0 || head.bytes > body || before != body - head.bytes) {
    Damaged("its parts do not add to its length");
  }
  const bool in_range = head.name <= kMostName && head.count >= 0 && head.row >= 0 &&
                        std::abs(std::int64_t{head.shift}) <= kMostStreamShift && head.scale >= 0 &&
                        std::isfinite(head.scale);
  if (!in_range) Damaged("a number of its header is out of range");
  return head;
}

SharedCodec CodecOf(const std::string& name, std::int64_t row, std::int64_t count) {
  try {
    const SharedCodec codec = MakeCodec(name);
    if (codec->name() == name) return CodecOfRows(codec, row, count);
  } catch (const Error& error) {
    Damaged(error.what());
  }
  Damaged(Quoted(name) + " is no codec's name");
}

Opened Open(std::span<const std::uint8_t> bytes) {
  const Head head = HeadOf(bytes);
  const std::uint8_t* const at = bytes.data() + sizeof(Head);
  Opened opened;
  opened.info = {.codec = std::string(at, at + head.name),
                 .options = head.options,
                 .shift = head.shift,
                 .count = head.count,
                 .row = head.row,
                 .bytes = head.bytes,
                 .scale = head.scale};
  opened.codec = CodecOf(opened.info.codec, head.row, head.count);
  const std::uint8_t* const sizes = at + head.name;
  opened.blocks = {sizes + head.sizes * sizeof(std::uint32_t),
                   static_cast<std::size_t>(head.bytes)};
  const Codec& codec = *opened.codec;
  const Blocks blocks(codec, head.count);
  if (head.sizes != (codec.is_fixed() ? 0 : blocks.number())) {
    Damaged("its blocks are too many or too few");
  }
  std::int64_t sum = 0;
  if (codec.is_fixed()) {
    opened.fixed = codec.MostBytes(blocks.block);
    sum = FixedBytes(codec, blocks);
  } else {
    opened.begins.resize(head.sizes + std::size_t{1});
    for (std::size_t k = 0; k < head.sizes; opened.begins[++k] = sum) {
      std::uint32_t size = 0;
      std::memcpy(&size, sizes + k * sizeof(size), sizeof(size));
      sum += size;
    }
  }
  if (sum != head.bytes) Damaged("its blocks do not add to their length");
  return opened;
}

void CheckOptions(const StreamOptions& options, std::size_t values) {
  if (options.row < 0) {
    throw Error("row must not be negative, got " + std::to_string(options.row));
  }
  if (std::abs(std::int64_t{options.shift}) > kMostStreamShift) {
    throw Error("shift must be at most ±" + std::to_string(kMostStreamShift) + ", got " +
                std::to_string(options.shift));
  }
  if (!options.random.empty() && options.random.size() != values) {
    throw Error(std::to_string(options.random.size()) + " random integers for " +
                std::to_string(values) + " values");
  }
}

/// Inserts ` seed=N` into a codec's text, after each option `random_bits=…`, or after the option
/// `variant=…` if that follows. The header has the CRC of the resulting text.
std::string WithSeed(std::string text, std::uint64_t seed) {
  for (std::size_t at = 0; (at = text.find(" random_bits=", at)) != std::string::npos;) {
    at = std::min(text.find(' ', at + 1), text.size());
    if (text.compare(at, 9, " variant=") == 0) at = std::min(text.find(' ', at + 1), text.size());
    text.insert(at, " seed=" + std::to_string(seed));
  }
  return text;
}

/// Calls the state's Begin, and the codec's Measure unless the caller gives the scale. Returns a
/// Piece that describes the whole layer.
Piece BegunLayer(const Codec& codec, CodecState* state, const StreamOptions& options,
                 std::span<const float> x) {
  const auto count = static_cast<std::int64_t>(x.size());
  Piece layer{.n = count, .shift = options.shift, .key = options.key, .size = count};
  if (!options.random.empty()) layer.random = options.random.data();
  if (count > 0 && state != nullptr) state->Begin(layer, x.data());
  if (options.scale) {
    if (!(*options.scale >= 0) || !std::isfinite(*options.scale)) {
      throw Error("scale must be a finite number, not negative, got " + NumberText(*options.scale));
    }
    layer.scale = *options.scale;
  } else if (count > 0 && codec.measured() != Measured::nothing) {
    layer.scale = codec.Measure(layer, state, x.data());
  }
  return layer;
}

}  // namespace

SharedCodec CodecOfRows(const SharedCodec& codec, std::int64_t row, std::int64_t count) {
  if (!codec->by_rows()) return codec;
  return codec->ForRows(std::max(std::int64_t{1}, row == 0 ? count : row));
}

std::vector<std::uint8_t> EncodeStream(const SharedCodec& codec, CodecState* state,
                                       const StreamOptions& options, std::span<const float> x) {
  std::vector<std::uint8_t> bytes;
  const auto memory = [&](std::int64_t most) {
    bytes.resize(static_cast<std::size_t>(most));
    return bytes.data();
  };
  bytes.resize(static_cast<std::size_t>(EncodeStream(codec, state, options, x, memory).all));
  return bytes;
}

StreamSize EncodeStream(const SharedCodec& codec, CodecState* state, const StreamOptions& options,
                        std::span<const float> x, const Memory<std::uint8_t>& memory) {
  const auto count = static_cast<std::int64_t>(x.size());
  const std::string name = codec->name();
  if (name.size() > kMostName) throw Error("a codec's name is too long for a stream: " + name);
  CheckOptions(options, x.size());
  const SharedCodec used = CodecOfRows(codec, options.row, count);
  const std::unique_ptr<CodecState> made = state == nullptr ? used->MakeState(count) : nullptr;
  if (state == nullptr) state = made.get();
  const Piece layer = BegunLayer(*used, state, options, x);

  // Each block is first written at the offset that it has if all blocks before it have the largest
  // size. The blocks are then moved to their final offsets.
  const Blocks blocks(*used, count);
  Sizes sizes(static_cast<std::size_t>(blocks.number()));
  Head head{.name = static_cast<std::uint16_t>(name.size()),
            .options = CrcOf(WithSeed(codec->text(), options.key.seed)),
            .shift = options.shift,
            .count = count,
            .row = options.row,
            .scale = used->measured() == Measured::shared ? layer.scale : 0,
            .sizes = used->is_fixed() ? 0 : static_cast<std::uint32_t>(sizes.size())};
  const std::size_t before = sizeof(Head) + name.size() + head.sizes * sizeof(std::uint32_t);
  const auto most = static_cast<std::size_t>(used->MostBytes(blocks.block));
  std::uint8_t* const bytes =
      memory(static_cast<std::int64_t>(before + sizes.size() * most + sizeof(std::uint32_t)));
  std::uint8_t* const begin = bytes + before;
  blocks.ForEach([&](std::int64_t k) {
    Piece piece = layer;
    piece.begin = k * blocks.block;
    piece.n = blocks.ValuesOf(k);
    if (layer.random != nullptr) piece.random = layer.random + piece.begin;
    const auto at = static_cast<std::size_t>(k);
    sizes[at] = static_cast<std::uint32_t>(
        used->Encode(piece, state, x.data() + piece.begin, begin + at * most));
  });
  std::uint8_t* end = begin;
  for (std::size_t k = 0; k < sizes.size(); end += sizes[k++]) {
    if (end != begin + k * most) std::memmove(end, begin + k * most, sizes[k]);
  }
  head.bytes = end - begin;
  Put(sizes.data(), head.sizes, Put(name.data(), name.size(), Put(&head, 1, bytes)));
  const std::uint32_t crc = Crc32c(0, end - bytes, bytes);
  end = Put(&crc, 1, end);
  if (state != nullptr && count > 0) state->Commit();
  return {end - bytes, head.bytes};
}

StreamInfo ReadStream(std::span<const std::uint8_t> bytes) { return Open(bytes).info; }

DecodedStream DecodeStream(std::span<const std::uint8_t> bytes, std::int64_t most_values) {
  DecodedStream decoded;
  const auto memory = [&](std::int64_t most) {
    decoded.values.resize(static_cast<std::size_t>(most));
    return decoded.values.data();
  };
  decoded.info = DecodeStream(bytes, memory, most_values);
  return decoded;
}

StreamInfo DecodeStream(std::span<const std::uint8_t> bytes, const Memory<float>& memory,
                        std::int64_t most_values) {
  const Opened opened = Open(bytes);
  const StreamInfo& info = opened.info;
  if (info.count > most_values) {
    throw DamagedBytes("the stream holds " + std::to_string(info.count) + " values, at most " +
                       std::to_string(most_values) + " were expected");
  }
  const Codec& codec = *opened.codec;
  const Blocks blocks(codec, info.count);
  float* const values = memory(info.count);
  const bool in_units = codec.measured() == Measured::shared;
  blocks.ForEach([&](std::int64_t k) {
    const std::int64_t n = blocks.ValuesOf(k);
    float* const y = values + k * blocks.block;
    codec.Decode(opened.Block(k), n, in_units ? 0 : -info.shift, 1, y);
    if (!in_units) return;
    for (std::int64_t i = 0; i < n; ++i) y[i] *= info.scale;
    Unscale(-info.shift, 1, n, y, y);
  });
  return info;
}

}  // namespace cpd
