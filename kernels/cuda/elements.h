// SPDX-License-Identifier: Apache-2.0
//
// Loads, converts and stores values in memory of each float type. Compiles for host and device,
// since tests run the kernels' bodies on the CPU.
#pragma once

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

#include <cstdint>

#include "cpd/base/dtype.h"
#include "cpd/numeric/round/round.h"
#include "cpd/numeric/round/round_plan.h"

namespace cpd::cuda {

// --- codes of bf16 and fp16 ----------------------------------------------------------------------

/// Returns the plan that treats bf16 or fp16 as a format whose codes are the 16-bit values in
/// memory.
template <DType type>
CPD_FN constexpr RoundPlan half_plan() {
  return make_plan(type == DType::bf16 ? Format{8, 7, 127} : Format{5, 10, 15}, {});
}

// The exponents of fp16 and binary32 differ by 112, so a multiplication by 2^112 or 2^-112 converts
// a value between the two types. The product is exact, also if a value is subnormal (kernels do not
// flush subnormals). Infinities and NaN are converted separately. CUDA threads use conversion
// instructions instead.

/// Returns a code's value. A NaN code gives a NaN.
template <DType type>
CPD_FN float widen_code(std::uint16_t code) {
  if constexpr (type == DType::bf16) return bits_as<float>(std::uint32_t{code} << 16);
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(code));
#endif
  const std::uint32_t size = (code & 0x7FFFU) << 13;
  const std::uint32_t special = size >= 0x7C00U << 13 ? 0x7F800000U : 0U;
  const std::uint32_t sign = (code & 0x8000U) << 16;
  return bits_as<float>(size | special | sign) * 0x1p112F;
}
/// Returns the code of a value that the type represents exactly. A NaN must be the canonical NaN
/// or, for fp16, any NaN.
template <DType type>
CPD_FN std::uint16_t code_of_held(float x) {
  const auto bits = bits_as<std::uint32_t>(x);
  if constexpr (type == DType::bf16) return static_cast<std::uint16_t>(bits >> 16);
  constexpr std::uint32_t kNan = 0x7E00;
  const auto moved = bits_as<std::uint32_t>(x * 0x1p-112F) >> 13 & 0x7FFFU;
  return static_cast<std::uint16_t>((moved < kNan ? moved : kNan) | (bits >> 16 & 0x8000U));
}

template <DType type>
CPD_FN float widen(std::uint16_t code) {
  const float value = widen_code<type>(code);
  return value == value ? value : bits_as<float>(Pattern<float>::quiet_nan);
}
template <DType type>
CPD_FN std::uint16_t narrow(float x) {
  constexpr RoundPlan plan = half_plan<type>();
  constexpr Form kForm = type == DType::bf16 ? Form::in_place : Form::addition;
  static_assert(plan.form == kForm);
  return static_cast<std::uint16_t>(
      round_to_whole_code<Rule<Rounding::nearest_even, kForm>>(x, 0U, plan));
}

/// Converts a value to the type To, which must represent the value exactly. Replaces a NaN by CPD's
/// canonical NaN, as the CPU kernels do; the hardware's conversion between binary32 and binary64
/// gives a different NaN.
template <class To, class From>
CPD_FN To convert_value(From value) {
  if constexpr (sizeof(To) == sizeof(From)) {
    return value;
  } else {
    return value == value ? static_cast<To>(value) : bits_as<To>(Pattern<To>::quiet_nan);
  }
}

/// Returns element `at` of fp32, bf16 or fp16 memory, converted exactly to binary32.
CPD_FN float value_at(const void* data, DType type, std::int64_t at) {
  switch (type) {
    case DType::bf16:
      return widen<DType::bf16>(static_cast<const std::uint16_t*>(data)[at]);
    case DType::f16:
      return widen<DType::f16>(static_cast<const std::uint16_t*>(data)[at]);
    default:
      return static_cast<const float*>(data)[at];
  }
}

/// Stores `value` as element `at` of memory of a type that represents the value exactly.
CPD_FN void set_value_at(void* data, DType type, std::int64_t at, float value) {
  switch (type) {
    case DType::bf16:
      static_cast<std::uint16_t*>(data)[at] = narrow<DType::bf16>(value);
      return;
    case DType::f16:
      static_cast<std::uint16_t*>(data)[at] = narrow<DType::f16>(value);
      return;
    default:
      static_cast<float*>(data)[at] = value;
      return;
  }
}

// --- of a type known at compile time -------------------------------------------------------------

/// Returns element `at` of memory of a type known at compile time, converted exactly to binary32. A
/// NaN keeps its payload.
template <DType type>
CPD_FN float value_of(const void* data, std::int64_t at) {
  if constexpr (type == DType::f32) return static_cast<const float*>(data)[at];
  return widen_code<type>(static_cast<const std::uint16_t*>(data)[at]);
}
/// The rule by which values are converted to a type. `held`: the type represents the value
/// exactly (a NaN is the canonical one). `nearest`: rounds to nearest-even.
enum class Stored : std::uint8_t { held, nearest };

