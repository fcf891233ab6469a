// SPDX-License-Identifier: Apache-2.0
//
// Computes the levels of values below a norm in exact integers, value by value. This is the rule of
// numeric/scaled/levels.h, written independently.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cpd/compress/codec.h"
#include "cpd/numeric/round/codec.h"
#include "cpd/numeric/scaled/levels.h"
#include "tests/testing/bits.h"

namespace cpd::testing {

__extension__ using Int128 = __int128;
#if __LDBL_MANT_DIG__ == 113
using Quad = long double;
#else
__extension__ using Quad = __float128;
#endif

/// |x| = significand * 2^exponent. The significand is in [2^23, 2^24), or 0.
struct Parts {
  std::int64_t significand = 0;
  int exponent = 0;
};
inline Parts parts_of(float x) {
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(static_cast<double>(x)), &exponent);
  return {static_cast<std::int64_t>(std::ldexp(fraction, 24)), exponent - 24};
}

inline Int128 floor_ratio(Int128 a, Int128 b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

/// Returns the level of v: floor(|u| + R / 2^N), or for intervals floor((u + s) / 2 + R / 2^N),
/// where u = v s / norm.
inline std::int64_t level_by_integers(const LevelPlan& plan, float v, float norm,
                                      std::uint32_t random) {
  const Parts a = parts_of(v);
  const Parts b = parts_of(norm);
  if (b.significand == 0) return 0;
  const int apart = a.exponent - b.exponent;
  const bool negative = std::signbit(v);
  if (apart > 2 && a.significand != 0) return plan.intervals && negative ? 0 : plan.most;
  // For s steps and N random bits, u / one is |v s / norm| * 2^N. `u` is v's significand times
  // s * 2^(N + apart + 60), where `apart` is v's exponent minus the norm's. `one` is the norm's
  // significand times 2^60.
  Int128 u = 0;
  if (apart >= -60 && a.significand != 0) {
    u = static_cast<Int128>(a.significand) * plan.steps << (plan.random_bits + apart + 60);
  } else if (a.significand != 0) {
    u = 1;  // less than any that counts
  }
  const Int128 one = static_cast<Int128>(b.significand) << 60;
  const Int128 draws = Int128{1} << plan.random_bits;
  Int128 level;
  if (plan.intervals) {
    const Int128 doubled = (negative ? -u : u) + one * (plan.steps * draws + 2 * Int128{random});
    level = floor_ratio(doubled, 2 * one * draws);
  } else {
    level = floor_ratio(u + one * random, one * draws);
  }
  if (level < 0) level = 0;
  return static_cast<std::int64_t>(level > plan.most ? plan.most : level);
}

inline std::uint32_t code_by_integers(const LevelPlan& plan, float v, float norm,
                                      std::uint32_t random) {
  if (plan.has_nan && !std::isfinite(v)) return 1U << (plan.bits - 1);
  if (!plan.has_nan && !(norm > 0)) return 0;
  const std::int64_t level = level_by_integers(plan, v, norm, random);
  const std::int64_t code = !plan.intervals && std::signbit(v) ? -level : level;
  return static_cast<std::uint32_t>(code) & ((1U << plan.bits) - 1);
}

/// Returns the value of a code, level * norm / steps. Computes in binary128 (113 significant bits)
/// and rounds the quotient to binary32.
inline float value_by_quad(const LevelPlan& plan, std::uint32_t code, float norm) {
  std::int64_t level = code;
  if (plan.intervals) {
    level = 2 * level - plan.steps;
  } else {
    if (code == 1U << (plan.bits - 1)) return std::numeric_limits<float>::quiet_NaN();
    if (code >> (plan.bits - 1) != 0) level -= std::int64_t{1} << plan.bits;
    if (std::abs(level) > plan.most) return std::numeric_limits<float>::quiet_NaN();
  }
  if (std::isnan(norm)) return norm;
  if (level == 0 || norm == 0) return 0;
  return static_cast<float>(static_cast<Quad>(level) * static_cast<Quad>(norm) / plan.steps);
}

inline std::vector<std::uint8_t> packed(const std::vector<std::uint32_t>& codes, int bits) {
  std::vector<std::uint8_t> bytes((codes.size() * static_cast<std::size_t>(bits) + 7) / 8);
  for (std::size_t i = 0; i < codes.size(); i += 8) {
    const auto count = static_cast<int>(std::min<std::size_t>(8, codes.size() - i));
    pack_group(codes.data() + i, count, bits,
               bytes.data() + i / 8 * static_cast<std::size_t>(bits));
  }
  return bytes;
}

/// Returns random values of many magnitudes, among them zeros and subnormals. Some are multiples of
/// 1 / steps.
inline std::vector<float> gradient_like(std::size_t n, std::uint64_t seed, int steps = 7) {
  std::mt19937_64 generator(seed);
  std::vector<float> x(n);
  for (float& v : x) {
    const std::uint64_t r = generator();
    const double unit = std::ldexp(static_cast<double>(r >> 40), -24);
    const int kind = static_cast<int>(r % 16);
    double value = std::ldexp(unit, -static_cast<int>(r >> 8 & 3));
    if (kind == 0) value = 0;
    if (kind == 1) value = std::ldexp(unit, -140);
    if (kind == 2) value = static_cast<double>(r >> 9 & 31) / steps;
    if (kind == 3) value = std::ldexp(unit, -30);
    v = static_cast<float>((r & 16) != 0 ? -value : value);
  }
  return x;
}

inline std::vector<std::uint32_t> random_integers(std::size_t n, int bits, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<std::uint32_t> all(n);
  const std::uint32_t most = (1U << bits) - 1;
  for (std::uint32_t& r : all) {
    const std::uint64_t word = generator();
    r = word % 8 == 0 ? 0 : word % 8 == 1 ? most : static_cast<std::uint32_t>(word >> 32) & most;
  }
  return all;
}

/// Returns the LevelPlan (numbers of bits and levels) of QSGD with these options.
inline LevelPlan plan_of(int bits, bool intervals, int random_bits, std::int64_t bucket = 512) {
  const int steps = (1 << (intervals ? bits : bits - 1)) - 1;
  return {.bits = bits,
          .steps = steps,
          .most = steps,
          .intervals = intervals,
          .random_bits = random_bits,
          .bucket = bucket};
}

/// Returns the LevelPlan of QSGD with signs and s levels above zero.
inline LevelPlan plan_of_levels(int s, int random_bits, std::int64_t bucket = 512) {
  int bits = 1;
  while ((1 << bits) < 2 * s + 1) ++bits;
  return {.bits = bits, .steps = s, .most = s, .random_bits = random_bits, .bucket = bucket};
}
/// Returns LevelPlans of QSGD for codes of 1 … 16 bits. Some have signs and 2^(bits - 1) - 1 levels
/// above zero, some 2^bits - 1 intervals from -norm to norm. The others have signs and another
/// number of levels above zero, from 2 to 20,000.
inline std::vector<LevelPlan> plans_of(int random_bits, std::int64_t bucket = 512) {
  std::vector<LevelPlan> plans{plan_of(1, true, random_bits, bucket)};
  for (const int bits : {2, 3, 4, 8, 9, 12, 16}) {
    for (const bool intervals : {false, true}) {
      plans.push_back(plan_of(bits, intervals, random_bits, bucket));
    }
  }
  for (const int s : {2, 5, 16, 22, 255, 256, 1000, 20000}) {
    plans.push_back(plan_of_levels(s, random_bits, bucket));
  }
  return plans;
}
inline std::string text_of(const LevelPlan& plan) {
  return std::to_string(plan.bits) + " bits, " + std::to_string(plan.steps) +
         (plan.intervals ? " intervals" : " levels");
}

inline double folded(std::vector<double> sums) {
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

/// Returns the norm of each bucket of x: the 2-norm if `euclidean`, else the largest magnitude. For
/// the 2-norm, element i of a bucket adds its square to partial sum number i modulo 16.
inline std::vector<float> norms_of(const std::vector<float>& x, std::int64_t bucket,
                                   bool euclidean) {
  std::vector<float> norms;
  const auto size = static_cast<std::int64_t>(x.size());
  for (std::int64_t begin = 0; begin < size; begin += bucket) {
    const std::int64_t end = std::min(begin + bucket, size);
    float largest = 0;
    std::vector<double> squares(16);
    bool finite = true;
    for (std::int64_t i = begin; i < end; ++i) {
      const float v = x[static_cast<std::size_t>(i)];
      finite = finite && std::isfinite(v);
      largest = std::max(largest, std::fabs(v));
      squares[static_cast<std::size_t>((i - begin) % 16)] += static_cast<double>(v) * v;
    }
    float norm = largest;
    if (euclidean) {
      __extension__ using Wide = long double;  // 64 bits: the root of 53 lies on no tie of 24
      norm = static_cast<float>(std::sqrt(static_cast<Wide>(folded(squares))));
    }
    norms.push_back(finite && std::isfinite(norm) ? norm : std::numeric_limits<float>::quiet_NaN());
  }
  return norms;
}

/// Encodes a range of the layer x, and returns its bytes.
inline std::vector<std::uint8_t> encode_piece(const Codec& codec, Piece piece,
                                              const std::vector<float>& x) {
  piece.size = static_cast<std::int64_t>(x.size());
  std::vector<std::uint8_t> bytes(
      static_cast<std::size_t>(codec.MostBytes(piece.n, piece.begin % codec.bucket())));
  const std::unique_ptr<CodecState> state = codec.MakeState(piece.size);
  if (state != nullptr) {
    state->Begin({.n = piece.size, .shift = piece.shift, .size = piece.size}, x.data());
  }
  const std::int64_t used = codec.Encode(piece, state.get(), x.data() + piece.begin, bytes.data());
  EXPECT_LE(used, static_cast<std::int64_t>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(used));
  return bytes;
}
inline std::vector<float> decode_piece(const Codec& codec, std::span<const std::uint8_t> bytes,
                                       std::int64_t n, std::int64_t before = 0, int shift = 0,
                                       float divisor = 1) {
  std::vector<float> y(static_cast<std::size_t>(n));
  codec.Decode(bytes, n, shift, divisor, y.data(), before);
  return y;
}

}  // namespace cpd::testing
