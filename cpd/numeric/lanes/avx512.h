// SPDX-License-Identifier: Apache-2.0
//
// The primitives of generic.h for AVX-512 (F, BW, DQ, VL): 16 lanes of binary32 or 8 of binary64,
// in addition to the lanes of AVX2. The header is empty if the compiler does not target AVX-512.
#pragma once

#if defined(__AVX512F__) && !defined(__CUDACC__)
#include <immintrin.h>

#include "cpd/numeric/lanes/avx2.h"

namespace cpd {
inline namespace CPD_ISA {

// --- types ---------------------------------------------------------------------------------------

using F32x16 = float __attribute__((vector_size(64)));
using U32x16 = std::uint32_t __attribute__((vector_size(64)));
using I32x16 = std::int32_t __attribute__((vector_size(64)));
using F64x8 = double __attribute__((vector_size(64)));
using U64x8 = std::uint64_t __attribute__((vector_size(64)));
using I64x8 = std::int64_t __attribute__((vector_size(64)));

template <>
struct Lanes<F32x16> : LaneTraits<float, U32x16, I32x16, 16, 23> {};
template <>
struct Lanes<F64x8> : LaneTraits<double, U64x8, I64x8, 8, 52> {};

template <>
struct Narrow<F64x8> {
  using F32 = F32x8;
  using U32 = U32x8;
  using I32 = I32x8;
};
template <>
struct Narrow<F32x16> {
  using F32 = F32x16;
  using U32 = U32x16;
  using I32 = I32x16;
};

template <>
struct SplitLanes<U32x16> {
  using type = U64x8;
};

// --- bits and masks ------------------------------------------------------------------------------

CPD_FN bool any(I32x16 mask) { return _mm512_movepi32_mask(bits_as<__m512i>(mask)) != 0; }

CPD_FN std::uint32_t mask_bits(I32x16 mask) { return _mm512_movepi32_mask(bits_as<__m512i>(mask)); }

CPD_FN std::int32_t largest_lane(I32x16 x) { return _mm512_reduce_max_epi32(bits_as<__m512i>(x)); }

template <>
CPD_FN I32x16 max(I32x16 a, I32x16 b) {
  return bits_as<I32x16>(_mm512_max_epi32(bits_as<__m512i>(a), bits_as<__m512i>(b)));
}
template <>
CPD_FN I32x16 min(I32x16 a, I32x16 b) {
  return bits_as<I32x16>(_mm512_min_epi32(bits_as<__m512i>(a), bits_as<__m512i>(b)));
}
template <>
CPD_FN I64x8 max(I64x8 a, I64x8 b) {
  return bits_as<I64x8>(_mm512_max_epi64(bits_as<__m512i>(a), bits_as<__m512i>(b)));
}
template <>
CPD_FN I64x8 min(I64x8 a, I64x8 b) {
  return bits_as<I64x8>(_mm512_min_epi64(bits_as<__m512i>(a), bits_as<__m512i>(b)));
}

template <>
CPD_FN U32x16 shift_left(U32x16 a, U32x16 count) {
  return bits_as<U32x16>(_mm512_sllv_epi32(bits_as<__m512i>(a), bits_as<__m512i>(count)));
}
template <>
CPD_FN U64x8 shift_left(U64x8 a, U64x8 count) {
  return bits_as<U64x8>(_mm512_sllv_epi64(bits_as<__m512i>(a), bits_as<__m512i>(count)));
}
template <>
CPD_FN U32x16 shift_right(U32x16 a, U32x16 count) {
  return bits_as<U32x16>(_mm512_srlv_epi32(bits_as<__m512i>(a), bits_as<__m512i>(count)));
}
template <>
CPD_FN U64x8 shift_right(U64x8 a, U64x8 count) {
  return bits_as<U64x8>(_mm512_srlv_epi64(bits_as<__m512i>(a), bits_as<__m512i>(count)));
}

template <>
CPD_FN U32x16 join_lanes<U32x16>(U64x8 even, U64x8 odd) {
  return bits_as<U32x16>(_mm512_mask_shuffle_epi32(bits_as<__m512i>(even), 0xAAAA,
                                                   bits_as<__m512i>(odd), _MM_PERM_CCAA));
}
template <int kDistance>
CPD_FN F32x16 swap_lanes(F32x16 x) {
  const auto v = bits_as<__m512>(x);
  if constexpr (kDistance == 1) return bits_as<F32x16>(_mm512_permute_ps(v, 0xB1));
  if constexpr (kDistance == 2) return bits_as<F32x16>(_mm512_permute_ps(v, 0x4E));
  if constexpr (kDistance == 4) return bits_as<F32x16>(_mm512_shuffle_f32x4(v, v, 0xB1));
  return bits_as<F32x16>(_mm512_shuffle_f32x4(v, v, 0x4E));
}
template <int kDistance>
CPD_FN F64x8 swap_lanes(F64x8 x) {
  const auto v = bits_as<__m512d>(x);
  if constexpr (kDistance == 1) return bits_as<F64x8>(_mm512_permute_pd(v, 0x55));
  if constexpr (kDistance == 2) return bits_as<F64x8>(_mm512_permutex_pd(v, 0x4E));
  return bits_as<F64x8>(_mm512_shuffle_f64x2(v, v, 0x4E));
}

constexpr int kMergeBits = 0xEA;
template <>
CPD_FN U32x16 merge_bits(U32x16 x, U32x16 mask, U32x16 set) {
  return bits_as<U32x16>(_mm512_ternarylogic_epi32(bits_as<__m512i>(x), bits_as<__m512i>(mask),
                                                   bits_as<__m512i>(set), kMergeBits));
}
template <>
CPD_FN U64x8 merge_bits(U64x8 x, U64x8 mask, U64x8 set) {
  return bits_as<U64x8>(_mm512_ternarylogic_epi64(bits_as<__m512i>(x), bits_as<__m512i>(mask),
                                                  bits_as<__m512i>(set), kMergeBits));
}

template <>
CPD_FN U64x8 mul_low(U64x8 a, std::uint32_t b) {
  return bits_as<U64x8>(
      _mm512_mul_epu32(bits_as<__m512i>(a), _mm512_set1_epi32(static_cast<int>(b))));
}

// --- memory --------------------------------------------------------------------------------------

template <class S>
CPD_FN void store_streaming(S* to, F32x16 x) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), bits_as<__m512i>(x));
}
template <>
CPD_FN void fence_streaming<F32x16>() {
  _mm_sfence();
}

