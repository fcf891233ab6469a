// SPDX-License-Identifier: Apache-2.0
//
// Elements of scaled formats, whose scales are in tables: cast and encoded.
#pragma once

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/scaled_blocks.cuh"

namespace cpd::cuda {

CPD_DEVICE std::int64_t first_index() { return std::int64_t{blockIdx.x} * kThreads + threadIdx.x; }
CPD_DEVICE std::int64_t index_step() { return std::int64_t{gridDim.x} * kThreads; }

// --- casts ---------------------------------------------------------------------------------------

template <Rounding mode>
__global__ void __launch_bounds__(kThreads)
    cast_elements(const __grid_constant__ ScaledCall call, const __grid_constant__ Strided out) {
  const RoundPlan& plan = call.plan.element;
  const Source source = source_of(plan, call.key, call.random);
  const std::int64_t indices = indices_of(mode, plan.random_bits, call.n);
  for (std::int64_t at = first_index(); at < indices; at += index_step()) {
    for_elements<mode>(at, call.n, plan, source, [&](std::int64_t i, std::uint32_t r) {
      store_element(out, i, cast_element<mode>(call, i, r));
    });
  }
}

/// Casts packed values in a route of binary32; blocks whose scales are outside of it take the wide
/// one.
template <class R, ElementRoute kRoute, DType type>
__global__ void __launch_bounds__(kThreads)
    cast_packs(const __grid_constant__ ScaledCall call, int shift, const void* x, void* out) {
  const auto* from = static_cast<const Pack<type>*>(x);
  auto* to = static_cast<Pack<type>*>(out);
  for (std::int64_t q = first_index(); q < call.n / 4; q += index_step()) {
    to[q] = cast_pack<R, kRoute>(call, from[q], scale_of(call.tables, 4 * q >> shift));
  }
  const std::int64_t rest = call.n / 4 * 4 + first_index();
  if (rest < call.n) {
    set_value_of<type, Stored::nearest>(out, rest, cast_one<R::mode>(call, rest, 0));
  }
}

/// The scales of four neighbouring elements in blocks of columns, from block b, a multiple of 4,
/// on; one scale is of the second level.
struct FourScales {
  Pack<DType::f32> factor, scale;
  float outer;

  CPD_DEVICE FourScales(const ScaleTables& tables, std::int64_t b)
      : factor(reinterpret_cast<const Pack<DType::f32>*>(tables.factor)[b / 4]),
        scale(reinterpret_cast<const Pack<DType::f32>*>(tables.scale)[b / 4]),
        outer(tables.outer[0]) {}
  [[nodiscard]] CPD_DEVICE ElementScale<float> get(int k) const {
    return {factor.get(k), scale.get(k), outer};
  }
  [[nodiscard]] CPD_DEVICE bool fit(const ScaledCall& call, ElementRoute route) const {
    return route_at(call, scale.get(0)) == route && route_at(call, scale.get(1)) == route &&
           route_at(call, scale.get(2)) == route && route_at(call, scale.get(3)) == route;
  }
};

/// A Pack of change(value, R, its scales).
template <DType type, class Change>
CPD_DEVICE Pack<type> changed_by(Pack<type> values, FourIntegers random, const FourScales& at,
                                 Change change) {
  const auto value = [&](int k) { return change(values.get(k), random.of[k], at.get(k)); };
  Pack<type> pack;
  pack.template set<Stored::nearest>(value(0), value(1), value(2), value(3));
  return pack;
}
template <DType type>
CPD_CALL Pack<type> cast_four_alone(const ScaledCall& call, Pack<type> values, FourIntegers random,
                                    FourScales at) {
  return changed_by(values, random, at, [&](float v, std::uint32_t r, ElementScale<float> by) {
    return cast_alone<Rounding::stochastic>(call, v, by, r);
  });
}

/// Casts contiguous values stochastically in a route of binary32. kColumns: in blocks of columns,
/// of a tensor whose rows begin where Packs do; `shift` is not read.
template <class R, ElementRoute kRoute, DType type, bool kColumns>
__global__ void __launch_bounds__(kThreads)
    cast_stochastic(const __grid_constant__ ScaledCall call, int shift, const void* x, void* out) {
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
          if constexpr (kColumns) {
            const FourScales at(call.tables,
                                column_block_of(call.layout, static_cast<std::uint32_t>(i)));
            to[i / 4] = at.fit(call, kRoute) ? changed_by(values, random, at, cast)
                                             : cast_four_alone(call, values, random, at);
          } else {
            const ElementScale<float> at = scale_of(call.tables, i >> shift);
            const bool fits = route_at(call, at.scale) == kRoute;
            to[i / 4] = changed<Stored::nearest>(values, random, [&](float v, std::uint32_t r) {
              return fits ? cast(v, r, at) : cast_alone<Rounding::stochastic>(call, v, at, r);
            });
          }
        },
        [&](std::int64_t i, std::uint32_t r) {
          set_value_of<type, Stored::nearest>(out, i, cast_one<R::mode>(call, i, r));
        });
  }
}

// --- codes ---------------------------------------------------------------------------------------

template <Rounding mode>
__global__ void __launch_bounds__(kThreads)
    encode_elements(const __grid_constant__ ScaledCall call, std::uint8_t* packed,
                    unsigned long long* first_nan) {
  const RoundPlan& plan = call.plan.element;
  encode_tiles<mode>(plan, source_of(plan, call.key, call.random), call.n, packed,
                     [&](std::int64_t i, std::uint32_t r) {
                       bool is_lost = false;
                       const std::uint32_t code = code_element<mode>(call, i, r, &is_lost);
                       if (is_lost) note_first(first_nan, i);
                       return code;
                     });
}

/// Encodes Packs to nearest-even in a route of binary32, codes of 4 or 8 bits.
template <class R, ElementRoute kRoute, DType type>
__global__ void __launch_bounds__(kThreads)
    encode_packs(const __grid_constant__ ScaledCall call, int shift, std::uint8_t* packed,
                 unsigned long long* first_nan) {
  const auto one = [&](std::int64_t i) {
    bool is_lost = false;
    const std::uint32_t code = code_one<R::mode>(call, i, &is_lost);
    if (is_lost) note_first(first_nan, i);
    return code;
  };
  const auto four = [&](std::int64_t q) -> FourCodes {
    const Pack<type> v = static_cast<const Pack<type>*>(call.x.data)[q];
    const ElementScale<float> at = scale_of(call.tables, 4 * q >> shift);
    const bool has_nan = v.get(0) != v.get(0) || v.get(1) != v.get(1) || v.get(2) != v.get(2) ||
                         v.get(3) != v.get(3);
    if (has_nan || route_at(call, at.scale) != kRoute) {
      FourCodes codes;
      CPD_ROLLED for (int k = 0; k < 4; ++k) codes.code[k] = one(4 * q + k);
      return codes;
    }
    const auto code = [&](int k) {
      return round_to_whole_code<R>(scaled_down<kRoute>(v.get(k), at, call.plan), 0U,
                                    call.plan.element);
    };
    return {{code(0), code(1), code(2), code(3)}};
  };
  pack_fours(call.plan.element.bits, call.n, packed, four, one);
}

}  // namespace cpd::cuda
