// SPDX-License-Identifier: Apache-2.0
//
// The primitives of lanes.h for any lane type. A float lane type is `float`, `double`, or a vector
// of floats or doubles. It has an unsigned and a signed integer type of the same shape. Kernels use
// only + - * & | ^ << >> < > == and these primitives. If a primitive is deleted or restricted to
// scalars in this file, each instruction set's file defines it for vectors.
#pragma once

#include <cstdint>

#include "cpd/numeric/lanes/isa.h"

namespace cpd {
inline namespace CPD_ISA {

// --- types ---------------------------------------------------------------------------------------

/// The traits of a float lane type V: its integer types, its number of lanes and the layout of a
/// lane.
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

template <class V>
using Unsigned = typename Lanes<V>::U;
template <class V>
using Signed = typename Lanes<V>::I;
template <class V>
using Scalar = typename Lanes<V>::Scalar;

/// True if T is a vector, false if T is a scalar.
template <class T>
constexpr bool kIsVector = requires(T x) { x[0]; };

/// The type of one lane of T; T itself for a scalar.
template <class T, bool = kIsVector<T>>
struct ElementOf {
  using type = T;
};
template <class T>
struct ElementOf<T, true> {
  using type = __typeof__(T{}[0] + T{}[0]);
};

/// The vector types of 32-bit elements that have as many lanes as the float lane type V.
template <class V>
struct Narrow {
  using F32 = float;
  using U32 = std::uint32_t;
  using I32 = std::int32_t;
};

/// The type of 64-bit lanes that has the size of U: each lane holds a pair of 32-bit lanes of U.
/// For a scalar U, the type is one 64-bit integer.
template <class U>
struct SplitLanes {
  using type = std::uint64_t;
};
template <class U>
using SplitOf = typename SplitLanes<U>::type;

// --- bits and masks ------------------------------------------------------------------------------

/// Returns the bits of x as another type of the same shape.
template <class To, class From>
CPD_FN constexpr To bits_as(From x) {
  return __builtin_bit_cast(To, x);
}

/// Returns a vector with x in every lane.
template <class T, class S>
CPD_FN constexpr T splat(S x) {
  using Element = typename ElementOf<T>::type;
  return static_cast<Element>(x) - T{};
}

/// Returns a vector whose lanes are 0, 1, 2, … from the first lane on.
template <class U>
CPD_FN constexpr U iota() {
  U x{};
  if constexpr (kIsVector<U>) {
    for (unsigned lane = 0; lane < sizeof(U) / sizeof(x[0]); ++lane) x[lane] = lane;
  }
  return x;
}

/// Returns 2^k in binary64, for -1022 <= k <= 1023.
CPD_FN constexpr double exact_power(int k) {
  return bits_as<double>(static_cast<std::uint64_t>(k + 1023) << 52);
}

/// Returns a where the mask (the result of a comparison) is set, else b.
template <class Mask, class T>
CPD_FN constexpr T select(Mask mask, T a, T b) {
  return mask ? a : b;
}

/// Returns x - 1 where the mask is set, else x.
template <class U, class Mask>
CPD_FN constexpr U less_one(U x, Mask mask) {
  if constexpr (kIsVector<Mask>) {
    return x + (U)mask;  // the mask's lanes are -1 or 0
  } else {
    return mask ? x - 1 : x;
  }
}

/// Returns `mask` without the lanes that are set in `other`.
template <class Mask>
CPD_FN constexpr Mask without(Mask mask, Mask other) {
  if constexpr (kIsVector<Mask>) {
    return mask & ~other;
  } else {
    return mask && !other;
  }
}

/// Returns whether a mask of 32-bit lanes (a comparison's result) is set in any lane.
CPD_FN constexpr bool any(bool mask) { return mask; }

/// Returns a mask of 32-bit lanes as an integer with one bit for each lane. The first lane is the
/// lowest bit.
CPD_FN constexpr std::uint32_t mask_bits(bool mask) { return mask ? 1 : 0; }

/// max returns the larger of two signed integers, lane by lane; min returns the smaller.
template <class I>
CPD_FN constexpr I max(I a, I b) {
  return select(a > b, a, b);
}
template <class I>
CPD_FN constexpr I min(I a, I b) {
  return select(a < b, a, b);
}

/// Returns the largest of the lanes of 32-bit integers.
CPD_FN constexpr std::int32_t largest_lane(std::int32_t x) { return x; }

/// shift_left returns a << count and shift_right returns a >> count, lane by lane. A count of the
/// lane's width or more gives 0, as in x86's vector shifts. C++'s operators leave that case
/// undefined.
template <class U>
CPD_FN constexpr U shift_left(U a, U count) {
  static_assert(!kIsVector<U>);
  return count < 8 * sizeof(U) ? a << count : U{};
}
template <class U>
CPD_FN constexpr U shift_right(U a, U count) {
  static_assert(!kIsVector<U>);
  return count < 8 * sizeof(U) ? a >> count : U{};
}

/// Shifts all lanes by one count, which must be below the lane's width. (AVX-512 needs one
/// operation for a count from a vector, but two for a count from a scalar.)
template <class U>
CPD_FN constexpr U shift_left(U a, int count) {
  if constexpr (kIsVector<U>) return shift_left(a, splat<U>(count));
  return a << count;
}
template <class U>
CPD_FN constexpr U shift_right(U a, int count) {
  if constexpr (kIsVector<U>) return shift_right(a, splat<U>(count));
  return a >> count;
}

/// Returns the high half of each 64-bit lane, moved to the low half. The high half of the result is
/// unspecified.
template <class Split>
CPD_FN constexpr Split high_half(Split x) {
  return x >> 32;
}
/// Returns x ^ a ^ b. Use xor_last if x is computed later than a and b: it computes a ^ b first.
template <class U>
CPD_FN constexpr U xor_last(U x, U a, U b) {
  return x ^ a ^ b;
}
/// low_lanes returns the even 32-bit lanes of x, each in the low half of a 64-bit lane. high_lanes
/// returns the odd lanes in the same way. The high halves of the results are unspecified.
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
  return high_half(low_lanes(x));
}
/// Joins two vectors of 64-bit lanes to one of 32-bit lanes. The even lanes are the low halves of
/// the lanes of `even`. The odd lanes are the low halves of the lanes of `odd`.
template <class U>
CPD_FN constexpr U join_lanes(SplitOf<U> even, SplitOf<U> odd) {
  if constexpr (sizeof(U) > 4) {
    return bits_as<U>((even & splat<SplitOf<U>>(0xFFFFFFFFU)) | (odd << 32));
  } else {
    return static_cast<U>(even);
  }
}

/// Returns the 64-bit product of b and the low half of each lane.
template <class Split>
CPD_FN constexpr Split mul_low(Split a, std::uint32_t b) {
  static_assert(!kIsVector<Split>);
  return (a & 0xFFFFFFFFU) * b;
}

/// Returns x with lanes l and l ^ kDistance exchanged. kDistance is a power of two below the number
/// of lanes.
template <int kDistance, class V>
V swap_lanes(V x) = delete;

/// Returns the larger of a + b and c in each 16-bit half of the 32-bit words a, b and c. The halves
/// are signed integers. The sums must not overflow.
template <class U>
CPD_FN constexpr U larger_of_sum(U a, U b, U c) {
  static_assert(!kIsVector<U> && sizeof(U) == 4);
  const auto low = static_cast<std::int16_t>((a & 0xFFFF) + (b & 0xFFFF));
  const auto high = static_cast<std::int16_t>((a >> 16) + (b >> 16));
  const auto first = max(std::int32_t{low}, std::int32_t{static_cast<std::int16_t>(c & 0xFFFF)});
  const auto second = max(std::int32_t{high}, std::int32_t{static_cast<std::int16_t>(c >> 16)});
  return (static_cast<U>(second) << 16) | (static_cast<U>(first) & 0xFFFF);
}

// --- memory --------------------------------------------------------------------------------------

/// load reads a T from memory of any alignment, and store writes a T to such memory.
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

/// Stores x with a non-temporal store if T is a vector; `to` must then be aligned to sizeof(T). If
/// T is a scalar, the function is store().
template <class T, class S>
CPD_FN void store_streaming(S* to, T x) {
  static_assert(!kIsVector<T>);
  store(to, x);
}
/// Orders the streaming stores of V before later memory accesses.
template <class V>
CPD_FN void fence_streaming() {
  static_assert(!kIsVector<V>);
}

/// Returns x with each lane converted to the element type of To. The conversion is exact in all
/// uses in CPD.
template <class To, class From>
CPD_FN constexpr To convert(From x) {
  if constexpr (kIsVector<To>) {
    return __builtin_convertvector(x, To);
  } else {
    return static_cast<To>(x);
  }
}

/// load_f32 loads lanes of V from binary32 numbers in memory. store_f32 stores lanes as binary32
/// numbers, exactly if the lanes hold binary32 values.
template <class V>
CPD_FN V load_f32(const float* from) {
  return convert<V>(load<typename Narrow<V>::F32>(from));
}
template <class V>
CPD_FN void store_f32(float* to, V x) {
  store(to, convert<typename Narrow<V>::F32>(x));
}
/// load_u32 loads the unsigned lanes of V from 32-bit integers in memory, and store_u32 stores such
/// lanes.
template <class V>
CPD_FN Unsigned<V> load_u32(const std::uint32_t* from) {
  return convert<Unsigned<V>>(load<typename Narrow<V>::U32>(from));
}
template <class V>
CPD_FN void store_u32(std::uint32_t* to, Unsigned<V> x) {
  store(to, convert<typename Narrow<V>::U32>(x));
}
/// Loads the signed lanes of V from signed 32-bit integers in memory.
template <class V>
CPD_FN Signed<V> load_i32(const std::int32_t* from) {
  return convert<Signed<V>>(load<typename Narrow<V>::I32>(from));
}

// --- arithmetic ----------------------------------------------------------------------------------

/// Returns x rounded to an integer toward zero, in binary64 lanes. Inf and NaN are unchanged.
template <class V>
CPD_FN constexpr V truncate(V x) {
  static_assert(Lanes<V>::mantissa == 52);
  const bool has_fraction = x > -0x1p52 && x < 0x1p52;
  return has_fraction ? static_cast<double>(static_cast<std::int64_t>(x)) : x;
}

/// Returns a * b + c rounded once to nearest even.
template <class V>
CPD_FN V fma(V a, V b, V c) {
  if constexpr (sizeof(V) == 4) {
    return __builtin_fmaf(a, b, c);
  } else {
    return __builtin_fma(a, b, c);
  }
}

/// Returns c - a * b rounded once to nearest even.
template <class V>
CPD_FN V negative_fma(V a, V b, V c) {
  return fma(-a, b, c);
}

/// Returns the square root of x rounded once to nearest even.
template <class V>
CPD_FN V square_root(V x) {
  if constexpr (sizeof(V) == 4) {
    return __builtin_sqrtf(x);
  } else {
    return __builtin_sqrt(x);
  }
}

/// True if a fused multiply-add of V that rounds in a given direction (fma_toward) is one
/// instruction.
template <class V>
constexpr bool kHasDirectedRounding = false;

enum class Toward : std::uint8_t { zero, down, up };

/// Returns a * b + c rounded once in the direction `toward`. Defined only if
/// kHasDirectedRounding<V>; in CUDA, only for binary32.
template <Toward toward, class V>
V fma_toward(V a, V b, V c) = delete;

/// Returns the larger of |x| and |y|. Neither x nor y may be NaN.
template <class V>
CPD_FN V larger_magnitude(V x, V y) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using E = typename ElementOf<U>::type;
  const U magnitude = splat<U>(static_cast<E>(static_cast<E>(~E{0}) >> 1));
  return bits_as<V>(max((I)(bits_as<U>(x) & magnitude), (I)(bits_as<U>(y) & magnitude)));
}

