// SPDX-License-Identifier: Apache-2.0
//
// Folds over large arrays give the same bits in any split and any backend; scaled casts.
#include <gtest/gtest.h>

#include <cmath>

#include "cpd/ops/reduce.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using reference::Spec;

std::vector<float> fold(const Accumulator& a, const std::vector<std::vector<float>>& terms,
                        std::size_t piece) {
  const std::size_t n = terms[0].size();
  std::vector<float> sum(n), compensation(n);
  for (std::size_t k = 0; k < terms.size(); ++k) {
    for (std::size_t at = 0; at < n; at += piece) {
      FoldStep(a, kFp32, static_cast<std::int64_t>(k), static_cast<std::int64_t>(at),
               static_cast<std::int64_t>(std::min(piece, n - at)), terms[k].data() + at,
               {sum.data() + at, compensation.data() + at});
    }
  }
  return sum;
}

TEST(Reduce, LargeFoldsDoNotDependOnPiecesOrBackend) {
  const Spec spec = reference::spec_of(ParseFormat("e4m3"));
  constexpr std::size_t kLength = testing::kSanitized ? 70'000 : 300'000;
  std::vector<std::vector<float>> terms;
  for (std::uint64_t k = 0; k < 5; ++k) terms.push_back(testing::moderate_values(spec, kLength, k));
  for (const Scheme scheme : {Scheme::sequential, Scheme::kahan}) {
    for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
      Accumulator a;
      a.format = ParseFormat("e4m3");
      a.scheme = scheme;
      a.rounding.mode = mode;
      a.rounding.random_bits = 10;
      std::vector<float> first;
      for (const std::string& backend : testing::backends()) {
        const testing::WithBackend forced(backend);
        for (const std::size_t piece : {kLength, std::size_t{256 * 7}, std::size_t{1 << 16}}) {
          const std::vector<float> sums = fold(a, terms, piece);
          if (first.empty()) first = sums;
          EXPECT_TRUE(
              testing::bits_equal(std::span<const float>(first), std::span<const float>(sums)))
              << backend << ", " << ToString(scheme) << ", " << ToString(mode) << ", piece "
              << piece;
        }
      }
    }
  }
}

// x * 2^shift is exact before it is rounded, however far it leaves binary32's range.
TEST(CastScaled, IsTheExactProductRoundedOnce) {
  int failures = 0;
  for (const char* name : {"e4m3", "e5m2", "e3m0", "fp32", "bf16", "e4m3fn", "e2m1", "e8m0"}) {
    const Format format = ParseFormat(name);
    const Spec spec = reference::spec_of(format);
    for (const int shift : {0, 1, -1, 7, -7, 40, -40, 126, 127, -126, -127, 149, -149, 200, -200,
                            270, -270, 300, -300}) {
      const std::vector<float> pool = testing::boundary_patterns(spec, 20, 60);
      std::vector<float> x;
      for (const float v : pool) {
        x.push_back(v);
        x.push_back(std::ldexp(v, -shift));  // lands on the boundaries
      }
      for (const Rounding mode : {Rounding::nearest_even, Rounding::up, Rounding::stochastic}) {
        RoundingOptions o;
        o.mode = mode;
        o.random_bits = 8;
        const auto random = testing::run_random_integers(o, x.size());
        std::vector<float> expected(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
          const auto scaled =
              multiply(reference::exact(x[i]), reference::exact_finite(false, 1, shift));
          expected[i] = reference::round(spec, scaled, testing::oracle_options(o, random[i]));
        }
        for (const std::string& backend : testing::backends()) {
          const testing::WithBackend forced(backend);
          std::vector<float> got(x.size());
          CastScaled(format, o, shift, 0, static_cast<std::int64_t>(x.size()), x.data(),
                     got.data());
          const auto equal = testing::bits_equal(std::span<const float>(expected), got, x);
          EXPECT_TRUE(equal) << backend << ", shift " << shift << ", "
                             << testing::describe(format, o);
          if (!equal && ++failures > 20) FAIL() << "more than 20 failures; the rest is left out";
        }
      }
    }
  }
}

}  // namespace
}  // namespace cpd
