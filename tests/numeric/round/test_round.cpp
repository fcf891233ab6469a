// SPDX-License-Identifier: Apache-2.0
//
// Tests that every backend rounds a value into a format as the oracle does, for every format,
// rounding mode and overflow policy.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::bits_equal;
using testing::from_bits;
using testing::kDeterministicModes;
using testing::kPolicies;
using testing::oracle_cast;
using testing::run_cast;

// Rounds x into the format on every backend, and expects the oracle's values. Returns false after a
// failure.
template <class T>
bool check(const std::vector<T>& x, const Format& format, const RoundingOptions& o,
           const std::vector<std::uint32_t>* random = nullptr) {
  const std::vector<T> expected = oracle_cast(x, format, o, random);
  bool good = true;
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    const std::vector<T> got = run_cast(x, format, o, random);
    const auto inputs = [&](std::size_t i) {
      std::string text = ", input " + testing::hex(x[i]);
      if (random != nullptr) text += ", R " + std::to_string((*random)[i]);
      return text;
    };
    const auto equal = bits_equal(std::span<const T>(expected), std::span<const T>(got), inputs);
    EXPECT_TRUE(equal) << backend << ", " << testing::describe(format, o);
    good = good && equal;
  }
  return good;
}

std::vector<double> boundary_doubles(const Format& format) {
  std::vector<double> values;
  for (const float x : testing::boundary_patterns(reference::spec_of(format), 6, 40)) {
    const double wide = x;
    values.push_back(wide);
    values.push_back(std::nextafter(wide, HUGE_VAL));
    values.push_back(std::nextafter(wide, -HUGE_VAL));
  }
  std::mt19937_64 generator(11);
  for (int i = 0; i < 50; ++i) values.push_back(std::bit_cast<double>(generator()));
  values.insert(values.end(), {0x1p-1074, -0x1p-1074, 0x1p-150, 0x1.8p-150, 0x1.fffffffffffffp127,
                               0x1.fffffefffffffp127, 0x1.ffffffp127, 0x1p128, 0x1p1023, -0x1p1023,
                               0x1p-1022, 0x1.00000000000001p-149, -0x1.8000000000001p-149});
  return values;
}

void check_formats(const std::vector<Format>& formats, int random_codes) {
  int failures = 0;
  for (const Format& format : formats) {
    const auto x = testing::boundary_patterns(reference::spec_of(format), random_codes, 100,
                                              static_cast<std::uint64_t>(format.bits()));
    for (const Rounding mode : kDeterministicModes) {
      for (const Overflow overflow : kPolicies) {
        failures += check(x, format, testing::options_of(mode, overflow)) ? 0 : 1;
        if (failures > 20) FAIL() << "more than 20 failures; the rest is left out";
      }
    }
  }
}

TEST(Round, EveryIeeeFormatModeAndPolicy) { check_formats(testing::ieee_formats(), 24); }

TEST(Round, EveryEncodingBiasSignAndSubnormals) {
  check_formats(testing::few(testing::encoding_formats(), 2), 4);
}

TEST(Round, NamedFormats) { check_formats(testing::named_formats(), 40); }

TEST(Round, IeeeWithoutSubnormalsOrSign) {
  std::vector<Format> formats;
  for (const int exp : {1, 2, 5, 8}) {
    for (const int man : {0, 1, 7, 10, 22, 23}) {
      formats.push_back(MakeFormat(exp, man, Encoding::ieee, std::nullopt, true, false));
      formats.push_back(MakeFormat(exp, man, Encoding::ieee, std::nullopt, false, true));
      formats.push_back(MakeFormat(exp, man, Encoding::ieee, std::nullopt, false, false));
    }
  }
  check_formats(formats, 24);
}

TEST(Round, DoubleIsRoundedFromItsOwnBits) {
  int failures = 0;
  std::vector<Format> formats = testing::named_formats();
  for (const int exp : {1, 2, 4, 8}) {
    for (const int man : {0, 1, 3, 11, 22, 23}) formats.push_back(MakeFormat(exp, man));
  }
  for (const Format& format : formats) {
    const std::vector<double> x = boundary_doubles(format);
    for (const Rounding mode : kDeterministicModes) {
      for (const Overflow overflow : kPolicies) {
        failures += check(x, format, testing::options_of(mode, overflow)) ? 0 : 1;
        if (failures > 20) FAIL() << "more than 20 failures; the rest is left out";
      }
    }
  }
}

