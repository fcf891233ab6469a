// SPDX-License-Identifier: Apache-2.0
//
// Operations on tensors of a device other than the CPU. ops/ calls these functions with checked
// arguments; x.stream is the stream on which work is queued. They throw MachineError where the
// backend is missing or reports an error.
#pragma once

#include <cstdint>

#include "cpd/backend/queue.h"
#include "cpd/base/tensor.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/numeric/scaled/block_layout.h"
#include "cpd/numeric/scaled/hadamard_plan.h"
#include "cpd/numeric/scaled/scaled_plan.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/rounding.h"

namespace cpd::cuda {

/// A CUDA tensor's elements and scales in a scaled format. Work is queued on the stream of `like`,
/// x or the result.
class ScaledTensor {
 public:
  /// Scales that a caller gives, in device memory; null: formed from x.
  struct Given {
    const float* blocks = nullptr;
    const float* cells = nullptr;
    const float* largest = nullptr;
  };
  struct Format {
    ScaledPlan plan, nearest;
    ScaleChoice choose = ScaleChoice::none;
    BlockLayout layout, cell_layout;
    OuterCells cells;
  };
  /// Scales are formed from x, or those that are given; without x all are.
  ScaledTensor(const TensorView& like, const TensorView* x, const Format& format,
               const Given& given);

  void Cast(const TensorView& out, const TensorView* random, const DeviceKey& key) const;
  /// Casts the same tensor in another layout of blocks, too: `columns` (Backend::cast_both).
  void CastBoth(const TensorView& out, const ScaledTensor& columns, const TensorView& by_columns,
                const DeviceKey& key) const;
  /// As cuda::Encode; a NaN without a code is a fault in a block whose scale is none.
  void Encode(const TensorView& packed, const cpd::Format& element, const TensorView* random,
              const DeviceKey& key) const;
  void Decode(const TensorView& packed, const TensorView& out) const;
  /// The scales of blocks, and of the second level's cells, after Encode.
  [[nodiscard]] TensorView blocks() const;
  [[nodiscard]] TensorView cells() const;

 private:
  [[nodiscard]] ScalesCall CallWith(const TensorView* random, const DeviceKey& key) const;
  [[nodiscard]] TensorView ViewOf(float* data, std::int64_t n) const;

  TensorView like_;
  Scratch of_blocks_, of_cells_;
  ScalesCall call_;
};

}  // namespace cpd::cuda
