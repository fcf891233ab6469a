// SPDX-License-Identifier: Apache-2.0
//
// The Hadamard transform (hadamard.h) of a group of values, for every lane type.
#pragma once

#include "cpd/numeric/lanes/lanes.h"
#include "cpd/numeric/round/round.h"
#include "cpd/numeric/scaled/hadamard_plan.h"

namespace cpd {

/// Unrolls the next loop at most 32 times, so that the group's values stay in registers. Unrolling
/// it more often takes the compiler minutes. The scalar kernels do not unroll the loop, because
/// they have too few registers.
#if defined(__CUDACC__)
#define CPD_UNROLLED _Pragma("unroll 32")
#elif defined(__AVX2__) || defined(CPD_NEON)
#define CPD_UNROLLED _Pragma("GCC unroll 32")
#else
#define CPD_UNROLLED
#endif

inline namespace CPD_ISA {

/// Passes the size of the plan's Hadamard transform to `run` as a template argument:
/// run.operator()<size>(). The compiler can then unroll the transform's loops.
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

/// Does one stage of a Hadamard transform between lanes at distance kDistance: a swap, an
/// exclusive-or of signs and an addition.
template <int kDistance, class V>
CPD_FN V stage_of_lanes(V x) {
  using U = Unsigned<V>;
  constexpr int kLast = 8 * static_cast<int>(sizeof(Scalar<V>)) - 1;
  const U second = (iota<U>() >> __builtin_ctz(kDistance)) << kLast;  // sign bits
  return swap_lanes<kDistance>(x) + bits_as<V>(bits_as<U>(x) ^ second);
}

/// Does the stages of a Hadamard transform between the lanes of x, at distances kDistance, 2
/// kDistance, … below kEnd lanes.
template <int kDistance, int kEnd, class V>
CPD_FN V stages_of_lanes(V x) {
  if constexpr (kDistance < kEnd) {
    return stages_of_lanes<2 * kDistance, kEnd>(stage_of_lanes<kDistance>(x));
  } else {
    return x;
  }
}

/// Does the stages of a Hadamard transform between kCount values, at distances kDistance, 2
/// kDistance, …. Each stage takes kCount additions.
template <int kDistance, int kCount, class V>
CPD_FN void stages_between(V* v) {
  if constexpr (kDistance < kCount) {
    CPD_UNROLLED for (int i = 0; i < kCount; i += 2 * kDistance) {
      CPD_UNROLLED for (int j = i; j < i + kDistance; ++j) {
        const V a = v[j];
        const V b = v[j + kDistance];
        v[j] = a + b;
        v[j + kDistance] = a - b;
      }
    }
    stages_between<2 * kDistance, kCount>(v);
  }
}

/// The number of vectors V that hold a group of a Hadamard transform. With kAlong, a group's values
/// are neighboring lanes; a V with more lanes than values holds several groups. Without kAlong,
/// each V holds one value of each of several groups.
template <int kSize, bool kAlong, class V>
constexpr int kHadamardCount = !kAlong                   ? kSize
                               : kSize > Lanes<V>::count ? kSize / Lanes<V>::count
                                                         : 1;

/// Does the Hadamard transform of a group in place. The lanes of V are binary64 if plan.to_bf16,
/// else binary32. Results are binary32 values.
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
  if constexpr (Lanes<V>::mantissa == 52) {
    for (int k = 0; k < kCount; ++k) {
      const V y = v[k] * scale * factor(plan.after, k) + V{};
      v[k] = round<Rounding::nearest_even>(y, Unsigned<V>{}, plan.bf16);
    }
  } else {
    const V nan = bits_as<V>(splat<Unsigned<V>>(Pattern<V>::quiet_nan));
    CPD_UNROLLED for (int k = 0; k < kCount; ++k) {
      const V y = v[k] * scale * factor(plan.after, k);
      v[k] = select(y == y, y, nan);
    }
  }
}

}  // namespace CPD_ISA
}  // namespace cpd
