// SPDX-License-Identifier: Apache-2.0
//
// Casts binary32 or bf16 values to scaled formats whose scales are powers of two, with bf16
// results. One pass finds the largest magnitudes, computes the scales, and rounds the values while
// the block is in the cache.
#include "cpd/numeric/scaled/power_blocks.h"

#include "kernels/cpu/largest.h"
#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint32_t;
using I = Signed<F>;
using U = Unsigned<F>;
constexpr int kLanes = Lanes<F>::count;
constexpr int kPair = 2 * kLanes;

/// The binary32 patterns of kPair neighboring values, in two vectors. From binary32 memory,
/// `first` has the first half of the values and `second` the other half. From bf16 memory, `first`
/// has the values with even index and `second` the values with odd index.
struct Pair {
  U first, second;
};
CPD_FN Pair load_pair(const float* x) { return {load<U>(x), load<U>(x + kLanes)}; }
CPD_FN Pair load_pair(const Bf16* x) {
  const U words = load<U>(x);
  return {words << 16, words & splat<U>(0xFFFF0000U)};
}

/// Stores numbers that bf16 represents exactly, in the order of load_pair(const T*).
template <class T>
CPD_FN void store_pair(Bf16* y, Pair pair) {
  if constexpr (sizeof(T) == sizeof(float)) {
    store_value(y, bits_as<F>(pair.first));
    store_value(y + kLanes, bits_as<F>(pair.second));
  } else {
    store(y, (pair.first >> 16) | pair.second);
  }
}

CPD_FN I magnitude(U x) { return (I)(x & splat<U>(Pattern<F>::magnitude)); }

/// Casts blocks along a row, as many blocks at a time as a vector F has lanes. Stops at the first
/// block that PowerBlocks does not support. Returns the number of values cast.
template <class T>
CPD_FN int64_t cast_along(const PowerBlocks blocks, int64_t n, const T* x, Bf16* y) {
  constexpr int64_t kStep = kLanes * kPowerBlock;
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    I most[kLanes];
#pragma GCC unroll 16
    for (int b = 0; b < kLanes; ++b) {
      most[b] = I{};
      for (int k = 0; k < kPowerBlock; k += kPair) {
        const Pair pair = load_pair(x + i + b * kPowerBlock + k);
        most[b] = max(most[b], max(magnitude(pair.first), magnitude(pair.second)));
      }
    }
    const I largest = largest_lanes<F>(most);
    if (any(!is_usual<F>(largest, blocks))) break;
    const PowerScale<F> scales = power_scale_of<F>(largest, blocks);
    std::int32_t least[kLanes], limit[kLanes];
    store(least, scales.least);
    store(limit, scales.most);
    for (int b = 0; b < kLanes; ++b) {
      const PowerScale<F> at{splat<I>(least[b]), splat<I>(limit[b])};
      for (int k = 0; k < kPowerBlock; k += kPair) {
        const int64_t first = i + b * kPowerBlock + k;
        const Pair pair = load_pair(x + first);
        store_pair<T>(y + first, {power_value<F>(pair.first, at, blocks),
                                  power_value<F>(pair.second, at, blocks)});
      }
    }
  }
  return i;
}

/// Casts columns of `rows` rows, kPairs pairs of vectors at a time. Stops at the first block that
/// PowerBlocks does not support. Returns the number of columns cast.
template <int kPairs, class T>
CPD_FN int64_t cast_columns(const PowerBlocks blocks, const PowerRun& run, int64_t j, const T* x,
                            Bf16* y) {
  for (; j + kPairs * kPair <= run.n; j += kPairs * kPair) {
    I most[2 * kPairs] = {};
    for (int64_t i = 0; i < run.rows; ++i) {
      const T* row = x + i * run.stride + j;
      for (int k = 0; k < kPairs; ++k) {
        const Pair pair = load_pair(row + k * kPair);
        most[2 * k] = max(most[2 * k], magnitude(pair.first));
        most[2 * k + 1] = max(most[2 * k + 1], magnitude(pair.second));
      }
    }
    PowerScale<F> at[2 * kPairs];
    auto usual = is_usual<F>(most[0], blocks);
    for (int k = 0; k < 2 * kPairs; ++k) {
      usual = usual & is_usual<F>(most[k], blocks);
      at[k] = power_scale_of<F>(most[k], blocks);
    }
    if (any(!usual)) break;
    for (int64_t i = 0; i < run.rows; ++i) {
      const int64_t first = i * run.stride + j;
      for (int k = 0; k < kPairs; ++k) {
        const Pair pair = load_pair(x + first + k * kPair);
        store_pair<T>(y + first + k * kPair, {power_value<F>(pair.first, at[2 * k], blocks),
                                              power_value<F>(pair.second, at[2 * k + 1], blocks)});
      }
    }
  }
  return j;
}

template <class T>
CPD_CALL int64_t cast_blocks(const PowerBlocks& blocks, const PowerRun& run) {
  if constexpr (kLanes == 1) {
    return 0;
  } else {
    const auto* const x = static_cast<const T*>(run.x);
    auto* const y = reinterpret_cast<Bf16*>(run.y);
    if (run.along) return cast_along(blocks, run.n, x, y);
    return cast_columns<1>(blocks, run, cast_columns<2>(blocks, run, 0, x, y), x, y);
  }
}

}  // namespace

int64_t cast_power_blocks(const PowerBlocks& blocks, const PowerRun& run) {
  if (run.is_bf16) return cast_blocks<Bf16>(blocks, run);
  return cast_blocks<float>(blocks, run);
}

}  // namespace CPD_ISA
}  // namespace cpd