// Converts lanes by intrinsics of one instruction. From the generic code, GCC 12 would make two
// 256-bit conversions and join the results.
template <>
CPD_FN F64x8 convert<F64x8, F32x8>(F32x8 x) {
  return bits_as<F64x8>(_mm512_cvtps_pd(bits_as<__m256>(x)));
}
template <>
CPD_FN F32x8 convert<F32x8, F64x8>(F64x8 x) {
  return bits_as<F32x8>(_mm512_cvtpd_ps(bits_as<__m512d>(x)));
}
template <>
CPD_FN U64x8 convert<U64x8, U32x8>(U32x8 x) {
  return bits_as<U64x8>(_mm512_cvtepu32_epi64(bits_as<__m256i>(x)));
}

template <>
CPD_FN U32x16 permute(U32x16 x, U32x16 from) {
  return bits_as<U32x16>(_mm512_permutexvar_epi32(bits_as<__m512i>(from), bits_as<__m512i>(x)));
}
template <>
CPD_FN U32x16 even_words(U32x16 a, U32x16 b) {
  constexpr U32x16 kEven = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
  return bits_as<U32x16>(
      _mm512_permutex2var_epi32(bits_as<__m512i>(a), bits_as<__m512i>(kEven), bits_as<__m512i>(b)));
}
template <>
CPD_FN U32x16 merge_pairs(U32x16 x, int bits) {
  return x | bits_as<U32x16>(bits_as<U64x8>(x) >> (32 - bits));
}

template <>
CPD_FN void store_halves(std::uint8_t* to, U32x16 x) {
  store(to, _mm512_cvtepi32_epi16(bits_as<__m512i>(x)));
}
template <>
CPD_FN void store_bytes(std::uint8_t* to, U32x16 x) {
  store(to, _mm512_cvtepi32_epi8(bits_as<__m512i>(x)));
}
template <>
CPD_FN void store_nibbles(std::uint8_t* to, U32x16 x) {
  const __m128i bytes = _mm512_cvtepi64_epi8(bits_as<__m512i>(merge_pairs(x, 4)));
  store(to, bits_as<U64x2>(bytes)[0]);
}
template <>
CPD_FN U32x16 load_halves<U32x16>(const std::uint8_t* from) {
  return bits_as<U32x16>(_mm512_cvtepu16_epi32(load<__m256i>(from)));
}
template <>
CPD_FN U32x16 load_bytes<U32x16>(const std::uint8_t* from) {
  return bits_as<U32x16>(_mm512_cvtepu8_epi32(load<__m128i>(from)));
}

// --- arithmetic ----------------------------------------------------------------------------------

template <>
CPD_FN F64x8 truncate(F64x8 x) {
  return bits_as<F64x8>(_mm512_roundscale_pd(bits_as<__m512d>(x), 0x0B));
}

template <>
CPD_FN F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return bits_as<F32x16>(
      _mm512_fmadd_ps(bits_as<__m512>(a), bits_as<__m512>(b), bits_as<__m512>(c)));
}
template <>
CPD_FN F64x8 fma(F64x8 a, F64x8 b, F64x8 c) {
  return bits_as<F64x8>(
      _mm512_fmadd_pd(bits_as<__m512d>(a), bits_as<__m512d>(b), bits_as<__m512d>(c)));
}
template <>
CPD_FN F32x16 negative_fma(F32x16 a, F32x16 b, F32x16 c) {
  return bits_as<F32x16>(
      _mm512_fnmadd_ps(bits_as<__m512>(a), bits_as<__m512>(b), bits_as<__m512>(c)));
}

template <>
CPD_FN F32x16 square_root(F32x16 x) {
  return bits_as<F32x16>(_mm512_sqrt_ps(bits_as<__m512>(x)));
}
template <>
CPD_FN F64x8 square_root(F64x8 x) {
  return bits_as<F64x8>(_mm512_sqrt_pd(bits_as<__m512d>(x)));
}