/// True if at_least takes at most one instruction more than the maximum of two numbers.
template <class V>
constexpr bool kHasSignedMaximum = false;

/// Returns x if |x| > least, else `least` with the sign of x, also if x is NaN. `least` must be
/// above 0.
template <class V>
CPD_FN V at_least(V x, V least) {
  using U = Unsigned<V>;
  using E = typename ElementOf<U>::type;
  const U magnitude = splat<U>(static_cast<E>(static_cast<E>(~E{0}) >> 1));
  const V size = bits_as<V>(bits_as<U>(x) & magnitude);
  const U larger = bits_as<U>(select(size > least, size, least));
  return bits_as<V>(larger | (bits_as<U>(x) & ~magnitude));
}

/// Returns x if |x| <= most or x is NaN, else `instead` with the sign of x. `instead` must not be
/// negative.
template <class V>
CPD_FN V at_most(V x, V most, V instead) {
  using U = Unsigned<V>;
  using E = typename ElementOf<U>::type;
  const U magnitude = splat<U>(static_cast<E>(static_cast<E>(~E{0}) >> 1));
  const V size = bits_as<V>(bits_as<U>(x) & magnitude);
  const V with_sign = bits_as<V>(bits_as<U>(instead) | (bits_as<U>(x) & ~magnitude));
  return select(size > most, with_sign, x);
}

