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

/// A caller's scales, or the largest magnitudes from which they are formed: delayed, static, or
/// agreed on by many ranks. Each is null or a contiguous tensor on x's device with one element for
/// each cell of its level's grid (ScaleGrid), in row-major order.
struct GivenScales {
  /// The scales of blocks and of the second level: fp32 numbers of the level's format, or its
  /// packed codes (u8). Blocks' scales of two levels need the second level's too.
  const TensorView* blocks = nullptr;
  const TensorView* tensor = nullptr;
  /// The largest |x| (fp32) of each cell of the outermost level, in place of x's own.
  const TensorView* largest = nullptr;
};

/// out[i] = the value of x[i] in the scaled format: scales are formed from x's blocks, elements
/// rounded by `options` (Overflow::saturate clips them), values rounded to binary32 and then to
/// out's type. x and out: fp32, bf16 or fp16 of one shape, any strides; blocks extend along `axis`
/// (-1: the last); out may be x itself, any other overlap is undefined. A transform (Scaled) is
/// applied first, rounded into x's type. `key` and `random` as in ops/cast.h. Throws Error before
/// anything is written.
CPD_API void Cast(const TensorView& x, const Scaled& scaled, int axis,
                  const RoundingOptions& options, const TensorView& out,
                  const GivenScales& given = {}, const RandomKey& key = {},
                  const TensorView* random = nullptr);

/// Cast into contiguous bf16 on the CPU; returns whether bf16 holds all values. Else `out` has them
/// rounded.
CPD_API bool CastWhereHeld(const TensorView& x, const Scaled& scaled, int axis,
                           const RoundingOptions& options, const TensorView& out,
                           const RandomKey& key = {});

/// Cast on the CPU, with the outermost level's scales apart: out[i] = the element or, where there
/// are two levels, the element times its block's scale, rounded into out's type. `scales` gets the
/// scale of each cell of the outermost level's grid (ScaleGrid): contiguous fp32. The value that
/// Cast gives is out[i] times its cell's scale, if out's type holds out[i].
CPD_API void CastApart(const TensorView& x, const Scaled& scaled, int axis,
                       const RoundingOptions& options, const TensorView& out,
                       const TensorView& scales, const RandomKey& key = {});

/// Casts x twice, with blocks along axes[0] into `first` and along axes[1] into `second`, as two
/// calls of Cast do; neither may overlap x. On a GPU one pass reads x once for both where axes are
/// the last and the one before, blocks are of 16, 32 or 128 values, their scales are formed from
/// x's magnitudes alone, elements are rounded to nearest-even, and all tensors are contiguous, of
/// one type, with rows of a multiple of 4 values at addresses of a multiple of 16.
CPD_API void CastBoth(const TensorView& x, const Scaled& scaled, const std::array<int, 2>& axes,
                      const RoundingOptions& options, const TensorView& first,
                      const TensorView& second, const RandomKey& key = {});

/// Rounds like Cast and writes the elements' codes as ops/codec.h's Encode does, in x's row-major
/// order, then the codes of the blocks' scales in the order of their grid, and of the second
/// level's, where there is one (else null). All are u8 and contiguous. A NaN in a block whose scale
/// is not NaN, where elements have no code for it, throws Error naming its index; the outputs are
/// then unspecified. In a block whose scale is NaN, elements of a format without NaN have code 0.
CPD_API void Encode(const TensorView& x, const Scaled& scaled, int axis,
                    const RoundingOptions& options, const TensorView& packed,
                    const TensorView& scales, const TensorView* tensor_scales,
                    const GivenScales& given = {}, const RandomKey& key = {},
                    const TensorView* random = nullptr);

/// out[i] = element * scale (* the second level's), exact, rounded once into binary32 and then into
/// out's type. The codes have the sizes that Encode writes for a tensor of out's shape.
CPD_API void Decode(const TensorView& packed, const Scaled& scaled, int axis,
                    const TensorView& scales, const TensorView* tensor_scales,
                    const TensorView& out);

/// The number of a scaled tensor's scales: of blocks, and of the second level (0 without one).
struct ScaleCounts {
  std::int64_t blocks = 0;
  std::int64_t tensor = 0;
};
CPD_API ScaleCounts CountScales(const Scaled& scaled, std::span<const std::int64_t> shape,
                                int axis);

}  // namespace cpd
