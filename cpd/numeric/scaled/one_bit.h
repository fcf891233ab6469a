// SPDX-License-Identifier: Apache-2.0
//
// 1-bit SGD (Seide et al. 2014). Let v = x + residual for the values of a bucket. The bucket has
// two means: of the values v >= 0 (including -0) and of the other values. Each value is replaced by
// the mean of the values with its sign.
#pragma once

#include <cstdint>

#include "cpd/numeric/round/round.h"

namespace cpd {

/// Describes n contiguous values that belong to one or more successive buckets, and the layout of
/// their bits.
struct OneBitRun {
  std::int64_t n = 0;
  std::int64_t bucket = 1;
  /// The number of values of the first bucket that precede the n values. Above 0 if the n values
  /// begin within a bucket.
  std::int64_t before = 0;
  /// True: the bits of each bucket are padded to whole 32-bit words. False: the bits of all buckets
  /// follow one another without padding.
  bool words = false;
  bool streaming = false;  ///< errors are written with non-temporal stores
};

inline namespace CPD_ISA {

/// Returns sum + v where the mask is set, else sum. `sum` must not be -0. AVX-512 takes one masked
/// addition; other lanes select v or 0 and add.
template <class Mask, class V>
CPD_FN V add_where(Mask mask, V sum, V v) {
  if constexpr (sizeof(V) == 64) return select(mask, sum + v, sum);
  return sum + select(mask, v, V{});
}

/// The sums of a bucket's values v >= 0 and of its other values; each lane has its own bucket. v =
/// x + residual is rounded to binary32, and added in binary64 by ascending index. Sums of finite
/// values cannot overflow.
template <class W>
struct OneBitSums {
  using Count = Signed<W>;
  W above{}, below{};
  Count positive{};

  CPD_FN void take(W v) {
    const auto is_positive = v >= W{};
    above = add_where(is_positive, above, v);
    below = add_where(!is_positive, below, v);
    positive = add_where(is_positive, positive, splat<Count>(1));
  }

  CPD_FN W mean_above() const { return mean(above, positive); }
  CPD_FN W mean_below(std::int64_t n) const { return mean(below, splat<Count>(n) - positive); }

 private:
  /// Returns sum / count; 0 if count is 0; NaN if a sum is not finite. For counts up to 2^17, the
  /// result rounds to binary32 as the exact quotient does. Proof: let m be halfway between two
  /// binary32 numbers. Then m * count is a binary64 number. So a sum that is not m * count differs
  /// from it by at least ulp(m * count), and the quotient differs from m by more than ulp(m) / 2.
  CPD_FN W mean(W sum, Count count) const {
    const W divisor = convert<W>(max(count, splat<Count>(1)));
    const auto is_finite = (above - above == W{}) & (below - below == W{});
    return select(is_finite, sum / divisor, bits_as<W>(splat<Unsigned<W>>(Pattern<W>::quiet_nan)));
  }
};

}  // namespace CPD_ISA
}  // namespace cpd
