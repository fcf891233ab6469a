// SPDX-License-Identifier: Apache-2.0
//
// Hadamard transforms: groups side by side, whose stages begin within the lanes, and groups down
// columns, one in each lane.
#include "cpd/numeric/hadamard_stages.h"
#include "kernels/cpu/elements.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;

template <bool kStreaming, class V>
CPD_FN void put(float* y, V v) {
  if constexpr (kStreaming) {
    store_streaming(y, convert<typename Narrow<V>::F32>(v));
  } else {
    store_f32(y, v);
  }
}

/// n values side by side, whole groups.
template <int kSize, class V, bool kStreaming>
CPD_FN void transform_along(const HadamardPlan& plan, int64_t n, const float* x, float* y) {
  constexpr int kLanes = Lanes<V>::count;
  constexpr int kCount = kHadamardCount<kSize, true, V>;
  constexpr int kUnit = kCount * kLanes;
  const auto transform = [&](const float* from, auto store) {
    V v[kCount];
    CPD_UNROLLED for (int k = 0; k < kCount; ++k) v[k] = load_f32<V>(from + k * kLanes);
    hadamard<kSize, true>(v, plan);
    CPD_UNROLLED for (int k = 0; k < kCount; ++k) store(k * kLanes, v[k]);
  };
  int64_t i = 0;
  for (; i + kUnit <= n; i += kUnit) {
    if constexpr (kStreaming) __builtin_prefetch(reinterpret_cast<const char*>(x + i) + 2048);
    transform(x + i, [&](int k, V v) { put<kStreaming>(y + i + k, v); });
  }
  if (i < n) {  // fewer groups than the lanes hold
    float rest[kUnit] = {};
    copy(rest, x + i, n - i);
    transform(rest, [&](int k, V v) { store_f32(rest + k, v); });
    copy(y + i, rest, n - i);
  }
}

/// One group in each of `count` columns.
template <int kSize, class V>
CPD_FN void transform_columns(const HadamardPlan& plan, int64_t count, int64_t stride,
                              const float* x, float* y) {
  for_lanes<V>(
      count,
      [&](int64_t j) {
        V v[kSize];
        CPD_UNROLLED for (int k = 0; k < kSize; ++k) v[k] = load_f32<V>(x + k * stride + j);
        hadamard<kSize, false>(v, plan);
        CPD_UNROLLED for (int k = 0; k < kSize; ++k) store_f32(y + k * stride + j, v[k]);
      },
      [&](int64_t j, int64_t rest) {
        V v[kSize];
        float lanes[Lanes<V>::count] = {};
        for (int k = 0; k < kSize; ++k) {
          copy(lanes, x + k * stride + j, rest);
          v[k] = load_f32<V>(lanes);
        }
        hadamard<kSize, false>(v, plan);
        for (int k = 0; k < kSize; ++k) {
          store_f32(lanes, v[k]);
          copy(y + k * stride + j, lanes, rest);
        }
      });
}

template <class V>
CPD_FN void transform(const HadamardPlan& shared, int64_t groups, int64_t count, int64_t stride,
                      const float* x, float* y, bool streaming) {
  const HadamardPlan plan = shared;  // a local copy that stores to y cannot change
  with_size(plan, [&]<int kSize>() {
    if (stride > 1) {
      for (int64_t g = 0; g < groups; ++g) {
        transform_columns<kSize, V>(plan, count, stride, x + g * kSize * stride,
                                    y + g * kSize * stride);
      }
    } else if (streaming) {
      transform_along<kSize, V, true>(plan, groups * kSize, x, y);
    } else {
      transform_along<kSize, V, false>(plan, groups * kSize, x, y);
    }
  });
}

CPD_BODY void hadamard_body(const HadamardPlan* plan, int64_t groups, int64_t count, int64_t stride,
                            const float* x, float* y, bool streaming) {
  if (count == 0) return;
  const bool past_caches = streaming && is_aligned(y);
  if (plan->to_bf16) {
    transform<D>(*plan, groups, count, stride, x, y, past_caches);
  } else {
    transform<F>(*plan, groups, count, stride, x, y, past_caches);
  }
  if (past_caches) fence_streaming<F>();
}

}  // namespace

void hadamard(const HadamardPlan& plan, int64_t groups, int64_t count, int64_t stride,
              const float* x, float* y, bool streaming) {
  enter<hadamard_body>(&plan, groups, count, stride, x, y, streaming);
}

}  // namespace CPD_ISA
}  // namespace cpd
