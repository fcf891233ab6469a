// SPDX-License-Identifier: Apache-2.0
//
// Lanes: the number types that the kernels are written over. A float lane type is `float`,
// `double`, or a vector of them; with it go an unsigned and a signed integer type of the same
// shape. Kernels use only + - * & | ^ << >> < > == and the primitives below, so that one source
// serves a CPU register of 1, 8 or 16 lanes and a CUDA thread. This is the only place with
// intrinsics: a primitive has a generic form, and a specialisation where a compiler does not find
// the instruction; the tests hold both equal.
//
// Everything stands in a namespace of its own per ISA and is forced inline, so that no object
// compiled with ISA flags exports code that an older CPU could pick up.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define CPD_FN __host__ __device__ __forceinline__
#else
#define CPD_FN inline __attribute__((always_inline))
#if defined(__AVX2__)
#include <immintrin.h>
#define CPD_VECTORS 1
#endif
#endif
#ifndef CPD_ISA
#define CPD_ISA host
#endif

namespace cpd {
inline namespace CPD_ISA {

/// Of a float lane type V: its integers, the number of lanes and the layout of one.
template <class V>
struct Lanes;

template <class Float, class UInt, class Int, int kCount, int kMantissa>
struct LaneTraits {
  using Scalar = Float;
  using U = UInt;
  using I = Int;
  static constexpr int count = kCount;
  static constexpr int mantissa = kMantissa;  ///< stored fraction bits
};

template <>
struct Lanes<float> : LaneTraits<float, std::uint32_t, std::int32_t, 1, 23> {};
template <>
struct Lanes<double> : LaneTraits<double, std::uint64_t, std::int64_t, 1, 52> {};

#ifdef CPD_VECTORS
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
#ifdef __AVX512F__
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
#endif
#endif

template <class V>
using Unsigned = typename Lanes<V>::U;
template <class V>
using Signed = typename Lanes<V>::I;
template <class V>
using Scalar = typename Lanes<V>::Scalar;

/// The scalar in a lane of T, which is T itself for a scalar.
template <class T, bool kIsScalar = sizeof(T) <= 8>
struct ElementOf {
  using type = T;
};
template <class T>
struct ElementOf<T, false> {
  using type = __typeof__(T{}[0] + T{}[0]);
};

/// The same bits as another type of the same shape.
template <class To, class From>
CPD_FN constexpr To bits_as(From x) {
  return __builtin_bit_cast(To, x);
}

/// x in every lane.
template <class T, class S>
CPD_FN constexpr T splat(S x) {
  using Element = typename ElementOf<T>::type;
  return static_cast<Element>(x) - T{};
}

/// 2^k in binary64, -1022 <= k <= 1023.
CPD_FN constexpr double exact_power(int k) {
  return bits_as<double>(static_cast<std::uint64_t>(k + 1023) << 52);
}

/// a where the mask (a comparison's result) is set, else b.
template <class Mask, class T>
CPD_FN constexpr T select(Mask mask, T a, T b) {
  return mask ? a : b;
}
/// The larger and the smaller of signed integers.
template <class I>
CPD_FN constexpr I max(I a, I b) {
  return select(a > b, a, b);
}
template <class I>
CPD_FN constexpr I min(I a, I b) {
  return select(a < b, a, b);
}
#ifdef CPD_VECTORS
CPD_FN I32x8 max(I32x8 a, I32x8 b) {
  return bits_as<I32x8>(_mm256_max_epi32(bits_as<__m256i>(a), bits_as<__m256i>(b)));
}
CPD_FN I32x8 min(I32x8 a, I32x8 b) {
  return bits_as<I32x8>(_mm256_min_epi32(bits_as<__m256i>(a), bits_as<__m256i>(b)));
}
#ifdef __AVX512F__
CPD_FN I32x16 max(I32x16 a, I32x16 b) {
  return bits_as<I32x16>(_mm512_max_epi32(bits_as<__m512i>(a), bits_as<__m512i>(b)));
}
CPD_FN I32x16 min(I32x16 a, I32x16 b) {
  return bits_as<I32x16>(_mm512_min_epi32(bits_as<__m512i>(a), bits_as<__m512i>(b)));
}
CPD_FN I64x8 max(I64x8 a, I64x8 b) {
  return bits_as<I64x8>(_mm512_max_epi64(bits_as<__m512i>(a), bits_as<__m512i>(b)));
}
CPD_FN I64x8 min(I64x8 a, I64x8 b) {
  return bits_as<I64x8>(_mm512_min_epi64(bits_as<__m512i>(a), bits_as<__m512i>(b)));
}
#endif
#endif
/// 0, 1, 2, … from the first lane on.
template <class U>
CPD_FN constexpr U iota() {
  U x{};
  if constexpr (sizeof(U) > 8) {
    for (unsigned lane = 0; lane < sizeof(U) / sizeof(x[0]); ++lane) x[lane] = lane;
  }
  return x;
}

/// a << count and a >> count lane by lane; a count of the lane's width or more gives 0, which the
/// plain operators leave undefined and every vector unit does by itself.
template <class U>
CPD_FN constexpr U shift_left(U a, U count) {
#ifdef CPD_VECTORS
#ifdef __AVX512F__
  if constexpr (sizeof(U) == 64 && sizeof(typename ElementOf<U>::type) == 4) {
    return bits_as<U>(_mm512_sllv_epi32(bits_as<__m512i>(a), bits_as<__m512i>(count)));
  } else if constexpr (sizeof(U) == 64) {
    return bits_as<U>(_mm512_sllv_epi64(bits_as<__m512i>(a), bits_as<__m512i>(count)));
  } else
#endif
      if constexpr (sizeof(U) == 32 && sizeof(typename ElementOf<U>::type) == 4) {
    return bits_as<U>(_mm256_sllv_epi32(bits_as<__m256i>(a), bits_as<__m256i>(count)));
  } else if constexpr (sizeof(U) == 32) {
    return bits_as<U>(_mm256_sllv_epi64(bits_as<__m256i>(a), bits_as<__m256i>(count)));
  } else
#endif
  {
    constexpr unsigned width = 8 * sizeof(U);
    return count < width ? a << count : U{};
  }
}
template <class U>
CPD_FN constexpr U shift_right(U a, U count) {
#ifdef CPD_VECTORS
#ifdef __AVX512F__
  if constexpr (sizeof(U) == 64 && sizeof(typename ElementOf<U>::type) == 4) {
    return bits_as<U>(_mm512_srlv_epi32(bits_as<__m512i>(a), bits_as<__m512i>(count)));
  } else if constexpr (sizeof(U) == 64) {
    return bits_as<U>(_mm512_srlv_epi64(bits_as<__m512i>(a), bits_as<__m512i>(count)));
  } else
#endif
      if constexpr (sizeof(U) == 32 && sizeof(typename ElementOf<U>::type) == 4) {
    return bits_as<U>(_mm256_srlv_epi32(bits_as<__m256i>(a), bits_as<__m256i>(count)));
  } else if constexpr (sizeof(U) == 32) {
    return bits_as<U>(_mm256_srlv_epi64(bits_as<__m256i>(a), bits_as<__m256i>(count)));
  } else
#endif
  {
    constexpr unsigned width = 8 * sizeof(U);
    return count < width ? a >> count : U{};
  }
}
/// count lanes from memory of any alignment.
template <class T, class S>
CPD_FN T load(const S* from) {
  T x;
  __builtin_memcpy(&x, from, sizeof(T));
  return x;
}
template <class T, class S>
CPD_FN void store(S* to, T x) {
  __builtin_memcpy(to, &x, sizeof(T));
}

/// The lanes of x in the order that `from` names, each lane number below the count of lanes. 32
/// bits.
#ifdef CPD_VECTORS
CPD_FN U32x8 permute(U32x8 x, U32x8 from) {
  return bits_as<U32x8>(_mm256_permutevar8x32_epi32(bits_as<__m256i>(x), bits_as<__m256i>(from)));
}
/// The words with even numbers of a, then those of b.
CPD_FN U32x8 even_words(U32x8 a, U32x8 b) {
  const __m256 words = _mm256_shuffle_ps(bits_as<__m256>(a), bits_as<__m256>(b), 0x88);
  return bits_as<U32x8>(_mm256_permute4x64_epi64(bits_as<__m256i>(words), 0xD8));
}
/// Stores the low 8, or 16, bits of each lane side by side.
template <class U>
CPD_FN void store_bytes(std::uint8_t* to, U x) {
#ifdef __AVX512F__
  if constexpr (sizeof(U) == 64) {
    store(to, _mm512_cvtepi32_epi8(bits_as<__m512i>(x)));
  } else
#endif
  {
    const __m256i each = _mm256_set1_epi32(0x0C080400);  // the low bytes of a half's four lanes
    const __m256i words = _mm256_shuffle_epi8(bits_as<__m256i>(x), each);
    const U32x8 packed = permute(bits_as<U32x8>(words), U32x8{0, 4});
    store(to, bits_as<U64x4>(packed)[0]);
  }
}
template <class U>
CPD_FN void store_halves(std::uint8_t* to, U x) {
#ifdef __AVX512F__
  if constexpr (sizeof(U) == 64) {
    store(to, _mm512_cvtepi32_epi16(bits_as<__m512i>(x)));
  } else
#endif
  {
    const __m256i each = _mm256_set1_epi64x(0x0D0C090805040100);
    const __m256i pairs = _mm256_shuffle_epi8(bits_as<__m256i>(x), each);
    store(to, _mm256_castsi256_si128(_mm256_permute4x64_epi64(pairs, 0x08)));
  }
}
/// As many bytes, or 16-bit words, one in each lane.
template <class U>
CPD_FN U load_bytes(const std::uint8_t* from) {
#ifdef __AVX512F__
  if constexpr (sizeof(U) == 64) {
    return bits_as<U>(_mm512_cvtepu8_epi32(load<__m128i>(from)));
  } else
#endif
  {
    return bits_as<U>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(load<std::int64_t>(from))));
  }
}
template <class U>
CPD_FN U load_halves(const std::uint8_t* from) {
#ifdef __AVX512F__
  if constexpr (sizeof(U) == 64) {
    return bits_as<U>(_mm512_cvtepu16_epi32(load<__m256i>(from)));
  } else
#endif
  {
    return bits_as<U>(_mm256_cvtepu16_epi32(load<__m128i>(from)));
  }
}
/// In each pair of words (a, b), the first becomes a | b << bits; 0 < bits < 32.
CPD_FN U32x8 merge_pairs(U32x8 x, int bits) {
  return x | bits_as<U32x8>(bits_as<U64x4>(x) >> (32 - bits));
}
#ifdef __AVX512F__
CPD_FN U32x16 merge_pairs(U32x16 x, int bits) {
  return x | bits_as<U32x16>(bits_as<U64x8>(x) >> (32 - bits));
}
CPD_FN U32x16 permute(U32x16 x, U32x16 from) {
  return bits_as<U32x16>(_mm512_permutexvar_epi32(bits_as<__m512i>(from), bits_as<__m512i>(x)));
}
CPD_FN U32x16 even_words(U32x16 a, U32x16 b) {
  constexpr U32x16 kEven = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
  return bits_as<U32x16>(
      _mm512_permutex2var_epi32(bits_as<__m512i>(a), bits_as<__m512i>(kEven), bits_as<__m512i>(b)));
}
#endif
/// Stores the low 4 bits of each lane (the others are 0) side by side.
template <class U>
CPD_FN void store_nibbles(std::uint8_t* to, U x) {
  const U pairs = merge_pairs(x, 4);
#ifdef __AVX512F__
  if constexpr (sizeof(U) == 64) {
    const __m128i bytes = _mm512_cvtepi64_epi8(bits_as<__m512i>(pairs));
    store(to, bits_as<U64x2>(bytes)[0]);
  } else
#endif
  {
    const __m256i each = _mm256_set1_epi32(0x0800);  // the low bytes of a half's two pairs
    const __m256i halves = _mm256_shuffle_epi8(bits_as<__m256i>(pairs), each);
    const U32x8 words = bits_as<U32x8>(halves);
    store(to, static_cast<std::uint32_t>((words[0] & 0xFFFF) | words[4] << 16));
  }
}
#endif

