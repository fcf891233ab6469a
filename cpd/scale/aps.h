// SPDX-License-Identifier: Apache-2.0
//
// APS: layer-wise power-of-two scaling (Han, Demmel, You 2020, Algorithm 1 and Eq. 4). This header
// declares the functions that measure layers and compute their powers of two.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpd/backend/queue.h"
#include "cpd/base/tensor.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// The range of one rank's layer (the layer's largest magnitude and its count of non-finite
/// values).
struct LayerRange {
  float max_abs = 0;            ///< of the finite values; 0 for a layer of zeros
  std::int64_t non_finite = 0;  ///< NaN and Inf, which APS leaves out of the maximum
};

/// Returns the largest finite magnitude of a layer, and the number of its non-finite values. Throws
/// Error unless the layer is contiguous, float32 and on the CPU.
CPD_API LayerRange MeasureRange(const TensorView& x);
/// Returns the largest finite magnitude and the number of non-finite values of each layer. The
/// layers must be contiguous, float32 and on the queue's device.
std::vector<LayerRange> MeasureRanges(const Queue& queue, std::span<const TensorView> x);

/// Returns e = ceil(log2(max_abs * ranks)), computed from the exact product. Each value is at most
/// 2^e, and so is a sum of `ranks` values, one of each rank. `max_abs` must be finite and above 0.
/// Throws Error if ranks < 1.
CPD_API int ApsExponent(float max_abs, int ranks);

/// Returns the larger of two magnitudes. Subnormal magnitudes count even if the program flushes
/// subnormal numbers to zero.
CPD_API float LargerMagnitude(float a, float b);

/// Returns whether a rounded sum may exceed a power of two that bounds the exact sum.
CPD_API bool RoundsOutward(const Format& format, Rounding mode);

enum class Aps : std::uint8_t {
  off,
  on,     ///< contributions fit the wire's format; sums fit the accumulator's and the result's
  paper,  ///< the sum fits all formats, the wire's too; roundings get no extra space
};

/// Throws Error unless `aps` is off, on or paper.
CPD_API void Check(Aps aps);

}  // namespace cpd
