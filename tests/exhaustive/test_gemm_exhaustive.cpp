// SPDX-License-Identifier: Apache-2.0
//
// Tests Gemm completely where the quick tests take samples. The cases are 2^24 fused multiply-adds
// per format, all pairs of 8-bit numbers in every mode, and a result of more than 2^32 elements.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <future>
#include <memory>

#include "tests/testing/gemm.h"
#include "tests/testing/gemm_cases.h"
#include "tests/testing/near_ties.h"

namespace cpd {
namespace {

using testing::all_values;
using testing::Tensor;

constexpr std::size_t kRows = 8192;  // of a chunk of 2^18 problems
constexpr std::size_t kColumns = 32;
constexpr std::size_t kChunks = 64;

struct Chunk {
  testing::FmaProblems problems;
  std::vector<float> expected;
};

Chunk make_chunk(const Accumulator& accumulator, std::uint64_t seed) {
  Chunk chunk;
  testing::NearTies ties(reference::spec_of(accumulator.format), seed);
  chunk.problems = ties.make(kRows, kColumns);
  const testing::FmaProblems& p = chunk.problems;
  for (std::size_t i = 0; i < p.b.size(); ++i) {
    const std::span<const float> a(&p.a[i / kColumns], 1);
    const std::span<const float> b(&p.b[i], 1);
    chunk.expected.push_back(reference::dot<testing::WideArithmetic>(accumulator, a, b, p.c[i], i));
  }
  return chunk;
}

void check_chunk(const Chunk& chunk, const Accumulator& accumulator) {
  const std::array<std::int64_t, 3> shape_a = {kRows, 1, 1};
  const std::array<std::int64_t, 3> shape = {kRows, 1, kColumns};
  const testing::FmaProblems& p = chunk.problems;
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    std::vector<float> out(p.b.size(), -7.0f);
    const TensorView c = View(p.c.data(), DType::f32, shape);
    Gemm(View(p.a.data(), DType::f32, shape_a), View(p.b.data(), DType::f32, shape), accumulator,
         View(out.data(), DType::f32, shape), &c);
    const auto about = [&](std::size_t i) {
      return ", " + testing::hex(p.a[i / kColumns]) + " * " + testing::hex(p.b[i]) + " + " +
             testing::hex(p.c[i]);
    };
    ASSERT_TRUE(testing::bits_equal(std::span<const float>(chunk.expected),
                                    std::span<const float>(out), about))
        << backend << ", " << testing::describe(accumulator);
  }
}

TEST(GemmExhaustive, FmaNextToTies) {
  for (const char* name : {"e4m3", "e5m2", "e6m9", "e5m10", "e8m7", "e4m3fn"}) {
    Accumulator accumulator;
    accumulator.format = ParseFormat(name);
    accumulator.exact_products = true;
    const auto start = [&](std::uint64_t seed) {
      return std::async(std::launch::async, make_chunk, accumulator, seed);
    };
    std::size_t near_ties = 0;
    std::future<Chunk> next = start(1);
    for (std::uint64_t i = 1; i <= kChunks; ++i) {
      const Chunk chunk = next.get();
      if (i < kChunks) next = start(i + 1);
      near_ties += chunk.problems.near_ties;
      ASSERT_NO_FATAL_FAILURE(check_chunk(chunk, accumulator));
    }
    const std::size_t all = kChunks * kRows * kColumns;
    EXPECT_EQ(all, std::size_t{1} << 24);
    EXPECT_GE(2 * near_ties, all);
    std::printf("fma, %s x %zu backends: 2^24, of which %zu lie within 2^-30 of a tie\n", name,
                testing::backends().size(), near_ties);
    std::fflush(stdout);
  }
}

TEST(GemmExhaustive, AllPairsOfEightBitFormatsInEveryMode) {
  for (const char* name : {"e4m3", "e5m2", "e3m4", "e2m5", "e6m1", "e7m0", "e4m3fn", "e4m3fnuz",
                           "e5m2fnuz", "binary8p4se", "binary8p3se", "e4m3:nosub"}) {
    const Format format = ParseFormat(name);
    const std::vector<float> values = all_values(format);
    const auto n = static_cast<std::int64_t>(values.size());
    const Tensor a({n, 1}, values);
    const Tensor b({1, n}, values);
    const Tensor ones({n, 1}, std::vector<float>(values.size(), 1.0f));
    for (const Overflow overflow : testing::kPolicies) {
      for (const bool exact : {false, true}) {
        Accumulator accumulator;
        accumulator.format = format;
        accumulator.exact_products = exact;
        accumulator.rounding.overflow = overflow;
        for (const Rounding mode : testing::kDeterministicModes) {
          accumulator.rounding.mode = mode;
          ASSERT_TRUE(testing::gemm_matches({a, b, nullptr}, accumulator)) << "products";
          ASSERT_TRUE(testing::gemm_matches({ones, b, &a}, accumulator)) << "sums";
        }
        accumulator.rounding.mode = Rounding::stochastic;
        for (const Variant variant : testing::kVariants) {
          for (const int bits : {1, 7, 8, 9, 16, 17, 24}) {
            accumulator.rounding.variant = variant;
            accumulator.rounding.random_bits = bits;
            ASSERT_TRUE(testing::gemm_matches({a, b, nullptr}, accumulator)) << "products";
            ASSERT_TRUE(testing::gemm_matches({ones, b, &a}, accumulator)) << "sums";
          }
        }
      }
    }
  }
}

// Offsets in the result, and the numbers of its elements, need more than 32 bits.
TEST(GemmExhaustive, MoreThanTwoToThe32Elements) {
  constexpr std::int64_t kM = 65'600;
  constexpr std::int64_t kN = 65'700;
  constexpr auto kCount = static_cast<std::size_t>(kM * kN);
  static_assert(kCount > std::size_t{1} << 32);
  const auto free_memory = static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) *
                           static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (free_memory < 3 * kCount) {
    GTEST_SKIP() << "needs " << (3 * kCount >> 30) << " GiB of free memory, has "
                 << (free_memory >> 30);
  }
  Accumulator accumulator;
  accumulator.format = ParseFormat("e4m3");
  accumulator.rounding.mode = Rounding::stochastic;
  accumulator.rounding.random_bits = 8;
  const std::vector<float> a =
      testing::operands(testing::Values::arbitrary, accumulator.format, kM, 1);
  const std::vector<float> b =
      testing::operands(testing::Values::arbitrary, accumulator.format, kN, 2);
  const std::unique_ptr<std::uint16_t[]> out(new std::uint16_t[kCount]);
  const std::array<std::int64_t, 2> shape_a = {kM, 1};
  const std::array<std::int64_t, 2> shape_b = {1, kN};
  const std::array<std::int64_t, 2> shape = {kM, kN};
  Gemm(View(a.data(), DType::f32, shape_a), View(b.data(), DType::f32, shape_b), accumulator,
       View(out.get(), DType::bf16, shape));
  std::mt19937_64 generator(3);
  const auto check = [&](std::size_t i) {
    const std::span<const float> x(&a[i / kN], 1);
    const std::span<const float> y(&b[i % kN], 1);
    const float expected = reference::dot<testing::WideArithmetic>(accumulator, x, y, 0.0f, i);
    const float got = testing::from_bits(static_cast<std::uint32_t>(out[i]) << 16);
    ASSERT_EQ(testing::hex(got), testing::hex(expected)) << "element " << i;
  };
  for (std::size_t i = 0; i < 4096; ++i) {
    ASSERT_NO_FATAL_FAILURE(check(i));
    ASSERT_NO_FATAL_FAILURE(check(kCount - 1 - i));
    ASSERT_NO_FATAL_FAILURE(check((std::size_t{1} << 31) - 2048 + i));
    ASSERT_NO_FATAL_FAILURE(check((std::size_t{1} << 32) - 2048 + i));
  }
  for (int i = 0; i < 1'000'000; ++i) ASSERT_NO_FATAL_FAILURE(check(generator() % kCount));
}

}  // namespace
}  // namespace cpd