/// Lanes of another element type, converted value by value (exact in all uses here).
template <class To, class From>
CPD_FN constexpr To convert(From x) {
#ifdef CPD_VECTORS
  if constexpr (sizeof(To) > 8 || sizeof(From) > 8) {
    return __builtin_convertvector(x, To);
  } else
#endif
  {
    return static_cast<To>(x);
  }
}
#if defined(CPD_VECTORS) && defined(__AVX512F__)
// One instruction each, of which GCC 12 makes two halves and an insertion.
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
#endif

/// For a float lane type: vectors of as many 32-bit elements.
template <class V>
struct Narrow {
  using F32 = float;
  using U32 = std::uint32_t;
  using I32 = std::int32_t;
};
#ifdef CPD_VECTORS
template <>
struct Narrow<F64x4> {
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
#ifdef __AVX512F__
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
#endif
#endif

/// Lanes of V from binary32 memory, and back (exact where the values are binary32 values).
template <class V>
CPD_FN V load_f32(const float* from) {
  return convert<V>(load<typename Narrow<V>::F32>(from));
}
template <class V>
CPD_FN void store_f32(float* to, V x) {
  store(to, convert<typename Narrow<V>::F32>(x));
}
/// The same for 32-bit integers and V's unsigned lanes.
template <class V>
CPD_FN Unsigned<V> load_u32(const std::uint32_t* from) {
  return convert<Unsigned<V>>(load<typename Narrow<V>::U32>(from));
}
template <class V>
CPD_FN void store_u32(std::uint32_t* to, Unsigned<V> x) {
  store(to, convert<typename Narrow<V>::U32>(x));
}

/// Signed integers in memory as V's signed lanes.
template <class V>
CPD_FN Signed<V> load_i32(const std::int32_t* from) {
  return convert<Signed<V>>(load<typename Narrow<V>::I32>(from));
}

/// Binary64 lanes without their fractions; Inf and NaN stay.
template <class V>
CPD_FN constexpr V truncate(V x) {
  static_assert(Lanes<V>::mantissa == 52);
#ifdef CPD_VECTORS
#ifdef __AVX512F__
  if constexpr (sizeof(V) == 64) {
    return bits_as<V>(_mm512_roundscale_pd(bits_as<__m512d>(x), 0x0B));
  } else
#endif
      if constexpr (sizeof(V) == 32) {
    return bits_as<V>(_mm256_round_pd(bits_as<__m256d>(x), 0x0B));
  } else
#endif
  {
    const bool has_fraction = x > -0x1p52 && x < 0x1p52;
    return has_fraction ? static_cast<double>(static_cast<std::int64_t>(x)) : x;
  }
}

/// Whether a mask of 32-bit lanes (a comparison's result) is set in any lane.
CPD_FN constexpr bool any(bool mask) { return mask; }
#ifdef CPD_VECTORS
CPD_FN bool any(I32x8 mask) { return _mm256_movemask_ps(bits_as<__m256>(mask)) != 0; }
#ifdef __AVX512F__
CPD_FN bool any(I32x16 mask) { return _mm512_movepi32_mask(bits_as<__m512i>(mask)) != 0; }
#endif
#endif

/// store() past the caches where T is a whole vector; `to` is then aligned to sizeof(T).
template <class T, class S>
CPD_FN void store_streaming(S* to, T x) {
#ifdef CPD_VECTORS
#ifdef __AVX512F__
  if constexpr (sizeof(T) == 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), bits_as<__m512i>(x));
    return;
  }
