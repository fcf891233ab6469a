// SPDX-License-Identifier: Apache-2.0
//
// AVX-512 FP16: 32 lanes of 16 bits, for the roundings of split.h in half precision. Each operation
// is rounded once to nearest even and keeps subnormals. Empty where a source is not compiled for
// it.
#pragma once

#if defined(__AVX512FP16__) && !defined(__CUDACC__)
#include "cpd/numeric/lanes/avx512.h"

namespace cpd {
inline namespace CPD_ISA {

using F16x32 = _Float16 __attribute__((vector_size(64)));
using U16x32 = std::uint16_t __attribute__((vector_size(64)));
using I16x32 = std::int16_t __attribute__((vector_size(64)));

template <>
struct Lanes<F16x32> : LaneTraits<_Float16, U16x32, I16x32, 32, 10> {};

using H = F16x32;  ///< the lanes of gemm_halves.h

/// Of binary32 numbers that the lanes hold; others are rounded.
template <>
CPD_FN F16x32 load_f32(const float* from) {
  const auto half = [](const float* x) { return _mm512_cvtxps_ph(_mm512_loadu_ps(x)); };
  const __m512 low = _mm512_castps256_ps512(bits_as<__m256>(half(from)));
  return bits_as<F16x32>(_mm512_insertf32x8(low, bits_as<__m256>(half(from + 16)), 1));
}
template <>
CPD_FN void store_f32(float* to, F16x32 x) {
  const auto v = bits_as<__m512>(x);
  const auto widened = [](__m256 half) { return _mm512_cvtxph_ps(bits_as<__m256h>(half)); };
  _mm512_storeu_ps(to, widened(_mm512_castps512_ps256(v)));
  _mm512_storeu_ps(to + 16, widened(_mm512_extractf32x8_ps(v, 1)));
}

template <>
CPD_FN F16x32 fma(F16x32 a, F16x32 b, F16x32 c) {
  return bits_as<F16x32>(
      _mm512_fmadd_ph(bits_as<__m512h>(a), bits_as<__m512h>(b), bits_as<__m512h>(c)));
}
template <>
CPD_FN F16x32 negative_fma(F16x32 a, F16x32 b, F16x32 c) {
  return bits_as<F16x32>(
      _mm512_fnmadd_ph(bits_as<__m512h>(a), bits_as<__m512h>(b), bits_as<__m512h>(c)));
}
/// Returns NaN for the lanes whose bit patterns are NaN.
template <>
CPD_FN F16x32 larger_magnitude(F16x32 x, F16x32 y) {
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  return bits_as<F16x32>(_mm512_max_epi16(_mm512_and_si512(bits_as<__m512i>(x), magnitude),
                                          _mm512_and_si512(bits_as<__m512i>(y), magnitude)));
}

}  // namespace CPD_ISA
}  // namespace cpd

#endif
