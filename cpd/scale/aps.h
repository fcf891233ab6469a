// SPDX-License-Identifier: Apache-2.0
//
// APS, layer-wise power-of-two scaling (Han, Demmel, You 2020, Algorithm 1 and Eq. 4).
#pragma once

#include <cstdint>

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

/// The byte that ranks exchange for a layer: 0 for all zeros, else clamp(e + kApsOffset, 1, 255),
/// where e = ceil(log2(max_abs * world)) with the exact product. Throws Error where e > 136: the
/// sum may not fit in binary32.
constexpr int kApsOffset = 119;
CPD_API std::uint8_t ApsExponent(float max_abs, int world);

enum class Aps : std::uint8_t {
  off,
  on,     ///< emax - 1 for a mode that can round outward in a sum, else emax
  paper,  ///< always the paper's emax
};

/// Throws Error unless it is one of the three.
CPD_API void Check(Aps aps);

/// The exponent t of a layer's scale 2^t, from the largest ApsExponent of all ranks:
/// emax - e, or emax - 1 - e (see Aps); 0 for a layer of zeros. emax: Format::emax.
CPD_API int ApsShift(std::uint8_t exponent, const Format& format, Rounding mode, Aps aps);

}  // namespace cpd