#endif
  if constexpr (sizeof(T) == 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bits_as<__m256i>(x));
    return;
  }
  if constexpr (sizeof(T) == 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), bits_as<__m128i>(x));
    return;
  }
#endif
  store(to, x);
}
#ifdef CPD_VECTORS
/// The CRC-32C remainder (bits reflected, nothing inverted) after one more byte, or eight.
CPD_FN std::uint32_t crc_byte(std::uint32_t crc, std::uint8_t byte) {
  return _mm_crc32_u8(crc, byte);
}
CPD_FN std::uint32_t crc_word(std::uint32_t crc, std::uint64_t word) {
  return static_cast<std::uint32_t>(_mm_crc32_u64(crc, word));
}
#endif

/// Orders streaming stores before what follows.
CPD_FN void fence_streaming() {
#ifdef CPD_VECTORS
  _mm_sfence();
#endif
}

/// a * b + c rounded once to nearest even.
template <class V>
CPD_FN V fma(V a, V b, V c) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(V) == 4) {
    return __fmaf_rn(a, b, c);
  } else {
    return __fma_rn(a, b, c);
  }
#else
#ifdef CPD_VECTORS
#ifdef __AVX512F__
  if constexpr (sizeof(V) == 64 && Lanes<V>::mantissa == 23) {
    return bits_as<V>(_mm512_fmadd_ps(bits_as<__m512>(a), bits_as<__m512>(b), bits_as<__m512>(c)));
  } else if constexpr (sizeof(V) == 64) {
    return bits_as<V>(
        _mm512_fmadd_pd(bits_as<__m512d>(a), bits_as<__m512d>(b), bits_as<__m512d>(c)));
  } else
