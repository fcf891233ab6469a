// SPDX-License-Identifier: Apache-2.0
//
// The primitives of lanes.h for any lane type. A float lane type is `float`, `double`, or a vector
// of them; it has an unsigned and a signed integer type of the same shape. Kernels use only
// + - * & | ^ << >> < > == and these primitives. A primitive that is deleted, or restricted to
// scalars, here has a definition for vectors in each instruction set's file.
#pragma once

#include <cstdint>

#include "cpd/numeric/lanes/isa.h"

namespace cpd {
inline namespace CPD_ISA {

// --- types ---------------------------------------------------------------------------------------

/// The traits of a float lane type V: its integer types, the number of lanes, the layout of a lane.
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

/// True if T is a vector (else a scalar).
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

/// The vectors of 32-bit elements with as many lanes as the float lane type V.
template <class V>
struct Narrow {
  using F32 = float;
  using U32 = std::uint32_t;
  using I32 = std::int32_t;
};

/// The 64-bit lanes that hold the 32-bit lanes of U in pairs (of one lane: that lane, widened).
template <class U>
struct SplitLanes {
  using type = std::uint64_t;
};
template <class U>
using SplitOf = typename SplitLanes<U>::type;

// --- bits and masks ------------------------------------------------------------------------------

/// The bits of x as another type of the same shape.
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

/// 0, 1, 2, … from the first lane on.
template <class U>
CPD_FN constexpr U iota() {
  U x{};
  if constexpr (kIsVector<U>) {
    for (unsigned lane = 0; lane < sizeof(U) / sizeof(x[0]); ++lane) x[lane] = lane;
  }
  return x;
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

/// x - 1 where the mask is set, else x.
template <class U, class Mask>
CPD_FN constexpr U less_one(U x, Mask mask) {
  if constexpr (kIsVector<Mask>) {
    return x + (U)mask;  // the mask's lanes are -1 or 0
  } else {
    return mask ? x - 1 : x;
  }
}

/// A mask without the lanes of another.
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

/// A mask of 32-bit lanes as one bit a lane; the first lane's is the lowest.
CPD_FN constexpr std::uint32_t mask_bits(bool mask) { return mask ? 1 : 0; }

/// max: the larger of two signed integers, lane by lane; min: the smaller.
template <class I>
CPD_FN constexpr I max(I a, I b) {
  return select(a > b, a, b);
}
template <class I>
CPD_FN constexpr I min(I a, I b) {
  return select(a < b, a, b);
}

/// The largest of the lanes of 32-bit integers.
CPD_FN constexpr std::int32_t largest_lane(std::int32_t x) { return x; }

/// a << count and a >> count lane by lane. A count of the lane's width or more gives 0: C++'s
/// operators leave that undefined, x86's vector shifts do it.
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

/// a << count and a >> count with one count for all lanes, below the lane's width. (AVX-512 takes a
/// count from a vector with one operation, from a scalar with two.)
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

/// The high half of each 64-bit lane in its low half; the high half is unspecified.
template <class Split>
CPD_FN constexpr Split high_half(Split x) {
  return x >> 32;
}
/// x ^ a ^ b, of which x is known last.
template <class U>
CPD_FN constexpr U xor_last(U x, U a, U b) {
  return x ^ a ^ b;
}
/// low_lanes: the even lanes of x in the low halves of 64-bit lanes; high_lanes: the odd ones. The
/// high halves are unspecified.
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
/// Returns 32-bit lanes: even ones from the low halves of `even`, odd ones from those in `odd`.
template <class U>
CPD_FN constexpr U join_lanes(SplitOf<U> even, SplitOf<U> odd) {
  if constexpr (sizeof(U) > 4) {
    return bits_as<U>((even & splat<SplitOf<U>>(0xFFFFFFFFU)) | (odd << 32));
  } else {
    return static_cast<U>(even);
  }
}

/// The 64-bit product of each lane's low half with b.
template <class Split>
CPD_FN constexpr Split mul_low(Split a, std::uint32_t b) {
  static_assert(!kIsVector<Split>);
  return (a & 0xFFFFFFFFU) * b;
}

/// x with lane l replaced by lane l ^ kDistance, a power of two below the number of lanes.
template <int kDistance, class V>
V swap_lanes(V x) = delete;

/// The larger of a + b and c in each half of 32-bit words, as signed integers of 16 bits; the sums
/// do not overflow.
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

/// load: a T from memory of any alignment; store: a T to it.
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

/// A non-temporal store where T is a vector (then `to` is aligned to sizeof(T)), else store().
template <class T, class S>
CPD_FN void store_streaming(S* to, T x) {
  static_assert(!kIsVector<T>);
  store(to, x);
}
/// Orders streaming stores of V before later accesses.
template <class V>
CPD_FN void fence_streaming() {
  static_assert(!kIsVector<V>);
}

/// x with each lane converted to To's element type (exact in all uses here).
template <class To, class From>
CPD_FN constexpr To convert(From x) {
  if constexpr (kIsVector<To>) {
    return __builtin_convertvector(x, To);
  } else {
    return static_cast<To>(x);
  }
}

/// load_f32: lanes of V from binary32 numbers in memory; store_f32: to them (exact where the lanes
/// hold binary32 values).
template <class V>
CPD_FN V load_f32(const float* from) {
  return convert<V>(load<typename Narrow<V>::F32>(from));
}
template <class V>
CPD_FN void store_f32(float* to, V x) {
  store(to, convert<typename Narrow<V>::F32>(x));
}
/// load_u32: V's unsigned lanes from 32-bit integers in memory; store_u32: to them.
template <class V>
CPD_FN Unsigned<V> load_u32(const std::uint32_t* from) {
  return convert<Unsigned<V>>(load<typename Narrow<V>::U32>(from));
}
template <class V>
CPD_FN void store_u32(std::uint32_t* to, Unsigned<V> x) {
  store(to, convert<typename Narrow<V>::U32>(x));
}
/// V's signed lanes from signed 32-bit integers in memory.
template <class V>
CPD_FN Signed<V> load_i32(const std::int32_t* from) {
  return convert<Signed<V>>(load<typename Narrow<V>::I32>(from));
}

// --- arithmetic ----------------------------------------------------------------------------------

/// x rounded to an integer toward zero, in binary64 lanes; Inf and NaN are unchanged.
template <class V>
CPD_FN constexpr V truncate(V x) {
  static_assert(Lanes<V>::mantissa == 52);
  const bool has_fraction = x > -0x1p52 && x < 0x1p52;
  return has_fraction ? static_cast<double>(static_cast<std::int64_t>(x)) : x;
}

/// a * b + c rounded once to nearest even.
template <class V>
CPD_FN V fma(V a, V b, V c) {
  if constexpr (sizeof(V) == 4) {
    return __builtin_fmaf(a, b, c);
  } else {
    return __builtin_fma(a, b, c);
  }
}

/// c - a * b rounded once to nearest even.
template <class V>
CPD_FN V negative_fma(V a, V b, V c) {
  return fma(-a, b, c);
}

/// The square root rounded once to nearest even.
template <class V>
CPD_FN V square_root(V x) {
  if constexpr (sizeof(V) == 4) {
    return __builtin_sqrtf(x);
  } else {
    return __builtin_sqrt(x);
  }
}

/// True if an fma of V rounded in a direction (fma_toward) is one instruction.
template <class V>
constexpr bool kHasDirectedRounding = false;

enum class Toward : std::uint8_t { zero, down, up };

/// a * b + c rounded once in the direction, where kHasDirectedRounding<V>. CUDA: binary32 alone.
template <Toward toward, class V>
V fma_toward(V a, V b, V c) = delete;

/// The larger of |x| and |y|; neither is NaN.
template <class V>
CPD_FN V larger_magnitude(V x, V y) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using E = typename ElementOf<U>::type;
  const U magnitude = splat<U>(static_cast<E>(static_cast<E>(~E{0}) >> 1));
  return bits_as<V>(max((I)(bits_as<U>(x) & magnitude), (I)(bits_as<U>(y) & magnitude)));
}

/// True if at_least takes at most one instruction more than a maximum does.
template <class V>
constexpr bool kHasSignedMaximum = false;

/// x where |x| > least, else (also for NaN) `least` with x's sign; least > 0.
template <class V>
CPD_FN V at_least(V x, V least) {
  using U = Unsigned<V>;
  using E = typename ElementOf<U>::type;
  const U magnitude = splat<U>(static_cast<E>(static_cast<E>(~E{0}) >> 1));
  const V size = bits_as<V>(bits_as<U>(x) & magnitude);
  const U larger = bits_as<U>(select(size > least, size, least));
  return bits_as<V>(larger | (bits_as<U>(x) & ~magnitude));
}

/// x where |x| <= most or x is NaN, else `instead`, which is not negative, with x's sign.
template <class V>
CPD_FN V at_most(V x, V most, V instead) {
  using U = Unsigned<V>;
  using E = typename ElementOf<U>::type;
  const U magnitude = splat<U>(static_cast<E>(static_cast<E>(~E{0}) >> 1));
  const V size = bits_as<V>(bits_as<U>(x) & magnitude);
  const V with_sign = bits_as<V>(bits_as<U>(instead) | (bits_as<U>(x) & ~magnitude));
  return select(size > most, with_sign, x);
}

/// (x & mask) | set, lane by lane.
template <class U>
CPD_FN U merge_bits(U x, U mask, U set) {
  return (x & mask) | set;
}

/// a + b, a * b and a * b + c in an environment that rounds toward zero (environment.h); in a CUDA
/// thread by instructions that do, in any.
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

/// x where |x| < most, else `most` with x's sign; most > 0, x is not NaN.
template <class V>
CPD_FN V clamped(V x, V most) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using E = typename ElementOf<U>::type;
  const U magnitude = splat<U>(static_cast<E>(static_cast<E>(~E{0}) >> 1));
  const I size = min((I)(bits_as<U>(x) & magnitude), bits_as<I>(most));
  return bits_as<V>((U)size | (bits_as<U>(x) & ~magnitude));
}

/// x with t's sign bit or-ed in where `sign` is -0; x itself where `sign` is +0.
template <class V>
CPD_FN V with_sign_of(V x, V t, V sign) {
  using U = Unsigned<V>;
  return bits_as<V>(bits_as<U>(x) | (bits_as<U>(t) & bits_as<U>(sign)));
}

/// a where its last bit is 1, else b.
template <class V>
CPD_FN V odd_one(V a, V b) {
  using U = Unsigned<V>;
  return select((bits_as<U>(a) & splat<U>(1)) != U{}, a, b);
}

/// Returns whether every lane is at most `limit`; false where one is NaN.
template <class V>
CPD_FN bool all_at_most(V x, Scalar<V> limit) {
  return x <= limit;
}

// --- vectors of 32-bit integers only -------------------------------------------------------------

/// Returns the vector with lane l = x[from[l]]. from[l] is below the number of lanes.
template <class U>
U permute(U x, U from) = delete;
/// Returns the even-numbered words of a, then the even-numbered words of b.
template <class U>
U even_words(U a, U b) = delete;
/// x with the first word of each pair (a, b) replaced by a | b << bits; 0 < bits < 32.
template <class U>
U merge_pairs(U x, int bits) = delete;

/// Stores the low 16, 8 or 4 bits of each lane contiguously, without gaps; with 4 (store_nibbles),
/// the other bits of x are 0.
template <class U>
void store_halves(std::uint8_t* to, U x) = delete;
template <class U>
void store_bytes(std::uint8_t* to, U x) = delete;
template <class U>
void store_nibbles(std::uint8_t* to, U x) = delete;
/// Loads one 16-bit word, or one byte, into each lane, zero-extended.
template <class U>
U load_halves(const std::uint8_t* from) = delete;
template <class U>
U load_bytes(const std::uint8_t* from) = delete;

/// True if U has gather_bytes.
template <class U>
constexpr bool kGathersBytes = false;
/// Returns lanes of four of the 16 bytes at each `from`. The bytes of `places` are their indices.
template <class U>
U gather_bytes(const std::uint8_t* from, U places) = delete;

}  // namespace CPD_ISA
}  // namespace cpd
