// SPDX-License-Identifier: Apache-2.0
//
// Scaled formats of CUDA tensors: Cast, Encode and Decode (ops/scaled.h) with all arguments checked
// but a caller's scales. Scales that are given as numbers are read by the host, which waits; packed
// ones are not.
#pragma once

#include <array>
#include <cstdint>

#include "cpd/ops/scaled.h"

namespace cpd {

/// x is not empty, and transformed already.
void CastOnGpu(const TensorView& x, const Scaled& scaled, int axis, const RoundingOptions& options,
               const TensorView& out, const GivenScales& given, const RandomKey& key,
               const TensorView* random);
/// CastBoth (ops/scaled.h) of a format without a transform.
void CastBothOnGpu(const TensorView& x, const Scaled& scaled, const std::array<int, 2>& axes,
                   const RoundingOptions& options, const TensorView& first,
                   const TensorView& second, const RandomKey& key);
void EncodeOnGpu(const TensorView& x, const Scaled& scaled, int axis,
                 const RoundingOptions& options, const TensorView& packed, const TensorView& scales,
                 const TensorView* tensor_scales, const GivenScales& given, const RandomKey& key,
                 const TensorView* random);
/// Writes the codes of an empty tensor's scales: 0 for blocks, 1 for the second level.
void EncodeEmptyOnGpu(const Scaled& scaled, const ScaleCounts& counts, const TensorView& scales,
                      const TensorView* tensor_scales);
/// out is not empty.
void DecodeOnGpu(const TensorView& packed, const Scaled& scaled, int axis, const TensorView& scales,
                 const TensorView* tensor_scales, const TensorView& out);

}  // namespace cpd