#endif
      if constexpr (sizeof(V) == 32 && Lanes<V>::mantissa == 23) {
    return bits_as<V>(_mm256_fmadd_ps(bits_as<__m256>(a), bits_as<__m256>(b), bits_as<__m256>(c)));
  } else if constexpr (sizeof(V) == 32) {
    return bits_as<V>(
        _mm256_fmadd_pd(bits_as<__m256d>(a), bits_as<__m256d>(b), bits_as<__m256d>(c)));
  } else
#endif
      if constexpr (sizeof(V) == 4) {
    return __builtin_fmaf(a, b, c);
  } else {
    return __builtin_fma(a, b, c);
  }
#endif
}

/// c - a * b rounded once to nearest even. (Where a is a scalar in all lanes, a compiler negates
/// and spreads it anew rather than take the instruction.)
template <class V>
CPD_FN V negative_fma(V a, V b, V c) {
#ifdef CPD_VECTORS
#ifdef __AVX512F__
  if constexpr (sizeof(V) == 64 && Lanes<V>::mantissa == 23) {
    return bits_as<V>(_mm512_fnmadd_ps(bits_as<__m512>(a), bits_as<__m512>(b), bits_as<__m512>(c)));
  } else
#endif
      if constexpr (sizeof(V) == 32 && Lanes<V>::mantissa == 23) {
    return bits_as<V>(_mm256_fnmadd_ps(bits_as<__m256>(a), bits_as<__m256>(b), bits_as<__m256>(c)));
  } else
#endif
  {
    return fma(-a, b, c);
  }
}

