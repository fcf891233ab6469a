// SPDX-License-Identifier: Apache-2.0
//
// Computes Hadamard transforms as their contract describes them: step by step, one value at a time.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cpd/oracle/reference.h"
#include "cpd/spec/hadamard.h"
#include "tests/testing/bits.h"
#include "tests/testing/formats.h"

namespace cpd::testing {

/// Returns transforms of every size, with and without random signs, in binary32 and in bf16.
inline std::vector<Hadamard> all_transforms() {
  std::vector<Hadamard> all;
  std::mt19937 bits(5);
  for (int size = 2; size <= Hadamard::kMostSize; size *= 2) {
    for (const bool to_bf16 : {false, true}) {
      all.push_back({size, {}, to_bf16});
      Hadamard signed_one{size, {}, to_bf16};
      for (int i = 0; i < size; ++i) {
        signed_one.signs[static_cast<std::size_t>(i / 32)] |= (bits() & 1U) << (i % 32);
      }
      all.push_back(signed_one);
    }
  }
  all.push_back({16, Hadamard::kTe, true});
  return all;
}

/// Returns 1 / sqrt size, rounded to nearest.
template <class T>
T hadamard_scale(int size) {
  const auto log2 = std::countr_zero(static_cast<unsigned>(size));
  const T half = 1 / static_cast<T>(1ULL << (log2 / 2));
  // sqrt(1/2) = 0x1.6a09e667f3bcc908b2fb1366ea95…p-1
  const T root =
      sizeof(T) == 4 ? static_cast<T>(0x1.6a09e6p-1F) : static_cast<T>(0x1.6a09e667f3bcdp-1);
  return log2 % 2 == 0 ? half : half * root;
}

template <class T>
void transform_in(std::vector<T>& v, const Hadamard& h, bool inverse) {
  const auto flip = [&] {
    for (int i = 0; i < h.size; ++i) {
      if (h.negates(i)) v[static_cast<std::size_t>(i)] = -v[static_cast<std::size_t>(i)];
    }
  };
  const auto n = static_cast<std::size_t>(h.size);
  if (!inverse) flip();
  for (std::size_t distance = 1; distance < n; distance *= 2) {
    const std::vector<T> before = v;
    for (std::size_t i = 0; i < n; ++i) {
      v[i] =
          (i & distance) == 0 ? before[i] + before[i + distance] : before[i - distance] - before[i];
    }
  }
  for (T& x : v) x *= hadamard_scale<T>(h.size);
  if (inverse) flip();
}

/// One group, transformed.
inline std::vector<float> oracle_transform(const std::vector<float>& group, const Hadamard& h,
                                           bool inverse) {
  std::vector<float> y = group;
  if (!h.to_bf16) {
    transform_in(y, h, inverse);
    for (float& value : y) {
      if (value != value) value = std::numeric_limits<float>::quiet_NaN();
    }
    return y;
  }
  std::vector<double> wide(group.begin(), group.end());
  transform_in(wide, h, inverse);
  const reference::Spec bf16 = reference::spec_of(MakeFormat(8, 7));
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = static_cast<float>(reference::cast(bf16, wide[i] + 0.0, reference::Options{}));
  }
  return y;
}

/// Transforms groups of h.size values. x consists of rows of `inner` values. A group takes one
/// value from each of h.size consecutive rows, all at the same index within the row.
inline std::vector<float> oracle_transform(const std::vector<float>& x, const Hadamard& h,
                                           bool inverse, std::size_t inner) {
  const auto size = static_cast<std::size_t>(h.size);
  std::vector<float> y(x.size());
  std::vector<float> group(size);
  for (std::size_t block = 0; block < x.size(); block += size * inner) {
    for (std::size_t j = 0; j < inner; ++j) {
      for (std::size_t i = 0; i < size; ++i) group[i] = x[block + i * inner + j];
      const std::vector<float> made = oracle_transform(group, h, inverse);
      for (std::size_t i = 0; i < size; ++i) y[block + i * inner + j] = made[i];
    }
  }
  return y;
}

/// Returns values of moderate size in most groups. Other groups contain zeros, subnormals, huge
/// values, Inf or NaN, so most results are finite.
inline std::vector<float> hadamard_values(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto word = static_cast<std::uint32_t>(bits());
    const std::uint64_t kind = (i / 97) % 8;
    if (kind < 4) {
      x[i] = from_bits((word & 0x83FFFFFFU) + 0x3C000000U);
    } else if (kind == 4) {
      x[i] = from_bits(word & 0x81FFFFFFU);  // subnormal or nearly
    } else if (kind == 5) {
      x[i] = from_bits((word & 0x80FFFFFFU) | 0x7E000000U);  // sums overflow
    } else if (kind == 6) {
      x[i] = from_bits(word % 7 != 0 ? word & 0x80000000U : word & 0xFFFF0000U);
    } else {
      x[i] = from_bits(word);
    }
  }
  return x;
}

}  // namespace cpd::testing
