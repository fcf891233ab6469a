// SPDX-License-Identifier: Apache-2.0
//
// 1-bit SGD: sums of eight buckets at a time, each in a lane of its own; then bits and errors, one
// bucket after the other.
#include "cpd/numeric/one_bit.h"

#include "kernels/cpu/table.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint8_t;

constexpr int kEight = 8;  ///< buckets, or their values, side by side
#if defined(CPD_VECTORS)
using Eight = F32x8;
#else
using Eight = float;
#endif

// --- means ---------------------------------------------------------------------------------------

/// Lane l of row r and lane r of row l change places where r and l differ in kDistance.
template <int kDistance, class V>
CPD_FN void turn(V* rows) {
  const auto has_bit = (iota<Unsigned<V>>() & splat<Unsigned<V>>(kDistance)) != Unsigned<V>{};
#pragma GCC unroll 8
  for (int r = 0; r < kEight; ++r) {
    if ((r & kDistance) != 0) continue;
    const V a = rows[r];
    const V b = rows[r + kDistance];
    rows[r] = select(has_bit, swap_lanes<kDistance>(b), a);
    rows[r + kDistance] = select(has_bit, b, swap_lanes<kDistance>(a));
  }
}

/// values[i][b] = x[b * bucket + i] + residual[b * bucket + i], i < count, b < buckets; 0 for other
/// b.
CPD_FN void gather(int64_t bucket, int64_t buckets, int64_t count, const float* x,
                   const float* residual, float (*values)[kEight]) {
  for (int64_t b = 0; b < kEight; ++b) {
    for (int64_t i = 0; i < count; ++i) {
      values[i][b] = b < buckets ? x[b * bucket + i] + residual[b * bucket + i] : 0;
    }
  }
}

/// The same of eight values of eight buckets.
template <class V>
CPD_FN void gather_eight(int64_t bucket, const float* x, const float* residual,
                         float (*values)[kEight]) {
  if constexpr (Lanes<V>::count == 1) {
    gather(bucket, kEight, kEight, x, residual, values);
  } else {
    V rows[kEight];
#pragma GCC unroll 8
    for (int b = 0; b < kEight; ++b) {
      rows[b] = load<V>(x + b * bucket) + load<V>(residual + b * bucket);
    }
    turn<1>(rows);
    turn<2>(rows);
    turn<4>(rows);
#pragma GCC unroll 8
    for (int i = 0; i < kEight; ++i) store(values[i], rows[i]);
  }
}

/// Means of up to eight buckets that begin `bucket` values apart and have n <= bucket each.
CPD_FN void take_means(int64_t bucket, int64_t buckets, int64_t n, const float* x,
                       const float* residual, float* means) {
  constexpr int kLanes = Lanes<D>::count;
  constexpr int kSums = kEight / kLanes;
  OneBitSums<D> sums[kSums];
  alignas(64) float values[kEight][kEight];
  for (int64_t i = 0; i < n; i += kEight) {
    const int64_t count = least(kEight, n - i);
    if (buckets == kEight && count == kEight) {
      gather_eight<Eight>(bucket, x + i, residual + i, values);
    } else {
      gather(bucket, buckets, count, x + i, residual + i, values);
    }
    for (int64_t j = 0; j < count; ++j) {
#pragma GCC unroll 8
      for (int s = 0; s < kSums; ++s) sums[s].take(load_f32<D>(values[j] + s * kLanes));
    }
  }
  float above[kEight];
  float below[kEight];
#pragma GCC unroll 8
  for (int s = 0; s < kSums; ++s) {
    store_f32(above + s * kLanes, sums[s].mean_above());
    store_f32(below + s * kLanes, sums[s].mean_below(n));
  }
  for (int64_t b = 0; b < buckets; ++b) {
    means[2 * b] = above[b];
    means[2 * b + 1] = below[b];
  }
}

CPD_BODY void one_bit_means_body(const OneBitRun* run, const float* x, const float* residual,
                                 float* means) {
  const int64_t bucket = run->bucket;
  const int64_t n = run->n;
  int64_t i = 0;
  const auto take = [&](int64_t buckets, int64_t count) {
    take_means(bucket, buckets, count, x + i, residual + i, means);
    i += buckets * count;
    means += 2 * buckets;
  };
  if (run->before > 0) take(1, least(bucket - run->before, n));
  while (n - i >= bucket) take(least(kEight, (n - i) / bucket), bucket);
  if (i < n) take(1, n - i);
}

