// SPDX-License-Identifier: Apache-2.0
//
// The primitives of lanes.h for any lane type. A float lane type is `float`, `double`, or a vector
// of them; with it go an unsigned and a signed integer type of the same shape. Kernels use only
// + - * & | ^ << >> < > == and these primitives. What has no form here is its instruction set's.
#pragma once

#include <cstdint>

#include "cpd/numeric/lanes/isa.h"

namespace cpd {
inline namespace CPD_ISA {

// --- types ---------------------------------------------------------------------------------------

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

template <class V>
using Unsigned = typename Lanes<V>::U;
template <class V>
using Signed = typename Lanes<V>::I;
template <class V>
using Scalar = typename Lanes<V>::Scalar;

/// Whether T is a vector, else a scalar.
template <class T>
constexpr bool kIsVector = requires(T x) { x[0]; };

/// The scalar in a lane of T, which is T itself for a scalar.
template <class T, bool = kIsVector<T>>
struct ElementOf {
  using type = T;
};
template <class T>
struct ElementOf<T, true> {
  using type = __typeof__(T{}[0] + T{}[0]);
};

/// For a float lane type: vectors of as many 32-bit elements.
template <class V>
struct Narrow {
  using F32 = float;
  using U32 = std::uint32_t;
  using I32 = std::int32_t;
};

/// 32-bit lanes two by two in 64-bit ones (for one lane, the lane widened).
template <class U>
struct SplitLanes {
  using type = std::uint64_t;
};
template <class U>
using SplitOf = typename SplitLanes<U>::type;

// --- bits and masks ------------------------------------------------------------------------------

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

/// Whether a mask of 32-bit lanes (a comparison's result) is set in any lane.
CPD_FN constexpr bool any(bool mask) { return mask; }

/// Such a mask as bits, the first lane's the lowest.
CPD_FN constexpr std::uint32_t mask_bits(bool mask) { return mask ? 1 : 0; }

/// The larger and the smaller of signed integers.
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

/// a << count and a >> count lane by lane; a count of the lane's width or more gives 0, which the
/// plain operators leave undefined and every vector unit does by itself.
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

/// The same by one count below the lane's width. (Vector units take a count from a vector with one
/// operation, from a scalar with two.)
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

/// Lane l takes the lane l ^ kDistance; kDistance is a power of two below the count of lanes.
template <int kDistance, class V>
V swap_lanes(V x) = delete;

// --- memory --------------------------------------------------------------------------------------

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

/// store() past the caches where T is a whole vector; `to` is then aligned to sizeof(T).
template <class T, class S>
CPD_FN void store_streaming(S* to, T x) {
  static_assert(!kIsVector<T>);
  store(to, x);
}
/// Orders streaming stores of V before what follows.
template <class V>
CPD_FN void fence_streaming() {
  static_assert(!kIsVector<V>);
}

/// Lanes of another element type, converted value by value (exact in all uses here).
template <class To, class From>
CPD_FN constexpr To convert(From x) {
  if constexpr (kIsVector<To>) {
    return __builtin_convertvector(x, To);
  } else {
    return static_cast<To>(x);
  }
}

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

// --- arithmetic ----------------------------------------------------------------------------------

/// Binary64 lanes without their fractions; Inf and NaN stay.
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

/// Lanes for which the roundings toward minus and plus infinity below are one instruction each.
template <class V>
constexpr bool kHasDirectedRounding = false;

enum class Toward : std::uint8_t { zero, down, up };

/// a * b + c rounded once in the direction; on a CUDA thread in binary32. Only where
/// kHasDirectedRounding.
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

/// x where |x| > least, elsewhere, also for NaN, `least` with x's sign; least > 0.
template <class V>
CPD_FN V at_least(V x, V least) {
  using U = Unsigned<V>;
  using E = typename ElementOf<U>::type;
  const U magnitude = splat<U>(static_cast<E>(static_cast<E>(~E{0}) >> 1));
  const V size = bits_as<V>(bits_as<U>(x) & magnitude);
  const U larger = bits_as<U>(select(size > least, size, least));
  return bits_as<V>(larger | (bits_as<U>(x) & ~magnitude));
}

/// x where |x| <= most or x is NaN, elsewhere `instead`, which is not negative, with x's sign.
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

/// x where |x| < most, elsewhere `most` with x's sign; most > 0, x is not NaN.
template <class V>
CPD_FN V clamped(V x, V most) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using E = typename ElementOf<U>::type;
  const U magnitude = splat<U>(static_cast<E>(static_cast<E>(~E{0}) >> 1));
  const I size = min((I)(bits_as<U>(x) & magnitude), bits_as<I>(most));
  return bits_as<V>((U)size | (bits_as<U>(x) & ~magnitude));
}

/// x with the bits that t and `sign` share, -0 or +0.
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

/// True where every lane is at most `limit`; false for NaN.
template <class V>
CPD_FN bool all_at_most(V x, Scalar<V> limit) {
  return x <= limit;
}

// --- vectors of 32-bit integers only -------------------------------------------------------------

/// The lanes of x in the order that `from` names, each lane number below the count of lanes.
template <class U>
U permute(U x, U from) = delete;
/// The words with even numbers of a, then those of b.
template <class U>
U even_words(U a, U b) = delete;
/// In each pair of words (a, b), the first becomes a | b << bits; 0 < bits < 32.
template <class U>
U merge_pairs(U x, int bits) = delete;

/// Stores the low 16, 8 or 4 bits of each lane side by side; of 4, the others are 0.
template <class U>
void store_halves(std::uint8_t* to, U x) = delete;
template <class U>
void store_bytes(std::uint8_t* to, U x) = delete;
template <class U>
void store_nibbles(std::uint8_t* to, U x) = delete;
/// As many 16-bit words, or bytes, one in each lane.
template <class U>
U load_halves(const std::uint8_t* from) = delete;
template <class U>
U load_bytes(const std::uint8_t* from) = delete;

}  // namespace CPD_ISA
}  // namespace cpd
