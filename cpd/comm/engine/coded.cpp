// SPDX-License-Identifier: Apache-2.0
#include "cpd/comm/engine/coded.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "cpd/comm/errors.h"

namespace cpd {
namespace {

constexpr std::int64_t kSizeBytes = sizeof(std::uint32_t);

std::int64_t BlockCount(const Part& part) {
  std::int64_t blocks = 0;
  for (const Segment& segment : part.segments) {
    blocks += (segment.count + kBlockValues - 1) / kBlockValues;
  }
  return blocks;
}

[[noreturn]] void ThrowDamaged(int source, const std::string& what) {
  const std::string whose =
      source < 0 ? "this rank's own message" : "a message from rank " + std::to_string(source);
  throw Corrupt(whose + " is damaged: " + what);
}

}  // namespace

std::vector<Block> BlocksOf(const Part& part) {
  std::vector<Block> blocks;
  std::int64_t position = 0;
  for (std::size_t s = 0; s < part.segments.size(); ++s) {
    const Segment& segment = part.segments[s];
    for (std::int64_t at = 0; at < segment.count; at += kBlockValues) {
      const std::int64_t n = std::min(kBlockValues, segment.count - at);
      blocks.push_back({s, segment.layer, segment.begin + at, n, at, position + at, blocks.size()});
    }
    position += segment.count;
  }
  return blocks;
}

bool IsFixed(Codecs planes) {
  return std::ranges::all_of(planes, [](const SharedCodec& codec) { return codec->is_fixed(); });
}

std::int64_t MostBytes(const Part& part, Codecs planes) {
  std::int64_t bytes = 0;
  if (IsFixed(planes)) {
    for (const SharedCodec& codec : planes) {
      for (const Segment& segment : part.segments) bytes += codec->MostBytes(segment.count);
    }
    return bytes;
  }
  for (const SharedCodec& codec : planes) {
    const std::int64_t whole = codec->MostBytes(kBlockValues);
    for (const Segment& segment : part.segments) {
      bytes += segment.count / kBlockValues * whole;
      if (const std::int64_t rest = segment.count % kBlockValues; rest > 0) {
        bytes += codec->MostBytes(rest);
      }
    }
    bytes += BlockCount(part) * kSizeBytes;
  }
  return bytes;
}

CodedPart::CodedPart(const Part& part, Codecs planes, std::uint8_t* memory)
    : planes_(planes),
      memory_(memory),
      fixed_(IsFixed(planes)),
      segments_(part.segments.size()),
      blocks_(fixed_ ? 0 : static_cast<std::size_t>(BlockCount(part))) {
  if (!fixed_ || memory_ == nullptr) return;
  starts_.reserve(planes_.size() * segments_);
  std::int64_t bytes = 0;
  for (const SharedCodec& codec : planes_) {
    for (const Segment& segment : part.segments) {
      starts_.push_back(bytes);
      bytes += codec->MostBytes(segment.count);
    }
  }
}

CodedPart CodedPart::Read(const Part& part, Codecs planes, const Message* from) {
  CodedPart coded(part, planes, from == nullptr ? nullptr : from->payload());
  if (from == nullptr) return coded;
  coded.source_ = from->source();
  if (!coded.fixed_) coded.ReadSizes(part, *from);
  return coded;
}

CodedPart CodedPart::Write(const Part& part, Codecs planes, const Message& to) {
  CodedPart coded(part, planes, to.payload());
  if (!coded.fixed_) coded.PlaceApart(part);
  return coded;
}

void CodedPart::ReadSizes(const Part& part, const Message& from) {
  sizes_.resize(planes_.size() * blocks_);
  places_.resize(sizes_.size());
  const auto table = static_cast<std::int64_t>(sizes_.size()) * kSizeBytes;
  if (from.bytes() < table) ThrowDamaged(source_, "it is shorter than its blocks' sizes");
  std::memcpy(sizes_.data(), memory_, static_cast<std::size_t>(table));
  const std::vector<Block> blocks = BlocksOf(part);
  std::int64_t place = table;
  for (std::size_t q = 0; q < planes_.size(); ++q) {
    for (const Block& block : blocks) {
      const std::size_t entry = q * blocks_ + block.index;
      if (sizes_[entry] > planes_[q]->MostBytes(block.n)) {
        ThrowDamaged(source_, "a block of it is longer than it can be");
      }
      places_[entry] = place;
      place += sizes_[entry];
    }
  }
  if (place != from.bytes()) ThrowDamaged(source_, "its blocks do not fill it");
}

void CodedPart::PlaceApart(const Part& part) {
  sizes_.resize(planes_.size() * blocks_);
  places_.resize(sizes_.size());
  const std::vector<Block> blocks = BlocksOf(part);
  auto place = static_cast<std::int64_t>(sizes_.size()) * kSizeBytes;
  for (std::size_t q = 0; q < planes_.size(); ++q) {
    for (const Block& block : blocks) {
      places_[q * blocks_ + block.index] = place;
      place += planes_[q]->MostBytes(block.n);
    }
  }
}

void CodedPart::End(Message& to) {
  if (fixed_) return;
  auto place = static_cast<std::int64_t>(sizes_.size()) * kSizeBytes;
  std::memcpy(memory_, sizes_.data(), static_cast<std::size_t>(place));
  for (std::size_t entry = 0; entry < sizes_.size(); ++entry) {  // each moves down, or stays
    std::memmove(memory_ + place, memory_ + places_[entry], sizes_[entry]);
    place += sizes_[entry];
  }
  to.Resize(place);
}

std::int64_t CodedPart::Place(int plane, const Block& block) const {
  if (!fixed_) return places_[Entry(plane, block)];
  const auto q = static_cast<std::size_t>(plane);
  const std::int64_t blocks = block.at / kBlockValues;
  const std::int64_t before = blocks == 0 ? 0 : blocks * planes_[q]->MostBytes(kBlockValues);
  return starts_[q * segments_ + block.segment] + before;
}

void CodedPart::LoadUnscaled(int plane, const Block& block, int shift, float divisor,
                             float* values) const {
  const Codec& codec = *planes_[static_cast<std::size_t>(plane)];
  const std::int64_t bytes = fixed_ ? codec.MostBytes(block.n) : sizes_[Entry(plane, block)];
  try {
    codec.Decode({memory_ + Place(plane, block), static_cast<std::size_t>(bytes)}, block.n, shift,
                 divisor, values);
  } catch (const DamagedBytes& error) {
    ThrowDamaged(source_, "layer " + std::to_string(block.layer) + ", values " +
                              std::to_string(block.begin) + "…" +
                              std::to_string(block.begin + block.n - 1) + ": " + error.what());
  }
}

void CodedPart::EncodeTo(int plane, const Block& block, const Piece& piece, CodecState* state,
                         const float* x) {
  const Codec& codec = *planes_[static_cast<std::size_t>(plane)];
  const std::int64_t bytes = codec.Encode(piece, state, x, memory_ + Place(plane, block));
  if (!fixed_) sizes_[Entry(plane, block)] = static_cast<std::uint32_t>(bytes);
}

void CodedPart::Store(int plane, const Block& block, const float* values) {
  EncodeTo(plane, block, {block.layer, block.begin, block.n, 0, 0}, nullptr, values);
}

void CodedPart::Encode(const Block& block, const Piece& piece, CodecState* state, const float* x) {
  EncodeTo(0, block, piece, state, x);
}

}  // namespace cpd
