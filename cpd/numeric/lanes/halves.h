// SPDX-License-Identifier: Apache-2.0
//
// Two lanes of 16 bits, fp16 or bf16, in a CUDA thread, which has them at binary32's rate a pair:
// the primitives that split.h's roundings need. Each operation is rounded once to nearest even,
// keeps subnormals and is not contracted. Other sources have the name of the type alone; the host's
// half of a CUDA source runs no kernel.
#pragma once

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include <cstdint>
#include <type_traits>

#include "cpd/numeric/lanes/generic.h"

namespace cpd {

enum class Half : std::uint8_t { none, fp16, bf16 };

#if defined(__CUDACC__)
inline namespace CPD_ISA {

template <Half kHalf>
struct HalfPair {
  using Word = std::conditional_t<kHalf == Half::fp16, __half2, __nv_bfloat162>;
  Word word;

  HalfPair() = default;
  CPD_FN HalfPair(Word word) : word(word) {}
  /// x, which the type holds, in both lanes.
  CPD_FN explicit HalfPair(float x) {
    if constexpr (kHalf == Half::fp16) {
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
struct Lanes<HalfPair<Half::fp16>> : LaneTraits<float, std::uint32_t, std::int32_t, 2, 10> {};
template <>
struct Lanes<HalfPair<Half::bf16>> : LaneTraits<float, std::uint32_t, std::int32_t, 2, 7> {};

template <Half kHalf>
CPD_FN HalfPair<kHalf> fma(HalfPair<kHalf> a, HalfPair<kHalf> b, HalfPair<kHalf> c) {
#if defined(__CUDA_ARCH__)
  return __hfma2(a.word, b.word, c.word);
#else
  __builtin_trap();
#endif
}
/// b is the same in many calls, which then share its negation.
template <Half kHalf>
CPD_FN HalfPair<kHalf> negative_fma(HalfPair<kHalf> a, HalfPair<kHalf> b, HalfPair<kHalf> c) {
  return fma<kHalf>(a, __hneg2(b.word), c);
}

/// The larger of |x| and |y|; NaN where one is NaN or, in bf16, at least 2^121. One instruction,
/// that of fp16, whose numbers are ordered as their patterns are.
template <Half kHalf>
CPD_FN HalfPair<kHalf> larger_magnitude(HalfPair<kHalf> x, HalfPair<kHalf> y) {
  const auto a = reinterpret_cast<const __half2&>(x);
  const auto b = reinterpret_cast<const __half2&>(y);
  const __half2 larger = __hmax2_nan(__habs2(a), __habs2(b));
  return reinterpret_cast<const HalfPair<kHalf>&>(larger);
}

/// The first lane, in the low half of the word, in both lanes; last_twice: the second. No
/// instruction where an operation takes it.
CPD_FN HalfPair<Half::fp16> first_twice(HalfPair<Half::fp16> x) { return __low2half2(x.word); }
CPD_FN HalfPair<Half::fp16> last_twice(HalfPair<Half::fp16> x) { return __high2half2(x.word); }
CPD_FN HalfPair<Half::bf16> first_twice(HalfPair<Half::bf16> x) { return __low2bfloat162(x.word); }
CPD_FN HalfPair<Half::bf16> last_twice(HalfPair<Half::bf16> x) { return __high2bfloat162(x.word); }

}  // namespace CPD_ISA
#endif

}  // namespace cpd