// --- bits ----------------------------------------------------------------------------------------

constexpr int kUnit = Lanes<F>::count < 8 ? 8 : Lanes<F>::count;  ///< values whose bits are bytes

/// Calls visit(bucket, i, count, bit) for each bucket's part of the run: values from i on, whose
/// bits begin at `bit`.
template <class Visit>
CPD_FN void for_parts(const OneBitRun& run, Visit visit) {
  int64_t bit = 0;
  int64_t in_bucket = run.before;
  for (int64_t i = 0, b = 0; i < run.n; ++b) {
    const int64_t count = least(run.bucket - in_bucket, run.n - i);
    visit(b, i, count, bit);
    i += count;
    bit += run.words ? (count + 31) / 32 * 32 : count;
    in_bucket = 0;
  }
}

/// Calls one(i) for values whose bits lie in bytes beside others, unit(i) for kUnit of them that
/// begin on a byte.
template <class Unit, class One>
CPD_FN void for_bytes(int64_t count, int64_t bit, Unit unit, One one) {
  int64_t i = 0;
  for (; i < count && (bit + i) % 8 != 0; ++i) one(i);
  for (; i + kUnit <= count; i += kUnit) unit(i);
  for (; i < count; ++i) one(i);
}

CPD_BODY void one_bit_encode_body(const OneBitRun* run, const float* x, const float* residual,
                                  const float* means, uint8_t* bits, float* next) {
  constexpr int kLanes = Lanes<F>::count;
  for_parts(*run, [&](int64_t b, int64_t begin, int64_t count, int64_t bit) {
    const float above = means[2 * b];
    const float below = means[2 * b + 1];
    const bool is_nan = above != above;
    const float* from = x + begin;
    const float* kept = residual + begin;
    float* to = next + begin;
    for_bytes(
        count, bit,
        [&](int64_t i) {
          uint32_t code = 0;
#pragma GCC unroll 8
          for (int k = 0; k < kUnit; k += kLanes) {
            const F left = load<F>(kept + i + k);
            const F v = load<F>(from + i + k) + left;
            const auto is_positive = v >= F{};
            code |= mask_bits(is_positive) << k;
            const F error = v - select(is_positive, splat<F>(above), splat<F>(below));
            store(to + i + k, is_nan ? left : error);
          }
          __builtin_memcpy(bits + (bit + i) / 8, &code, kUnit / 8);
        },
        [&](int64_t i) {
          const float v = from[i] + kept[i];
          const bool is_positive = v >= 0;
          uint8_t* const byte = bits + (bit + i) / 8;
          if (is_positive) *byte = static_cast<uint8_t>(*byte | 1U << (bit + i) % 8);
          to[i] = is_nan ? kept[i] : v - (is_positive ? above : below);
        });
  });
}

CPD_BODY void one_bit_decode_body(const OneBitRun* run, const uint8_t* bits, const float* means,
                                  float* y) {
  constexpr int kLanes = Lanes<F>::count;
  using U = Unsigned<F>;
  for_parts(*run, [&](int64_t b, int64_t begin, int64_t count, int64_t bit) {
    const float above = means[2 * b];
    const float below = means[2 * b + 1];
    for_bytes(
        count, bit,
        [&](int64_t i) {
          uint32_t code = 0;
          __builtin_memcpy(&code, bits + (bit + i) / 8, kUnit / 8);
#pragma GCC unroll 8
          for (int k = 0; k < kUnit; k += kLanes) {
            const auto is_positive = (splat<U>(code >> k) & (splat<U>(1) << iota<U>())) != U{};
            store(y + begin + i + k, select(is_positive, splat<F>(above), splat<F>(below)));
          }
        },
        [&](int64_t i) {
          const bool is_positive = (bits[(bit + i) / 8] >> (bit + i) % 8 & 1) != 0;
          y[begin + i] = is_positive ? above : below;
        });
  });
}

}  // namespace

void one_bit_means(const OneBitRun& run, const float* x, const float* residual, float* means) {
  enter<one_bit_means_body>(&run, x, residual, means);
}

void one_bit_encode(const OneBitRun& run, const float* x, const float* residual, const float* means,
                    uint8_t* bits, float* next) {
  enter<one_bit_encode_body>(&run, x, residual, means, bits, next);
}

void one_bit_decode(const OneBitRun& run, const uint8_t* bits, const float* means, float* y) {
  enter<one_bit_decode_body>(&run, bits, means, y);
}

}  // namespace CPD_ISA
}  // namespace cpd
