// SPDX-License-Identifier: Apache-2.0
//
// Products of bf16 matrices, summed in binary32 by the AVX-512 instruction that multiplies pairs of
// bf16 numbers.
#include "kernels/cpu/table.h"

#if defined(__AVX512F__)
#include <immintrin.h>

#include "cpd/base/bf16_table.h"

#define CPD_PAIRS __attribute__((target("avx512f,avx512bf16")))

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint16_t;
using std::uint32_t;

/// Returns the bf16 bit pattern of a bf16 value, or of a binary32 pattern that bf16 represents
/// exactly.
CPD_FN uint32_t half_of(uint16_t x) { return x; }
CPD_FN uint32_t half_of(uint32_t x) { return x >> 16; }

/// Returns the bit pattern of |x| minus 1, where `half` is the bf16 pattern of x. For a zero the
/// result wraps around to the largest integer.
CPD_FN uint32_t below(uint32_t half) { return (half & 0x7FFF) - 1; }
CPD_FN uint32_t lesser(uint32_t a, uint32_t b) { return a < b ? a : b; }

/// Packs pairs of neighboring values along k into words (Bf16Table::pair), for operands in which
/// the values of a line (a row of a or a column of b) are contiguous.
template <class T>
CPD_FN uint32_t pair_along(int64_t lines, int64_t count, const T* x, int64_t line_stride,
                           uint32_t* words, int64_t stride) {
  uint32_t least = ~uint32_t{0};
  for (int64_t i = 0; i < lines; ++i) {
    const T* const line = x + i * line_stride;
    uint32_t* const to = words + i * stride;
    for (int64_t k = 0; k < count / 2; ++k) {
      const uint32_t low = half_of(line[2 * k]), high = half_of(line[2 * k + 1]);
      to[k] = low | high << 16;
      least = lesser(least, lesser(below(low), below(high)));
    }
    if (count % 2 != 0) {
      to[count / 2] = half_of(line[count - 1]);
      least = lesser(least, below(to[count / 2]));
    }
  }
  return least;
}

/// Packs pairs of neighboring values along k into words (Bf16Table::pair), for operands in which
/// neighboring values belong to different lines (rows of a or columns of b).
template <class T>
CPD_FN uint32_t pair_across(int64_t lines, int64_t count, const T* x, int64_t k_stride,
                            uint32_t* words, int64_t stride) {
  uint32_t least = ~uint32_t{0};
  for (int64_t k = 0; k < count; k += 2) {
    const T* const first = x + k * k_stride;
    uint32_t* const to = words + k / 2 * stride;
    if (k + 1 == count) {
      for (int64_t i = 0; i < lines; ++i) {
        to[i] = half_of(first[i]);
        least = lesser(least, below(to[i]));
      }
      break;
    }
    const T* const second = first + k_stride;
    for (int64_t i = 0; i < lines; ++i) {
      const uint32_t low = half_of(first[i]), high = half_of(second[i]);
      to[i] = low | high << 16;
      least = lesser(least, lesser(below(low), below(high)));
    }
  }
  return least;
}

CPD_BODY uint32_t pair(const Bf16Lines& x, int64_t lines, int64_t count, uint32_t* words,
                       int64_t stride) {
  const auto of = [&](const auto* values) {
    return x.along ? pair_along(lines, count, values, x.stride, words, stride)
                   : pair_across(lines, count, values, x.stride, words, stride);
  };
  return x.wide ? of(static_cast<const uint32_t*>(x.values))
                : of(static_cast<const uint16_t*>(x.values));
}

constexpr int kVectors = kBf16Columns / 16;

/// Computes the sums of kRows rows of the tile t in registers, from row `row` on.
template <int kRows>
CPD_PAIRS void tile(const Bf16Tile& t, int64_t row) {
  const uint32_t* const a = t.a + row * t.a_stride;
  float* const sums = t.sums + row * t.stride;
  __mmask16 used[kVectors];
  __m512 s[kRows][kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int64_t rest = t.columns - 16 * v;
    used[v] = static_cast<__mmask16>(rest >= 16 ? 0xFFFF : rest <= 0 ? 0 : (1 << rest) - 1);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      s[i][v] = t.adds ? _mm512_maskz_loadu_ps(used[v], sums + i * t.stride + 16 * v)
                       : _mm512_setzero_ps();
    }
  }
  for (int64_t k = 0; k < t.pairs; ++k) {
    __m512bh b[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      b[v] = (__m512bh)_mm512_loadu_si512(t.b + k * kBf16Columns + 16 * v);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m512bh one = (__m512bh)_mm512_set1_epi32(static_cast<int>(a[i * t.a_stride + k]));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) s[i][v] = _mm512_dpbf16_ps(s[i][v], one, b[v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      _mm512_mask_storeu_ps(sums + i * t.stride + 16 * v, used[v], s[i][v]);
    }
  }
}

CPD_BODY void tiles(const Bf16Tile& t) {
  int64_t row = 0;
  for (; row + 6 <= t.rows; row += 6) tile<6>(t, row);
  switch (t.rows - row) {
    case 5:
      return tile<5>(t, row);
    case 4:
      return tile<4>(t, row);
    case 3:
      return tile<3>(t, row);
    case 2:
      return tile<2>(t, row);
    case 1:
      return tile<1>(t, row);
    default:
      return;
  }
}

/// Returns the scales of 16 columns, from column `column` on, in row `row`. `used` masks the
/// columns that exist.
CPD_FN __m512 load_scales(const Bf16Scales& scales, int64_t row, int64_t column, __mmask16 used) {
  const float* const at = scales.values + row * scales.row_stride;
  return scales.by_column ? _mm512_maskz_loadu_ps(used, at + column) : _mm512_set1_ps(*at);
}

/// Rounds to bf16 and returns the bit patterns in the lower 16 bits of each lane.
CPD_FN __m512i halves_of(__m512 y) {
  const __m512i bits = _mm512_castps_si512(y);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(_mm512_set1_epi32(0x7FFF), odd);
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, up), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7FC0));
}

CPD_BODY void finish(const Bf16Finish& f) {
  for (int64_t row = 0; row < f.rows; ++row) {
    for (int64_t column = 0; column < f.columns; column += 16) {
      const int64_t rest = f.columns - column;
      const auto used = static_cast<__mmask16>(rest >= 16 ? 0xFFFF : (1 << rest) - 1);
      __m512 y = _mm512_maskz_loadu_ps(used, f.sums + row * f.stride + column);
      for (const Bf16Scales& scales : f.scales) {
        if (scales.values == nullptr) continue;
        y = _mm512_mul_ps(y, load_scales(scales, row, column, used));
      }
      if (f.bias != nullptr) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(used, f.bias + column));
      const int64_t at = row * f.out_stride + column;
      if (f.wide) {
        _mm512_mask_storeu_ps(static_cast<float*>(f.out) + at, used, y);
      } else {
        _mm512_mask_cvtepi32_storeu_epi16(static_cast<uint16_t*>(f.out) + at, used, halves_of(y));
      }
    }
  }
}

constexpr Bf16Table kTable = {
    .pair = Entry<pair>::Run, .tile = Entry<tiles>::Run, .finish = Entry<finish>::Run};

}  // namespace

/// Returns the kernels of this file, or null if the CPU lacks AVX-512 BF16.
const Bf16Table* bf16_table() {
  return __builtin_cpu_supports("avx512bf16") != 0 ? &kTable : nullptr;
}

}  // namespace CPD_ISA
}  // namespace cpd
#endif
