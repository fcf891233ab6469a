// SPDX-License-Identifier: Apache-2.0
//
// lanes.h for a CUDA thread; empty in other sources. In the host's half of a CUDA source, which
// runs no kernel, the directed roundings give what is never read.
#pragma once

#if defined(__CUDACC__)
#include "cpd/numeric/lanes/generic.h"

namespace cpd {
inline namespace CPD_ISA {

template <>
constexpr bool kHasDirectedRounding<float> = true;
template <>
constexpr bool kHasDirectedRounding<double> = true;

#if defined(__CUDA_ARCH__)
template <>
CPD_FN float fma(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
template <>
CPD_FN double fma(double a, double b, double c) {
  return __fma_rn(a, b, c);
}
#endif

template <Toward toward>
CPD_FN float fma_toward([[maybe_unused]] float a, [[maybe_unused]] float b, float c) {
#if defined(__CUDA_ARCH__)
  if constexpr (toward == Toward::zero) return __fmaf_rz(a, b, c);
  if constexpr (toward == Toward::down) return __fmaf_rd(a, b, c);
  return __fmaf_ru(a, b, c);
#else
  return c;
#endif
}

}  // namespace CPD_ISA
}  // namespace cpd

#endif
