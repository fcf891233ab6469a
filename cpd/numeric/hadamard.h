// SPDX-License-Identifier: Apache-2.0
//
// Hadamard transforms of groups of neighbouring values: x' = (1 / sqrt n) H diag(s) x, where H is
// Sylvester's matrix of n rows (entry (i, j) is -1 to the number of ones that i and j share) and s
// are signs. The inverse is the transpose, (1 / sqrt n) diag(s) H.
//
// The order of the roundings, in binary32, or binary64 where the result is rounded into bf16:
//   1. signs (forward): exact;
//   2. log2 n stages, at distances d = 1, 2, 4, …: of values i and i + d, bit d of i clear, the
//      first becomes their sum and the second the first minus the second, each rounded once;
//   3. multiplication by 1 / sqrt n, itself rounded to nearest: by a power of two where log2 n is
//      even, so that only underflow and overflow round;
//   4. signs (inverse): exact;
//   5. where asked, one rounding into bf16, to nearest-even; before it an exact zero becomes +0, as
//      in a matrix product, whose sums start from +0.
// The stages are exact in binary64, and the bf16 result is then the exact one rounded once (log2 n
// even), where the inputs' significands have p bits and the exponents of those that are not zero
// differ by at most 53 - p - log2 n: 41 for bf16 inputs and n = 16. Sums of bf16 values reach
// neither end of binary64's range, as they would binary32's.
// NaN is the quiet NaN that CPD makes, whatever goes in.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "cpd/export.h"
#include "cpd/numeric/format.h"
#include "cpd/numeric/lanes/lanes.h"
#include "cpd/numeric/round.h"
#include "cpd/numeric/round_plan.h"

namespace cpd {

/// A transform: how many values a group has, which inputs change sign, and what the result is.
struct Hadamard {
  static constexpr int kMostSize = 128;
  /// Bit i % 32 of word i / 32 is set where input i is multiplied by -1.
  using Signs = std::array<std::uint32_t, kMostSize / 32>;
  /// Transformer Engine's, of 16 inputs: + + + - + - - - - - - + - + - -.
  static constexpr Signs kTe{0xD7E8U};

  int size = 16;  ///< a power of two, 2…128
  Signs signs{};
  bool to_bf16 = false;  ///< the result is rounded into bf16