// --- Stochastic: every random integer ------------------------------------------------------------

RoundingOptions stochastic(int random_bits, Variant variant, Overflow overflow = Overflow::ieee) {
  RoundingOptions o = testing::options_of(Rounding::stochastic, overflow);
  o.random_bits = random_bits;
  o.variant = variant;
  return o;
}

std::vector<Format> stochastic_formats() {
  std::vector<Format> formats = testing::named_formats();
  for (const char* name : {"e5m2:nosub", "e4m3fn:unsigned", "e3m0:nosub", "e8m3", "e8m22", "e1m3",
                           "e2m3:unsigned:nosub", "e7m16", "e5m2:bias=-10"}) {
    formats.push_back(ParseFormat(name));
  }
  return formats;
}

TEST(RoundStochastic, EveryRandomIntegerUpToEightBits) {
  int failures = 0;
  for (const Format& format : stochastic_formats()) {
    const auto pool = testing::boundary_patterns(reference::spec_of(format), 20, 60);
    std::mt19937 generator(17);
    for (const int random_bits : {1, 2, 3, 5, 8}) {
      std::vector<float> x;
      std::vector<std::uint32_t> random;
      for (int i = 0; i < (random_bits == 8 ? 24 : 60); ++i) {
        const float value = pool[generator() % pool.size()];
        for (std::uint32_t r = 0; r < (1u << random_bits); ++r) {
          x.push_back(value);
          random.push_back(r);
        }
      }
      for (const Variant variant : testing::kVariants) {
        for (const Overflow overflow : kPolicies) {
          const auto o = stochastic(random_bits, variant, overflow);
          failures += check(x, format, o, &random) ? 0 : 1;
          if (failures > 20) FAIL() << "more than 20 failures; the rest is left out";
        }
      }
    }
  }
}

// For many random bits, tests the integers around the least integer that rounds up, and some random
// integers.
TEST(RoundStochastic, DecisiveRandomIntegersOfManyBits) {
  int failures = 0;
  for (const Format& format : stochastic_formats()) {
    const reference::Spec spec = reference::spec_of(format);
    const auto pool = testing::boundary_patterns(spec, 12, 60);
    std::mt19937 generator(19);
    for (const int random_bits : {7, 12, 16, 23, 24}) {
      for (const Variant variant : testing::kVariants) {
        const auto o = stochastic(random_bits, variant);
        std::vector<float> x;
        std::vector<std::uint32_t> random;
        const std::uint32_t count = 1u << random_bits;
        for (int i = 0; i < 60; ++i) {
          const float value = pool[generator() % pool.size()];
          std::uint32_t low = 0;  // becomes the least R with the same result as the greatest R
          std::uint32_t high = count - 1;
          const auto result = [&](std::uint32_t r) {
            return reference::cast(spec, value, testing::oracle_options(o, r));
          };
          const float at_top = result(high);
          while (low < high) {
            const std::uint32_t middle = low + (high - low) / 2;
            const bool same = testing::same_bits(result(middle), at_top);
            (same ? high : low) = same ? middle : middle + 1;
          }
          for (const std::uint32_t r : {0u, low == 0 ? 0 : low - 1, low, count - 1,
                                        static_cast<std::uint32_t>(generator() % count)}) {
            x.push_back(value);
            random.push_back(r);
          }
        }
        failures += check(x, format, o, &random) ? 0 : 1;
        std::vector<double> wide;
        for (const float v : x) wide.push_back(static_cast<double>(v) * (1 - 0x1p-45));
        failures += check(wide, format, o, &random) ? 0 : 1;
        if (failures > 20) FAIL() << "more than 20 failures; the rest is left out";
      }
    }
  }
}

// Tests how many of the 2^N random integers round 259, 277 and 311 up in the format (5,2).
TEST(RoundStochastic, PublishedCounts) {
  struct Row {
    float x;
    int random_bits;
    std::array<int, 3> up;  // variants A, B, C
  };
  constexpr std::array<Row, 3> kRows = {
      {{259.0f, 5, {1, 2, 2}}, {277.0f, 3, {2, 3, 3}}, {311.0f, 3, {6, 7, 7}}}};
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const Row& row : kRows) {
      const std::size_t count = std::size_t{1} << row.random_bits;
      const std::vector<float> x(count, row.x);
      std::vector<std::uint32_t> random(count);
      for (std::size_t r = 0; r < count; ++r) random[r] = static_cast<std::uint32_t>(r);
      for (const Variant variant : testing::kVariants) {
        const auto y =
            run_cast(x, ParseFormat("e5m2"), stochastic(row.random_bits, variant), &random);
        const auto up = std::count_if(y.begin(), y.end(), [&](float v) { return v > row.x; });
        EXPECT_EQ(up, row.up[static_cast<std::size_t>(variant)])
            << backend << ", " << row.x << ", variant " << ToString(variant);
      }
    }
  }
}

