// SPDX-License-Identifier: Apache-2.0
//
// Tests that ordered sums of every scheme give the oracle's results, however the elements and terms
// are divided into calls.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "cpd/ops/reduce.h"
#include "cpd/oracle/reference_gemm.h"
#include "cpd/oracle/reference_sum.h"
#include "cpd/spec/error.h"
#include "cpd/spec/presets.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/patterns.h"
#include "tests/testing/refusal.h"
#include "tests/testing/run.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using reference::Spec;

// terms[k][i] is term k of the sum of element i.
using Terms = std::vector<std::vector<float>>;

/// Computes the sums in ranges of `piece` elements. Each call of FoldSteps adds `together` terms to
/// a range. If `together` is 0, FoldStep adds each single term.
std::vector<float> fold(const Accumulator& a, const Format& terms_in, const Terms& terms,
                        std::size_t piece, std::int64_t together, std::uint64_t first = 0) {
  const std::size_t n = terms[0].size();
  const auto count = static_cast<std::int64_t>(terms.size());
  const auto planes = static_cast<std::size_t>(FoldPlanes(a, count));
  std::vector<float> state(planes * n, std::nanf(""));  // what is there before does not matter
  for (std::size_t at = 0; at < n; at += piece) {
    const FoldState sums{state.data() + at, static_cast<std::int64_t>(n)};
    const auto begin = static_cast<std::int64_t>(first + at);
    const auto size = static_cast<std::int64_t>(std::min(piece, n - at));
    std::vector<const float*> rows;
    for (const auto& row : terms) rows.push_back(row.data() + at);
    for (std::int64_t k = 0; k < count; k += std::max<std::int64_t>(1, together)) {
      const float* const* next = rows.data() + k;
      if (together == 0) {
        FoldStep(a, terms_in, k, begin, size, *next, sums, testing::kKey);
      } else {
        FoldSteps(a, terms_in, k, std::min(together, count - k), begin, size, next, sums,
                  testing::kKey);
      }
    }
    FoldEnd(a, terms_in, count, begin, size, sums, testing::kKey);
  }
  state.resize(n);
  return state;
}

/// Returns the source of random integers for the sum of element `index`. A 32-bit word holds s
/// integers, so integer t is part t mod s of the element's word t / s. A block has four words, and
/// the block number is in the counter above the 40 bits of the index.
reference::RandomSource draws_of(const RoundingOptions& o, std::uint64_t index) {
  return [=, t = std::uint64_t{0}]() mutable {
    const std::uint64_t s = o.random_bits > 16 ? 1 : o.random_bits > 8 ? 2 : 4;
    const auto low = [](std::uint64_t v) { return static_cast<std::uint32_t>(v); };
    const auto words =
        reference::philox_words({low(index), low((index >> 32 & 0xFF) | (t / (4 * s)) << 8),
                                 low(testing::kKey.stream), low(testing::kKey.stream >> 32)},
                                testing::kKey.seed);
    const std::uint32_t word = words[t / s % 4];
    const std::uint64_t part = t++ % s;
    return (word >> (part * (32 / s))) & ((1u << o.random_bits) - 1);
  };
}

float oracle_sum(const Accumulator& a, std::span<const float> terms, std::uint64_t index) {
  reference::RandomSource random;
  if (a.rounding.mode == Rounding::stochastic) random = draws_of(a.rounding, index);
  return reference::sum(reference::order_of(a), terms, testing::oracle_options(a.rounding), random);
}

bool check(const Accumulator& a, const Format& terms_in, const Terms& terms, std::uint64_t first) {
  std::vector<float> expected;
  for (std::size_t i = 0; i < terms[0].size(); ++i) {
    std::vector<float> column;
    for (const auto& row : terms) column.push_back(row[i]);
    expected.push_back(oracle_sum(a, column, first + i));
  }
  bool good = true;
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    const auto describe = [&](std::size_t i) {
      std::string text = ", terms";
      for (const auto& row : terms) text += " " + testing::hex(row[i]);
      return text;
    };
    for (const std::int64_t together : {0, 5, 1000}) {
      const std::vector<float> got = fold(a, terms_in, terms, terms[0].size(), together, first);
      const auto equal = testing::bits_equal(std::span<const float>(expected),
                                             std::span<const float>(got), describe);
      EXPECT_TRUE(equal) << backend << ", " << ToString(a) << ", first " << first << ", terms in "
                         << ToString(terms_in) << ", together " << together;
      good = good && equal;
    }
  }
  return good;
}

