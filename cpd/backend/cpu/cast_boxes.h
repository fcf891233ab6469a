// SPDX-License-Identifier: Apache-2.0
//
// Casts of transposed tensors: boxes of two dimensions, of which x or out is contiguous along one
// and elements' indices along the other, so that neither memory nor random integers are taken
// element by element.
#pragma once

#include <cstdint>
#include <optional>

#include "cpd/backend/cpu/boxes.h"
#include "cpd/base/tensor.h"
#include "cpd/numeric/round/round_plan.h"

namespace cpd {

/// The boxes of tensors of one shape. Dimensions that every tensor traverses evenly are one.
class Boxes {
 public:
  /// The boxes of x, out and (unless null) random; none where neither x nor out is contiguous along
  /// another dimension than the last.
  static std::optional<Boxes> Of(const TensorView& x, const TensorView& out,
                                 const TensorView* random);

  [[nodiscard]] std::int64_t size() const;
  /// The number of elements of the largest box.
  [[nodiscard]] std::int64_t elements() const { return rows_ * columns_; }
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t columns() const { return columns_; }

  /// A box's place in each tensor, and among row-major indices, in the order of `out`: its columns
  /// are neighbours there, or where `out` is contiguous along neither dimension, by index.
  struct Places {
    Box x, out, random, index;
  };
  [[nodiscard]] Places operator[](std::int64_t n) const;

 private:
  Boxes() = default;
  TensorView x_, out_, random_;
  TensorView index_;     ///< strides of the row-major index
  int across_ = 0;       ///< one of the boxes' dimensions; the other is the last
  bool turned_ = false;  ///< boxes' columns are along across_
  std::int64_t rows_ = 1, columns_ = 1;
};

/// Cast for a plan that is not wide in format (ops/cast.h), box by box.
void CastBoxes(const TensorView& x, const RoundPlan& plan, const TensorView& out,
               const TensorView* random, const Boxes& boxes);

}  // namespace cpd