/// Lanes for which the roundings toward minus and plus infinity below are one instruction each.
#if defined(__CUDACC__)
template <class V>
constexpr bool kHasDirectedRounding = true;
#elif defined(__AVX512F__)
template <class V>
constexpr bool kHasDirectedRounding = sizeof(V) == 64;
#else
template <class V>
constexpr bool kHasDirectedRounding = false;
#endif

enum class Toward : std::uint8_t { zero, down, up };

/// a * b + c rounded once in the direction; on a CUDA thread in binary32. Only where
/// kHasDirectedRounding.
template <Toward toward, class V>
CPD_FN V fma_toward([[maybe_unused]] V a, [[maybe_unused]] V b, V c) {
  static_assert(kHasDirectedRounding<V>);
#if defined(__CUDA_ARCH__)
  if constexpr (toward == Toward::zero) return __fmaf_rz(a, b, c);
  if constexpr (toward == Toward::down) return __fmaf_rd(a, b, c);
  return __fmaf_ru(a, b, c);
#elif defined(__AVX512F__)
  constexpr int kWhere = (toward == Toward::zero   ? _MM_FROUND_TO_ZERO
                          : toward == Toward::down ? _MM_FROUND_TO_NEG_INF
                                                   : _MM_FROUND_TO_POS_INF) |
                         _MM_FROUND_NO_EXC;
  if constexpr (Lanes<V>::mantissa == 23) {
    return bits_as<V>(
        _mm512_fmadd_round_ps(bits_as<__m512>(a), bits_as<__m512>(b), bits_as<__m512>(c), kWhere));
  } else {
    return bits_as<V>(_mm512_fmadd_round_pd(bits_as<__m512d>(a), bits_as<__m512d>(b),
                                            bits_as<__m512d>(c), kWhere));
  }
#else
  return c;  // the host's half of a CUDA source
#endif
}