// --- Values worked out by hand, and results that other libraries get wrong -----------------------

struct Known {
  const char* format;
  std::uint32_t input;
  std::uint32_t expected;
};

void check_known(std::span<const Known> rows, const RoundingOptions& o) {
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const Known& row : rows) {
      const auto y = run_cast(std::vector<float>{from_bits(row.input)}, ParseFormat(row.format), o);
      EXPECT_TRUE(testing::same_bits(from_bits(row.expected), y[0]))
          << backend << ", " << row.format << ", " << testing::hex(from_bits(row.input)) << ": "
          << testing::hex(y[0]);
    }
  }
}

TEST(RoundKnown, WhatOthersGetWrong) {
  constexpr std::array<Known, 13> kRows = {{{"e4m3", 0x43780000, 0x7F800000},
                                            {"e4m3", 0x3A800001, 0x3B000000},
                                            {"e8m7", 0x00400000, 0x00400000},
                                            {"e4m3", 0x3F880000, 0x3F800000},
                                            {"e5m2", 0x7F800000, 0x7F800000},
                                            {"e5m2", 0x7FC00000, 0x7FC00000},
                                            {"e8m7", 0x7FFFFFFF, 0x7FC00000},
                                            {"e8m23", 0x3F800000, 0x3F800000},
                                            {"e4m3", 0x3A7FFFFF, 0x00000000},
                                            {"e5m2:nosub", 0x383D70A4, 0x38800000},  // 0.74 * 2^-14
                                            {"e5m2", 0x3F900001, 0x3FA00000},
                                            {"e4m3", 0x43960000, 0x7F800000},
                                            {"e4m3", 0xFF800001, 0x7FC00000}}};
  check_known(kRows, {});
}

TEST(RoundKnown, TiesZerosAndOverflow) {
  constexpr std::array<Known, 16> kRows = {{
      {"e4m3fn", 0x43E80000, 0x43E00000},  // 464 is the tie: 448
      {"e4m3fn", 0x43E88000, 0x7FC00000},  // 465: NaN
      {"e4m3fn", 0xFF800000, 0x7FC00000},
      {"e4m0", 0x40400000, 0x40000000},  // 3 in (4,0): 2, the even code
      {"e3m0", 0x41400000, 0x41000000},  // 12 in (3,0): 8
      {"e3m0", 0x41400001, 0x7F800000},
      {"e4m3", 0x80000001, 0x80000000},  // underflow keeps its sign
      {"e4m3fnuz", 0x80000001, 0x00000000},
      {"e4m3fnuz", 0x80000000, 0x00000000},
      {"binary8p4se", 0x80000000, 0x00000000},
      {"e2m1", 0x7F800000, 0x40C00000},  // neither Inf nor NaN: 6
      {"e2m1", 0x7FC00000, 0x7FC00000},  // NaN stays in the storage dtype
      {"e8m0", 0x00000000, 0x00400000},  // 2^-127
      {"e8m0", 0x3FC00000, 0x40000000},  // 1.5: code 127 is odd, 128 even: 2
      {"e4m3fn:unsigned", 0xBF800000, 0x7FC00000},
      {"e2m1:unsigned", 0xBF800000, 0x00000000},
  }};
  check_known(kRows, {});
}

TEST(RoundKnown, Saturation) {
  constexpr std::array<Known, 7> kRows = {{{"e4m3fn", 0x43E88000, 0x43E00000},
                                           {"e4m3fn", 0x7F800000, 0x43E00000},
                                           {"e5m2", 0xFF800000, 0xC7600000},
                                           {"e5m2", 0x7FC00000, 0x7FC00000},
                                           {"e8m0", 0x7F800000, 0x7F000000},
                                           {"e8m0", 0xBF800000, 0x00400000},
                                           {"e4m3fn:unsigned", 0xBF800000, 0x00000000}}};
  check_known(kRows, testing::options_of(Rounding::nearest_even, Overflow::saturate));
}

}  // namespace
}  // namespace cpd
