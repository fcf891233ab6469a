// SPDX-License-Identifier: Apache-2.0
//
// CUDA's conversions of fp16: any NaN becomes the one that the instructions give.
#pragma once

#include <cstdint>
#include <cstring>

struct __half {
  std::uint16_t code;
};
struct __half2 {
  __half x, y;
};

inline __half __ushort_as_half(std::uint16_t code) { return {code}; }

inline std::uint16_t __half_as_ushort(__half x) { return x.code; }

inline float __half2float(__half x) {
  _Float16 value;
  std::memcpy(&value, &x.code, sizeof(value));
  const auto wide = static_cast<float>(value);
  return wide == wide ? wide : __builtin_bit_cast(float, 0x7FFFFFFFU);
}

inline __half __float2half_rn(float x) {
  if (x != x) return {0x7FFF};
  return {__builtin_bit_cast(std::uint16_t, static_cast<_Float16>(x))};
}
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}

/// The smaller of each two halves, without signs.
inline std::uint32_t __vminu2(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t low = (a & 0xFFFF) < (b & 0xFFFF) ? a & 0xFFFF : b & 0xFFFF;
  const std::uint32_t high = a >> 16 < b >> 16 ? a >> 16 : b >> 16;
  return high << 16 | low;
}
