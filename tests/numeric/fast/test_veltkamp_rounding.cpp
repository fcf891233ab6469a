// SPDX-License-Identifier: Apache-2.0
//
// Tests that the fast roundings to a format give the reference's results. The roundings use
// Veltkamp's splitting, or add and subtract a large number.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "cpd/numeric/fast/veltkamp_rounding.h"
#include "cpd/numeric/sums/fold_plan.h"
#include "cpd/numeric/sums/gemm_plan.h"
#include "cpd/oracle/reference.h"
#include "cpd/spec/format.h"
#include "tests/testing/bits.h"

namespace cpd {
namespace {

constexpr double kUnit = 0x1p23;

double log_error(float x) {
  const std::int32_t log = fixed_log(x);
  EXPECT_EQ(log & 1, 0) << x;
  return std::abs(log / kUnit - std::log2(std::abs(static_cast<double>(x))));
}

TEST(VeltkampRounding, LogarithmsOfAllFractions) {
  double most = 0;
  for (std::uint32_t fraction = 0; fraction < 1U << 23; ++fraction) {
    most = std::max(most, log_error(std::bit_cast<float>(0x3F800000U | fraction)));
  }
  EXPECT_LT(most, std::exp2(-15.9));
}

TEST(VeltkampRounding, LogarithmsOfAllExponentsAndSigns) {
  for (int exponent = -149; exponent < 128; ++exponent) {
    const float x = std::ldexp(1.0F, exponent);
    EXPECT_EQ(fixed_log(x), exponent * (1 << 23));
    EXPECT_EQ(fixed_log(-x), exponent * (1 << 23));
  }
  EXPECT_LT(log_error(std::numeric_limits<float>::max()), std::exp2(-15.9));
  EXPECT_LT(log_error(0x1.8p-140F), std::exp2(-15.9));
  EXPECT_EQ(fixed_log(0.0F), -(1 << 29));
  EXPECT_EQ(fixed_log(-0.0F), -(1 << 29));
}

/// Tests all ties between two fp16 numbers in one binade, and the neighbors of each tie, with both
/// signs.
TEST(VeltkampRounding, SumsAreRoundedToTheEvenCode) {
  const SplitFormat<float> format(10, 0x1p-24, true);
  for (std::int32_t code = 1 << 10; code < 1 << 11; ++code) {
    for (const std::int32_t beside : {-1, 0, 1}) {
      const float tie = std::ldexp(static_cast<float>(2 * code + 1), -11);
      const float x = std::bit_cast<float>(std::bit_cast<std::int32_t>(tie) + beside);
      const std::int32_t up = beside > 0 || (beside == 0 && code % 2 != 0) ? 1 : 0;
      const float expected = std::ldexp(static_cast<float>(code + up), -10);
      EXPECT_EQ(split(x, format), expected) << x;
      EXPECT_EQ(split(-x, format), -expected) << x;
    }
  }
}

/// Tests the products of all pairs of 11-bit significands. The second factor is multiplied by
/// `scale`, so the products have both signs, and some lie near the format's least numbers.
TEST(VeltkampRounding, ShortProductsAreThoseOfAnyOperands) {
  constexpr struct {
    int man;
    double quantum;
  } kFormats[] = {{10, 0x1p-24}, {7, 0x1p-100}, {3, 0x1p-9}, {1, 0x1p-2}};
  for (const auto& [man, quantum] : kFormats) {
    const SplitFormat<float> format(man, quantum, false);
    for (const float scale : {1.0F, -0x1p-11F, static_cast<float>(16 * quantum)}) {
      int wrong = 0;
      for (int i = 1024; i < 2048; ++i) {
        for (int j = i; j < 2048; ++j) {
          const float a = static_cast<float>(i) * 0x1p-10F;
          const float b = static_cast<float>(j) * 0x1p-10F * scale;
          const float expected = split_product(a, b, b * format.factor, format);
          wrong += split_short(a * b, format) == expected ? 0 : 1;
        }
      }
      EXPECT_EQ(wrong, 0) << man << " bits, products of " << scale;
    }
  }
}

/// Tests values next to every number of a format and every tie, with both signs, and values far
/// below the least number.
TEST(VeltkampRounding, AnySumsAreRoundedAsTheReferenceDoes) {
  for (const char* name : {"e4m3", "e5m2", "e5m10", "e4m3fnuz", "e3m1", "binary8p4se"}) {
    const Format format = ParseFormat(name);
    const reference::Spec spec = reference::spec_of(format);
    const SplitFormat<float> split(format.man, Format::power_of_two(format.min_quantum_exponent()),
                                   format.has_negative_zero());
    int wrong = 0;
    const auto check = [&](float t) {
      if (std::fabs(t) > format.max()) return;
      const float expected = reference::cast(spec, t);
      wrong += testing::bits_of(split_any(t, split)) == testing::bits_of(expected) ? 0 : 1;
    };
    const auto half_places = static_cast<std::uint32_t>(2 * format.max_code());
    for (std::uint32_t half = 0; half < half_places; half += half < 4096 ? 1 : 13) {
      const auto code = static_cast<std::uint32_t>(half / 2);
      const double low = format.magnitude(code);
      const double value = half % 2 == 0 ? low : (low + format.magnitude(code + 1)) / 2;
      const auto pattern = testing::bits_of(static_cast<float>(value));
      for (const std::uint32_t beside : {0U, 1U, 2U, 3U, ~0U, ~1U, ~2U}) {
        if (pattern < 3 && beside > 3) continue;  // below zero
        check(std::bit_cast<float>(pattern + beside));
        check(-std::bit_cast<float>(pattern + beside));
      }
    }
    for (const float tiny : {0x1p-149F, 0x1p-126F, 0x1.8p-60F}) {
      check(tiny);
      check(-tiny);
    }
    EXPECT_EQ(wrong, 0) << name;
  }
}

/// Returns the number of bits of a finite x from its first to its last 1.
int bits_between(double x) {
  int bits = 0;
  int exponent = 0;
  for (double rest = std::frexp(std::fabs(x), &exponent); rest != 0; ++bits) {
    rest = 2 * rest - std::floor(2 * rest);
  }
  return bits;
}

/// Counts the sums that split_fma_in_parts supports (`all`), and the sums whose result differs from
/// the reference (`wrong`).
struct Rounded {
  int wrong = 0, all = 0;
  void take(const Format& format, float a, float b, float s) {
    FastPlan plan;
    plan.man_sum = format.man;
    plan.sum_quantum = Format::power_of_two(format.min_quantum_exponent());
    const float product = std::fabs(a * b);
    if (!adds_in_parts(plan, bits_between(a) + bits_between(b))) return;
    if (std::fabs(s) > parts_limit(plan, product)) return;
    if (std::fabs(s) + product > static_cast<float>(format.max())) return;
    const SplitFormat<float> split(format.man, plan.sum_quantum, format.has_negative_zero());
    const float expected = reference::fma(reference::spec_of(format), a, b, s);
    const float got = split_fma_in_parts(a, b, s, split);
    wrong += testing::bits_of(got) == testing::bits_of(expected) ? 0 : 1;
    ++all;
  }
};

/// Adds every product of two e4m3 numbers to every e4m3 number.
TEST(VeltkampRounding, SumsInPartsOfAllProductsAreRoundedAsTheReferenceDoes) {
  const Format format = ParseFormat("e4m3");
  std::map<float, std::pair<float, float>> factors;
  for (std::uint32_t i = 0; i <= format.max_code(); ++i) {
    for (std::uint32_t j = i; j <= format.max_code(); ++j) {
      const auto a = static_cast<float>(format.magnitude(i));
      const auto b = static_cast<float>(format.magnitude(j));
      factors.try_emplace(a * b, a, b);
    }
  }
  Rounded sums;
  for (const auto& [product, of] : factors) {
    for (std::uint32_t code = 0; code <= format.max_code(); ++code) {
      const auto s = static_cast<float>(format.magnitude(code));
      for (const float sign : {1.0F, -1.0F}) {
        sums.take(format, of.first, sign * of.second, s);
        sums.take(format, of.first, sign * of.second, -s);
      }
    }
  }
  EXPECT_EQ(sums.wrong, 0);
  EXPECT_GT(sums.all, 200'000);
}

/// Tests sums that are ties, next to a tie or next to zero. The terms of these sums have all sizes.
TEST(VeltkampRounding, SumsInPartsNextToTiesAreRoundedAsTheReferenceDoes) {
  std::mt19937_64 bits(2);
  for (const char* name : {"e4m3", "e5m2", "e3m2", "e2m1", "e4m3fnuz", "e5m7", "e6m9"}) {
    const Format format = ParseFormat(name);
    const auto number = [&](std::uint64_t code) {
      return format.magnitude(static_cast<std::uint32_t>(code % format.max_code()));
    };
    Rounded sums;
    for (int i = 0; i < 50'000; ++i) {
      const double s = number(i % 4 == 0 ? bits() % 16 : bits()) * (bits() % 2 == 0 ? 1 : -1);
      const std::uint64_t code = bits() % format.max_code();
      const double tie =
          (number(code) + format.magnitude(static_cast<std::uint32_t>(code) + 1)) / 2;
      const double last =
          std::ldexp(1.0, format.min_quantum_exponent() + 8 - static_cast<int>(bits() % 32));
      for (const double product : {tie, tie - s, -s}) {
        for (const double beside : {0.0, last, -last}) {
          const auto a = static_cast<float>(product + beside);
          sums.take(format, a, 1.0F, static_cast<float>(s));
          sums.take(format, a, -1.0F, static_cast<float>(-s));
        }
      }
    }
    EXPECT_EQ(sums.wrong, 0) << name;
    EXPECT_GT(sums.all, 10'000) << name;
  }
}

/// Formats that hold only powers of two and 0. The exponent of the least number is even in some of
/// them and odd in others.
constexpr const char* kPowers[] = {"e3m0", "e2m0", "e4m0", "e5m0", "e3m0:bias=4", "e5m0:bias=-20"};

Unsigned<float> flip_of(const Format& format) {
  return format.min_quantum_exponent() % 2 == 0 ? 0 : 1;
}

TEST(VeltkampRounding, SumsOfAllPowersAreRoundedAsTheReferenceDoes) {
  for (const char* name : kPowers) {
    const Format format = ParseFormat(name);
    const reference::Spec spec = reference::spec_of(format);
    int compared = 0;
    for (std::uint32_t i = 0; i < 2 * (format.max_code() + 1); ++i) {
      for (std::uint32_t j = 0; j < 2 * (format.max_code() + 1); ++j) {
        const auto value = [&](std::uint32_t code) {
          const auto magnitude = static_cast<float>(format.magnitude(code / 2));
          return code % 2 == 0 ? magnitude : -magnitude;
        };
        const float expected = reference::add(spec, value(i), value(j));
        if (!std::isfinite(expected)) continue;
        const float got = split_power(value(i) + value(j), flip_of(format));
        EXPECT_EQ(testing::bits_of(got), testing::bits_of(expected))
            << name << ": " << value(i) << " + " << value(j);
        ++compared;
      }
    }
    EXPECT_GT(compared, 30) << name;
  }
}

TEST(VeltkampRounding, MagnetsRoundAnyNumbersToPowers) {
  for (const char* name : kPowers) {
    const Format format = ParseFormat(name);
    const reference::Spec spec = reference::spec_of(format);
    const GuardedFormat<float> magnets(0, Format::power_of_two(format.min_quantum_exponent()), true,
                                       0);
    const float most = most_rounded_to(static_cast<float>(format.max()), 0);
    EXPECT_EQ(reference::cast(spec, most), format.max());
    int wrong = 0;
    for (std::uint32_t pattern = 0; pattern <= testing::bits_of(most);
         pattern += pattern % 0x400000 < 3 || pattern % 0x400000 > 0x3FFFFD ? 1 : 0x3FFF9) {
      for (const std::uint32_t bits : {pattern, pattern | 0x80000000U}) {
        const auto t = std::bit_cast<float>(bits);
        const float expected = reference::cast(spec, t);
        wrong += testing::bits_of(with_magnet(t, magnets)) == testing::bits_of(expected) ? 0 : 1;
      }
    }
    EXPECT_EQ(wrong, 0) << name;
  }
}

/// Tests operands of 24 bits whose products are ties or powers of two, or lie next to one. For such
/// products the sum of two approximate logarithms may give the wrong binade.
TEST(VeltkampRounding, GuardedProductsAreRoundedAsTheReferenceDoes) {
  for (const char* name : {"e3m0", "e3m0:bias=4", "e5m0:bias=14", "e3m1", "e4m3"}) {
    const Format format = ParseFormat(name);
    const reference::Spec spec = reference::spec_of(format);
    const GuardedFormat<float> guarded(
        format.man, Format::power_of_two(format.min_quantum_exponent()), true, 0);
    std::vector<float> operands;
    for (int exponent = -2; exponent <= 2; ++exponent) {
      for (const float m : {1.0F, 1.25F, 1.375F, 1.5F, 1.6F, 1.75F}) {
        const float x = std::ldexp(m, exponent);
        for (const float y : {x, std::nextafter(x, 0.0F), std::nextafter(x, 9.0F)}) {
          operands.insert(operands.end(), {y, -y, 1 / y});
        }
      }
    }
    int compared = 0;
    for (const float a : operands) {
      for (const float b : operands) {
        const float expected = reference::mul(spec, a, b);
        if (!(std::fabs(expected) < format.max())) continue;
        float largest = 0;
        const float got = guarded_product<false>(
            a, b, fixed_log(a), fixed_log(b) + guarded.log_magnet, guarded, largest);
        ASSERT_EQ(got, expected) << name << ": " << testing::hex(a) << " * " << testing::hex(b);
        ++compared;
      }
    }
    EXPECT_GT(compared, 10000) << name;
  }
}

/// most_rounded_to must return a number that rounds to the format's largest number. The number
/// after the tie above the largest number must not round to it.
TEST(VeltkampRounding, TheMostThatIsRoundedToTheLargest) {
  for (const char* name : {"e4m3", "e4m3fn", "e5m2", "e3m0", "e4m3fnuz", "binary8p4se"}) {
    const Format format = ParseFormat(name);
    const reference::Spec spec = reference::spec_of(format);
    const auto max = static_cast<float>(format.max());
    const float most = most_rounded_to(max, format.man);
    EXPECT_GT(most, max) << name;
    EXPECT_EQ(reference::cast(spec, most), max) << name;
    const float tie = std::nextafter(most, HUGE_VALF);
    EXPECT_NE(reference::cast(spec, std::nextafter(tie, HUGE_VALF)), max) << name;
  }
}

}  // namespace
}  // namespace cpd
