// SPDX-License-Identifier: Apache-2.0
//
// The byte layout that QSGD and TernGrad share: blocks that hold the norms of buckets and packed
// levels.
#pragma once

#include <cstdint>
#include <span>

#include "cpd/compress/elias.h"
#include "cpd/compress/pieces.h"
#include "cpd/numeric/scaled/levels.h"

namespace cpd {

/// The encoding of the levels of a block.
enum class LevelCoding : std::uint8_t {
  fixed,   ///< codes of the plan's bits, packed
  dense,   ///< dense Elias codes, bucket by bucket (elias.h); the last byte's other bits are 0
  sparse,  ///< sparse Elias codes, bucket by bucket; the last byte's other bits are 0
  /// Each block is encoded as fixed, dense or sparse, whichever is shortest; among equal lengths,
  /// the first of the three. A byte before the block's levels has the number of the encoding.
  smallest,
  /// For levels -1, 0 and 1 only: five levels in a byte, as the sum of d[i] * 3^i, where d is 0 for
  /// level 0, 1 for level 1, and 2 for level -1. In a block's last byte, levels beyond the end are
  /// 0. There is no code for NaN.
  trits,
};

/// Numbers, measured over a whole layer, that are needed to compute the levels of any range of its
/// values.
struct LayerLevels {
  float norm = 0;  ///< the norm, if there are no buckets
  LevelSpacing spacing{};
};

/// Encodes a piece (a range of a layer's values) in blocks of block() values, counted from the
/// piece's first value. A block holds the norms of the buckets that it touches, four bytes each. If
/// levels are not at equal distances, the positions of levels 1 … s - 1 follow, a byte each (level
/// s is the norm). Then come the levels of the values. If a piece cuts a bucket, the block has the
/// norm of all values of the bucket.
class LevelBlocks {
 public:
  struct Options {
    LevelNorm norm = LevelNorm::largest;
    double clip = 0;           ///< c of LevelNorm::clipped; 0: no clipping
    std::int64_t bucket = 0;   ///< 0: a layer has one norm, which is an argument of Encode
    bool stores_norms = true;  ///< false: values are decoded in units of the norm
    LevelCoding coding = LevelCoding::fixed;
    bool spaced = false;  ///< levels are placed so that the layer's variance is least
  };
  /// Makes the byte layout for the levels of `plan`. Ignores the stream and the bucket of the plan.
  LevelBlocks(const LevelPlan& plan, const Options& options);

  [[nodiscard]] std::int64_t block() const { return block_; }
  [[nodiscard]] const Options& options() const { return options_; }
  /// Returns KernelSupport::all for codes of fixed width and levels at equal distances, else
  /// KernelSupport::none.
  [[nodiscard]] KernelSupport kernels() const {
    const bool has_layout = options_.coding == LevelCoding::fixed && !options_.spaced;
    return has_layout ? KernelSupport::all : KernelSupport::none;
  }
  /// Returns whether EncodeOn always writes MostBytes(n, before) bytes for n values.
  [[nodiscard]] bool is_fixed() const {
    return options_.coding == LevelCoding::fixed || options_.coding == LevelCoding::trits;
  }
  [[nodiscard]] std::int64_t MostBytes(std::int64_t n, std::int64_t before) const;
  /// Returns the norm of a whole layer. Waits for the device.
  [[nodiscard]] float Measure(const Queue& queue, const Piece& layer, const float* x) const;
  [[nodiscard]] LayerLevels MeasureLevels(const Queue& queue, const Piece& layer,
                                          const float* x) const;
  /// EncodeOn, DecodeOn and RoundOn implement the functions of Codec with the same names.
  std::int64_t EncodeOn(const Queue& queue, const Piece& piece, const LayerLevels& layer,
                        const float* x, std::uint8_t* to) const;
  void DecodeOn(const Queue& queue, std::span<const std::uint8_t> bytes, std::int64_t n, int shift,
                float divisor, float* y, std::int64_t before) const;
  void RoundOn(const Queue& queue, const Piece& piece, const LayerLevels& layer, const float* x,
               float* y, SegmentCounts* counts) const;

 private:
  [[nodiscard]] std::int64_t NormsOf(std::int64_t n, std::int64_t before) const;
  [[nodiscard]] std::int64_t PlaceBytes() const { return options_.spaced ? plan_.steps - 1 : 0; }
  [[nodiscard]] NormCall NormsCall(std::int64_t n, int shift, const float* x) const;
  [[nodiscard]] LevelCall CallOf(std::int64_t n, std::int64_t begin) const;
  [[nodiscard]] LevelCall CallOf(const Piece& piece, const LayerLevels& layer) const;
  /// Splits a piece (a range of a layer's values) into parts and calls run(call, i) for each. A
  /// part begins at value i of the piece. `call` holds the norms of the part's buckets.
  template <class Run>
  void ForMeasured(const Queue& queue, const Piece& piece, const LayerLevels& layer, const float* x,
                   Run run) const;

  [[nodiscard]] std::int64_t FixedBytes(std::int64_t n) const { return (n * plan_.bits + 7) / 8; }
  [[nodiscard]] std::int64_t MostEliasBytes(EliasLayout layout, std::int64_t n,
                                            std::int64_t before) const;
  [[nodiscard]] std::int64_t MostLevelBytes(std::int64_t n, std::int64_t before) const;
  // EncodeBlock and the functions after it encode and decode the levels of one block on the host.
  // `call` holds the norms of the block's buckets.
  std::int64_t EncodeBlock(const LevelCall& call, int layer, std::uint8_t* to) const;
  void DecodeBlocks(std::span<const std::uint8_t> bytes, LevelCall call, std::int64_t n) const;
  void EncodeTrits(const LevelCall& call, int layer, std::uint8_t* to) const;
  void DecodeTrits(const LevelCall& call, const std::uint8_t* from) const;
  std::int64_t DecodeLevels(const LevelCall& call, std::span<const std::uint8_t> bytes) const;
  /// Encode and decode the levels of one block in Elias codes on the host. Level is the integer
  /// type of a level.
  template <class Level>
  std::int64_t EncodeElias(const LevelCall& call, std::uint8_t* to) const;
  template <class Level>
  std::int64_t DecodeElias(EliasLayout layout, LevelCall call,
                           std::span<const std::uint8_t> bytes) const;

  LevelPlan plan_;
  Options options_;
  std::int64_t block_;
};

}  // namespace cpd
