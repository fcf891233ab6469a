// SPDX-License-Identifier: Apache-2.0
//
// 1-bit SGD. Computes the sums of eight buckets at a time, one bucket in each lane; then the bits
// and errors of one bucket after the other.
#include "cpd/numeric/scaled/one_bit.h"

#include "kernels/cpu/elements.h"

namespace cpd {
inline namespace CPD_ISA {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint8_t;

constexpr int kEight = 8;  ///< buckets, and values of each, that are handled together
// --- means ---------------------------------------------------------------------------------------

/// Stores values[i][b] = x[b * bucket + i] + residual[b * bucket + i] for i < count and b <
/// buckets, and 0 for b >= buckets.
CPD_FN void gather(int64_t bucket, int64_t buckets, int64_t count, const float* x,
                   const float* residual, float (*values)[kEight]) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t b = 0; b < buckets; ++b) {
      values[i][b] = x[b * bucket + i] + residual[b * bucket + i];
    }
    for (int64_t b = buckets; b < kEight; ++b) values[i][b] = 0;
  }
}

#if defined(__AVX2__)
/// Loads four values of bucket b into the low half of the vector and four values of bucket b + 4
/// into the high half. Buckets beyond the last give 0.
CPD_FN F32x8 load_fours(int64_t bucket, int64_t buckets, int64_t b, const float* x) {
  const auto four = [&](int64_t of) {
    return of < buckets ? load<F32x4>(x + of * bucket) : F32x4{};
  };
  return __builtin_shufflevector(four(b), four(b + 4), 0, 1, 2, 3, 4, 5, 6, 7);
}

/// Stores x + residual of four values of each bucket, transposed: values[i][b] belongs to value i
/// of bucket b, and is 0 for b >= buckets.
CPD_FN void gather_four(int64_t bucket, int64_t buckets, const float* x, const float* residual,
                        float (*values)[kEight]) {
  F32x8 rows[4];
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) {
    rows[b] = load_fours(bucket, buckets, b, x) + load_fours(bucket, buckets, b, residual);
  }
  const auto low = [](F32x8 a, F32x8 b) {
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
  };
  const auto high = [](F32x8 a, F32x8 b) {
    return __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
  };
  const auto store_two = [&](int i, F32x8 a, F32x8 b) {
    store(values[i], __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13));
    store(values[i + 1], __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15));
  };
  store_two(0, low(rows[0], rows[1]), low(rows[2], rows[3]));
  store_two(2, high(rows[0], rows[1]), high(rows[2], rows[3]));
}
#endif

/// Stores x + residual of eight values of each bucket, transposed: values[i][b] belongs to value i
/// of bucket b, and is 0 for b >= buckets.
CPD_FN void gather_eight(int64_t bucket, int64_t buckets, const float* x, const float* residual,
                         float (*values)[kEight]) {
#if defined(__AVX2__)
  gather_four(bucket, buckets, x, residual, values);
  gather_four(bucket, buckets, x + 4, residual + 4, values + 4);
#else
  gather(bucket, buckets, kEight, x, residual, values);
#endif
}

