// SPDX-License-Identifier: Apache-2.0
//
// Inputs for which rounding is difficult.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "cpd/oracle/reference.h"
#include "tests/testing/bits.h"

namespace cpd::testing {

/// Returns zeros, infinities, NaNs of all kinds, and the ends of binary32.
inline std::vector<float> special_values() {
  std::vector<float> values;
  for (const std::uint32_t bits :
       {0x00000000u, 0x00000001u, 0x00000002u, 0x003FFFFFu, 0x00400000u, 0x00400001u, 0x007FFFFFu,
        0x00800000u, 0x00800001u, 0x3F7FFFFFu, 0x3F800000u, 0x3F800001u, 0x7F7FFFFEu, 0x7F7FFFFFu,
        0x7F800000u,                                                         // Inf
        0x7F800001u, 0x7FBFFFFFu, 0x7FC00000u, 0x7FC12345u, 0x7FFFFFFFu}) {  // NaN
    values.push_back(from_bits(bits));
    values.push_back(from_bits(bits | 0x80000000u));
  }
  return values;
}

/// Appends x and its neighbors in binary32, with both signs.
inline void push_around(float x, std::vector<float>& values) {
  const std::uint32_t bits = bits_of(x) & 0x7FFFFFFFu;
  for (const std::uint32_t near : {bits == 0 ? 0 : bits - 1, bits, bits + 1}) {
    values.push_back(from_bits(near));
    values.push_back(from_bits(near | 0x80000000u));
  }
}

/// Returns codes of magnitudes to test, up to 5 beyond the largest finite code. If there are few
/// such codes, returns all. Otherwise returns the first and last codes, codes around the least
/// normal number, and `random` random codes, a third of them next to powers of two.
inline std::vector<std::uint64_t> interesting_codes(const reference::Spec& spec, int random,
                                                    std::mt19937_64& generator) {
  std::vector<std::uint64_t> codes;
  const std::uint64_t top = spec.max_code() + 5;
  if (top <= 32 + 8 * static_cast<std::uint64_t>(random)) {
    for (std::uint64_t c = 0; c <= top; ++c) codes.push_back(c);
    return codes;
  }
  const std::uint64_t normal = std::uint64_t{1} << spec.man;
  for (std::uint64_t c = 0; c < 8; ++c) {
    codes.push_back(c);
    codes.push_back(top - c);
    codes.push_back(normal - std::min<std::uint64_t>(normal, 4) + c);
  }
  for (int i = 0; i < random; ++i) {
    const std::uint64_t c = generator() % (top + 1);
    codes.push_back(i % 3 != 0 ? c : std::min(top, (c | (normal - 1)) + generator() % 3));
  }
  return codes;
}

/// Returns special values, random bit patterns, the format's values, and points at eighths of the
/// gap above each value. The values and points come with their neighbors in binary32.
inline std::vector<float> boundary_patterns(const reference::Spec& spec, int random_codes = 40,
                                            int random_bits = 400, std::uint64_t seed = 1) {
  std::mt19937_64 generator(seed);
  std::vector<float> values = special_values();
  reference::Options truncate;
  truncate.rounding = Rounding::toward_zero;
  truncate.overflow = Overflow::saturate;
  const reference::Spec binary32;
  const auto push_eighths = [&](const reference::Exact& below, const reference::Exact& gap,
                                std::uint64_t eighths) {
    reference::Exact part = multiply(gap, reference::exact_finite(false, eighths, -3));
    push_around(reference::round(binary32, add(below, part), truncate), values);
  };
  for (const std::uint64_t code : interesting_codes(spec, random_codes, generator)) {
    const reference::Exact below = reference::grid_value(spec, code);
    reference::Exact above = reference::grid_value(spec, code + 1);
    if (!spec.subnormals && below.is_zero()) {
      above = reference::grid_value(spec, std::uint64_t{1} << spec.man);
    }
    const reference::Exact gap = add(above, negate(below));
    push_eighths(below, gap, 0);
    push_eighths(below, gap, 4);
    push_eighths(below, gap, 1 + generator() % 7);
  }
  for (int i = 0; i < random_bits; ++i) {
    values.push_back(from_bits(static_cast<std::uint32_t>(generator())));
  }
  return values;
}

/// Returns n random values from a mixture of bit patterns, values of the format's range, and
/// special values.
inline std::vector<float> mixed_values(const reference::Spec& spec, std::size_t n,
                                       std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  const std::vector<float> pool = boundary_patterns(spec, 60, 200, seed + 1);
  std::vector<float> values(n);
  for (float& x : values) x = pool[generator() % pool.size()];
  return values;
}

/// Returns n random values of similar size near the middle of the format's range. The sums of the
/// values do not overflow, and no term vanishes completely, so roundings, ties and cancellations
/// occur.
inline std::vector<float> moderate_values(const reference::Spec& spec, std::size_t n,
                                          std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  const reference::Exact middle = reference::grid_value(spec, spec.max_code() / 2);
  const int centre = middle.significand.bit_length() + middle.exponent - 1;
  std::vector<float> values(n);
  for (float& x : values) {
    const int spread = static_cast<int>(generator() % 5) - 2;
    const int exponent = std::clamp(centre + spread, -148, 126);
    std::uint64_t significand = (generator() & 0x7FFFFF) | 0x800000;
    // Half of the returned values have few significant bits, so some of their sums are exact ties.
    if (generator() % 2 == 0) significand &= ~std::uint64_t{0} << (24 - std::min(23, spec.man + 3));
    reference::Options truncate;
    truncate.rounding = Rounding::toward_zero;
    x = reference::round(
        reference::Spec{},
        reference::exact_finite((generator() & 1) != 0, significand, exponent - 23), truncate);
  }
  return values;
}

}  // namespace cpd::testing