/// Returns terms of similar size. The first quarter of the elements has special values and values
/// that overflow.
Terms make_terms(const Spec& spec, std::size_t count, std::size_t n, std::uint64_t seed) {
  Terms terms;
  for (std::size_t k = 0; k < count; ++k) {
    auto row = testing::moderate_values(spec, n, seed + 2 * k);
    const auto wild = testing::mixed_values(spec, n / 4, seed + 2 * k + 1);
    if (k < 4) std::copy(wild.begin(), wild.end(), row.begin());
    terms.push_back(std::move(row));
  }
  return terms;
}

RoundingOptions options_of(Rounding mode, int random_bits = 8) {
  RoundingOptions o;
  o.mode = mode;
  o.random_bits = random_bits;
  return o;
}

constexpr std::array kFormats = {"e4m3", "e5m2", "e3m0", "bf16", "fp32", "e4m3fn", "e2m1", "e6m9"};

TEST(Reduce, EverySchemeIsTheOraclesSum) {
  int failures = 0;
  std::size_t turn = 0;
  for (const char* name : kFormats) {
    const Format format = ParseFormat(name);
    const Spec spec = reference::spec_of(format);
    for (const std::size_t world : {1, 2, 3, 5, 7, 8, 64, 100}) {
      const Terms terms = make_terms(spec, world,
                                     testing::kSanitized ? 5
                                     : turn % 2 == 0     ? 19
                                                         : 85,
                                     10 * world);
      const auto mode = testing::kDeterministicModes[turn++ % testing::kDeterministicModes.size()];
      for (const RoundingOptions& o :
           {options_of(Rounding::nearest_even), options_of(mode),
            options_of(Rounding::stochastic, std::array{3, 8, 12, 24}[turn % 4])}) {
        const std::uint64_t first =
            std::array{0ull, 3ull, 0xFFFF'FF00ull, 0x5'0000'0101ull}[turn % 4];
        for (const Accumulator& a : testing::accumulators(format, o)) {
          failures += check(a, kFp32, terms, first) ? 0 : 1;
          if (failures > 20) FAIL() << "more than 20 failures; the rest is left out";
        }
      }
    }
  }
}

/// Tests sums with an infinite term at any position: one infinity, two of the same sign, or two of
/// both signs. The sums fill many vector lanes.
TEST(Reduce, InfiniteTermsOfStochasticSums) {
  constexpr std::size_t kCount = 192;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const char* name :
       {"e4m3", "e5m2", "e3m0", "bf16", "fp16", "e4m3fn", "e5m2fnuz", "e2m1", "e3m2"}) {
    const Format format = ParseFormat(name);
    for (const Overflow overflow : {Overflow::ieee, Overflow::saturate}) {
      for (const int random_bits : {3, 10}) {
        Terms terms(7);
        for (std::size_t k = 0; k < terms.size(); ++k) {
          terms[k] = testing::moderate_values(reference::spec_of(format), kCount, 3 * k);
          for (std::size_t i = 0; i < kCount; ++i) {
            if (i % 8 == k) terms[k][i] = i % 3 == 0 ? -infinity : infinity;
            if (i % 16 == k + 3) terms[k][i] = i % 5 == 0 ? -infinity : infinity;
          }
        }
        RoundingOptions o = options_of(Rounding::stochastic, random_bits);
        o.overflow = overflow;
        for (const Scheme scheme : {Scheme::sequential, Scheme::kahan}) {
          ASSERT_TRUE(check({.format = format, .scheme = scheme, .rounding = o}, kFp32, terms, 0));
        }
      }
    }
  }
}

// Tests that knowing the format of the terms changes no bit of a sum. The format is finer, coarser
// or narrower than the accumulator's.
TEST(Reduce, KnownTermsChangeNothing) {
  int failures = 0;
  for (const char* name : {"e4m3", "e5m2", "e3m0", "e4m3:nosub", "e4m3fn", "e6m9"}) {
    const Format format = ParseFormat(name);
    for (const char* in : {"e4m3", "e2m1", "e8m3", "e8m0", "e5m2", "e6m9", "bf16"}) {
      const Format terms_in = ParseFormat(in);
      Terms terms = make_terms(reference::spec_of(format), 7, 150, 5);
      for (auto& row : terms) row = testing::run_cast(row, terms_in, {});
      for (const Rounding mode : {Rounding::nearest_even, Rounding::nearest_away}) {
        for (const Accumulator& a : testing::accumulators(format, options_of(mode))) {
          failures += check(a, terms_in, terms, 0) ? 0 : 1;
          if (failures > 20) FAIL() << "more than 20 failures; the rest is left out";
        }
      }
    }
  }
}