/// a + b rounded toward zero. Only where kHasDirectedRounding.
template <class V>
CPD_FN V add_toward_zero(V a, V b) {
#if defined(CPD_VECTORS) && defined(__AVX512F__)
  constexpr int kWhere = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
  if constexpr (sizeof(V) == 64 && Lanes<V>::mantissa == 23) {
    return bits_as<V>(_mm512_add_round_ps(bits_as<__m512>(a), bits_as<__m512>(b), kWhere));
  } else if constexpr (sizeof(V) == 64) {
    return bits_as<V>(_mm512_add_round_pd(bits_as<__m512d>(a), bits_as<__m512d>(b), kWhere));
  } else
#endif
  {
    return fma_toward<Toward::zero>(a, splat<V>(Scalar<V>{1}), b);
  }
}

/// The larger of |x| and |y|; neither is NaN.
template <class V>
CPD_FN V larger_magnitude(V x, V y) {
#if defined(CPD_VECTORS) && defined(__AVX512F__)
  if constexpr (sizeof(V) == 64 && Lanes<V>::mantissa == 23) {
    return bits_as<V>(_mm512_range_ps(bits_as<__m512>(x), bits_as<__m512>(y), 0b1011));
  } else if constexpr (sizeof(V) == 64) {
    return bits_as<V>(_mm512_range_pd(bits_as<__m512d>(x), bits_as<__m512d>(y), 0b1011));
  } else
#endif
  {
    using U = Unsigned<V>;
    using I = Signed<V>;
    using E = typename ElementOf<U>::type;
    const U magnitude = splat<U>(static_cast<E>(static_cast<E>(~E{0}) >> 1));
    return bits_as<V>(max((I)(bits_as<U>(x) & magnitude), (I)(bits_as<U>(y) & magnitude)));
  }
}
/// x where |x| > least, elsewhere `least` with x's sign; least > 0, x is not NaN.
template <class V>
CPD_FN V at_least(V x, V least) {
#if defined(CPD_VECTORS) && defined(__AVX512F__)
  if constexpr (sizeof(V) == 64 && Lanes<V>::mantissa == 23) {
    return bits_as<V>(_mm512_range_ps(bits_as<__m512>(x), bits_as<__m512>(least), 0b0011));
  } else if constexpr (sizeof(V) == 64) {
    return bits_as<V>(_mm512_range_pd(bits_as<__m512d>(x), bits_as<__m512d>(least), 0b0011));
  } else
#endif
  {
    using U = Unsigned<V>;
    using E = typename ElementOf<U>::type;
    const U sign = splat<U>(static_cast<E>(~(static_cast<E>(~E{0}) >> 1)));
    return bits_as<V>(bits_as<U>(larger_magnitude(x, least)) | (bits_as<U>(x) & sign));
  }
}
/// x with the bits that t and `sign` share, -0 or +0. (As float operations: compilers keep sums
/// that change between float and integer types in memory.)
template <class V>
CPD_FN V with_sign_of(V x, V t, V sign) {
#if defined(CPD_VECTORS) && defined(__AVX512F__)
  if constexpr (sizeof(V) == 64 && Lanes<V>::mantissa == 23) {
    return bits_as<V>(
        _mm512_or_ps(bits_as<__m512>(x), _mm512_and_ps(bits_as<__m512>(t), bits_as<__m512>(sign))));
  } else
#endif
  {
    using U = Unsigned<V>;
    return bits_as<V>(bits_as<U>(x) | (bits_as<U>(t) & bits_as<U>(sign)));
  }
}
/// a where its last bit is 1, else b.
template <class V>
CPD_FN V odd_one(V a, V b) {
#if defined(CPD_VECTORS) && defined(__AVX512F__)
  if constexpr (sizeof(V) == 64 && Lanes<V>::mantissa == 23) {
    const __mmask16 odd = _mm512_test_epi32_mask(bits_as<__m512i>(a), _mm512_set1_epi32(1));
    return bits_as<V>(_mm512_mask_mov_ps(bits_as<__m512>(b), odd, bits_as<__m512>(a)));
  } else
#endif
  {
    using U = Unsigned<V>;
    return select((bits_as<U>(a) & splat<U>(1)) != U{}, a, b);
  }
}
/// True where every lane is at most `limit`; false for NaN.
template <class V>
CPD_FN bool all_at_most(V x, Scalar<V> limit) {
#if defined(CPD_VECTORS) && defined(__AVX512F__)
  if constexpr (sizeof(V) == 64 && Lanes<V>::mantissa == 23) {
    return _mm512_cmp_ps_mask(bits_as<__m512>(x), _mm512_set1_ps(limit), _CMP_NLE_UQ) == 0;
  } else if constexpr (sizeof(V) == 64) {
    return _mm512_cmp_pd_mask(bits_as<__m512d>(x), _mm512_set1_pd(limit), _CMP_NLE_UQ) == 0;
  } else
#endif
#ifdef CPD_VECTORS
      if constexpr (sizeof(V) == 32 && Lanes<V>::mantissa == 23) {
    return _mm256_movemask_ps(
               _mm256_cmp_ps(bits_as<__m256>(x), _mm256_set1_ps(limit), _CMP_NLE_UQ)) == 0;
  } else if constexpr (sizeof(V) == 32) {
    return _mm256_movemask_pd(
               _mm256_cmp_pd(bits_as<__m256d>(x), _mm256_set1_pd(limit), _CMP_NLE_UQ)) == 0;
  } else
#endif
  {
    return x <= limit;
  }
}

