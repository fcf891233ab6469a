// SPDX-License-Identifier: Apache-2.0
//
// Tests that every backend rounds elements divided by their scales exactly as a scalar loop over
// neighboring elements does. (The tests of scaled formats compare the scalar loop with the oracle.)
// Some ranges of elements are processed as several pages at a time, others are not. The scales have
// all sizes, so some quotients overflow, underflow or are ties.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cpd/backend/roster.h"
#include "cpd/numeric/scaled/scaled_plan.h"
#include "cpd/ops/scaled.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"

namespace cpd {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<std::uint8_t>;

constexpr std::int64_t kN = 3 * 4096;
constexpr std::int64_t kRuns[] = {16, 32, 64, 128, 256, 512, 1024, 3072, 4096};
constexpr std::size_t kLine = 64;

/// n values that begin `offset` values after a cache line's start.
template <class T>
struct Aligned {
  explicit Aligned(std::size_t n, std::size_t offset = 0) : memory(n + 2 * kLine) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    begin = memory.data() + (kLine - address % kLine) % kLine / sizeof(T) + offset;
  }
  std::vector<T> memory;
  T* begin;
};

/// Returns numbers of all sizes and both signs, some with few significant bits, and zeros,
/// subnormals, Inf and NaN.
Floats Values(unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> exponent(-30, 30), kind(0, 40);
  std::uniform_real_distribution<float> fraction(1, 2);
  Floats x(static_cast<std::size_t>(kN));
  for (float& v : x) {
    const float f = kind(random) < 12 ? std::round(8 * fraction(random)) / 8 : fraction(random);
    v = std::ldexp(f, exponent(random)) * (kind(random) % 2 == 0 ? 1.0F : -1.0F);
    const int k = kind(random);
    if (k == 0) v = std::copysign(0.0F, v);
    if (k == 1) v = std::copysign(1e-42F, v);
    if (k == 2) v = std::copysign(3e38F, v);
    if (k == 3) v = std::copysign(std::numeric_limits<float>::infinity(), v);
    if (k == 4) v = std::numeric_limits<float>::quiet_NaN();
  }
  return x;
}

struct RouteCase {
  std::string text;
  ElementRoute route;
};
const RouteCase kRouteCases[] = {
    {"mxfp8", ElementRoute::multiply},         {"mxfp4", ElementRoute::multiply},
    {"nvfp4", ElementRoute::multiply},         {"fp8-block", ElementRoute::divide},
    {"int8 row", ElementRoute::divide},        {"fp8-block", ElementRoute::wide},
    {"int4 32 scale=fp32", ElementRoute::wide}};

/// Returns scales that `route`, a way of dividing by scales, supports: powers of two for
/// `multiply`, otherwise any number of significant bits. For `wide`, some scales are zero.
Floats Scales(ElementRoute route, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> exponent(-70, 99), near(-6, 6), kind(0, 9);
  std::uniform_real_distribution<float> fraction(1, 2);
  Floats scales(static_cast<std::size_t>(kN));
  for (float& s : scales) {
    const int k = kind(random);
    const float f = route == ElementRoute::multiply || k < 2 ? 1 : fraction(random);
    s = std::ldexp(k < 4 ? f : std::round(16 * f) / 16, k < 7 ? near(random) : exponent(random));
    if (route == ElementRoute::wide && k == 9) s = 0;
  }
  return scales;
}

struct Mode {
  const char* name;
  Rounding mode;
  int random_bits = 8;
};

/// Returns the bf16 pattern nearest to v, ties to even; 0x7FC0 for a NaN.
std::uint16_t Nearest(float v) {
  if (std::isnan(v)) return 0x7FC0;
  const auto bits = std::bit_cast<std::uint32_t>(v);
  const auto low = static_cast<std::uint16_t>(bits >> 16);
  const auto value = [](std::uint32_t half) {
    const bool beyond = (half & 0x7FFF) == 0x7F80;
    const double a = beyond ? 0x1p128 : std::bit_cast<float>((half & 0x7FFF) << 16);
    return (half & 0x8000) != 0 ? -a : a;
  };
  if (std::isinf(v)) return low;
  const double below = std::fabs(v - value(low));
  const double above = std::fabs(v - value(low + 1U));
  return static_cast<std::uint16_t>(below < above || (below == above && low % 2 == 0) ? low
                                                                                      : low + 1);
}

