// SPDX-License-Identifier: Apache-2.0
//
// Cast, Encode and Decode of scaled formats (spec/scaled.h).
#pragma once

#include <array>
#include <cstdint>

#include "cpd/base/tensor.h"
#include "cpd/spec/random_key.h"
#include "cpd/spec/rounding.h"
#include "cpd/spec/scaled.h"

namespace cpd {

/// Scales that the caller gives, or the largest magnitudes from which scales are formed. They serve
/// delayed scaling, static scaling, and scales on which many ranks agree. Each tensor is null or
/// contiguous on x's device. It has one element for each scale of the grid of scales (ScaleGrid),
/// in row-major order.
struct GivenScales {
  /// The scales of blocks (`blocks`) and the outer scales (`tensor`): fp32 numbers that are values
  /// of the scales' format, or packed codes (u8). If the format has outer scales, a caller who
  /// gives `blocks` must give `tensor`, too.
  const TensorView* blocks = nullptr;
  const TensorView* tensor = nullptr;
  /// The largest magnitudes (fp32) from which the outer scales (if the format has none: the blocks'
  /// scales) are computed, one for each scale. If null, Cast finds the largest |x| of the elements
  /// that share the scale in x itself.
  const TensorView* largest = nullptr;
};

/// Writes to out[i] the value of x[i] in the scaled format. Scales are formed from x's blocks.
/// Elements are rounded by `options` (Overflow::saturate clips them). Values are rounded to
/// binary32 and then to out's type.
///
/// x and out: fp32, bf16 or fp16, of one shape and any strides. Blocks extend along `axis` (-1: the
/// last). out may be x itself; any other overlap is undefined. If the format has a transform
/// (Scaled), x is transformed first and rounded into its type. `key` and `random`: as in
/// ops/cast.h. Throws Error before anything is written.
CPD_API void Cast(const TensorView& x, const Scaled& scaled, int axis,
                  const RoundingOptions& options, const TensorView& out,
                  const GivenScales& given = {}, const RandomKey& key = {},
                  const TensorView* random = nullptr);

/// Casts into contiguous bf16 on the CPU. Returns whether bf16 holds all values. If not, `out` has
/// the values rounded to bf16.
CPD_API bool CastWhereHeld(const TensorView& x, const Scaled& scaled, int axis,
                           const RoundingOptions& options, const TensorView& out,
                           const RandomKey& key = {});

/// Casts on the CPU, but stores the outer scales (if the format has none: the blocks' scales) in
/// `scales` and does not multiply by them. out[i] is the element, or with outer scales the element
/// times its block's scale, rounded into out's type. `scales`: contiguous fp32, in the order of the
/// scales' grid (ScaleGrid). If out's type holds out[i], then out[i] times its stored scale is the
/// value that Cast gives.
CPD_API void CastApart(const TensorView& x, const Scaled& scaled, int axis,
                       const RoundingOptions& options, const TensorView& out,
                       const TensorView& scales, const RandomKey& key = {});

/// Casts x twice, with blocks along axes[0] into `first` and with blocks along axes[1] into
/// `second`. The results equal two calls of Cast. Neither `first` nor `second` may overlap x.
///
/// A GPU reads x only once for both results if all of these conditions hold:
/// - axes[0] is the last axis, and axes[1] is the axis before it.
/// - Blocks have 16, 32 or 128 values.
/// - Scales are computed from x's magnitudes alone. An outer scale, if any, is of the whole tensor.
/// - Elements are multiplied by a factor (ElementRoute::multiply) and rounded to nearest-even.
/// - All tensors are contiguous and of one type. Rows have a multiple of 4 values, and addresses
///   are multiples of 16.
CPD_API void CastBoth(const TensorView& x, const Scaled& scaled, const std::array<int, 2>& axes,
                      const RoundingOptions& options, const TensorView& first,
                      const TensorView& second, const RandomKey& key = {});

/// Rounds as Cast does and writes the codes of the elements in x's row-major order, as Encode of
/// ops/codec.h does. Then writes the codes of the blocks' scales in the order of their grid, and
/// the codes of the outer scales (null if the format has none). All outputs are u8 and contiguous.
///
/// Throws Error for a NaN for which the element format has no code, and names its index, unless the
/// scale of its block is NaN; the outputs are then unspecified. If a block's scale is NaN, elements
/// of a format without NaN have code 0.
CPD_API void Encode(const TensorView& x, const Scaled& scaled, int axis,
                    const RoundingOptions& options, const TensorView& packed,
                    const TensorView& scales, const TensorView* tensor_scales,
                    const GivenScales& given = {}, const RandomKey& key = {},
                    const TensorView* random = nullptr);

/// Decodes out[i] = element * scale, times the outer scale if there is one. The product is exact,
/// then rounded once into binary32 and then into out's type. The codes have the sizes that Encode
/// writes for a tensor of out's shape.
CPD_API void Decode(const TensorView& packed, const Scaled& scaled, int axis,
                    const TensorView& scales, const TensorView* tensor_scales,
                    const TensorView& out);

/// The numbers of scales of a scaled tensor. `blocks` counts the scales of blocks, and `tensor` the
/// outer scales (0 if the format has none).
struct ScaleCounts {
  std::int64_t blocks = 0;
  std::int64_t tensor = 0;
};
CPD_API ScaleCounts CountScales(const Scaled& scaled, std::span<const std::int64_t> shape,
                                int axis);

}  // namespace cpd
