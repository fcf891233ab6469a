// SPDX-License-Identifier: Apache-2.0
//
// APS, layer-wise power-of-two scaling (Han, Demmel, You 2020, Algorithm 1 and Eq. 4).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpd/backend/queue.h"
#include "cpd/base/tensor.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// The range of one rank's layer.
struct LayerRange {
  float max_abs = 0;            ///< over the finite values; 0 for a layer of zeros
  std::int64_t non_finite = 0;  ///< NaN and Inf, which APS leaves out of the maximum
};

/// The largest magnitude of a float32 layer, without non-finite values, and how many these are.
CPD_API LayerRange MeasureRange(const TensorView& x);
/// The same of contiguous layers on the queue's device.
std::vector<LayerRange> MeasureRanges(const Queue& queue, std::span<const TensorView> x);

/// ceil(log2(max_abs * ranks)) with the exact product: each of the values, and with `ranks` terms
/// their sum, is at most 2^e. `max_abs` is finite and above 0. Throws Error where ranks < 1.
CPD_API int ApsExponent(float max_abs, int ranks);

/// The larger of two magnitudes, subnormal ones too where the program flushes them.
CPD_API float LargerMagnitude(float a, float b);

/// Returns whether sums that are rounded in this mode may exceed the power of two that bounds them.
CPD_API bool RoundsOutward(const Format& format, Rounding mode);

enum class Aps : std::uint8_t {
  off,
  on,     ///< contributions fit the wire, sums fit accumulator and result
  paper,  ///< the sum fits all formats, the wire's too, without room for roundings
};

/// Throws Error unless it is one of the three.
CPD_API void Check(Aps aps);

}  // namespace cpd