class ScaledPages : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, ScaledPages,
                         ::testing::Values(Mode{"NearestEven", Rounding::nearest_even},
                                           Mode{"TowardZero", Rounding::toward_zero},
                                           Mode{"Stochastic8", Rounding::stochastic},
                                           Mode{"Stochastic24", Rounding::stochastic, 24}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(ScaledPages, AreTheLoopOverNeighbours) {
  const KernelTable* const scalar = AvailableKernels().front();
  const Floats x = Values(3);
  const Floats ones(static_cast<std::size_t>(kN), 1);
  std::vector<std::uint32_t> random(static_cast<std::size_t>(kN));
  std::mt19937 engine(5);
  const auto [name, mode, random_bits] = GetParam();
  for (std::uint32_t& r : random) r = engine() >> (32 - random_bits);
  for (const RouteCase& c : kRouteCases) {
    const RoundingOptions options{
        .mode = mode, .overflow = Overflow::saturate, .random_bits = random_bits};
    const ScaledPlan plan = make_scaled_plan(ParseScaled(c.text), options, false);
    if (c.route == ElementRoute::divide && route_of(plan) != c.route) continue;
    const Floats scales = Scales(c.route, 7);
    Floats by(scales.size());
    for (std::size_t i = 0; i < by.size(); ++i) {
      by[i] = c.route == ElementRoute::divide ? scales[i] : 1 / scales[i];
    }
    const std::size_t bytes = static_cast<std::size_t>(kN * plan.element.bits / 8);
    for (const std::int64_t run : kRuns) {
      ScaledRun all{.n = kN, .run = run, .x = x.data()};
      all.factor = by.data();
      all.scale = scales.data();
      all.outer = ones.data();
      all.random = mode == Rounding::stochastic ? random.data() : nullptr;
      Floats expected(x.size());
      Bytes codes(bytes + kLine);
      scalar->round_blocks(plan, c.route, all, Contiguous(expected.data()));
      scalar->encode_blocks(plan, c.route, all, codes.data());
      codes.resize(bytes);
      for (const KernelTable* table : testing::kernel_tables()) {
        for (const bool streaming : {false, true}) {
          const std::string about = std::string(table->name) + ", " + c.text + ", run " +
                                    std::to_string(run) + (streaming ? ", streaming" : "");
          for (const std::size_t offset : {0, 4}) {
            Aligned<float> y(x.size(), offset);
            all.streaming = streaming;
            table->round_blocks(plan, c.route, all, Contiguous(y.begin));
            ASSERT_TRUE(testing::bits_equal(std::span<const float>(expected),
                                            std::span<const float>(y.begin, x.size())))
                << about;
            Aligned<std::uint16_t> halves(x.size(), offset / 4);
            ScaledRun short_run = all;
            short_run.n -= streaming ? 5 : 0;
            bool holds = true;
            std::vector<std::uint16_t> nearest;
            for (std::int64_t i = 0; i < short_run.n; ++i) {
              nearest.push_back(Nearest(expected[i]));
              const auto wide = std::uint32_t{nearest.back()} << 16;
              holds &= std::isnan(expected[i]) || std::bit_cast<float>(wide) == expected[i];
            }
            const Strided out = Contiguous(halves.begin, DType::bf16);
            EXPECT_EQ(table->round_blocks(plan, c.route, short_run, out), holds) << about;
            ASSERT_EQ(nearest, std::vector<std::uint16_t>(halves.begin, halves.begin + short_run.n))
                << about;
            Aligned<std::uint8_t> packed(bytes + kLine, offset);
            table->encode_blocks(plan, c.route, all, packed.begin);
            ASSERT_EQ(codes, Bytes(packed.begin, packed.begin + bytes)) << about;
          }
        }
      }
    }
  }
}

TEST(ScaledPagesOf, LargestMagnitudes) {
  const Floats x = Values(11);
  for (const KernelTable* table : testing::kernel_tables()) {
    for (const bool with_nan : {false, true}) {
      for (const std::int64_t run : {8, 16, 32, 64, 128, 256, 100}) {
        for (const std::int64_t n : {kN, kN - 1024, std::int64_t{4096}, kN - 77}) {
          Floats largest(static_cast<std::size_t>((n + run - 1) / run));
          table->block_max(with_nan, run, n, x.data(), largest.data());
          for (std::int64_t b = 0; b * run < n; ++b) {
            std::uint32_t most = 0;
            for (std::int64_t i = b * run; i < std::min(n, (b + 1) * run); ++i) {
              const std::uint32_t a = std::bit_cast<std::uint32_t>(std::abs(x[i]));
              if (with_nan || a <= 0x7F800000U) most = std::max(most, a);
            }
            ASSERT_EQ(most, std::bit_cast<std::uint32_t>(largest[b]))
                << table->name << ", run " << run << ", n " << n << ", block " << b;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace cpd