/// Returns (x & mask) | set, lane by lane.
template <class U>
CPD_FN U merge_bits(U x, U mask, U set) {
  return (x & mask) | set;
}

/// Return a + b, a * b and a * b + c rounded toward zero. On a CPU, the environment must round
/// toward zero (environment.h). A CUDA thread uses instructions that round toward zero in any
/// environment.
template <class V>
CPD_FN V add_toward_zero(V a, V b) {
  return a + b;
}
template <class V>
CPD_FN V mul_toward_zero(V a, V b) {
  return a * b;
}
template <class V>
CPD_FN V fma_toward_zero(V a, V b, V c) {
  return fma(a, b, c);
}

/// Returns x if |x| < most, else `most` with the sign of x. `most` must be above 0, and x must not
/// be NaN.
template <class V>
CPD_FN V clamped(V x, V most) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using E = typename ElementOf<U>::type;
  const U magnitude = splat<U>(static_cast<E>(static_cast<E>(~E{0}) >> 1));
  const I size = min((I)(bits_as<U>(x) & magnitude), bits_as<I>(most));
  return bits_as<V>((U)size | (bits_as<U>(x) & ~magnitude));
}

/// If `sign` is -0, returns the bitwise or of x and t's sign bit. If `sign` is +0, returns x.
template <class V>
CPD_FN V with_sign_of(V x, V t, V sign) {
  using U = Unsigned<V>;
  return bits_as<V>(bits_as<U>(x) | (bits_as<U>(t) & bits_as<U>(sign)));
}

