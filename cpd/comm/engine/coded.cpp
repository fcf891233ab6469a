// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/engine/coded.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "cpd/comm/errors.h"
#include "cpd/compress/packed.h"

namespace cpd {
namespace {

constexpr std::int64_t kSizeBytes = sizeof(std::uint32_t);

std::int64_t BlockCount(const Part& part, const Codecs& codecs) {
  std::int64_t blocks = 0;
  for (const Segment& segment : part.segments) {
    const std::int64_t block = codecs.block(segment.layer);
    blocks += (segment.count + block - 1) / block;
  }
  return blocks;
}

std::int64_t Before(const Codec& codec, std::int64_t begin) { return begin % codec.bucket(); }

/// Returns the maximum number of bytes of a range of a layer that is encoded in blocks.
std::int64_t SegmentBytes(const Codec& codec, const Segment& segment, std::int64_t block) {
  const std::int64_t before = Before(codec, segment.begin);
  std::int64_t bytes = 0;
  if (segment.count >= block) bytes += segment.count / block * codec.MostBytes(block, before);
  if (segment.count % block > 0) bytes += codec.MostBytes(segment.count % block, before);
  return bytes;
}

[[noreturn]] void ThrowDamaged(int source, const std::string& what) {
  const std::string whose =
      source < 0 ? "this rank's own message" : "a message from rank " + std::to_string(source);
  throw Corrupt(whose + " is damaged: " + what);
}

}  // namespace

void ThrowDamaged(int source, const Block& block, const DamagedBytes& error) {
  ThrowDamaged(source, "tensor " + std::to_string(block.layer) + ", values " +
                           std::to_string(block.begin) + "…" +
                           std::to_string(block.begin + block.n - 1) + ": " + error.what());
}

Codecs::Codecs(std::span<const SharedCodec> wires) {
  for (const SharedCodec& wire : wires) blocks_.push_back(wire->block());
}

void Codecs::Add(std::span<const SharedCodec> of_layers, const SharedCodec& otherwise) {
  std::vector<SharedCodec> plane(of_layers.begin(), of_layers.end());
  for (SharedCodec& codec : plane) {
    if (codec == nullptr) codec = otherwise;
    is_fixed_ = is_fixed_ && codec->is_fixed();
    is_packed_ = is_packed_ && dynamic_cast<const Packed*>(codec.get()) != nullptr &&
                 codec->format() == plane[0]->format();
  }
  planes_.push_back(std::move(plane));
}

namespace {

template <class Most>
std::vector<Block> BlocksOf(const Part& part, const Most& most_of) {
  std::vector<Block> blocks;
  std::int64_t position = 0;
  for (std::size_t s = 0; s < part.segments.size(); ++s) {
    const Segment& segment = part.segments[s];
    const std::int64_t most = most_of(segment);
    for (std::int64_t at = 0; at < segment.count; at += most) {
      const std::int64_t n = std::min(most, segment.count - at);
      blocks.push_back({s, segment.layer, segment.begin + at, n, at, position + at, blocks.size()});
    }
    position += segment.count;
  }
  return blocks;
}

}  // namespace

std::vector<Block> BlocksOf(const Part& part, const Codecs& codecs) {
  return BlocksOf(part, [&](const Segment& segment) { return codecs.block(segment.layer); });
}

std::vector<Block> SegmentsOf(const Part& part) {
  return BlocksOf(part, [](const Segment& segment) { return segment.count; });
}

std::int64_t MostBytes(const Part& part, const Codecs& codecs) {
  std::int64_t bytes = 0;
  for (std::size_t q = 0; q < codecs.planes(); ++q) {
    for (const Segment& segment : part.segments) {
      bytes += SegmentBytes(codecs.of(q, segment.layer), segment, codecs.block(segment.layer));
    }
    if (!codecs.is_fixed()) bytes += BlockCount(part, codecs) * kSizeBytes;
  }
  return bytes;
}

CodedPart::CodedPart(const Part& part, const Codecs& codecs, const Message* message,
                     const Queue& queue)
    : codecs_(&codecs),
      memory_(message == nullptr ? nullptr : message->payload()),
      queue_(&queue),
      fixed_(codecs.is_fixed()),
      segments_(part.segments.size()),
      blocks_(fixed_ ? 0 : static_cast<std::size_t>(BlockCount(part, codecs))) {
  if (message != nullptr && queue.on_host() && !message->memory().is_on_host()) {
    copy_ = std::make_shared_for_overwrite<std::uint8_t[]>(
        static_cast<std::size_t>(message->capacity()));
    memory_ = copy_.get();
  }
  if (!fixed_) return;
  starts_.reserve(codecs.planes() * segments_);
  std::int64_t bytes = 0;
  for (std::size_t q = 0; q < codecs.planes(); ++q) {
    for (const Segment& segment : part.segments) {
      starts_.push_back(bytes);
      bytes += SegmentBytes(codecs.of(q, segment.layer), segment, codecs.block(segment.layer));
    }
  }
}

CodedPart CodedPart::Read(const Part& part, const Codecs& codecs, const Message* from,
                          const Queue& queue) {
  CodedPart coded(part, codecs, from, queue);
  if (from == nullptr) return coded;
  coded.source_ = from->source();
  if (coded.copy_ != nullptr) {
    from->memory().Read(coded.memory_, from->payload(), from->bytes());
  }
  if (!coded.fixed_) coded.ReadSizes(part, *from);
  return coded;
}

CodedPart CodedPart::Write(const Part& part, const Codecs& codecs, const Message& to,
                           const Queue& queue) {
  CodedPart coded(part, codecs, &to, queue);
  if (!coded.fixed_) coded.PlaceApart(part);
  return coded;
}

void CodedPart::ReadSizes(const Part& part, const Message& from) {
  sizes_.resize(codecs_->planes() * blocks_);
  places_.resize(sizes_.size());
  const auto table = static_cast<std::int64_t>(sizes_.size()) * kSizeBytes;
  if (from.bytes() < table) ThrowDamaged(source_, "it is shorter than its blocks' sizes");
  if (table > 0) std::memcpy(sizes_.data(), memory_, static_cast<std::size_t>(table));
  const std::vector<Block> blocks = BlocksOf(part, *codecs_);
  std::int64_t place = table;
  for (std::size_t q = 0; q < codecs_->planes(); ++q) {
    for (const Block& block : blocks) {
      const std::size_t entry = q * blocks_ + block.index;
      if (sizes_[entry] > MostBytesOf(q, block)) {
        ThrowDamaged(source_, "a block of it is longer than it can be");
      }
      places_[entry] = place;
      place += sizes_[entry];
    }
  }
  if (place != from.bytes()) ThrowDamaged(source_, "its blocks do not fill it");
}

void CodedPart::PlaceApart(const Part& part) {
  sizes_.resize(codecs_->planes() * blocks_);
  places_.resize(sizes_.size());
  const std::vector<Block> blocks = BlocksOf(part, *codecs_);
  auto place = static_cast<std::int64_t>(sizes_.size()) * kSizeBytes;
  for (std::size_t q = 0; q < codecs_->planes(); ++q) {
    for (const Block& block : blocks) {
      places_[q * blocks_ + block.index] = place;
      place += MostBytesOf(q, block);
    }
  }
}

void CodedPart::End(Message& to) {
  if (!fixed_) Join(to);
  if (copy_ != nullptr) to.memory().Write(to.payload(), memory_, to.bytes());
}

void CodedPart::Join(Message& to) {
  auto place = static_cast<std::int64_t>(sizes_.size()) * kSizeBytes;
  if (place > 0) std::memcpy(memory_, sizes_.data(), static_cast<std::size_t>(place));
  for (std::size_t entry = 0; entry < sizes_.size(); ++entry) {  // each moves down, or stays
    std::memmove(memory_ + place, memory_ + places_[entry], sizes_[entry]);
    place += sizes_[entry];
  }
  to.Resize(place);
}

std::int64_t CodedPart::MostBytesOf(std::size_t plane, const Block& block) const {
  const Codec& codec = codecs_->of(plane, block.layer);
  return codec.MostBytes(block.n, Before(codec, block.begin));
}

std::int64_t CodedPart::Place(int plane, const Block& block) const {
  if (!fixed_) return places_[Entry(plane, block)];
  const auto q = static_cast<std::size_t>(plane);
  const std::int64_t size = codecs_->block(block.layer);
  const std::int64_t blocks = block.at / size;
  const Codec& codec = Of(plane, block);
  const std::int64_t before =
      blocks == 0 ? 0 : blocks * codec.MostBytes(size, Before(codec, block.begin));
  return starts_[q * segments_ + block.segment] + before;
}

void CodedPart::LoadUnscaled(int plane, const Block& block, int shift, float divisor,
                             float* values) const {
  const Codec& codec = Of(plane, block);
  const std::int64_t bytes =
      fixed_ ? MostBytesOf(static_cast<std::size_t>(plane), block) : sizes_[Entry(plane, block)];
  try {
    codec.DecodeOn(*queue_, {memory_ + Place(plane, block), static_cast<std::size_t>(bytes)},
                   block.n, shift, divisor, values, Before(codec, block.begin));
  } catch (const DamagedBytes& error) {
    ThrowDamaged(source_, block, error);
  }
}

void CodedPart::EncodeTo(int plane, const Block& block, const Piece& piece, CodecState* state,
                         const float* x) {
  const std::int64_t bytes =
      Of(plane, block).EncodeOn(*queue_, piece, state, x, memory_ + Place(plane, block));
  if (!fixed_) sizes_[Entry(plane, block)] = static_cast<std::uint32_t>(bytes);
}

void CodedPart::Store(int plane, const Block& block, const float* values) {
  const Piece piece{.layer = block.layer, .begin = block.begin, .n = block.n};
  EncodeTo(plane, block, piece, nullptr, values);
}

}  // namespace cpd
