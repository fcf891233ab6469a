// SPDX-License-Identifier: Apache-2.0
//
// Casts tensors in blocks of one column stochastically. A thread casts four neighboring values,
// each with the scales of its block, with the random integers of one Philox index. The general
// kernel cast_elements casts one element at a time.
#include "kernels/cuda/fast_kernels.h"
#include "kernels/cuda/scaled_calls.cuh"

namespace cpd::cuda {
namespace {

/// Calls change(value, R, scales) for each value of a Pack (four neighboring values), with the
/// value's random integer R and its scales. Returns the results as a Pack.
template <DType type, class Change>
CPD_DEVICE Pack<type> changed_by(Pack<type> values, FourIntegers random, const LaneScales<4>& at,
                                 Change change) {
  const auto value = [&](int k) { return change(values.get(k), random.of[k], at.of[k]); };
  Pack<type> pack;
  pack.template set<Stored::nearest>(value(0), value(1), value(2), value(3));
  return pack;
}
template <DType type>
CPD_CALL Pack<type> cast_four_alone(const ScaledCall& call, Pack<type> values, FourIntegers random,
                                    LaneScales<4> at) {
  return changed_by(values, random, at, [&](float v, std::uint32_t r, ElementScale<float> by) {
    return cast_alone<Rounding::stochastic>(call, v, by, r);
  });
}

/// Casts contiguous values stochastically in blocks of columns. Divides by scales in binary32, by
/// the route (method of division) kRoute. The tensor's rows must be aligned to Packs (four
/// neighboring values each).
template <class R, ElementRoute kRoute, DType type>
__global__ void __launch_bounds__(kThreads)
    cast_stochastic_columns(const __grid_constant__ ScaledCall call, const void* x, void* out) {
  const RoundPlan& plan = call.plan.element;
  const Source source = source_of(plan, call.key, {});
  const std::int64_t indices = indices_of(Rounding::stochastic, plan.random_bits, call.n);
  auto* to = static_cast<Pack<type>*>(out);
  const auto cast = [&](float v, std::uint32_t r, ElementScale<float> at) {
    return cast_value<R, kRoute>(call.plan, v, at, r);
  };
  for (std::int64_t index = first_index(); index < indices / 4; index += index_step()) {
    for_random_packs<type>(
        index, call.n, plan, source, x,
        [&](std::int64_t i, Pack<type> values, FourIntegers random) {
          const LaneScales<4> at = column_scales(call, kRoute, i);
          to[i / 4] = at.fit ? changed_by(values, random, at, cast)
                             : cast_four_alone(call, values, random, at);
        },
        [&](std::int64_t i, std::uint32_t r) {
          set_value_of<type, Stored::nearest>(out, i, cast_one<R::mode>(call, i, r));
        });
  }
}

bool stochastic_columns_applies(const ScalesCall& of) {
  const ScaledCall& call = of.call;
  return call.plan.element.mode == Rounding::stochastic && has_four_scales(call, call.x) &&
         has_packs(of.out) && call.x.dtype == of.out.dtype && call.route != ElementRoute::wide &&
         call.random.data == nullptr;
}
int start_stochastic_columns(const Launch& launch, const ScalesCall& of) {
  with_packs_route(of.call, [&]<class R, ElementRoute kRoute, DType type>() {
    if constexpr (R::mode == Rounding::stochastic) {
      start_kernel(cast_stochastic_columns<R, kRoute, type>,
                   blocks_for((of.call.n + 16 * kThreads - 1) / (16 * kThreads)), kThreads,
                   static_cast<cudaStream_t>(launch.stream), of.call, of.call.x.data, of.out.data);
    }
  });
  return cudaGetLastError();
}
const FastKernel<cast_formed> kStochasticColumns(FastPath::stochastic_columns,
                                                 stochastic_columns_applies,
                                                 start_stochastic_columns);

}  // namespace
}  // namespace cpd::cuda
