// SPDX-License-Identifier: Apache-2.0
//
// Emulates CUDA's arithmetic of fp16 and bf16 in two lanes. Each operation is computed in binary64,
// where it is exact or rounded to odd, and is then rounded once to nearest even.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "tests/testing/cuda_on_cpu/block.h"

namespace cuda_on_cpu {

template <class Half>
struct Two {
  Half x, y;
};

/// Rounds an inexact value to odd. `from` is the value rounded to nearest; the exact value is above
/// it if `up`, else below.
template <class Bits, class Float>
Float odd_one(Float from, bool up) {
  const auto bits = __builtin_bit_cast(Bits, from);
  if (bits % 2 != 0) return from;
  return __builtin_bit_cast(Float, up == (from > 0) ? bits + 1 : bits - 1);
}
/// Returns a * b + c of 16-bit numbers, rounded to odd in binary64.
inline double fma_to_odd(double a, double b, double c) {
  const double product = a * b;
  const double sum = product + c;
  if (!std::isfinite(sum)) return sum;
  const double of_c = sum - product;
  const double error = (product - (sum - of_c)) + (c - of_c);
  return error == 0 ? sum : odd_one<std::uint64_t>(sum, error > 0);
}

}  // namespace cuda_on_cpu

struct __half {
  std::uint16_t code;

  static __half round(double x) {
    if (x != x) return {0x7FFF};
    return {__builtin_bit_cast(std::uint16_t, static_cast<_Float16>(x))};
  }
  [[nodiscard]] double value() const {
    return static_cast<double>(__builtin_bit_cast(_Float16, code));
  }
};
struct __nv_bfloat16 {
  std::uint16_t code;

  static __nv_bfloat16 round(double x) {
    if (x != x) return {0x7FFF};
    auto odd = static_cast<float>(x);
    if (odd != x) odd = cuda_on_cpu::odd_one<std::uint32_t>(odd, x > odd);
    const auto bits = __builtin_bit_cast(std::uint32_t, odd);
    return {static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
  }
  [[nodiscard]] double value() const {
    return __builtin_bit_cast(float, std::uint32_t{code} << 16);
  }
};
using __half2 = cuda_on_cpu::Two<__half>;
using __nv_bfloat162 = cuda_on_cpu::Two<__nv_bfloat16>;

namespace cuda_on_cpu {

template <class Half, class Operation>
Two<Half> of_lanes(Two<Half> a, Two<Half> b, Operation operation) {
  return {operation(a.x, b.x), operation(a.y, b.y)};
}

}  // namespace cuda_on_cpu

template <class Half>
cuda_on_cpu::Two<Half> __hadd2_rn(cuda_on_cpu::Two<Half> a, cuda_on_cpu::Two<Half> b) {
  return cuda_on_cpu::of_lanes(a, b, [](Half x, Half y) {
    return Half::round(cuda_on_cpu::fma_to_odd(x.value(), 1, y.value()));
  });
}
template <class Half>
cuda_on_cpu::Two<Half> __hneg2(cuda_on_cpu::Two<Half> a) {
  const auto negative = [](Half x) { return Half{static_cast<std::uint16_t>(x.code ^ 0x8000)}; };
  return {negative(a.x), negative(a.y)};
}
template <class Half>
cuda_on_cpu::Two<Half> __hsub2_rn(cuda_on_cpu::Two<Half> a, cuda_on_cpu::Two<Half> b) {
  return __hadd2_rn(a, __hneg2(b));
}
template <class Half>
cuda_on_cpu::Two<Half> __hmul2_rn(cuda_on_cpu::Two<Half> a, cuda_on_cpu::Two<Half> b) {
  return cuda_on_cpu::of_lanes(a, b,
                               [](Half x, Half y) { return Half::round(x.value() * y.value()); });
}
template <class Half>
cuda_on_cpu::Two<Half> __hfma2(cuda_on_cpu::Two<Half> a, cuda_on_cpu::Two<Half> b,
                               cuda_on_cpu::Two<Half> c) {
  ++cuda_on_cpu::half_fmas;
  const auto fused = [](Half x, Half y, Half z) {
    return Half::round(cuda_on_cpu::fma_to_odd(x.value(), y.value(), z.value()));
  };
  return {fused(a.x, b.x, c.x), fused(a.y, b.y, c.y)};
}
template <class Half>
cuda_on_cpu::Two<Half> __habs2(cuda_on_cpu::Two<Half> a) {
  const auto magnitude = [](Half x) { return Half{static_cast<std::uint16_t>(x.code & 0x7FFF)}; };
  return {magnitude(a.x), magnitude(a.y)};
}
/// Returns the larger value. +0 is larger than -0. The result is NaN if either value is NaN.
template <class Half>
cuda_on_cpu::Two<Half> __hmax2_nan(cuda_on_cpu::Two<Half> a, cuda_on_cpu::Two<Half> b) {
  return cuda_on_cpu::of_lanes(a, b, [](Half x, Half y) {
    const double of_x = x.value();
    const double of_y = y.value();
    if (of_x != of_x || of_y != of_y) return Half{0x7FFF};
    return of_x > of_y || (of_x == of_y && x.code < 0x8000) ? x : y;
  });
}
