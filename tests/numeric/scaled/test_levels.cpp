// SPDX-License-Identifier: Apache-2.0
//
// Tests how values below a norm are rounded to levels, which are fractions of the norm. The rule of
// numeric/scaled/levels.h is compared with a computation in exact integers, and every backend is
// compared with that rule and with that computation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpd/backend/roster.h"
#include "cpd/numeric/scaled/levels.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/levels.h"

namespace cpd {
namespace {

using testing::folded;
using testing::gradient_like;
using testing::kInf;
using testing::kNan;
using testing::plan_of;
using testing::same;

constexpr float kHuge = std::numeric_limits<float>::max();

// --- the rule ------------------------------------------------------------------------------------

TEST(Levels, AreThoseOfWholeNumbers) {
  for (const int random_bits : {1, 8, 16, 24}) {
    for (const LevelPlan& plan : testing::plans_of(random_bits)) {
      for (const float norm : {1.0F, 0.7F, 1e-38F, 3e-45F, 1.7e38F, kHuge}) {
        std::vector<float> x = gradient_like(300, 17, plan.steps);
        for (float& v : x) v = std::clamp(v * norm, -norm, norm);
        const auto random = testing::random_integers(x.size(), random_bits, 3);
        for (std::size_t i = 0; i < x.size(); ++i) {
          ASSERT_EQ(level_of(plan, x[i], norm, random[i]),
                    testing::level_by_integers(plan, x[i], norm, random[i]))
              << testing::hex(x[i]) << " of " << testing::hex(norm) << ", " << random[i] << " of "
              << random_bits << " bits, " << testing::text_of(plan);
        }
      }
    }
  }
}

/// Rounds each value with every random integer R once. The mean of the 2^N levels must exceed the
/// level below the value by the value's fraction of a step, cut to N bits.
TEST(Levels, AreWithoutBias) {
  constexpr int kRandomBits = 8;
  constexpr int kDraws = 1 << kRandomBits;
  for (const LevelPlan& plan :
       {plan_of(4, false, kRandomBits), plan_of(4, true, kRandomBits),
        plan_of(1, true, kRandomBits), testing::plan_of_levels(16, kRandomBits)}) {
    for (const float v : gradient_like(500, 23)) {
      if (std::fabs(v) > 1.25F || std::fabs(v) < 0x1p-60F) continue;
      const float norm = 1.25F;
      std::int64_t sum = 0;
      for (std::uint32_t r = 0; r < kDraws; ++r) sum += level_of(plan, v, norm, r);
      // `place` is 2^8 times the unrounded level of v, computed in binary128. The sum of the
      // rounded levels for all 2^8 integers R must equal `place` cut to an integer.
      const testing::Quad u = static_cast<testing::Quad>(v) * plan.steps / norm;
      const testing::Quad place = (plan.intervals ? (u + plan.steps) / 2
                                   : u < 0        ? -u
                                                  : u) *
                                  static_cast<testing::Quad>(kDraws);
      EXPECT_EQ(sum, static_cast<std::int64_t>(place)) << testing::hex(v);
    }
  }
}

TEST(Levels, ValuesAreRoundedOnce) {
  for (const auto& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const LevelPlan& plan : testing::plans_of(24, 1 << 20)) {
      std::vector<std::uint32_t> codes;
      for (std::uint32_t c = 0; c < 1U << plan.bits; c += plan.bits > 12 ? 7 : 1) {
        codes.push_back(c);
      }
      const auto bytes = testing::packed(codes, plan.bits);
      for (const float norm : {1.0F, 0.7F, 15.0F, 4194307.0F, 16777215.0F, 1e-38F, 7e-45F, kHuge,
                               0.0F, kNan, 5.0F, 1.0F / 3}) {
        std::vector<float> got(codes.size());
        Kernels().decode_levels(plan, 0, 1, 0, static_cast<std::int64_t>(codes.size()),
                                bytes.data(), &norm, got.data());
        std::vector<float> expected;
        for (const std::uint32_t code : codes) {
          expected.push_back(testing::value_by_quad(plan, code, norm));
        }
        EXPECT_TRUE(same(expected, got))
            << backend << ", " << testing::text_of(plan) << " of " << norm;
      }
    }
  }
}

// --- kernels -------------------------------------------------------------------------------------

TEST(Levels, EveryBackendHasTheRulesCodes) {
  for (const auto& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const int random_bits : {1, 7, 16, 24}) {
      const auto n = std::int64_t{2500};
      for (const std::int64_t bucket : {1, 5, 64, 512, 65536}) {
        const std::int64_t before = 13 % bucket;
        for (const LevelPlan& plan : testing::plans_of(random_bits, bucket)) {
          const std::vector<float> x = gradient_like(2500, 100 + plan.bits, plan.steps);
          std::vector<float> norms;
          for (std::int64_t b = 0; b < (before + n + bucket - 1) / bucket; ++b) {
            norms.push_back(
                std::vector<float>{1.0F, 1.3F, 4.0F, 1.7e38F, 1.01F, 0,
                                   kNan}[static_cast<std::size_t>(b % (bucket < 512 ? 7 : 3))]);
          }
          const auto random = testing::random_integers(2500, random_bits, 4);
          std::vector<std::uint32_t> codes;
          for (std::int64_t i = 0; i < n; ++i) {
            const auto at = static_cast<std::size_t>(i);
            codes.push_back(testing::code_by_integers(
                plan, x[at], norms[static_cast<std::size_t>((before + i) / bucket)], random[at]));
          }
          std::vector<std::uint8_t> got((2500 * static_cast<std::size_t>(plan.bits) + 7) / 8);
          Kernels().encode_levels(plan, 3, before, n, x.data(), norms.data(), random.data(),
                                  got.data());
          ASSERT_EQ(testing::packed(codes, plan.bits), got)
              << backend << ", " << testing::text_of(plan) << ", buckets of " << bucket << ", "
              << random_bits;
        }
      }
    }
  }
}

