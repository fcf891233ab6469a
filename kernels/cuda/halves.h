// SPDX-License-Identifier: Apache-2.0
//
// Pairs of 16-bit lanes, fp16 or bf16, in a CUDA thread, which computes a pair at the rate of one
// binary32 operation. Defines the primitives for the roundings of veltkamp_rounding.h. Each
// operation is rounded once to nearest-even, preserves subnormals and is not contracted. The file
// is empty when it is not compiled for a device, because the host part of a CUDA source runs no
// kernel.
#pragma once

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cpd/numeric/lanes/generic.h"

namespace cpd {
inline namespace CPD_ISA {

/// A pair of 16-bit lanes. Word is __half2 or __nv_bfloat162.
template <class Word>
struct HalfPair {
  Word word;

  HalfPair() = default;
  CPD_FN HalfPair(Word word) : word(word) {}
  /// Puts x into both lanes. The type must represent x exactly.
  CPD_FN explicit HalfPair(float x) {
    if constexpr (std::is_same_v<Word, __half2>) {
      word = __float2half2_rn(x);
    } else {
      word = __float2bfloat162_rn(x);
    }
  }

  friend CPD_FN HalfPair operator+(HalfPair a, HalfPair b) { return __hadd2_rn(a.word, b.word); }
  friend CPD_FN HalfPair operator-(HalfPair a, HalfPair b) { return __hsub2_rn(a.word, b.word); }
  friend CPD_FN HalfPair operator*(HalfPair a, HalfPair b) { return __hmul2_rn(a.word, b.word); }
};

template <>
struct Lanes<HalfPair<__half2>> : LaneTraits<float, std::uint32_t, std::int32_t, 2, 10> {};
template <>
struct Lanes<HalfPair<__nv_bfloat162>> : LaneTraits<float, std::uint32_t, std::int32_t, 2, 7> {};

template <class Word>
CPD_FN HalfPair<Word> fma(HalfPair<Word> a, HalfPair<Word> b, HalfPair<Word> c) {
#if defined(__CUDA_ARCH__)
  return __hfma2(a.word, b.word, c.word);
#else
  __builtin_trap();
#endif
}
/// Returns c - a * b, rounded once, for each lane. If many calls have the same b, they share its
/// negation.
template <class Word>
CPD_FN HalfPair<Word> negative_fma(HalfPair<Word> a, HalfPair<Word> b, HalfPair<Word> c) {
  return fma<Word>(a, __hneg2(b.word), c);
}

/// Returns the larger of |x| and |y| for each lane. Returns NaN if an operand is NaN or, in bf16,
/// above 2^121. Compares bf16 magnitudes by fp16's instruction, because both are ordered as their
/// bit patterns; the patterns of bf16 numbers above 2^121 are fp16 NaN.
template <class Word>
CPD_FN HalfPair<Word> larger_magnitude(HalfPair<Word> x, HalfPair<Word> y) {
  const auto a = reinterpret_cast<const __half2&>(x);
  const auto b = reinterpret_cast<const __half2&>(y);
  const __half2 larger = __hmax2_nan(__habs2(a), __habs2(b));
  return reinterpret_cast<const HalfPair<Word>&>(larger);
}

/// first_twice returns the first lane, the low half of the word, in both lanes; last_twice returns
/// the second lane in both. An operation that accepts such an operand needs no extra instruction.
CPD_FN HalfPair<__half2> first_twice(HalfPair<__half2> x) { return __low2half2(x.word); }
CPD_FN HalfPair<__half2> last_twice(HalfPair<__half2> x) { return __high2half2(x.word); }
CPD_FN HalfPair<__nv_bfloat162> first_twice(HalfPair<__nv_bfloat162> x) {
  return __low2bfloat162(x.word);
}
CPD_FN HalfPair<__nv_bfloat162> last_twice(HalfPair<__nv_bfloat162> x) {
  return __high2bfloat162(x.word);
}

}  // namespace CPD_ISA
}  // namespace cpd

#endif
