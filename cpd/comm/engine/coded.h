// SPDX-License-Identifier: Apache-2.0
//
// A part's values in a message: plane by plane, segment by segment, block by block. Each block
// holds the bytes of its codec. Any block can be read and written alone, so a fold reads bytes and
// writes sums without a whole message's values in memory. If sizes are fixed, a block's position is
// computed. Else the message begins with the sizes of its blocks, four bytes each. Codecs compute
// on a queue's device. If that is the CPU, a message in another device's memory is read and written
// in a copy on the host.
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

/// The codecs of a message's planes, in each plane one for all layers or one for each. Planes share
/// the blocks.
class CPD_API Codecs {
 public:
  /// `wires`: the codecs of contributions, whose blocks (Codec::block) every message has.
  explicit Codecs(std::span<const SharedCodec> wires);

  /// Adds the next plane's codecs. `otherwise` is the codec of layers whose own codec is null.
  void Add(std::span<const SharedCodec> of_layers, const SharedCodec& otherwise = nullptr);

  [[nodiscard]] std::size_t planes() const { return planes_.size(); }
  [[nodiscard]] bool is_fixed() const { return is_fixed_; }
  /// Returns whether each plane has the packed codes of one format.
  [[nodiscard]] bool is_packed() const { return is_packed_; }
  [[nodiscard]] const Codec& of(std::size_t plane, int layer) const {
    const std::vector<SharedCodec>& all = planes_[plane];
    return *all[all.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
  }
  /// The number of values in a block of the layer.
  [[nodiscard]] std::int64_t block(int layer) const {
    return blocks_[blocks_.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
  }

 private:
  std::vector<std::vector<SharedCodec>> planes_;
  std::vector<std::int64_t> blocks_;
  bool is_fixed_ = true;
  bool is_packed_ = true;
};

/// Consecutive values of a segment: at most Codecs::block of them, or all.
struct Block {
  std::size_t segment = 0;
  int layer = 0;
  std::int64_t begin = 0, n = 0;  ///< in the layer
  std::int64_t at = 0;            ///< in the segment
  std::int64_t position = 0;      ///< in the part
  std::size_t index = 0;          ///< among the part's blocks
};
CPD_API std::vector<Block> BlocksOf(const Part& part, const Codecs& codecs);
/// The part's segments, each as one block; for codecs of fixed sizes.
std::vector<Block> SegmentsOf(const Part& part);

/// The most bytes of a part's message; exactly its bytes where the codecs' sizes are fixed.
CPD_API std::int64_t MostBytes(const Part& part, const Codecs& codecs);

/// Throws Corrupt for a codec's error about a block of rank `source`'s message (-1: this rank's).
[[noreturn]] void ThrowDamaged(int source, const Block& block, const DamagedBytes& error);

class CPD_API CodedPart {
 public:
  CodedPart() = default;
  /// Reads a message that has arrived; null: none. Throws Corrupt where its blocks' sizes are
  /// impossible.
  static CodedPart Read(const Part& part, const Codecs& codecs, const Message* from,
                        const Queue& queue = *HostQueue());
  /// Writes a message, block by block in any order; End completes it.
  static CodedPart Write(const Part& part, const Codecs& codecs, const Message& to,
                         const Queue& queue = *HostQueue());
  /// Completes a message after every block is written: if sizes vary, joins the blocks and sets its
  /// size.
  void End(Message& to);

  [[nodiscard]] bool is_there() const { return memory_ != nullptr; }
  [[nodiscard]] std::uint8_t* memory() const { return memory_; }
  /// The byte at which a block begins.
  [[nodiscard]] std::int64_t Place(int plane, const Block& block) const;
  [[nodiscard]] int planes() const {
    return static_cast<int>(codecs_ == nullptr ? 0 : codecs_->planes());
  }

  /// Decodes a block's values (Codec::DecodeOn). Throws Corrupt.
  void Load(int plane, const Block& block, float* values) const {
    LoadUnscaled(plane, block, 0, 1, values);
  }
  void LoadUnscaled(int plane, const Block& block, int shift, float divisor, float* values) const;
  /// Encodes a block's values, each of which the codec has exactly.
  void Store(int plane, const Block& block, const float* values);
  /// Encodes the piece that the block is, into plane 0.
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
  /// Sets the places of blocks that take their most bytes each.
  void PlaceApart(const Part& part);

  const Codecs* codecs_ = nullptr;
  std::uint8_t* memory_ = nullptr;
  const Queue* queue_ = nullptr;
  std::shared_ptr<std::uint8_t[]> copy_;  // of a message that the queue's device cannot read
  bool fixed_ = true;
  int source_ = -1;  // the rank that sent the message; -1: this one
  std::size_t segments_ = 0;
  std::vector<std::int64_t> starts_;  // fixed sizes: where segments begin, plane by plane
  std::size_t blocks_ = 0;            // sizes that vary: blocks of a plane
  std::vector<std::int64_t> places_;  // where blocks begin, plane by plane
  std::vector<std::uint32_t> sizes_;
};

}  // namespace cpd