/// Tests values on a level and next to a level, for which a backend's estimate cannot decide the
/// level.
TEST(Levels, EveryBackendSeesWhatLiesBesideALevel) {
  for (const auto& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const LevelPlan& plan : testing::plans_of(8, 1 << 20)) {
      const float norm = 0.9F;
      std::vector<float> x;
      std::vector<std::uint32_t> random;
      for (int level = 0; level <= std::min(plan.steps, 300); ++level) {
        for (const std::uint32_t r : {0U, 1U, 77U, 255U}) {
          const double place = (level - r / 256.0) * norm / plan.steps;
          const auto near = static_cast<float>(place);
          for (const float v : {near, std::nextafterf(near, 2), std::nextafterf(near, -2)}) {
            x.push_back(std::clamp(v, -norm, norm));
            x.push_back(-x.back());
            random.insert(random.end(), 2, r);
          }
        }
      }
      std::vector<std::uint32_t> codes;
      for (std::size_t i = 0; i < x.size(); ++i) {
        codes.push_back(testing::code_by_integers(plan, x[i], norm, random[i]));
      }
      const auto expected = testing::packed(codes, plan.bits);
      std::vector<std::uint8_t> got(expected.size());
      Kernels().encode_levels(plan, 0, 0, static_cast<std::int64_t>(x.size()), x.data(), &norm,
                              random.data(), got.data());
      EXPECT_EQ(expected, got) << backend << ", " << testing::text_of(plan);
    }
  }
}

TEST(Levels, MomentsAreSixteenSums) {
  for (const auto& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const std::size_t n : {0, 1, 15, 16, 17, 1000}) {
      std::vector<float> x = gradient_like(n, n);
      for (std::size_t i = 5; i < n; i += 7) x[i] = i % 2 == 0 ? kNan : -kInf;
      for (const double mean : {0.0, 0.037}) {
        std::vector<double> sums(16), squares(16);
        std::int64_t finite = 0;
        float largest = 0;
        for (std::size_t i = 0; i < n; ++i) {
          if (!std::isfinite(x[i])) continue;
          const double d = static_cast<double>(x[i]) - mean;
          sums[i % 16] += d;
          squares[i % 16] = std::fma(d, d, squares[i % 16]);
          ++finite;
          largest = std::max(largest, std::fabs(x[i]));
        }
        Moments got;
        Kernels().moments(static_cast<std::int64_t>(n), x.data(), mean, &got);
        EXPECT_EQ(got.finite, finite);
        EXPECT_EQ(got.largest, largest);
        EXPECT_TRUE(testing::same_bits(got.sum, folded(sums))) << backend << " " << n;
        EXPECT_TRUE(testing::same_bits(got.squares, folded(squares))) << backend << " " << n;
      }
    }
  }
}

}  // namespace
}  // namespace cpd