template <>
constexpr bool kHasDirectedRounding<F32x16> = true;
template <>
constexpr bool kHasDirectedRounding<F64x8> = true;

template <Toward toward>
constexpr int kRoundingOf = (toward == Toward::zero   ? _MM_FROUND_TO_ZERO
                             : toward == Toward::down ? _MM_FROUND_TO_NEG_INF
                                                      : _MM_FROUND_TO_POS_INF) |
                            _MM_FROUND_NO_EXC;

template <Toward toward>
CPD_FN F32x16 fma_toward(F32x16 a, F32x16 b, F32x16 c) {
  return bits_as<F32x16>(_mm512_fmadd_round_ps(bits_as<__m512>(a), bits_as<__m512>(b),
                                               bits_as<__m512>(c), kRoundingOf<toward>));
}
template <Toward toward>
CPD_FN F64x8 fma_toward(F64x8 a, F64x8 b, F64x8 c) {
  return bits_as<F64x8>(_mm512_fmadd_round_pd(bits_as<__m512d>(a), bits_as<__m512d>(b),
                                              bits_as<__m512d>(c), kRoundingOf<toward>));
}

template <>
CPD_FN F32x16 larger_magnitude(F32x16 x, F32x16 y) {
  return bits_as<F32x16>(_mm512_range_ps(bits_as<__m512>(x), bits_as<__m512>(y), 0b1011));
}
template <>
CPD_FN F64x8 larger_magnitude(F64x8 x, F64x8 y) {
  return bits_as<F64x8>(_mm512_range_pd(bits_as<__m512d>(x), bits_as<__m512d>(y), 0b1011));
}
template <>
constexpr bool kHasSignedMaximum<F32x16> = true;
template <>
constexpr bool kHasSignedMaximum<F64x8> = true;
template <>
CPD_FN F32x16 at_least(F32x16 x, F32x16 least) {
  return bits_as<F32x16>(_mm512_range_ps(bits_as<__m512>(x), bits_as<__m512>(least), 0b0011));
}
template <>
CPD_FN F64x8 at_least(F64x8 x, F64x8 least) {
  return bits_as<F64x8>(_mm512_range_pd(bits_as<__m512d>(x), bits_as<__m512d>(least), 0b0011));
}
template <>
CPD_FN F32x16 clamped(F32x16 x, F32x16 most) {
  return bits_as<F32x16>(_mm512_range_ps(bits_as<__m512>(x), bits_as<__m512>(most), 0b0010));
}
template <>
CPD_FN F32x16 at_most(F32x16 x, F32x16 most, F32x16 instead) {
  const __m512 v = bits_as<__m512>(x);
  const __mmask16 larger = _mm512_cmp_ps_mask(_mm512_abs_ps(v), bits_as<__m512>(most), _CMP_GT_OQ);
  return bits_as<F32x16>(_mm512_mask_ternarylogic_epi32(bits_as<__m512i>(x), larger,
                                                        _mm512_set1_epi32(INT32_MIN),
                                                        bits_as<__m512i>(instead), kMergeBits));
}
template <>
CPD_FN F64x8 at_most(F64x8 x, F64x8 most, F64x8 instead) {
  const __m512d v = bits_as<__m512d>(x);
  const __mmask8 larger = _mm512_cmp_pd_mask(_mm512_abs_pd(v), bits_as<__m512d>(most), _CMP_GT_OQ);
  return bits_as<F64x8>(_mm512_mask_ternarylogic_epi64(bits_as<__m512i>(x), larger,
                                                       _mm512_set1_epi64(INT64_MIN),
                                                       bits_as<__m512i>(instead), kMergeBits));
}
// Uses bit operations on float vectors. If a function reinterprets sums as integer vectors and
// back, compilers keep the sums in memory instead of registers.
template <>
CPD_FN F32x16 with_sign_of(F32x16 x, F32x16 t, F32x16 sign) {
  return bits_as<F32x16>(
      _mm512_or_ps(bits_as<__m512>(x), _mm512_and_ps(bits_as<__m512>(t), bits_as<__m512>(sign))));
}
template <>
CPD_FN F32x16 odd_one(F32x16 a, F32x16 b) {
  const __mmask16 odd = _mm512_test_epi32_mask(bits_as<__m512i>(a), _mm512_set1_epi32(1));
  return bits_as<F32x16>(_mm512_mask_mov_ps(bits_as<__m512>(b), odd, bits_as<__m512>(a)));
}

template <>
CPD_FN bool all_at_most(F32x16 x, float limit) {
  return _mm512_cmp_ps_mask(bits_as<__m512>(x), _mm512_set1_ps(limit), _CMP_NLE_UQ) == 0;
}
template <>
CPD_FN bool all_at_most(F64x8 x, double limit) {
  return _mm512_cmp_pd_mask(bits_as<__m512d>(x), _mm512_set1_pd(limit), _CMP_NLE_UQ) == 0;
}

}  // namespace CPD_ISA
}  // namespace cpd

#endif
