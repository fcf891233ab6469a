// SPDX-License-Identifier: Apache-2.0
//
// Lets tests compare results bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace cpd::testing {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// Returns a number as text for failure messages: `3FA00000 (1.25)` for a float, else plain hex.
template <class T>
std::string hex(T x) {
  char text[64];
  if constexpr (std::is_same_v<T, float>) {
    std::snprintf(text, sizeof text, "%08X (%.9g)", bits_of(x), static_cast<double>(x));
  } else if constexpr (std::is_same_v<T, double>) {
    std::snprintf(text, sizeof text, "%016llX (%.17g)",
                  static_cast<unsigned long long>(std::bit_cast<std::uint64_t>(x)), x);
  } else {
    std::snprintf(text, sizeof text, "%0*llX", static_cast<int>(2 * sizeof(T)),
                  static_cast<unsigned long long>(x));
  }
  return text;
}

template <class T>
bool same_bits(T a, T b) {
  if constexpr (std::is_same_v<T, float>) {
    return bits_of(a) == bits_of(b);
  } else if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
  } else {
    return a == b;
  }
}

/// Succeeds if all elements have equal bits. Otherwise the message shows the first mismatch (index,
/// expected and got, in hex) and the number of mismatches. `describe(i)` may add the inputs of
/// element i.
template <class T, class Describe>
  requires(std::invocable<const Describe&, std::size_t>)::testing::AssertionResult
bits_equal(std::span<const T> expected, std::span<const T> got, const Describe& describe) {
  if (expected.size() != got.size()) {
    return ::testing::AssertionFailure()
           << "expected " << expected.size() << " values, got " << got.size();
  }
  std::size_t first = expected.size();
  std::size_t mismatches = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (same_bits(expected[i], got[i])) continue;
    if (mismatches++ == 0) first = i;
  }
  if (mismatches == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << mismatches << " of " << expected.size() << " differ, first at " << first
         << ": expected " << hex(expected[first]) << ", got " << hex(got[first]) << describe(first);
}

template <class T>
::testing::AssertionResult bits_equal(std::span<const T> expected, std::span<const T> got) {
  return bits_equal(expected, got, [](std::size_t) { return std::string(); });
}

template <class T>
::testing::AssertionResult bits_equal(const std::vector<T>& expected, const std::vector<T>& got) {
  return bits_equal(std::span(expected), std::span(got));
}

/// Compares elements like bits_equal above. The message of a mismatch also shows the input.
inline ::testing::AssertionResult bits_equal(std::span<const float> expected,
                                             std::span<const float> got,
                                             std::span<const float> inputs) {
  return bits_equal(expected, got, [&](std::size_t i) { return ", input " + hex(inputs[i]); });
}

/// Compares binary32 values like bits_equal. Overloads take vectors and lists of vectors.
inline ::testing::AssertionResult same(std::span<const float> expected,
                                       std::span<const float> got) {
  return bits_equal(expected, got);
}
inline ::testing::AssertionResult same(const std::vector<float>& expected,
                                       const std::vector<float>& got) {
  return bits_equal(std::span<const float>(expected), std::span<const float>(got));
}

}  // namespace cpd::testing
