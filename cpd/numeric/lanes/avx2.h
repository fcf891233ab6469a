// SPDX-License-Identifier: Apache-2.0
//
// The primitives of generic.h for AVX2 with FMA: 8 lanes of binary32 or 4 of binary64. The header
// is empty if the compiler does not target AVX2.
#pragma once

#if defined(__AVX2__) && !defined(__CUDACC__)
#define CPD_VECTORS 1
#include <immintrin.h>

#include "cpd/numeric/lanes/generic.h"

namespace cpd {
inline namespace CPD_ISA {

// --- types ---------------------------------------------------------------------------------------

using F32x4 = float __attribute__((vector_size(16)));
using F32x8 = float __attribute__((vector_size(32)));
using U32x4 = std::uint32_t __attribute__((vector_size(16)));
using U32x8 = std::uint32_t __attribute__((vector_size(32)));
using I32x4 = std::int32_t __attribute__((vector_size(16)));
using I32x8 = std::int32_t __attribute__((vector_size(32)));
using F64x4 = double __attribute__((vector_size(32)));
using U64x2 = std::uint64_t __attribute__((vector_size(16)));
using U64x4 = std::uint64_t __attribute__((vector_size(32)));
using I64x4 = std::int64_t __attribute__((vector_size(32)));

template <>
struct Lanes<F32x8> : LaneTraits<float, U32x8, I32x8, 8, 23> {};
template <>
struct Lanes<F64x4> : LaneTraits<double, U64x4, I64x4, 4, 52> {};

template <>
struct Narrow<F64x4> {
  using F32 = F32x4;
  using U32 = U32x4;
  using I32 = I32x4;
};
template <>
struct Narrow<F32x4> {
  using F32 = F32x4;
  using U32 = U32x4;
  using I32 = I32x4;
};
template <>
struct Narrow<F32x8> {
  using F32 = F32x8;
  using U32 = U32x8;
  using I32 = I32x8;
};

template <>
struct SplitLanes<U32x4> {
  using type = U64x2;
};
template <>
struct SplitLanes<U32x8> {
  using type = U64x4;
};

// --- bits and masks ------------------------------------------------------------------------------

CPD_FN bool any(I32x4 mask) { return _mm_movemask_ps(bits_as<__m128>(mask)) != 0; }
CPD_FN bool any(I32x8 mask) { return _mm256_movemask_ps(bits_as<__m256>(mask)) != 0; }

CPD_FN std::uint32_t mask_bits(I32x8 mask) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(bits_as<__m256>(mask)));
}

CPD_FN std::int32_t largest_lane(I32x8 x) {
  const __m256i all = bits_as<__m256i>(x);
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, _MM_SHUFFLE(1, 0, 3, 2)));
  const __m128i one = _mm_max_epi32(two, _mm_shuffle_epi32(two, _MM_SHUFFLE(2, 3, 0, 1)));
  return _mm_cvtsi128_si32(one);
}

// Selects by VBLENDVPS, which reads a lane's sign. VPBLENDVB reads the sign of each byte and takes
// twice as long on some CPUs.
template <>
CPD_FN U32x8 select(I32x8 mask, U32x8 a, U32x8 b) {
  return bits_as<U32x8>(mask ? bits_as<F32x8>(a) : bits_as<F32x8>(b));
}
template <>
CPD_FN I32x8 select(I32x8 mask, I32x8 a, I32x8 b) {
  return bits_as<I32x8>(mask ? bits_as<F32x8>(a) : bits_as<F32x8>(b));
}

template <>
CPD_FN I32x8 max(I32x8 a, I32x8 b) {
  return bits_as<I32x8>(_mm256_max_epi32(bits_as<__m256i>(a), bits_as<__m256i>(b)));
}
template <>
CPD_FN I32x8 min(I32x8 a, I32x8 b) {
  return bits_as<I32x8>(_mm256_min_epi32(bits_as<__m256i>(a), bits_as<__m256i>(b)));
}

template <>
CPD_FN U32x8 shift_left(U32x8 a, U32x8 count) {
  return bits_as<U32x8>(_mm256_sllv_epi32(bits_as<__m256i>(a), bits_as<__m256i>(count)));
}
template <>
CPD_FN U64x4 shift_left(U64x4 a, U64x4 count) {
  return bits_as<U64x4>(_mm256_sllv_epi64(bits_as<__m256i>(a), bits_as<__m256i>(count)));
}
template <>
CPD_FN U32x8 shift_right(U32x8 a, U32x8 count) {
  return bits_as<U32x8>(_mm256_srlv_epi32(bits_as<__m256i>(a), bits_as<__m256i>(count)));
}
template <>
CPD_FN U64x4 shift_right(U64x4 a, U64x4 count) {
  return bits_as<U64x4>(_mm256_srlv_epi64(bits_as<__m256i>(a), bits_as<__m256i>(count)));
}

