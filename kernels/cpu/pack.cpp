// SPDX-License-Identifier: Apache-2.0
//
// Packing for matrix products: copies an operand into panels and computes the bounds of the panels'
// values.

#include "cpd/numeric/fast/veltkamp_rounding.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int32_t;
using std::int64_t;
using std::uint32_t;

/// Returns the value of x's lowest set bit as a bit pattern; the pattern of Inf if x is zero.
template <class V>
CPD_FN Signed<V> last_bit(V x) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using P = Pattern<V>;
  const U magnitude = bits_as<U>(x) & splat<U>(P::magnitude);
  // Clearing the lowest set bit of the significand reduces x by the value of that bit. A power of
  // two has no bit set in its fraction: its lowest bit is the number itself.
  const auto is_power = (magnitude & splat<U>(P::fraction)) == U{};
  const U rest = select(is_power, U{}, magnitude & (magnitude - splat<U>(1)));
  const I bit = bits_as<I>(bits_as<V>(magnitude) - bits_as<V>(rest));
  return select(magnitude == U{}, splat<I>(P::infinity), bit);
}

/// Returns the least value of a lowest set bit among n values. The result is unspecified if a value
/// is NaN or Inf.
CPD_FN float least_bit_of(int64_t n, const float* x) {
  auto least = splat<Signed<F>>(Pattern<F>::infinity);
  auto of_rest = static_cast<int32_t>(Pattern<float>::infinity);
  for_lanes<F>(
      n, [&](int64_t i) { least = min(least, last_bit(load<F>(x + i))); },
      [&](int64_t i, int64_t count) {
        for (int64_t j = i; j < i + count; ++j) of_rest = min(of_rest, last_bit(x[j]));
      });
  return bits_as<float>(min(of_rest, -largest_lane(-least)));
}

/// Copies some rows of a or columns of b ("lines") into one panel of packed values. Lines beyond
/// the operand's last row or column become +0.
template <int kWidth>
CPD_FN void pack_values(int64_t lines, int64_t count, const float* x, int64_t line_stride,
                        int64_t k_stride, float* packed) {
  for (int64_t k = 0; k < count; ++k, x += k_stride, packed += kWidth) {
    if (lines == kWidth && line_stride == 1) {
      __builtin_memcpy(packed, x, sizeof(float) * kWidth);
    } else if (lines == kWidth) {
#pragma GCC unroll 32
      for (int line = 0; line < kWidth; ++line) packed[line] = x[line * line_stride];
    } else {
      for (int line = 0; line < kWidth; ++line) {
        packed[line] = line < lines ? x[line * line_stride] : 0.0F;
      }
    }
  }
}

/// Returns the largest magnitude of n values as a bit pattern. Also ors all bit patterns into
/// `bits`.
CPD_FN int32_t largest_of(int64_t n, const float* x, uint32_t& bits) {
  int32_t most = 0;
  uint32_t all = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto pattern = bits_as<uint32_t>(x[i]);
    const auto magnitude = static_cast<int32_t>(pattern & Pattern<float>::magnitude);
    most = magnitude > most ? magnitude : most;
    all |= pattern;
  }
  bits |= all;
  return most;
}

/// Stores the bounds of the values of a panel (packed rows of a or columns of b) for each group of
/// kRangeGroup successive k: the largest magnitude and, for panels of b, the sum of the largest
/// magnitudes at each k (`total`). pack_least_bits must set `least_bit` later. Returns the bitwise
/// or of all fraction bits.
template <int kWidth>
CPD_FN uint32_t pack_ranges(int64_t count, const float* packed, PanelRange* range) {
  PanelRange* const first = range;
  uint32_t fraction = 0;
  for (int64_t k = 0; k < count; k += kRangeGroup, ++range) {
    const int64_t here = count - k < kRangeGroup ? count - k : kRangeGroup;
    PanelRange group;
    if (kWidth == kGemmRows) {
      const int32_t most = here == kRangeGroup ? largest_of(kRangeGroup * kWidth, packed, fraction)
                                               : largest_of(here * kWidth, packed, fraction);
      group.largest = bits_as<float>(most);
    } else {
      int32_t largest = 0;
      for (int64_t i = 0; i < here; ++i) {
        const int32_t most = largest_of(kWidth, packed + i * kWidth, fraction);
        group.total += bits_as<float>(most);
        largest = most > largest ? most : largest;
      }
      group.largest = bits_as<float>(largest);
    }
    *range = group;
    packed += here * kWidth;
  }
  first->fraction = fraction & Pattern<float>::fraction;
  return first->fraction;
}

template <int kWidth>
CPD_FN void pack_least_bits(int64_t count, const float* packed, PanelRange* range) {
  for (int64_t k = 0; k < count; k += 2, packed += 2 * kWidth) {
    range[k / kRangeGroup].least_bit[k % kRangeGroup / 2] =
        k + 2 <= count ? least_bit_of(2 * kWidth, packed) : least_bit_of(kWidth, packed);
  }
}

/// Stores the fixed-point logarithms (fixed_log) of n packed values.
CPD_FN void pack_logs(int64_t n, const float* packed, int32_t* logs) {
  constexpr int kLanes = Lanes<F>::count;
  for (int64_t i = 0; i < n; i += kLanes) {
    if (n - i < kLanes) {
      float values[kLanes] = {};
      int32_t results[kLanes];
      for (int64_t j = i; j < n; ++j) values[j - i] = packed[j];
      store(results, fixed_log(load<F>(values)));
      for (int64_t j = i; j < n; ++j) logs[j] = results[j - i];
    } else {
      store(logs + i, fixed_log(load<F>(packed + i)));
    }
  }
}

template <int kWidth>
CPD_BODY void pack_panels(int64_t lines, int64_t count, const float* x, int64_t line_stride,
                          int64_t k_stride, int least_bits_within, float* packed, PanelRange* range,
                          int32_t* logs) {
  const int64_t groups = (count + kRangeGroup - 1) / kRangeGroup;
  for (int64_t first = 0; first < lines; first += kWidth) {
    const int64_t here = lines - first < kWidth ? lines - first : kWidth;
    pack_values<kWidth>(here, count, x + first * line_stride, line_stride, k_stride, packed);
    if (significant_bits(pack_ranges<kWidth>(count, packed, range)) <= least_bits_within) {
      pack_least_bits<kWidth>(count, packed, range);
    }
    if (logs != nullptr) {
      pack_logs(count * kWidth, packed, logs);
      logs += count * kWidth;
    }
    packed += count * kWidth;
    range += groups;
  }
}

}  // namespace

void pack(int64_t lines, int64_t count, const float* x, int64_t line_stride, int64_t k_stride,
          int width, int least_bits_within, float* packed, PanelRange* range, int32_t* logs) {
  if (width == kGemmRows) {
    pack_panels<kGemmRows>(lines, count, x, line_stride, k_stride, least_bits_within, packed, range,
                           logs);
  } else {
    pack_panels<kGemmColumns>(lines, count, x, line_stride, k_stride, least_bits_within, packed,
                              range, logs);
  }
}

}  // namespace CPD_ISA
}  // namespace cpd
