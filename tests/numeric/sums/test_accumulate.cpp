// SPDX-License-Identifier: Apache-2.0
//
// Tests ordered sums in which each operation is rounded into the accumulator. FoldStep on every
// backend gives the oracle's sums, for sequential and Kahan summation.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "cpd/ops/reduce.h"
#include "cpd/oracle/reference_sum.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"

#ifdef CPD_TEST_RANDOM123
#include <Random123/philox.h>
#endif

namespace cpd {
namespace {

using reference::Spec;

// terms[k][i] is term k of the sum of element i.
using Terms = std::vector<std::vector<float>>;

Terms make_terms(const Spec& spec, std::size_t count, std::size_t n, std::uint64_t seed) {
  Terms terms;
  for (std::size_t k = 0; k < count; ++k) {
    auto row = testing::moderate_values(spec, n, seed + 2 * k);
    const auto wild = testing::mixed_values(spec, n / 4, seed + 2 * k + 1);
    // In each term, the first quarter of the elements gets special values, values that overflow,
    // and random bits.
    std::copy(wild.begin(), wild.end(), row.begin());
    terms.push_back(std::move(row));
  }
  return terms;
}

std::vector<float> run_fold(const Accumulator& accumulator, const Format& terms_in,
                            const Terms& terms, std::uint64_t first = 0) {
  const std::size_t n = terms.empty() ? 0 : terms[0].size();
  std::vector<float> state(2 * n, std::nanf(""));  // what is there before does not matter
  for (std::size_t k = 0; k < terms.size(); ++k) {
    FoldStep(accumulator, terms_in, static_cast<std::int64_t>(k), static_cast<std::int64_t>(first),
             static_cast<std::int64_t>(n), terms[k].data(),
             {state.data(), static_cast<std::int64_t>(n)}, testing::kKey);
  }
  state.resize(n);
  return state;
}

// Returns the source of random integers for element i. Empty if the sum is not stochastic.
using SourceOf = std::function<reference::RandomSource(std::size_t)>;

std::vector<float> oracle_fold(const Accumulator& accumulator, const Terms& terms,
                               const SourceOf& source_of = {}) {
  const reference::SumOrder order = reference::order_of(accumulator);
  const reference::Options o = testing::oracle_options(accumulator.rounding);
  std::vector<float> sums;
  for (std::size_t i = 0; i < terms[0].size(); ++i) {
    std::vector<float> column;
    for (const auto& row : terms) column.push_back(row[i]);
    const reference::RandomSource source = source_of ? source_of(i) : reference::RandomSource();
    sums.push_back(reference::sum(order, column, o, source));
  }
  return sums;
}

bool check(const Accumulator& accumulator, const Format& terms_in, const Terms& terms,
           const SourceOf& source_of = {}, std::uint64_t first = 0) {
  const std::vector<float> expected = oracle_fold(accumulator, terms, source_of);
  bool good = true;
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    const std::vector<float> got = run_fold(accumulator, terms_in, terms, first);
    const auto describe = [&](std::size_t i) {
      std::string text = ", terms";
      for (const auto& row : terms) text += " " + testing::hex(row[i]);
      return text;
    };
    const auto equal = testing::bits_equal(std::span<const float>(expected),
                                           std::span<const float>(got), describe);
    EXPECT_TRUE(equal) << backend << ", " << ToString(accumulator.scheme) << ", "
                       << testing::describe(accumulator.format, accumulator.rounding)
                       << ", terms in " << ToString(terms_in);
    good = good && equal;
  }
  return good;
}

Accumulator make(const Format& format, Scheme scheme, Rounding mode,
                 Overflow overflow = Overflow::ieee) {
  Accumulator a;
  a.format = format;
  a.scheme = scheme;
  a.rounding.mode = mode;
  a.rounding.overflow = overflow;
  return a;
}

constexpr std::array kSchemes = {Scheme::sequential, Scheme::kahan};

TEST(Fold, EveryIeeeFormatAnyTerms) {
  int failures = 0;
  int turn = 0;
  for (const Format& format : testing::ieee_formats()) {
    const Terms terms = make_terms(reference::spec_of(format), 6, 60, 31);
    for (const Scheme scheme : kSchemes) {
      const Rounding other = testing::kDeterministicModes[1 + (turn++ / 2) % 5];
      for (const Rounding mode : {Rounding::nearest_even, other}) {
        failures += check(make(format, scheme, mode), kFp32, terms) ? 0 : 1;
        if (failures > 20) FAIL() << "more than 20 failures; the rest is left out";
      }
    }
  }
}

TEST(Fold, NamedFormatsEveryModeAndPolicy) {
  int failures = 0;
  for (const Format& format : testing::named_formats()) {
    const Terms terms = make_terms(reference::spec_of(format), 7, 48, 37);
    for (const Scheme scheme : kSchemes) {
      for (const Rounding mode : testing::kDeterministicModes) {
        for (const Overflow overflow : testing::kPolicies) {
          failures += check(make(format, scheme, mode, overflow), kFp32, terms) ? 0 : 1;
          if (failures > 20) FAIL() << "more than 20 failures; the rest is left out";
        }
      }
    }
  }
}

// If the terms are known to be values of a format, a faster path may be used. The result must not
// change.
TEST(Fold, TermsInAFormat) {
  int failures = 0;
  for (const char* accumulator :
       {"e4m3", "e5m2", "e3m0", "e4m3fn", "bf16", "fp16", "tf32", "e8m3", "e8m12", "e6m9", "e2m1",
        "e5m10:nosub", "e4m3fnuz", "e4m0", "e3m0:bias=4", "fp32"}) {
    for (const char* wire : {"e4m3", "e5m2", "e3m0", "e3m0:bias=4", "bf16", "fp16", "e8m12",
                             "e4m3fn:bias=20", "e6m9", "binary8p4se", "fp32"}) {
      const Format format = ParseFormat(accumulator);
      const Format terms_in = ParseFormat(wire);
      Terms terms = make_terms(reference::spec_of(format), 6, 40, 41);
      const Terms more = make_terms(reference::spec_of(terms_in), 6, 40, 43);
      for (std::size_t k = 0; k < terms.size(); ++k) {
        terms[k].insert(terms[k].end(), more[k].begin(), more[k].end());
        terms[k] = testing::oracle_cast(terms[k], terms_in, {});
      }
      for (const Scheme scheme : kSchemes) {
        for (const Rounding mode : {Rounding::nearest_even, Rounding::up, Rounding::to_odd}) {
          failures += check(make(format, scheme, mode), terms_in, terms) ? 0 : 1;
          if (failures > 20) FAIL() << "more than 20 failures; the rest is left out";
        }
      }
    }
  }
}

TEST(Fold, LengthsAndOffsets) {
  const Format format = ParseFormat("e5m2");
  for (const std::size_t n : {1u, 7u, 8u, 15u, 16u, 17u, 33u, 255u, 257u}) {
    const Terms terms = make_terms(reference::spec_of(format), 4, n, 47 + n);
    for (const Scheme scheme : kSchemes) {
      EXPECT_TRUE(check(make(format, scheme, Rounding::nearest_even), kFp32, terms)) << n;
    }
  }
}

// In the format (8,3), 2^-30 + 1.0625 must be 1.125: the sum lies just above a tie, but binary32
// would round it to the tie. Kahan summation gives 1, because it first rounds the difference of the
// term 1.0625 and the compensation 0.
TEST(Fold, TheTieThatBinary32Hides) {
  const Terms terms = {{0x1p-30f}, {1.0625f}};
  for (const Scheme scheme : kSchemes) {
    const auto a = make(MakeFormat(8, 3), scheme, Rounding::nearest_even);
    EXPECT_EQ(oracle_fold(a, terms)[0], scheme == Scheme::kahan ? 1.0f : 1.125f);
    EXPECT_TRUE(check(a, kFp32, terms));
    EXPECT_TRUE(check(a, ParseFormat("e8m12"), terms));
  }
}

TEST(Fold, OverflowedKahanSumsStayInfinite) {
  const Terms terms = {{240.0f, -240.0f, 240.0f},
                       {240.0f, -240.0f, 100.0f},
                       {-240.0f, 1.0f, -240.0f},
                       {-240.0f, 1.0f, HUGE_VALF},
                       {1.0f, 1.0f, -HUGE_VALF}};
  const auto a = make(ParseFormat("e4m3"), Scheme::kahan, Rounding::nearest_even);
  const auto sums = oracle_fold(a, terms);
  EXPECT_EQ(sums[0], HUGE_VALF);
  EXPECT_EQ(sums[1], -HUGE_VALF);
  EXPECT_TRUE(std::isnan(sums[2]));
  EXPECT_TRUE(check(a, kFp32, terms));
}

TEST(Fold, SingleAndNoTerms) {
  for (const Scheme scheme : kSchemes) {
    const auto a = make(ParseFormat("e4m3"), scheme, Rounding::nearest_even);
    EXPECT_TRUE(check(a, kFp32, {{-0.0f, 1e-30f, -1e-30f, 1000.0f, 0.3f}}));
    EXPECT_TRUE(check(a, kFp32, {{-0.0f}, {-0.0f}, {-0.0f}}));
  }
}

#ifdef CPD_TEST_RANDOM123

// Returns the source of random integers for element `index`. A 32-bit word holds s integers.
// Integer t is part t mod s of word (t mod 4 s) / s of block t / (4 s). The block number is in the
// counter above the 40 bits of the index.
reference::RandomSource draws_of(const RoundingOptions& o, std::uint64_t index) {
  return [=, t = std::uint64_t{0}]() mutable {
    const std::uint64_t s = o.random_bits > 16 ? 1 : o.random_bits > 8 ? 2 : 4;
    const auto low = [](std::uint64_t v) { return static_cast<std::uint32_t>(v); };
    const r123::Philox4x32::ctr_type counter = {
        {low(index), low((index >> 32 & 0xFF) | (t / (4 * s)) << 8), low(testing::kKey.stream),
         low(testing::kKey.stream >> 32)}};
    const r123::Philox4x32::key_type key = {
        {low(testing::kKey.seed), low(testing::kKey.seed >> 32)}};
    const auto words = r123::Philox4x32()(counter, key);
    const std::uint32_t word = words[(t % (4 * s)) / s];
    const std::uint64_t part = t++ % s;
    return (word >> (part * (32 / s))) & ((1u << o.random_bits) - 1);
  };
}

TEST(FoldStochastic, DrawsFollowTheDocumentedRule) {
  int failures = 0;
  for (const char* name : {"e4m3", "e5m2", "e3m0", "bf16", "e6m9", "e4m3fn", "e8m22", "e5m2:nosub",
                           "e4m3fnuz", "fp16"}) {
    const Format format = ParseFormat(name);
    const Terms terms = make_terms(reference::spec_of(format), 9, 70, 53);
    for (const Scheme scheme : kSchemes) {
      for (const int random_bits : {3, 8, 9, 16, 17, 24}) {
        for (const Variant variant : testing::kVariants) {
          Accumulator a = make(format, scheme, Rounding::stochastic);
          a.rounding.random_bits = random_bits;
          a.rounding.variant = variant;
          for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{0x5'0000'0100}}) {
            const auto source_of = [&](std::size_t i) { return draws_of(a.rounding, first + i); };
            failures += check(a, kFp32, terms, source_of, first) ? 0 : 1;
            if (failures > 20) FAIL() << "more than 20 failures; the rest is left out";
          }
        }
      }
    }
  }
}

#else

TEST(FoldStochastic, DrawsFollowTheDocumentedRule) {
  GTEST_SKIP() << "built without Random123 (Debian: librandom123-dev)";
}

#endif

}  // namespace
}  // namespace cpd
