// SPDX-License-Identifier: Apache-2.0
//
// The kernels of codecs whose layout is level_blocks.h's, with codes of fixed width and levels at
// equal distances.
#pragma once

#include "cpd/compress/level_blocks.h"
#include "cpd/compress/on_gpu.h"

namespace cpd {

class CPD_API LevelsOnGpu final : public CodecOnGpu {
 public:
  /// Where the norm of a layer without buckets comes from.
  enum class Whole : std::uint8_t {
    layer,  ///< its values, when it begins
    scale,  ///< Piece::scale, for which Measure is asked
    one,    ///< it is 1
  };
  LevelsOnGpu(const LevelBlocks& blocks, Whole whole) : blocks_(blocks), whole_(whole) {}

  [[nodiscard]] std::unique_ptr<LayerOnGpu> Begin(const SharedQueue& queue, const Piece& layer,
                                                  const StateOnGpu& state,
                                                  const float* x) const override;
  void Decode(const Queue& queue, const std::uint8_t* bytes, std::int64_t n, int shift,
              float divisor, float* y, std::int64_t before) const override;

 private:
  class Layer;
  LevelBlocks blocks_;
  Whole whole_;
};

}  // namespace cpd