#if defined(__CUDA_ARCH__)
/// The fp16 code of the NaN that a GPU's conversion from binary32 gives, and the code of CPD's
/// canonical NaN.
constexpr std::uint16_t kHardwareNan = 0x7FFF, kNan = 0x7E00;

/// Returns the codes of two values rounded to fp16, using one conversion instruction.
CPD_FN std::uint32_t two_fp16_codes(float first, float second) {
  const __half2 both = __floats2half2_rn(first, second);
  const auto codes = reinterpret_cast<const std::uint32_t&>(both);
  return __vminu2(codes & 0x7FFF7FFFU, 0x7E007E00U) | (codes & 0x80008000U);
}
#endif

template <DType type, Stored stored>
CPD_FN std::uint16_t code_of(float value) {
#if defined(__CUDA_ARCH__)
  if constexpr (type == DType::f16) {
    const std::uint16_t code = __half_as_ushort(__float2half_rn(value));
    return code == kHardwareNan ? kNan : code;
  }
#endif
  return stored == Stored::held ? code_of_held<type>(value) : narrow<type>(value);
}

/// set_value_at.
template <DType type, Stored stored = Stored::held>
CPD_FN void set_value_of(void* data, std::int64_t at, float value) {
  if constexpr (type == DType::f32) {
    static_cast<float*>(data)[at] = value;
  } else {
    static_cast<std::uint16_t*>(data)[at] = code_of<type, stored>(value);
  }
}

/// Returns the codes of two values, with the first code in the low half.
template <DType type, Stored stored>
CPD_FN std::uint32_t two_codes(float first, float second) {
#if defined(__CUDA_ARCH__)
  if constexpr (type == DType::f16) return two_fp16_codes(first, second);
#endif
  return code_of<type, stored>(first) | std::uint32_t{code_of<type, stored>(second)} << 16;
}

/// Four neighboring values, which a thread reads or writes with one instruction.
template <DType type>
struct alignas(type == DType::f32 ? 16 : 8) Pack {
  static constexpr int kSize = 4;
  std::uint32_t words[type == DType::f32 ? 4 : 2] = {};

  CPD_FN float get(int i) const {
    if constexpr (type == DType::f32) return bits_as<float>(words[i]);
    return widen_code<type>(static_cast<std::uint16_t>(words[i / 2] >> 16 * (i % 2)));
  }
  /// Copies element `at` of `data` into value i of the Pack (four neighboring values), which must
  /// be 0 before. `put` copies a value back.
  CPD_FN void take(int i, const void* data, std::int64_t at) {
    if constexpr (type == DType::f32) {
      words[i] = static_cast<const std::uint32_t*>(data)[at];
    } else {
      words[i / 2] |= std::uint32_t{static_cast<const std::uint16_t*>(data)[at]} << 16 * (i % 2);
    }
  }
  CPD_FN void put(int i, void* data, std::int64_t at) const {
    if constexpr (type == DType::f32) {
      static_cast<std::uint32_t*>(data)[at] = words[i];
    } else {
      static_cast<std::uint16_t*>(data)[at] =
          static_cast<std::uint16_t>(words[i / 2] >> 16 * (i % 2));
    }
  }
  template <Stored stored = Stored::held>
  CPD_FN void set(float a, float b, float c, float d) {
    if constexpr (type == DType::f32) {
      words[0] = bits_as<std::uint32_t>(a);
      words[1] = bits_as<std::uint32_t>(b);
      words[2] = bits_as<std::uint32_t>(c);
      words[3] = bits_as<std::uint32_t>(d);
    } else {
      words[0] = two_codes<type, stored>(a, b);
      words[1] = two_codes<type, stored>(c, d);
    }
  }
};

/// Calls change(value) for each value of a Pack (four neighboring values) and returns the results
/// as a Pack. The calls are written without a loop: then nvcc moves branches that depend only on
/// the plan out of the caller's loop.
template <Stored stored, DType type, class Change>
CPD_FN Pack<type> changed(Pack<type> values, Change change) {
  Pack<type> pack;
  pack.template set<stored>(change(values.get(0)), change(values.get(1)), change(values.get(2)),
                            change(values.get(3)));
  return pack;
}

/// Calls change(value, R) for each value of a Pack (four neighboring values), where R is the
/// value's random integer, and returns the results as a Pack.
template <Stored stored, DType type, class Integers, class Change>
CPD_FN Pack<type> changed(Pack<type> values, Integers random, Change change) {
  Pack<type> pack;
  pack.template set<stored>(
      change(values.get(0), random.of[0]), change(values.get(1), random.of[1]),
      change(values.get(2), random.of[2]), change(values.get(3), random.of[3]));
  return pack;
}

/// Calls run.operator()<type>() if `type` is f32, bf16 or f16; does nothing for other types.
template <class Run>
void with_pack_type(DType type, Run run) {
  if (type == DType::f32) run.template operator()<DType::f32>();
  if (type == DType::bf16) run.template operator()<DType::bf16>();
  if (type == DType::f16) run.template operator()<DType::f16>();
}

}  // namespace cpd::cuda
