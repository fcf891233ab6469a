// SPDX-License-Identifier: Apache-2.0
//
// Values in memory of each float type. For host and device, since tests run the kernels' bodies on
// the CPU.
#pragma once

#include <cstdint>

#include "cpd/base/dtype.h"
#include "cpd/numeric/round/round.h"
#include "cpd/numeric/round/round_plan.h"

namespace cpd::cuda {

/// The plan of bf16 or fp16 as a format, whose memory holds 16-bit codes.
template <DType type>
CPD_FN constexpr RoundPlan half_plan() {
  return make_plan(type == DType::bf16 ? Format{8, 7, 127} : Format{5, 10, 15}, {});
}

template <DType type>
CPD_FN float widen(std::uint16_t bits) {
  constexpr RoundPlan plan = half_plan<type>();
  return value_of_code<float>(bits, plan);
}
template <DType type>
CPD_FN std::uint16_t narrow(float x) {
  constexpr RoundPlan plan = half_plan<type>();
  return static_cast<std::uint16_t>(round_to_whole_code<Rounding::nearest_even>(x, 0U, plan));
}

/// A value that To holds, as To. NaN becomes CPD's canonical one, as on the CPU; the hardware's
/// conversion between binary32 and binary64 gives another.
template <class To, class From>
CPD_FN To convert_value(From value) {
  if constexpr (sizeof(To) == sizeof(From)) {
    return value;
  } else {
    return value == value ? static_cast<To>(value) : bits_as<To>(Pattern<To>::quiet_nan);
  }
}

/// Element `at` of fp32, bf16 or fp16 memory, converted exactly.
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

/// Stores a value that the type holds.
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

}  // namespace cpd::cuda
