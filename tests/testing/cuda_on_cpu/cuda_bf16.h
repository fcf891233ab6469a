// SPDX-License-Identifier: Apache-2.0
//
// Emulates CUDA's bf16 on a CPU. cuda_halves.h has the arithmetic.
#pragma once

#include "tests/testing/cuda_on_cpu/cuda_halves.h"

inline __nv_bfloat162 __float2bfloat162_rn(float x) {
  return {__nv_bfloat16::round(x), __nv_bfloat16::round(x)};
}
inline __nv_bfloat162 __low2bfloat162(__nv_bfloat162 x) { return {x.x, x.x}; }
inline __nv_bfloat162 __high2bfloat162(__nv_bfloat162 x) { return {x.y, x.y}; }