// Shifts all lanes by one count. VPSLLVD and VPSRLVD, with a count for each lane, take two to four
// times as long on some CPUs.
template <>
CPD_FN U32x8 shift_left(U32x8 a, int count) {
  return bits_as<U32x8>(_mm256_sll_epi32(bits_as<__m256i>(a), _mm_cvtsi32_si128(count)));
}
template <>
CPD_FN U32x8 shift_right(U32x8 a, int count) {
  return bits_as<U32x8>(_mm256_srl_epi32(bits_as<__m256i>(a), _mm_cvtsi32_si128(count)));
}

// Moves the high half of each 64-bit lane down by a shuffle, not by a shift. A shuffle does not use
// the CPU's ports for shifts and multiplications.
template <>
CPD_FN U64x4 high_half(U64x4 a) {
  return bits_as<U64x4>(_mm256_shuffle_epi32(bits_as<__m256i>(a), 0xF5));
}
// The empty asm statement keeps the compiler from computing (x ^ a) ^ b, whose result is ready one
// operation later.
template <>
CPD_FN U64x4 xor_last(U64x4 x, U64x4 a, U64x4 b) {
  U64x4 known = a ^ b;
  asm("" : "+x"(known));
  return x ^ known;
}
template <>
CPD_FN U32x8 join_lanes<U32x8>(U64x4 even, U64x4 odd) {
  return bits_as<U32x8>(
      _mm256_blend_epi32(bits_as<__m256i>(even), bits_as<__m256i>(odd << 32), 0xAA));
}
template <>
CPD_FN U64x2 mul_low(U64x2 a, std::uint32_t b) {
  return bits_as<U64x2>(_mm_mul_epu32(bits_as<__m128i>(a), _mm_set1_epi32(static_cast<int>(b))));
}
template <>
CPD_FN U64x4 mul_low(U64x4 a, std::uint32_t b) {
  return bits_as<U64x4>(
      _mm256_mul_epu32(bits_as<__m256i>(a), _mm256_set1_epi32(static_cast<int>(b))));
}

template <int kDistance>
CPD_FN F32x8 swap_lanes(F32x8 x) {
  const auto v = bits_as<__m256>(x);
  if constexpr (kDistance == 1) return bits_as<F32x8>(_mm256_permute_ps(v, 0xB1));
  if constexpr (kDistance == 2) return bits_as<F32x8>(_mm256_permute_ps(v, 0x4E));
  return bits_as<F32x8>(_mm256_permute2f128_ps(v, v, 0x01));
}
template <int kDistance>
CPD_FN F64x4 swap_lanes(F64x4 x) {
  const auto v = bits_as<__m256d>(x);
  if constexpr (kDistance == 1) return bits_as<F64x4>(_mm256_permute_pd(v, 0x5));
  return bits_as<F64x4>(_mm256_permute4x64_pd(v, 0x4E));
}

/// Returns the CRC-32C remainder after one more byte (crc_byte) or eight more bytes (crc_word).
/// Bits are reflected, and nothing is inverted.
CPD_FN std::uint32_t crc_byte(std::uint32_t crc, std::uint8_t byte) {
  return _mm_crc32_u8(crc, byte);
}
CPD_FN std::uint32_t crc_word(std::uint32_t crc, std::uint64_t word) {
  return static_cast<std::uint32_t>(_mm_crc32_u64(crc, word));
}

// --- memory --------------------------------------------------------------------------------------

template <class S>
CPD_FN void store_streaming(S* to, F32x4 x) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), bits_as<__m128i>(x));
}
template <class S>
CPD_FN void store_streaming(S* to, F32x8 x) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bits_as<__m256i>(x));
}
template <>
CPD_FN void fence_streaming<F32x8>() {
  _mm_sfence();
}

template <>
CPD_FN U32x8 permute(U32x8 x, U32x8 from) {
  return bits_as<U32x8>(_mm256_permutevar8x32_epi32(bits_as<__m256i>(x), bits_as<__m256i>(from)));
}
template <>
CPD_FN U32x8 even_words(U32x8 a, U32x8 b) {
  const __m256 words = _mm256_shuffle_ps(bits_as<__m256>(a), bits_as<__m256>(b), 0x88);
  return bits_as<U32x8>(_mm256_permute4x64_epi64(bits_as<__m256i>(words), 0xD8));
}
template <>
CPD_FN U32x8 merge_pairs(U32x8 x, int bits) {
  return x | bits_as<U32x8>(bits_as<U64x4>(x) >> (32 - bits));
}