// The sum lies halfway between two subnormal numbers of the accumulator. A term far below decides
// the rounding.
TEST(Reduce, TinyTermsBreakTies) {
  const Format e8m3 = ParseFormat("e8m3");
  const Terms terms = {{0x1p-10f, 0x1p-10f, 0x1.8p-9f}, {0x1p-40f, -0x1p-40f, -0x1p-60f}};
  for (const char* name : {"e4m3", "e4m3fn"}) {
    for (const Accumulator& a : testing::accumulators(ParseFormat(name), {})) {
      EXPECT_TRUE(check(a, e8m3, terms, 0));
      EXPECT_TRUE(check(a, e8m3, {terms[1], terms[0]}, 0));
    }
  }
}

TEST(Reduce, LargeFoldsDoNotDependOnPiecesOrBackend) {
  const Spec spec = reference::spec_of(ParseFormat("e4m3"));
  const std::size_t length = testing::kSanitized ? 20'000 : 70'000;
  Terms terms;
  for (std::uint64_t k = 0; k < 5; ++k) terms.push_back(testing::moderate_values(spec, length, k));
  for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
    for (const Accumulator& a : testing::accumulators(ParseFormat("e4m3"), options_of(mode, 10))) {
      std::vector<float> first;
      for (const std::string& backend : testing::backends()) {
        const testing::WithBackend forced(backend);
        for (const std::size_t piece : {length, std::size_t{256 * 7}, std::size_t{12'345}}) {
          const std::vector<float> sums = fold(a, kFp32, terms, piece, piece % 4);
          if (first.empty()) first = sums;
          EXPECT_TRUE(
              testing::bits_equal(std::span<const float>(first), std::span<const float>(sums)))
              << backend << ", " << ToString(a) << ", piece " << piece;
        }
      }
    }
  }
}

TEST(Reduce, PlanesOfEachScheme) {
  Accumulator a;
  EXPECT_EQ(FoldPlanes(a, 1000), 1);
  a.scheme = Scheme::kahan;
  EXPECT_EQ(FoldPlanes(a, 1), 2);
  a.scheme = Scheme::chunked;
  EXPECT_EQ(FoldPlanes(a, 1), 2);
  a.scheme = Scheme::pairwise;
  for (const auto& [terms, planes] :
       {std::pair{1, 1}, std::pair{2, 2}, std::pair{3, 2}, std::pair{7, 3}, std::pair{256, 9}}) {
    EXPECT_EQ(FoldPlanes(a, terms), planes) << terms;
  }
}

TEST(Reduce, RandomBitsRunOut) {
  constexpr std::int64_t kDraws = std::int64_t{4} << 24;
  const auto expect_most = [](const Accumulator& a, std::int64_t most) {
    EXPECT_NO_THROW(CheckFold(a, most)) << ToString(a);
    EXPECT_THROW(CheckFold(a, most + 1), Error) << ToString(a);
  };
  Accumulator a;
  a.rounding = options_of(Rounding::stochastic, 24);
  expect_most(a, kDraws);
  a.scheme = Scheme::kahan;
  expect_most(a, kDraws / 4);
  a.scheme = Scheme::pairwise;
  expect_most(a, kDraws + 1);
  a.scheme = Scheme::chunked;
  a.chunk = 1;
  expect_most(a, kDraws / 2);
  a.chunk = 3;  // four draws each
  expect_most(a, kDraws / 4 * 3);
  a.chunk = std::numeric_limits<std::int64_t>::max();
  expect_most(a, kDraws - 1);
  a.rounding.random_bits = 8;
  expect_most(a, 4 * kDraws - 1);
  a.rounding = {};
  EXPECT_NO_THROW(CheckFold(a, std::int64_t{1} << 40));
}

TEST(Reduce, MatrixUnitsSumNoTerms) {
  const Accumulator unit = Preset("h100-fp16");
  float values[2] = {1, 2};
  const std::string schemes = " takes scheme sequential, kahan, chunked or pairwise, got ";
  EXPECT_REFUSAL("a sum of given terms" + schemes + "block_fma, which sums products",
                 CheckFold(unit, 2));
  EXPECT_REFUSAL("a reduction term by term" + schemes +
                     "fixed, which is for matrix products and sums of tensors",
                 CheckFold(ParseAccumulator("fixed<32,12>"), 2));
  EXPECT_THROW(FoldStep(unit, kFp32, 0, 0, 1, values, {values, 1}, testing::kKey), Error);
  EXPECT_THROW(FoldEnd(unit, kFp32, 1, 0, 1, {values, 1}, testing::kKey), Error);
}

}  // namespace
}  // namespace cpd