/// 32-bit lanes two by two in 64-bit ones (for one lane, the lane widened).
template <class U>
struct SplitLanes {
  using type = std::uint64_t;
};
#ifdef CPD_VECTORS
template <>
struct SplitLanes<U32x4> {
  using type = U64x2;
};
template <>
struct SplitLanes<U32x8> {
  using type = U64x4;
};
#ifdef __AVX512F__
template <>
struct SplitLanes<U32x16> {
  using type = U64x8;
};
#endif
#endif
template <class U>
using SplitOf = typename SplitLanes<U>::type;

/// The even, and the odd, lanes of x in the low halves of 64-bit lanes; the high halves are
/// unspecified.
template <class U>
CPD_FN constexpr SplitOf<U> low_lanes(U x) {
  if constexpr (sizeof(U) > 4) {
    return bits_as<SplitOf<U>>(x);
  } else {
    return x;
  }
}
template <class U>
CPD_FN constexpr SplitOf<U> high_lanes(U x) {
  return low_lanes(x) >> 32;
}
/// The reverse.
template <class U>
CPD_FN constexpr U join_lanes(SplitOf<U> even, SplitOf<U> odd) {
#if defined(CPD_VECTORS) && defined(__AVX512F__)
  if constexpr (sizeof(U) == 64) {
    return bits_as<U>(_mm512_mask_shuffle_epi32(bits_as<__m512i>(even), 0xAAAA,
                                                bits_as<__m512i>(odd), _MM_PERM_CCAA));
  } else
#endif
      if constexpr (sizeof(U) > 4) {
    return bits_as<U>((even & splat<SplitOf<U>>(0xFFFFFFFFU)) | (odd << 32));
  } else {
    return static_cast<U>(even);
  }
}

/// The 64-bit product of each lane's low half with b.
template <class Split>
CPD_FN constexpr Split mul_low(Split a, std::uint32_t b) {
#ifdef CPD_VECTORS
#ifdef __AVX512F__
  if constexpr (sizeof(Split) == 64) {
    return bits_as<Split>(
        _mm512_mul_epu32(bits_as<__m512i>(a), _mm512_set1_epi32(static_cast<int>(b))));
  } else
#endif
      if constexpr (sizeof(Split) == 32) {
    return bits_as<Split>(
        _mm256_mul_epu32(bits_as<__m256i>(a), _mm256_set1_epi32(static_cast<int>(b))));
  } else if constexpr (sizeof(Split) == 16) {
    return bits_as<Split>(_mm_mul_epu32(bits_as<__m128i>(a), _mm_set1_epi32(static_cast<int>(b))));
  } else
#endif
  {
    return (a & 0xFFFFFFFFU) * b;
  }
}

}  // namespace CPD_ISA
}  // namespace cpd
