// SPDX-License-Identifier: Apache-2.0
//
// Casts and encodes the elements of scaled formats, given the scales in tables.
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

/// Casts Packs (four neighboring values each), with the division by scales in binary32. Divides in
/// binary64 in blocks whose scales do not allow binary32.
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

/// Returns the scales for a Pack (four neighboring values) whose values all lie in one block with
/// scales `at`.
CPD_DEVICE LaneScales<4> same_scales(const ScaledCall& call, ElementRoute route,
                                     ElementScale<float> at) {
  return {{at, at, at, at}, route_at(call, at.scale) == route};
}
/// Returns the scales of elements i … i + 3 in blocks of columns. The tensor's rows must be aligned
/// to Packs (four neighboring values each), and all blocks must share one outer scale.
CPD_DEVICE LaneScales<4> column_scales(const ScaledCall& call, ElementRoute route, std::int64_t i) {
  using Floats = Pack<DType::f32>;
  const std::uint32_t b = column_block_of(call.layout, static_cast<std::uint32_t>(i));
  const Floats factor = reinterpret_cast<const Floats*>(call.tables.factor)[b / 4];
  const Floats scale = reinterpret_cast<const Floats*>(call.tables.scale)[b / 4];
  const float outer = call.tables.outer[0];
  LaneScales<4> at;
  CPD_IN_REGISTERS for (int k = 0; k < 4; ++k) {
    at.set(call, route, k, {factor.get(k), scale.get(k), outer});
  }
  return at;
}

/// Casts contiguous values with stochastic rounding, in blocks of 2^shift values. Divides by scales
/// by the route (method of division) kRoute, in binary32, unless a scale needs another route.
template <class R, ElementRoute kRoute, DType type>
__global__ void __launch_bounds__(kThreads)
    cast_stochastic(const __grid_constant__ ScaledCall call, int shift, const void* x, void* out) {
  const RoundPlan& plan = call.plan.element;
  const Source source = source_of(plan, call.key, {});
  const std::int64_t indices = indices_of(Rounding::stochastic, plan.random_bits, call.n);
  auto* to = static_cast<Pack<type>*>(out);
  for (std::int64_t index = first_index(); index < indices / 4; index += index_step()) {
    for_random_packs<type>(
        index, call.n, plan, source, x,
        [&](std::int64_t i, Pack<type> values, FourIntegers random) {
          const ElementScale<float> at = scale_of(call.tables, i >> shift);
          const bool fits = route_at(call, at.scale) == kRoute;
          to[i / 4] = changed<Stored::nearest>(values, random, [&](float v, std::uint32_t r) {
            return fits ? cast_value<R, kRoute>(call.plan, v, at, r)
                        : cast_alone<Rounding::stochastic>(call, v, at, r);
          });
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

/// The outputs of encoding four values at a time. `packed` receives codes of 4 or 8 bits and must
/// be aligned for has_four_codes. *first_nan receives the least index of a NaN without a code.
struct CodesOut {
  std::uint8_t* packed;
  unsigned long long* first_nan;
};

/// Returns the codes of a Pack (four neighboring values), with any method of division by scales.
/// Sets *lost to the number of the first value that is a NaN without a code, or to 4 if there is
/// none.
template <Rounding mode, DType type>
CPD_CALL FourCodes codes_alone(const ScaledCall& call, Pack<type> values, LaneScales<4> at,
                               int* lost) {
  FourCodes codes{};
  *lost = 4;
  CPD_ROLLED for (int k = 3; k >= 0; --k) {
    bool is_lost = false;
    codes.code[k] = code_by<mode>(call, values.get(k), at.of[k], 0, &is_lost);
    if (is_lost) *lost = k;
  }
  return codes;
}

/// Returns the codes of a Pack (elements i … i + 3). Divides in binary32, by the route (method of
/// division) kRoute, if that route supports the scales.
template <class R, ElementRoute kRoute, DType type>
CPD_DEVICE FourCodes code_pack(const ScaledCall& call, std::int64_t i, Pack<type> v,
                               const LaneScales<4>& at, unsigned long long* first_nan) {
  const bool has_nan =
      v.get(0) != v.get(0) || v.get(1) != v.get(1) || v.get(2) != v.get(2) || v.get(3) != v.get(3);
  if (has_nan || !at.fit) {
    int lost = 0;
    const FourCodes codes = codes_alone<R::mode>(call, v, at, &lost);
    if (lost < 4) note_first(first_nan, i + lost);
    return codes;
  }
  const auto code = [&](int k) {
    return round_to_whole_code<R>(scaled_down<kRoute>(v.get(k), at.of[k], call.plan), 0U,
                                  call.plan.element);
  };
  return {{code(0), code(1), code(2), code(3)}};
}

/// Encodes Packs (four neighboring values each) to codes of 4 or 8 bits. Divides by scales in
/// binary32, by the route (method of division) kRoute, and rounds to nearest-even.
template <class R, ElementRoute kRoute, DType type>
__global__ void __launch_bounds__(kThreads)
    encode_packs(const __grid_constant__ ScaledCall call, int shift, CodesOut to) {
  const auto four = [&](std::int64_t q) {
    const Pack<type> values = static_cast<const Pack<type>*>(call.x.data)[q];
    const ElementScale<float> at = scale_of(call.tables, 4 * q >> shift);
    return code_pack<R, kRoute>(call, 4 * q, values, same_scales(call, kRoute, at), to.first_nan);
  };
  const auto one = [&](std::int64_t i) {
    bool is_lost = false;
    const std::uint32_t code = code_one<R::mode>(call, i, &is_lost);
    if (is_lost) note_first(to.first_nan, i);
    return code;
  };
  pack_fours(call.plan.element.bits, call.n, to.packed, four, one);
}

/// Decodes n codes to values of a type. four_at(q) must return the scales of elements 4 q … 4 q +
/// 3.
template <class R, DType type, class FourAt>
CPD_DEVICE void decode_fours(const ScaledCall& call, const std::uint8_t* packed, void* out,
                             FourAt four_at) {
  const auto value = [&](std::uint32_t code, ElementScale<float> at) {
    return scaled_value(value_of_code<R, float>(code, call.plan.element), at);
  };
  const auto four = [&](std::int64_t q, FourCodes c) {
    const LaneScales<4> at = four_at(q);
    Pack<type> values;
    values.template set<Stored::nearest>(value(c.code[0], at.of[0]), value(c.code[1], at.of[1]),
                                         value(c.code[2], at.of[2]), value(c.code[3], at.of[3]));
    static_cast<Pack<type>*>(out)[q] = values;
  };
  const auto one = [&](std::int64_t i, std::uint32_t code) {
    set_value_of<type, Stored::nearest>(out, i,
                                        value(code, scale_of(call.tables, block_of(call, i))));
  };
  unpack_fours(call.plan.element.bits, call.n, packed, four, one);
}

/// Decodes Packs.
template <class R, DType type>
__global__ void __launch_bounds__(kThreads)
    decode_scaled_packs(const __grid_constant__ ScaledCall call, int shift,
                        const std::uint8_t* packed, void* out) {
  decode_fours<R, type>(call, packed, out, [&](std::int64_t q) {
    return same_scales(call, call.route, scale_of(call.tables, 4 * q >> shift));
  });
}

}  // namespace cpd::cuda