/// Returns a if its last bit is 1, else b.
template <class V>
CPD_FN V odd_one(V a, V b) {
  using U = Unsigned<V>;
  return select((bits_as<U>(a) & splat<U>(1)) != U{}, a, b);
}

/// Returns whether every lane is at most `limit`. Returns false if a lane is NaN.
template <class V>
CPD_FN bool all_at_most(V x, Scalar<V> limit) {
  return x <= limit;
}

// --- vectors of 32-bit integers only -------------------------------------------------------------

/// Returns a vector whose lane l is x[from[l]]. Each from[l] must be below the number of lanes.
template <class U>
U permute(U x, U from) = delete;
/// Returns the even-numbered words of a, then the even-numbered words of b.
template <class U>
U even_words(U a, U b) = delete;
/// Returns x with the first word of each pair (a, b) replaced by a | b << bits, where 0 < bits <
/// 32.
template <class U>
U merge_pairs(U x, int bits) = delete;

/// Stores the low 16, 8 or 4 bits of each lane contiguously, without gaps. For store_nibbles (4
/// bits), the other bits of x must be 0.
template <class U>
void store_halves(std::uint8_t* to, U x) = delete;
template <class U>
void store_bytes(std::uint8_t* to, U x) = delete;
template <class U>
void store_nibbles(std::uint8_t* to, U x) = delete;
/// Load one 16-bit word (load_halves) or one byte (load_bytes) into each lane, zero-extended.
template <class U>
U load_halves(const std::uint8_t* from) = delete;
template <class U>
U load_bytes(const std::uint8_t* from) = delete;

/// True if gather_bytes is defined for U.
template <class U>
constexpr bool kGathersBytes = false;
/// Returns lanes of four bytes each, gathered from the 16 bytes at `from`. Each byte of `places` is
/// the index, in these 16 bytes, of a byte of the result.
template <class U>
U gather_bytes(const std::uint8_t* from, U places) = delete;

}  // namespace CPD_ISA
}  // namespace cpd
