// SPDX-License-Identifier: Apache-2.0
//
// Hadamard transforms of groups of values. The values of a group are contiguous, or lie in one
// column of a matrix. For contiguous groups, the first stages combine lanes of one vector. For
// columns, each lane computes one group.
#include "cpd/numeric/scaled/hadamard_stages.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/pages.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;

template <int kSize, class V>
constexpr int kUnit = kHadamardCount<kSize, true, V> * Lanes<V>::count;

/// Transforms kUnit contiguous values (one or more groups of kSize). Calls store(k, v) for each
/// vector v of results; k is the index of its first value.
template <int kSize, class V, class Store>
CPD_FN void transform_unit(const HadamardPlan& plan, const float* x, Store store) {
  constexpr int kLanes = Lanes<V>::count;
  constexpr int kCount = kUnit<kSize, V> / kLanes;
  V v[kCount];
  CPD_UNROLLED for (int k = 0; k < kCount; ++k) v[k] = load_f32<V>(x + k * kLanes);
  hadamard<kSize, true>(v, plan);
  CPD_UNROLLED for (int k = 0; k < kCount; ++k) store(k * kLanes, v[k]);
}

/// Transforms n contiguous values. n must be a multiple of kUnit.
template <int kSize, class V>
CPD_CALL void transform_units(const HadamardPlan& shared, int64_t n, const float* x, float* y) {
  const HadamardPlan plan = shared;  // a local copy that stores to y cannot change
  for (int64_t i = 0; i < n; i += kUnit<kSize, V>) {
    transform_unit<kSize, V>(plan, x + i, [&](int k, V v) { store_f32(y + i + k, v); });
  }
}

/// Transforms n contiguous values. n must be a multiple of kSize, the number of values in a group.
template <int kSize, class V>
CPD_FN void transform_along(const HadamardPlan& plan, int64_t n, const float* x, float* y) {
  constexpr int64_t kStep = kUnit<kSize, V>;
  const int64_t whole = n - n % kStep;
  transform_units<kSize, V>(plan, whole, x, y);
  if (whole < n) {  // fewer groups than the lanes hold
    float rest[kStep] = {};
    copy(rest, x + whole, n - whole);
    transform_units<kSize, V>(plan, kStep, rest, rest);
    copy(y + whole, rest, n - whole);
  }
}

/// Transforms n contiguous values with non-temporal stores. n must be a multiple of kGroup.
template <int kSize, class V>
CPD_FN void transform_pages(const HadamardPlan& plan, int64_t n, const float* x, float* y) {
  constexpr int64_t kStep = kUnit<kSize, V>;
  constexpr int64_t kVisit = kStep < kLine ? kLine : kStep;
  static_assert(kBlock % kVisit == 0 && kVisit % kStep == 0);
  PageValues values(y);
  for_blocks(n, [&](int64_t block) {
    values.enter_block(block);
    for_lines<kVisit>(0, kBlock, [&](int64_t page, int64_t begin) {
      const float* const from = x + block + page * kPage;
      for (int64_t i = begin; i < begin + kVisit; i += kLine) prefetch_line(from + i, block);
      for (int64_t i = begin; i < begin + kVisit; i += kStep) {
        transform_unit<kSize, V>(plan, from + i, [&](int k, V v) {
          values.put(block, page, i + k, convert<typename Narrow<V>::F32>(v));
        });
      }
    });
    values.leave_block(block);
  });
}

/// Transforms `count` columns of kSize values each. `count` must be a multiple of the number of
/// lanes of V.
template <int kSize, class V>
CPD_CALL void transform_vectors(const HadamardPlan& shared, int64_t count, int64_t stride,
                                const float* x, float* y) {
  const HadamardPlan plan = shared;
  for (int64_t j = 0; j < count; j += Lanes<V>::count) {
    V v[kSize];
    CPD_UNROLLED for (int k = 0; k < kSize; ++k) v[k] = load_f32<V>(x + k * stride + j);
    hadamard<kSize, false>(v, plan);
    CPD_UNROLLED for (int k = 0; k < kSize; ++k) store_f32(y + k * stride + j, v[k]);
  }
}

/// Transforms `count` columns of kSize values each.
template <int kSize, class V>
CPD_FN void transform_columns(const HadamardPlan& plan, int64_t count, int64_t stride,
                              const float* x, float* y) {
  constexpr int64_t kLanes = Lanes<V>::count;
  const int64_t whole = count - count % kLanes;
  transform_vectors<kSize, V>(plan, whole, stride, x, y);
  if (whole < count) {
    float rest[kSize * kLanes] = {};
    const int64_t left = count - whole;
    for (int k = 0; k < kSize; ++k) copy(rest + k * kLanes, x + k * stride + whole, left);
    transform_vectors<kSize, V>(plan, kLanes, kLanes, rest, rest);
    for (int k = 0; k < kSize; ++k) copy(y + k * stride + whole, rest + k * kLanes, left);
  }
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
    } else {
      const int64_t n = groups * kSize;
      const int64_t whole = streaming && holds_floats(y) ? n - n % kGroup : 0;
      transform_pages<kSize, V>(plan, whole, x, y);
      transform_along<kSize, V>(plan, n - whole, x + whole, y + whole);
    }
  });
}

}  // namespace

void hadamard(const HadamardCall& call) {
  if (call.groups == 0) return;
  const int64_t count = call.x.rank > 1 ? call.x.shape[1] : 1;
  const auto* const x = static_cast<const float*>(call.x.data);
  auto* const y = static_cast<float*>(call.out.data);
  const auto run = [&]<class V>() {
    transform<V>(*call.plan, call.groups / count, count, call.x_step, x, y, call.streaming);
  };
  if (call.plan->to_bf16) {
    run.template operator()<D>();
  } else {
    run.template operator()<F>();
  }
  if (call.streaming) fence_streaming<F>();
}

}  // namespace CPD_ISA
}  // namespace cpd
