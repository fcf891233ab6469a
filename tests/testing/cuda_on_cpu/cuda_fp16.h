// SPDX-License-Identifier: Apache-2.0
//
// Emulates CUDA's conversions of fp16 on a CPU. Any NaN becomes the NaN that a GPU's instructions
// give. cuda_halves.h has the arithmetic.
#pragma once

#include <cstdint>
#include <cstring>

#include "tests/testing/cuda_on_cpu/cuda_halves.h"

inline __half __ushort_as_half(std::uint16_t code) { return {code}; }

inline std::uint16_t __half_as_ushort(__half x) { return x.code; }

inline float __half2float(__half x) {
  _Float16 value;
  std::memcpy(&value, &x.code, sizeof(value));
  const auto wide = static_cast<float>(value);
  return wide == wide ? wide : __builtin_bit_cast(float, 0x7FFFFFFFU);
}

inline __half __float2half_rn(float x) { return __half::round(x); }
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
inline __half2 __float2half2_rn(float x) { return __floats2half2_rn(x, x); }
inline __half2 __low2half2(__half2 x) { return {x.x, x.x}; }
inline __half2 __high2half2(__half2 x) { return {x.y, x.y}; }

/// Returns the smaller of each pair of 16-bit halves, as unsigned integers.
inline std::uint32_t __vminu2(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t low = (a & 0xFFFF) < (b & 0xFFFF) ? a & 0xFFFF : b & 0xFFFF;
  const std::uint32_t high = a >> 16 < b >> 16 ? a >> 16 : b >> 16;
  return high << 16 | low;
}