template <>
CPD_FN void store_halves(std::uint8_t* to, U32x8 x) {
  const __m256i each = _mm256_set1_epi64x(0x0D0C090805040100);
  const __m256i pairs = _mm256_shuffle_epi8(bits_as<__m256i>(x), each);
  const __m128i low = _mm256_castsi256_si128(pairs);
  store(to, _mm_unpacklo_epi64(low, _mm256_extracti128_si256(pairs, 1)));
}
template <>
CPD_FN void store_bytes(std::uint8_t* to, U32x8 x) {
  const __m256i each = _mm256_set1_epi32(0x0C080400);  // the low bytes of a half's four lanes
  const __m256i words = _mm256_shuffle_epi8(bits_as<__m256i>(x), each);
  const __m128i low = _mm256_castsi256_si128(words);
  const __m128i both = _mm_unpacklo_epi32(low, _mm256_extracti128_si256(words, 1));
  store(to, _mm_cvtsi128_si64(both));
}
template <>
CPD_FN void store_nibbles(std::uint8_t* to, U32x8 x) {
  const __m256i each = _mm256_set1_epi32(0x0800);  // the low bytes of a half's two pairs
  const __m256i halves = _mm256_shuffle_epi8(bits_as<__m256i>(merge_pairs(x, 4)), each);
  const __m128i low = _mm256_castsi256_si128(halves);
  const __m128i both = _mm_unpacklo_epi16(low, _mm256_extracti128_si256(halves, 1));
  store(to, _mm_cvtsi128_si32(both));
}
template <>
CPD_FN U32x8 load_halves<U32x8>(const std::uint8_t* from) {
  return bits_as<U32x8>(_mm256_cvtepu16_epi32(load<__m128i>(from)));
}
template <>
CPD_FN U32x8 load_bytes<U32x8>(const std::uint8_t* from) {
  return bits_as<U32x8>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(load<std::int64_t>(from))));
}
template <>
constexpr bool kGathersBytes<U32x8> = true;
template <>
CPD_FN U32x8 gather_bytes(const std::uint8_t* from, U32x8 places) {
  const __m256i all = _mm256_broadcastsi128_si256(load<__m128i>(from));
  return bits_as<U32x8>(_mm256_shuffle_epi8(all, bits_as<__m256i>(places)));
}

// --- arithmetic ----------------------------------------------------------------------------------

template <>
CPD_FN F64x4 truncate(F64x4 x) {
  return bits_as<F64x4>(_mm256_round_pd(bits_as<__m256d>(x), 0x0B));
}

template <>
CPD_FN F32x8 fma(F32x8 a, F32x8 b, F32x8 c) {
  return bits_as<F32x8>(
      _mm256_fmadd_ps(bits_as<__m256>(a), bits_as<__m256>(b), bits_as<__m256>(c)));
}
template <>
CPD_FN F64x4 fma(F64x4 a, F64x4 b, F64x4 c) {
  return bits_as<F64x4>(
      _mm256_fmadd_pd(bits_as<__m256d>(a), bits_as<__m256d>(b), bits_as<__m256d>(c)));
}
// Computes c - a * b by one instruction. If all lanes of `a` hold one scalar, compilers would
// negate and broadcast the scalar a second time to compute fma(-a, b, c).
template <>
CPD_FN F32x8 negative_fma(F32x8 a, F32x8 b, F32x8 c) {
  return bits_as<F32x8>(
      _mm256_fnmadd_ps(bits_as<__m256>(a), bits_as<__m256>(b), bits_as<__m256>(c)));
}

template <>
CPD_FN F32x8 square_root(F32x8 x) {
  return bits_as<F32x8>(_mm256_sqrt_ps(bits_as<__m256>(x)));
}
template <>
CPD_FN F64x4 square_root(F64x4 x) {
  return bits_as<F64x4>(_mm256_sqrt_pd(bits_as<__m256d>(x)));
}

// Returns x if |x| > least, else `least` with the sign of x. A NaN also becomes `least`, because
// the instruction maxps returns its second operand if the first operand is NaN.
template <>
CPD_FN F32x8 at_least(F32x8 x, F32x8 least) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  const __m256 v = bits_as<__m256>(x);
  const __m256 larger = _mm256_max_ps(_mm256_andnot_ps(sign, v), bits_as<__m256>(least));
  return bits_as<F32x8>(_mm256_or_ps(larger, _mm256_and_ps(sign, v)));
}
template <>
CPD_FN F64x4 at_least(F64x4 x, F64x4 least) {
  const __m256d sign = _mm256_set1_pd(-0.0);
  const __m256d v = bits_as<__m256d>(x);
  const __m256d larger = _mm256_max_pd(_mm256_andnot_pd(sign, v), bits_as<__m256d>(least));
  return bits_as<F64x4>(_mm256_or_pd(larger, _mm256_and_pd(sign, v)));
}

template <>
CPD_FN F32x8 clamped(F32x8 x, F32x8 most) {
  const __m256 from_above = _mm256_min_ps(bits_as<__m256>(x), bits_as<__m256>(most));
  return bits_as<F32x8>(_mm256_max_ps(from_above, bits_as<__m256>(-most)));
}
template <>
CPD_FN bool all_at_most(F32x8 x, float limit) {
  const __m256 above = _mm256_cmp_ps(bits_as<__m256>(x), _mm256_set1_ps(limit), _CMP_NLE_UQ);
  return _mm256_movemask_ps(above) == 0;
}
template <>
CPD_FN bool all_at_most(F64x4 x, double limit) {
  const __m256d above = _mm256_cmp_pd(bits_as<__m256d>(x), _mm256_set1_pd(limit), _CMP_NLE_UQ);
  return _mm256_movemask_pd(above) == 0;
}

}  // namespace CPD_ISA
}  // namespace cpd

#endif