/// Computes the means of up to eight buckets. The buckets begin `bucket` values apart; each has n
/// <= bucket values.
CPD_FN void take_means(int64_t bucket, int64_t buckets, int64_t n, const float* x,
                       const float* residual, float* means) {
  constexpr int kLanes = Lanes<D>::count;
  constexpr int kSums = kEight / kLanes;
  const auto used = (buckets + kLanes - 1) / kLanes;
  OneBitSums<D> sums[kSums];
  alignas(64) float values[kEight][kEight];
  for (int64_t i = 0; i < n; i += kEight) {
    const int64_t count = least(kEight, n - i);
    if (count == kEight) {
      gather_eight(bucket, buckets, x + i, residual + i, values);
    } else {
      gather(bucket, buckets, count, x + i, residual + i, values);
    }
    for (int64_t j = 0; j < count; ++j) {
#pragma GCC unroll 8
      for (int s = 0; s < kSums; ++s) {
        if (s < used) sums[s].take(load_f32<D>(values[j] + s * kLanes));
      }
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

// --- bits ----------------------------------------------------------------------------------------

constexpr int kUnit = Lanes<F>::count < 8 ? 8 : Lanes<F>::count;  ///< values whose bits fill bytes

/// Calls visit(b, i, count, bit) for each bucket that has values in `run` (the values of one kernel
/// call). b counts these buckets from 0. The bucket's values are i … i + count - 1 of the run. The
/// bit of value i has index `bit` among all bits of the run.
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

/// Visits `count` values by whole bytes of their bits; the bit of value i has number bit + i. Calls
/// one(i) for each value before the first whole byte. Then calls unit(i) for each full group of
/// kUnit values i … i + kUnit - 1, and rest(i, left) if left < kUnit values remain.
template <class One, class Unit, class Rest>
CPD_FN void for_bytes(int64_t count, int64_t bit, One one, Unit unit, Rest rest) {
  int64_t i = 0;
  for (; i < count && (bit + i) % 8 != 0; ++i) one(i);
  for (; i + kUnit <= count; i += kUnit) unit(i);
  if (i < count) rest(i, count - i);
}

template <bool kStreaming>
CPD_FN void put_errors(float* to, F errors) {
  if constexpr (kStreaming) {
    store_streaming(to, errors);
  } else {
    store(to, errors);
  }
}

/// Stores the bits and errors of one bucket's values. kStreaming: writes the errors by non-temporal
/// stores; `next` must then be aligned, and the bits must begin on a byte.
template <bool kStreaming>
CPD_FN void encode_part(int64_t count, int64_t bit, const float* x, const float* residual,
                        float above, float below, uint8_t* bits, float* next) {
  constexpr int kLanes = Lanes<F>::count;
  const bool is_nan = above != above;
  const float mean[] = {below, above};  // indexed by the bit, without a branch
  const auto encode_one = [&](int64_t i) {
    const float v = x[i] + residual[i];
    const uint32_t code = v >= 0 ? 1 : 0;
    next[i] = is_nan ? residual[i] : v - mean[code];
    return code;
  };
  for_bytes(
      count, bit,
      [&](int64_t i) {
        uint8_t* const byte = bits + (bit + i) / 8;
        *byte = static_cast<uint8_t>(*byte | encode_one(i) << (bit + i) % 8);
      },
      [&](int64_t i) {
        uint32_t code = 0;
#pragma GCC unroll 8
        for (int k = 0; k < kUnit; k += kLanes) {
          const F left = load<F>(residual + i + k);
          const F v = load<F>(x + i + k) + left;
          const auto is_positive = v >= F{};
          code |= mask_bits(is_positive) << k;
          const F error = v - select(is_positive, splat<F>(above), splat<F>(below));
          put_errors<kStreaming>(next + i + k, is_nan ? left : error);
        }
        __builtin_memcpy(bits + (bit + i) / 8, &code, kUnit / 8);
      },
      [&](int64_t i, int64_t left) {
        uint32_t code = 0;
        for (int64_t j = 0; j < left; ++j) code |= encode_one(i + j) << j;
        for (int64_t j = 0; j < left; j += 8) {
          bits[(bit + i + j) / 8] = static_cast<uint8_t>(code >> j);
        }
      });
}

}  // namespace

void one_bit_means(const OneBitRun& run, const float* x, const float* residual, float* means) {
  const int64_t bucket = run.bucket;
  const int64_t n = run.n;
  int64_t i = 0;
  const auto take = [&](int64_t buckets, int64_t count) {
    take_means(bucket, buckets, count, x + i, residual + i, means);
    i += buckets * count;
    means += 2 * buckets;
  };
  if (run.before > 0) take(1, least(bucket - run.before, n));
  while (n - i >= bucket) take(least(kEight, (n - i) / bucket), bucket);
  if (i < n) take(1, n - i);
}

void one_bit_encode(const OneBitRun& run, const float* x, const float* residual, const float* means,
                    uint8_t* bits, float* next) {
  for_parts(run, [&](int64_t b, int64_t i, int64_t count, int64_t bit) {
    const float above = means[2 * b];
    const float below = means[2 * b + 1];
    if (run.streaming && is_aligned(next + i) && bit % 8 == 0) {
      encode_part<true>(count, bit, x + i, residual + i, above, below, bits, next + i);
    } else {
      encode_part<false>(count, bit, x + i, residual + i, above, below, bits, next + i);
    }
  });
  if (run.streaming) fence_streaming<F>();
}

void one_bit_decode(const OneBitRun& run, const uint8_t* bits, const float* means, float* y) {
  constexpr int kLanes = Lanes<F>::count;
  using U = Unsigned<F>;
  for_parts(run, [&](int64_t b, int64_t begin, int64_t count, int64_t bit) {
    const float above = means[2 * b];
    const float below = means[2 * b + 1];
    float* const to = y + begin;
    const float mean[] = {below, above};
    const auto decode_one = [&](int64_t i) {
      to[i] = mean[bits[(bit + i) / 8] >> (bit + i) % 8 & 1];
    };
    for_bytes(
        count, bit, decode_one,
        [&](int64_t i) {
          uint32_t code = 0;
          __builtin_memcpy(&code, bits + (bit + i) / 8, kUnit / 8);
#pragma GCC unroll 8
          for (int k = 0; k < kUnit; k += kLanes) {
            const auto is_positive = (splat<U>(code >> k) & (splat<U>(1) << iota<U>())) != U{};
            store(to + i + k, select(is_positive, splat<F>(above), splat<F>(below)));
          }
        },
        [&](int64_t i, int64_t left) {
          for (int64_t j = i; j < i + left; ++j) decode_one(j);
        });
  });
}

}  // namespace CPD_ISA
}  // namespace cpd
