// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes the encoded values in a message. A message holds the values of a Part, which is
// a list of ranges of layers.
//
// A message stores values plane by plane, segment by segment (a range of a layer's values), block
// by block. A plane has one value for each element: the sum, or another value of the running sum's
// state, such as Kahan's compensation. Each block holds bytes that a codec wrote. Any block can be
// read and written alone, so a fold reads bytes and writes sums without all values of a message in
// memory.
//
// If the codecs' sizes are fixed, the position of a block is computed. Otherwise the message begins
// with the sizes of its blocks, four bytes each. Codecs compute on a queue's device. A CPU's queue
// reads and writes a message in another device's memory through a copy on the host.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpd/backend/queue.h"
#include "cpd/comm/engine/layout.h"
#include "cpd/comm/engine/link.h"
#include "cpd/compress/codec.h"

namespace cpd {

/// The codecs of a message's planes. A plane has one value of the running sum's state for each
/// element. It has one codec for all layers or one for each layer. All planes are divided into the
/// same blocks.
class CPD_API Codecs {
 public:
  /// `wires`: the codecs of contributions. Every message, also of sums and results, is divided into
  /// blocks of the size that these codecs have (Codec::block).
  explicit Codecs(std::span<const SharedCodec> wires);

  /// Adds a plane, that is, one more value of the running sum's state for each element.
  /// `of_layers`: the plane's codec for each layer, or one codec for all layers. If a layer's entry
  /// is null, the layer has the codec `otherwise`.
  void Add(std::span<const SharedCodec> of_layers, const SharedCodec& otherwise = nullptr);

  [[nodiscard]] std::size_t planes() const { return planes_.size(); }
  [[nodiscard]] bool is_fixed() const { return is_fixed_; }
  /// Returns whether every plane consists of packed codes, with one format in each plane.
  [[nodiscard]] bool is_packed() const { return is_packed_; }
  [[nodiscard]] const Codec& of(std::size_t plane, int layer) const {
    const std::vector<SharedCodec>& all = planes_[plane];
    return *all[all.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
  }
  /// Returns the number of values in a block of the layer.
  [[nodiscard]] std::int64_t block(int layer) const {
    return blocks_[blocks_.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
  }

 private:
  std::vector<std::vector<SharedCodec>> planes_;
  std::vector<std::int64_t> blocks_;
  bool is_fixed_ = true;
  bool is_packed_ = true;
};

/// A block: consecutive values of one layer in a message. BlocksOf gives blocks of up to
/// Codecs::block values; SegmentsOf gives one block for each range of a layer.
struct Block {
  std::size_t segment = 0;
  int layer = 0;
  std::int64_t begin = 0, n = 0;  ///< in the layer
  std::int64_t at = 0;            ///< in the segment
  std::int64_t position = 0;      ///< in the part
  std::size_t index = 0;          ///< among the part's blocks
};
CPD_API std::vector<Block> BlocksOf(const Part& part, const Codecs& codecs);
/// Returns a block for each range of a layer in the part. Only for codecs whose messages have fixed
/// sizes.
std::vector<Block> SegmentsOf(const Part& part);

/// Returns the maximum number of bytes of a message with the values of `part`. The number is exact
/// if the codecs' sizes are fixed.
CPD_API std::int64_t MostBytes(const Part& part, const Codecs& codecs);

/// Rethrows a codec's error about a block as Corrupt. `source`: the rank that sent the message, or
/// -1 for this rank's own message.
[[noreturn]] void ThrowDamaged(int source, const Block& block, const DamagedBytes& error);

class CPD_API CodedPart {
 public:
  CodedPart() = default;
  /// Reads a message that has arrived; `from` may be null for no message. Throws Corrupt if the
  /// sizes of the message's blocks are impossible.
  static CodedPart Read(const Part& part, const Codecs& codecs, const Message* from,
                        const Queue& queue = *HostQueue());
  /// Begins to write a message. Blocks may be written in any order; End completes the message.
  static CodedPart Write(const Part& part, const Codecs& codecs, const Message& to,
                         const Queue& queue = *HostQueue());
  /// Completes a message after every block is written. If sizes of blocks vary, moves the blocks
  /// together and sets the message's size.
  void End(Message& to);

  [[nodiscard]] bool is_there() const { return memory_ != nullptr; }
  [[nodiscard]] std::uint8_t* memory() const { return memory_; }
  /// Returns the offset of a block's first byte in the message.
  [[nodiscard]] std::int64_t Place(int plane, const Block& block) const;
  [[nodiscard]] int planes() const {
    return static_cast<int>(codecs_ == nullptr ? 0 : codecs_->planes());
  }

  /// Decodes a block's values (Codec::DecodeOn). Throws Corrupt.
  void Load(int plane, const Block& block, float* values) const {
    LoadUnscaled(plane, block, 0, 1, values);
  }
  void LoadUnscaled(int plane, const Block& block, int shift, float divisor, float* values) const;
  /// Encodes a block's values into plane number `plane` of the message; a plane has one value of
  /// each sum's state. The codec must represent each value exactly.
  void Store(int plane, const Block& block, const float* values);
  /// Rounds and encodes the values x of a block into plane 0 of the message. The message has
  /// contributions or results, which consist of one plane. `piece` describes the block's values.
  void Encode(const Block& block, const Piece& piece, CodecState* state, const float* x) {
    EncodeTo(0, block, piece, state, x);
  }

 private:
  CodedPart(const Part& part, const Codecs& codecs, const Message* message, const Queue& queue);
  [[nodiscard]] const Codec& Of(int plane, const Block& block) const {
    return codecs_->of(static_cast<std::size_t>(plane), block.layer);
  }
  [[nodiscard]] std::size_t Entry(int plane, const Block& block) const {
    return static_cast<std::size_t>(plane) * blocks_ + block.index;
  }
  [[nodiscard]] std::int64_t MostBytesOf(std::size_t plane, const Block& block) const;
  void EncodeTo(int plane, const Block& block, const Piece& piece, CodecState* state,
                const float* x);
  void ReadSizes(const Part& part, const Message& from);
  void Join(Message& to);
  /// Sets the offset of each block of the message, with room for the block's maximum number of
  /// bytes.
  void PlaceApart(const Part& part);

  const Codecs* codecs_ = nullptr;
  std::uint8_t* memory_ = nullptr;
  const Queue* queue_ = nullptr;
  std::shared_ptr<std::uint8_t[]> copy_;  // a copy of a message that the queue's device cannot read
  bool fixed_ = true;
  int source_ = -1;  // the rank that sent the message; -1: this one
  std::size_t segments_ = 0;
  std::vector<std::int64_t> starts_;  // fixed sizes: offsets of segments, plane by plane
  std::size_t blocks_ = 0;            // varying sizes: number of blocks of a plane
  std::vector<std::int64_t> places_;  // varying sizes: offsets of blocks, plane by plane
  std::vector<std::uint32_t> sizes_;
};

}  // namespace cpd
