// SPDX-License-Identifier: Apache-2.0
//
// Lanes of fp16 for gemm_halves.h on a CPU that has none: the arithmetic is cuda_halves.h's,
// rounded once from binary64. As many as a panel has columns. Included by one source, gemm.cpp.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cpu/table.h"
#include "tests/testing/cuda_on_cpu/cuda_halves.h"

namespace cpd {
inline namespace CPD_ISA {

std::uint64_t g_half_products = 0;  ///< multiplications of lanes since the program started

struct EmulatedHalves {
  float lanes[kGemmColumns];

  EmulatedHalves() = default;
  explicit EmulatedHalves(float x) {
    for (float& lane : lanes) lane = rounded(x);
  }
  static float rounded(double x) { return static_cast<float>(__half::round(x).value()); }
  /// operation(lane of a, of b, of c), rounded, in each lane.
  template <class Operation>
  static EmulatedHalves Of(EmulatedHalves a, EmulatedHalves b, EmulatedHalves c,
                           Operation operation) {
    EmulatedHalves result;
    for (int i = 0; i < kGemmColumns; ++i) {
      result.lanes[i] = rounded(operation(a.lanes[i], b.lanes[i], c.lanes[i]));
    }
    return result;
  }
  friend EmulatedHalves operator+(EmulatedHalves a, EmulatedHalves b) {
    return Of(a, b, b, [](double x, double y, double) { return x + y; });  // exact in binary64
  }
  friend EmulatedHalves operator-(EmulatedHalves a, EmulatedHalves b) {
    return Of(a, b, b, [](double x, double y, double) { return x - y; });
  }
  friend EmulatedHalves operator*(EmulatedHalves a, EmulatedHalves b) {
    ++g_half_products;
    return Of(a, b, b, [](double x, double y, double) { return x * y; });
  }
};

template <>
struct Lanes<EmulatedHalves> : LaneTraits<float, std::uint32_t, std::int32_t, kGemmColumns, 10> {};

using H = EmulatedHalves;

template <>
inline H load_f32(const float* from) {
  H x;
  for (int i = 0; i < kGemmColumns; ++i) x.lanes[i] = H::rounded(from[i]);
  return x;
}
template <>
inline void store_f32(float* to, H x) {
  store(to, x);
}
template <>
inline H fma(H a, H b, H c) {
  return H::Of(a, b, c, cuda_on_cpu::fma_to_odd);
}
template <>
inline H negative_fma(H a, H b, H c) {
  return H::Of(a, b, c,
               [](double x, double y, double z) { return cuda_on_cpu::fma_to_odd(-x, y, z); });
}
/// NaN where one is.
template <>
inline H larger_magnitude(H x, H y) {
  return H::Of(x, y, y, [](double a, double b, double) {
    return std::isnan(a) || std::isnan(b) ? NAN : std::fmax(std::fabs(a), std::fabs(b));
  });
}

}  // namespace CPD_ISA
}  // namespace cpd
