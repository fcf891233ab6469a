// SPDX-License-Identifier: Apache-2.0
//
// The primitives of generic.h for a CUDA thread. The header is empty in other sources. The host
// compilation of a CUDA source runs no kernel.
#pragma once

#if defined(__CUDACC__)
#include "cpd/numeric/lanes/generic.h"

namespace cpd {
inline namespace CPD_ISA {

template <>
constexpr bool kHasDirectedRounding<float> = true;
template <>
constexpr bool kHasSignedMaximum<float> = true;

#if defined(__CUDA_ARCH__)
template <>
CPD_FN float fma(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
template <>
CPD_FN double fma(double a, double b, double c) {
  return __fma_rn(a, b, c);
}
template <>
CPD_FN float add_toward_zero(float a, float b) {
  return __fadd_rz(a, b);
}
template <>
CPD_FN float mul_toward_zero(float a, float b) {
  return __fmul_rz(a, b);
}
template <>
CPD_FN float fma_toward_zero(float a, float b, float c) {
  return __fmaf_rz(a, b, c);
}
/// Computes larger_of_sum (generic.h) in one instruction from sm_90 on.
template <>
CPD_FN std::uint32_t larger_of_sum(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  return __viaddmax_s16x2(a, b, c);
}
/// Computes larger_magnitude (generic.h) in one instruction.
template <>
CPD_FN float larger_magnitude(float x, float y) {
  return fmaxf(fabsf(x), fabsf(y));
}
/// Returns, in two instructions, x if |x| > least, else `least` with the sign of x. A NaN also
/// becomes `least`, because fmaxf returns its other operand if one operand is NaN.
template <>
CPD_FN float at_least(float x, float least) {
  return copysignf(fmaxf(fabsf(x), least), x);
}
#endif

template <Toward toward>
CPD_FN float fma_toward([[maybe_unused]] float a, [[maybe_unused]] float b,
                        [[maybe_unused]] float c) {
#if defined(__CUDA_ARCH__)
  if constexpr (toward == Toward::zero) return __fmaf_rz(a, b, c);
  if constexpr (toward == Toward::down) return __fmaf_rd(a, b, c);
  return __fmaf_ru(a, b, c);
#else
  __builtin_trap();
#endif
}

}  // namespace CPD_ISA
}  // namespace cpd

#endif