  [[nodiscard]] constexpr bool negates(int i) const {
    return (signs[static_cast<std::size_t>(i / 32)] >> (i % 32) & 1U) != 0;
  }
  friend bool operator==(const Hadamard&, const Hadamard&) = default;
};

/// Throws Error unless the size is a power of two, 2…128, and no sign lies beyond it.
CPD_API void Check(const Hadamard& transform);
/// The canonical text: `hadamard16`, `hadamard16:te:bf16`, `hadamard32:signs=0x8000ff01`.
CPD_API std::string ToString(const Hadamard& transform);
/// Throws Error where it is no such text.
CPD_API Hadamard ParseHadamard(std::string_view text);
/// The transform with signs as its text has them: empty (none), `te` or `0x…`. Throws Error.
CPD_API Hadamard MakeHadamard(int size, std::string_view signs, bool to_bf16);

/// A transform and its direction as the kernels need them: plain data.
struct HadamardPlan {
  std::int32_t size = 16;
  bool to_bf16 = false;
  double scale = 0.25;  ///< 1 / sqrt size, to nearest, in binary64; as a float to nearest, too
  /// +1 or -1: factors before the stages and after them, of values i, i + size, i + 2 size, …
  float before[Hadamard::kMostSize]{};
  float after[Hadamard::kMostSize]{};
  RoundPlan bf16;
};

constexpr HadamardPlan make_hadamard_plan(const Hadamard& transform, bool inverse) {
  HadamardPlan plan;
  plan.size = transform.size;
  plan.to_bf16 = transform.to_bf16;
  plan.scale = 1;
  int n = transform.size;
  for (; n >= 4; n /= 4) plan.scale /= 2;
  if (n == 2) plan.scale *= 0x1.6a09e667f3bcdp-1;
  for (int i = 0; i < Hadamard::kMostSize; ++i) {
    const float sign = transform.negates(i % transform.size) ? -1.0F : 1.0F;
    plan.before[i] = inverse ? 1.0F : sign;
    plan.after[i] = inverse ? sign : 1.0F;
  }
  plan.bf16 = make_plan(Format{8, 7, 127}, {});
  return plan;
}

/// In front of a loop over a group's values, which then stay in registers.
#if defined(__CUDACC__)
#define CPD_UNROLLED _Pragma("unroll")
#else
#define CPD_UNROLLED _Pragma("GCC unroll 128")
#endif

inline namespace CPD_ISA {

/// Calls run.operator()<size>() for one of the sizes.
template <class Run>
CPD_FN void with_size(const HadamardPlan& plan, Run run) {
  switch (plan.size) {
    case 2:
      return run.template operator()<2>();
    case 4:
      return run.template operator()<4>();
    case 8:
      return run.template operator()<8>();
    case 16:
      return run.template operator()<16>();
    case 32:
      return run.template operator()<32>();
    case 64:
      return run.template operator()<64>();
    default:
      return run.template operator()<128>();
  }
}

/// The stage at a distance of so many lanes.
template <int kDistance, class V>
CPD_FN V stage_of_lanes(V x) {
  using U = Unsigned<V>;
  constexpr int kLast = 8 * static_cast<int>(sizeof(Scalar<V>)) - 1;
  const U second = (iota<U>() >> __builtin_ctz(kDistance)) << kLast;  // sign bits
  return swap_lanes<kDistance>(x) + bits_as<V>(bits_as<U>(x) ^ second);
}

/// The stages within each x, at distances kDistance, 2 kDistance, … below kEnd lanes.
template <int kDistance, int kEnd, class V>
CPD_FN V stages_of_lanes(V x) {
  if constexpr (kDistance < kEnd) {
    return stages_of_lanes<2 * kDistance, kEnd>(stage_of_lanes<kDistance>(x));
  } else {
    return x;
  }
}

/// The stages between kCount values, at distances kDistance, 2 kDistance, …
template <int kDistance, int kCount, class V>
CPD_FN void stages_between(V* v) {
  if constexpr (kDistance < kCount) {
    CPD_UNROLLED for (int i = 0; i < kCount; ++i) {
      if ((i & kDistance) != 0) continue;
      const V a = v[i];
      const V b = v[i + kDistance];
      v[i] = a + b;
      v[i + kDistance] = a - b;
    }
    stages_between<2 * kDistance, kCount>(v);
  }
}

/// How many V hold a group: side by side in the lanes (kAlong; several groups where the lanes are
/// more), or one value of each of several groups in each.
template <int kSize, bool kAlong, class V>
constexpr int kHadamardCount = !kAlong                   ? kSize
                               : kSize > Lanes<V>::count ? kSize / Lanes<V>::count
                                                         : 1;

/// Transforms a group. V's lanes are of binary64 where plan.to_bf16, else of binary32; results are
/// binary32 values.
template <int kSize, bool kAlong, class V>
CPD_FN void hadamard(V* v, const HadamardPlan& plan) {
  constexpr int kCount = kHadamardCount<kSize, kAlong, V>;
  constexpr int kLanes = Lanes<V>::count;
  const auto factor = [](const float* all, int k) {
    if constexpr (kAlong) return load_f32<V>(all + k * kLanes);
    return splat<V>(all[k]);
  };
  CPD_UNROLLED for (int k = 0; k < kCount; ++k) v[k] = v[k] * factor(plan.before, k);
  if constexpr (kAlong) {
    constexpr int kEnd = kSize < kLanes ? kSize : kLanes;
    CPD_UNROLLED for (int k = 0; k < kCount; ++k) v[k] = stages_of_lanes<1, kEnd>(v[k]);
  }
  stages_between<1, kCount>(v);
  const V scale = splat<V>(static_cast<Scalar<V>>(plan.scale));
  CPD_UNROLLED for (int k = 0; k < kCount; ++k) {
    const V y = v[k] * scale * factor(plan.after, k);
    if constexpr (Lanes<V>::mantissa == 52) {
      v[k] = round<Rounding::nearest_even>(y + V{}, Unsigned<V>{}, plan.bf16);
    } else {
      v[k] = select(y == y, y, bits_as<V>(splat<Unsigned<V>>(Pattern<V>::quiet_nan)));
    }
  }
}

}  // namespace CPD_ISA
}  // namespace cpd
