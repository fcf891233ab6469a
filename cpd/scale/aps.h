// SPDX-License-Identifier: Apache-2.0
//
// APS, layer-wise power-of-two scaling (Han, Demmel, You 2020, Algorithm 1 and Eq. 4).
#pragma once

#include <cstdint>

#include "cpd/base/tensor.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// What one rank knows of one layer.
struct LayerRange {
  float max_abs = 0;            ///< over the finite values; 0 for a layer of zeros
  std::int64_t non_finite = 0;  ///< NaN and Inf, which APS leaves out of the maximum
};

/// Largest magnitude of a float32 layer, non-finite values left out.
CPD_API LayerRange MeasureRange(const TensorView& x);

/// What travels for a layer: 0 for all zeros, else clamp(e + kApsOffset, 1, 255), where
/// e = ceil(log2(max_abs * world)) with the product taken exactly. Throws Error where e > 136: the
/// sum may not fit in binary32.
constexpr int kApsOffset = 119;
CPD_API std::uint8_t ApsExponent(float max_abs, int world);

enum class Aps : std::uint8_t {
  off,
  on,     ///< a mode that can round outward in a sum takes emax - 1
  paper,  ///< always the paper's emax
};

/// Throws Error for a number that is none of the three.
CPD_API void Check(Aps aps);

/// The exponent t of a layer's scale 2^t, from the largest ApsExponent of all ranks:
/// emax - e, or emax - 1 - e (see Aps); 0 for a layer of zeros. emax: Format::emax.
CPD_API int ApsShift(std::uint8_t exponent, const Format& format, Rounding mode, Aps aps);

}  // namespace cpd
