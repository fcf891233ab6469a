// SPDX-License-Identifier: Apache-2.0
//
// The primitives of generic.h for aarch64's Advanced SIMD and CRC instructions: 4 lanes of binary32
// or 2 of binary64. The header is empty unless a source is compiled for the ISA `neon` (CPD_NEON).
// Every aarch64 CPU has these registers, so no compiler macro distinguishes these kernels from the
// scalar kernels.
#pragma once

#if defined(CPD_NEON) && !defined(__CUDACC__)
#define CPD_VECTORS 1
#include <arm_acle.h>
#include <arm_neon.h>

#include "cpd/numeric/lanes/generic.h"

namespace cpd {
inline namespace CPD_ISA {

// --- types ---------------------------------------------------------------------------------------

using F32x2 = float __attribute__((vector_size(8)));
using F32x4 = float __attribute__((vector_size(16)));
using U32x2 = std::uint32_t __attribute__((vector_size(8)));
using U32x4 = std::uint32_t __attribute__((vector_size(16)));
using I32x2 = std::int32_t __attribute__((vector_size(8)));
using I32x4 = std::int32_t __attribute__((vector_size(16)));
using F64x2 = double __attribute__((vector_size(16)));
using U64x2 = std::uint64_t __attribute__((vector_size(16)));
using I64x2 = std::int64_t __attribute__((vector_size(16)));

template <>
struct Lanes<F32x4> : LaneTraits<float, U32x4, I32x4, 4, 23> {};
template <>
struct Lanes<F64x2> : LaneTraits<double, U64x2, I64x2, 2, 52> {};

template <>
struct Narrow<F64x2> {
  using F32 = F32x2;
  using U32 = U32x2;
  using I32 = I32x2;
};
template <>
struct Narrow<F32x2> {
  using F32 = F32x2;
  using U32 = U32x2;
  using I32 = I32x2;
};
template <>
struct Narrow<F32x4> {
  using F32 = F32x4;
  using U32 = U32x4;
  using I32 = I32x4;
};

template <>
struct SplitLanes<U32x4> {
  using type = U64x2;
};

// --- bits and masks ------------------------------------------------------------------------------

CPD_FN bool any(I32x2 mask) { return vmaxv_u32(bits_as<uint32x2_t>(mask)) != 0; }
CPD_FN bool any(I32x4 mask) { return vmaxvq_u32(bits_as<uint32x4_t>(mask)) != 0; }

CPD_FN std::uint32_t mask_bits(I32x4 mask) {
  return vaddvq_u32(bits_as<uint32x4_t>(mask & I32x4{1, 2, 4, 8}));
}

CPD_FN std::int32_t largest_lane(I32x4 x) { return vmaxvq_s32(bits_as<int32x4_t>(x)); }

template <>
CPD_FN I32x2 max(I32x2 a, I32x2 b) {
  return bits_as<I32x2>(vmax_s32(bits_as<int32x2_t>(a), bits_as<int32x2_t>(b)));
}
template <>
CPD_FN I32x2 min(I32x2 a, I32x2 b) {
  return bits_as<I32x2>(vmin_s32(bits_as<int32x2_t>(a), bits_as<int32x2_t>(b)));
}
template <>
CPD_FN I32x4 max(I32x4 a, I32x4 b) {
  return bits_as<I32x4>(vmaxq_s32(bits_as<int32x4_t>(a), bits_as<int32x4_t>(b)));
}
template <>
CPD_FN I32x4 min(I32x4 a, I32x4 b) {
  return bits_as<I32x4>(vminq_s32(bits_as<int32x4_t>(a), bits_as<int32x4_t>(b)));
}

// Limits shift counts to the lane's width. USHL reads a lane's count from the lane's lowest byte as
// a signed number, and a negative count shifts right.
template <class U>
CPD_FN U clipped_count(U count) {
  constexpr unsigned kWidth = 8 * sizeof(count[0]);
  return select(count < splat<U>(kWidth), count, splat<U>(kWidth));
}
template <>
CPD_FN U32x2 shift_left(U32x2 a, U32x2 count) {
  return bits_as<U32x2>(vshl_u32(bits_as<uint32x2_t>(a), bits_as<int32x2_t>(clipped_count(count))));
}
template <>
CPD_FN U32x4 shift_left(U32x4 a, U32x4 count) {
  return bits_as<U32x4>(
      vshlq_u32(bits_as<uint32x4_t>(a), bits_as<int32x4_t>(clipped_count(count))));
}
template <>
CPD_FN U64x2 shift_left(U64x2 a, U64x2 count) {
  return bits_as<U64x2>(
      vshlq_u64(bits_as<uint64x2_t>(a), bits_as<int64x2_t>(clipped_count(count))));
}
template <>
CPD_FN U32x2 shift_right(U32x2 a, U32x2 count) {
  return bits_as<U32x2>(
      vshl_u32(bits_as<uint32x2_t>(a), bits_as<int32x2_t>(-clipped_count(count))));
}
template <>
CPD_FN U32x4 shift_right(U32x4 a, U32x4 count) {
  return bits_as<U32x4>(
      vshlq_u32(bits_as<uint32x4_t>(a), bits_as<int32x4_t>(-clipped_count(count))));
}
template <>
CPD_FN U64x2 shift_right(U64x2 a, U64x2 count) {
  return bits_as<U64x2>(
      vshlq_u64(bits_as<uint64x2_t>(a), bits_as<int64x2_t>(-clipped_count(count))));
}
template <>
CPD_FN constexpr U32x2 shift_left(U32x2 a, int count) {
  return a << count;
}
template <>
CPD_FN constexpr U32x4 shift_left(U32x4 a, int count) {
  return a << count;
}
template <>
CPD_FN constexpr U64x2 shift_left(U64x2 a, int count) {
  return a << count;
}
template <>
CPD_FN constexpr U32x2 shift_right(U32x2 a, int count) {
  return a >> count;
}
template <>
CPD_FN constexpr U32x4 shift_right(U32x4 a, int count) {
  return a >> count;
}
template <>
CPD_FN constexpr U64x2 shift_right(U64x2 a, int count) {
  return a >> count;
}

template <>
CPD_FN U32x4 join_lanes<U32x4>(U64x2 even, U64x2 odd) {
  return bits_as<U32x4>(vtrn1q_u32(bits_as<uint32x4_t>(even), bits_as<uint32x4_t>(odd)));
}
template <>
CPD_FN U64x2 mul_low(U64x2 a, std::uint32_t b) {
  return bits_as<U64x2>(vmull_u32(vmovn_u64(bits_as<uint64x2_t>(a)), vdup_n_u32(b)));
}

template <int kDistance>
CPD_FN F32x4 swap_lanes(F32x4 x) {
  const auto v = bits_as<float32x4_t>(x);
  if constexpr (kDistance == 1) return bits_as<F32x4>(vrev64q_f32(v));
  return bits_as<F32x4>(vextq_f32(v, v, 2));
}
template <int kDistance>
CPD_FN F64x2 swap_lanes(F64x2 x) {
  const auto v = bits_as<float64x2_t>(x);
  return bits_as<F64x2>(vextq_f64(v, v, 1));
}

/// Returns the CRC-32C remainder after one more byte (crc_byte) or eight more bytes (crc_word).
/// Bits are reflected, and nothing is inverted.
CPD_FN std::uint32_t crc_byte(std::uint32_t crc, std::uint8_t byte) { return __crc32cb(crc, byte); }
CPD_FN std::uint32_t crc_word(std::uint32_t crc, std::uint64_t word) {
  return __crc32cd(crc, word);
}

// --- memory --------------------------------------------------------------------------------------

// Streaming stores are ordinary stores, because Advanced SIMD has no non-temporal store of a single
// register.
template <class S>
CPD_FN void store_streaming(S* to, F32x2 x) {
  store(to, x);
}
template <class S>
CPD_FN void store_streaming(S* to, F32x4 x) {
  store(to, x);
}
template <>
CPD_FN void fence_streaming<F32x4>() {}

template <>
CPD_FN U32x4 permute(U32x4 x, U32x4 from) {
  return __builtin_shuffle(x, from);
}
template <>
CPD_FN U32x4 even_words(U32x4 a, U32x4 b) {
  return bits_as<U32x4>(vuzp1q_u32(bits_as<uint32x4_t>(a), bits_as<uint32x4_t>(b)));
}
template <>
CPD_FN U32x4 merge_pairs(U32x4 x, int bits) {
  return x | bits_as<U32x4>(bits_as<U64x2>(x) >> (32 - bits));
}

template <>
CPD_FN void store_halves(std::uint8_t* to, U32x4 x) {
  store(to, vmovn_u32(bits_as<uint32x4_t>(x)));
}
template <>
CPD_FN void store_bytes(std::uint8_t* to, U32x4 x) {
  const uint16x4_t halves = vmovn_u32(bits_as<uint32x4_t>(x));
  store(to, bits_as<U32x2>(vmovn_u16(vcombine_u16(halves, halves)))[0]);
}
template <>
CPD_FN void store_nibbles(std::uint8_t* to, U32x4 x) {
  const U32x4 bytes = merge_pairs(x, 4);  // the low bytes of even words
  store(to, static_cast<std::uint16_t>((bytes[0] & 0xFF) | bytes[2] << 8));
}
template <>
CPD_FN U32x4 load_halves<U32x4>(const std::uint8_t* from) {
  return bits_as<U32x4>(vmovl_u16(load<uint16x4_t>(from)));
}
template <>
CPD_FN U32x4 load_bytes<U32x4>(const std::uint8_t* from) {
  const auto bytes = bits_as<uint8x8_t>(splat<U32x2>(load<std::uint32_t>(from)));
  return bits_as<U32x4>(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}

// --- arithmetic ----------------------------------------------------------------------------------

template <>
CPD_FN F64x2 truncate(F64x2 x) {
  return bits_as<F64x2>(vrndq_f64(bits_as<float64x2_t>(x)));
}

template <>
CPD_FN F32x4 fma(F32x4 a, F32x4 b, F32x4 c) {
  return bits_as<F32x4>(
      vfmaq_f32(bits_as<float32x4_t>(c), bits_as<float32x4_t>(a), bits_as<float32x4_t>(b)));
}
template <>
CPD_FN F64x2 fma(F64x2 a, F64x2 b, F64x2 c) {
  return bits_as<F64x2>(
      vfmaq_f64(bits_as<float64x2_t>(c), bits_as<float64x2_t>(a), bits_as<float64x2_t>(b)));
}
template <>
CPD_FN F32x4 square_root(F32x4 x) {
  return bits_as<F32x4>(vsqrtq_f32(bits_as<float32x4_t>(x)));
}
template <>
CPD_FN F64x2 square_root(F64x2 x) {
  return bits_as<F64x2>(vsqrtq_f64(bits_as<float64x2_t>(x)));
}
template <>
CPD_FN F32x4 negative_fma(F32x4 a, F32x4 b, F32x4 c) {
  return bits_as<F32x4>(
      vfmsq_f32(bits_as<float32x4_t>(c), bits_as<float32x4_t>(a), bits_as<float32x4_t>(b)));
}

template <>
CPD_FN F32x4 larger_magnitude(F32x4 x, F32x4 y) {
  return bits_as<F32x4>(
      vmaxq_f32(vabsq_f32(bits_as<float32x4_t>(x)), vabsq_f32(bits_as<float32x4_t>(y))));
}
template <>
CPD_FN F64x2 larger_magnitude(F64x2 x, F64x2 y) {
  return bits_as<F64x2>(
      vmaxq_f64(vabsq_f64(bits_as<float64x2_t>(x)), vabsq_f64(bits_as<float64x2_t>(y))));
}

template <>
CPD_FN bool all_at_most(F32x4 x, float limit) {
  return vminvq_u32(vcleq_f32(bits_as<float32x4_t>(x), vdupq_n_f32(limit))) != 0;
}
template <>
CPD_FN bool all_at_most(F64x2 x, double limit) {
  const uint64x2_t is_within = vcleq_f64(bits_as<float64x2_t>(x), vdupq_n_f64(limit));
  return vminvq_u32(vreinterpretq_u32_u64(is_within)) != 0;
}

}  // namespace CPD_ISA
}  // namespace cpd

#endif
