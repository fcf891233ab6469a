// SPDX-License-Identifier: Apache-2.0
//
// Tests that the oracles of matrix products agree with each other and with cases worked out by
// hand.
#include <gtest/gtest.h>

#include "cpd/oracle/reference_gemm.h"
#include "tests/testing/gemm.h"
#include "tests/testing/near_ties.h"
#include "tests/testing/sanitized.h"

#ifdef CPD_TEST_RANDOM123
#include <Random123/philox.h>
#endif

namespace cpd {
namespace {

using reference::ExactArithmetic;
using testing::Wide;
using testing::WideArithmetic;

Accumulator make(const char* format, Scheme scheme = Scheme::sequential) {
  Accumulator a;
  a.format = ParseFormat(format);
  a.scheme = scheme;
  return a;
}

std::vector<Format> formats() {
  std::vector<Format> all;
  for (const char* name :
       {"e4m3", "e5m2", "e3m0", "e2m1", "e6m9", "e5m10", "e8m7", "e8m23", "e4m3fn", "e4m3fnuz",
        "binary8p4se", "e4m3:nosub", "e3m2:nosub", "e4m0", "e4m3:bias=11", "e1m2"}) {
    all.push_back(ParseFormat(name));
  }
  return all;
}

std::vector<reference::Options> options(std::mt19937_64& generator) {
  std::vector<reference::Options> all;
  for (const Overflow overflow : testing::kPolicies) {
    reference::Options o;
    o.overflow = overflow;
    for (const Rounding mode : testing::kDeterministicModes) {
      o.rounding = mode;
      all.push_back(o);
    }
    o.rounding = Rounding::stochastic;
    for (const Variant variant : testing::kVariants) {
      for (const int bits : {1, 2, 7, 24}) {
        o.variant = variant;
        o.random_bits = bits;
        o.random = static_cast<std::uint32_t>(generator()) & ((1u << bits) - 1);
        all.push_back(o);
      }
    }
  }
  return all;
}

// Computes a * b + c, rounded once, with the slow ExactArithmetic and with the fast WideArithmetic.
// Expects equal bits.
void compare(const reference::Spec& spec, float a, float b, float c, const reference::Options& o,
             const Format& format) {
  const float slow = ExactArithmetic::to_float(ExactArithmetic::rounded(
      spec, ExactArithmetic::sum(ExactArithmetic::product(a, b), ExactArithmetic::number(c), o),
      o));
  const float fast = WideArithmetic::to_float(WideArithmetic::rounded(
      spec, WideArithmetic::sum(WideArithmetic::product(a, b), WideArithmetic::number(c), o), o));
  ASSERT_EQ(testing::hex(slow), testing::hex(fast))
      << testing::hex(a) << " * " << testing::hex(b) << " + " << testing::hex(c) << ", "
      << ToString(format) << ", " << ToString(o.rounding) << ", N " << o.random_bits << ", R "
      << o.random << ", variant " << ToString(o.variant);
}

TEST(ReferenceGemm, BothArithmeticsAgree) {
  std::mt19937_64 generator(1);
  for (const Format& format : formats()) {
    const reference::Spec spec = reference::spec_of(format);
    const std::vector<float> pool = testing::boundary_patterns(spec, 30, 100);
    const auto any = [&] { return pool[generator() % pool.size()]; };
    const testing::FmaProblems ties = testing::NearTies(spec, 2).make(8, 16);
    for (int round = 0; round < (testing::kSanitized ? 3 : 40); ++round) {
      for (const reference::Options& o : options(generator)) {
        const std::size_t i = generator() % ties.b.size();
        ASSERT_NO_FATAL_FAILURE(compare(spec, any(), any(), any(), o, format));
        ASSERT_NO_FATAL_FAILURE(compare(spec, any(), 1.0f, any(), o, format));
        ASSERT_NO_FATAL_FAILURE(compare(spec, any(), 1.0f, 0.0f, o, format));
        ASSERT_NO_FATAL_FAILURE(
            compare(spec, ties.a[i / ties.columns], ties.b[i], ties.c[i], o, format));
      }
    }
  }
}

TEST(ReferenceGemm, AtLeastHalfAreNextToTies) {
  for (const char* name : {"e4m3", "e5m2", "e6m9", "e5m10", "e8m7", "e4m3fn"}) {
    const testing::FmaProblems p =
        testing::NearTies(reference::spec_of(ParseFormat(name)), 2).make(64, 32);
    EXPECT_GE(2 * p.near_ties, p.b.size()) << name;
  }
}

float dot(const Accumulator& a, std::vector<float> x, std::vector<float> y, float c = 0) {
  const float slow = reference::dot(a, x, y, c, 0, testing::kKey);
  EXPECT_EQ(testing::hex(slow), testing::hex(reference::dot<WideArithmetic>(a, x, y, c)));
  return slow;
}

TEST(ReferenceGemm, SequentialByHand) {
  EXPECT_EQ(dot(make("e4m3"), {0x1.a30fecp+0f}, {0x1.4c52bp-1f}), 1.125f);
  EXPECT_EQ(dot(make("e4m3"), {16, 1, 1}, {1, 1, 1}), 16.0f);  // 17 is a tie, to 16
  EXPECT_EQ(dot(make("e4m3"), {1, 1, 16}, {1, 1, 1}), 18.0f);
  Accumulator rounded = make("e4m3");
  EXPECT_EQ(dot(rounded, {1.125f}, {1.125f}, 16.5f), 18.0f);  // 16 + 1.25
  rounded.exact_products = true;
  EXPECT_EQ(dot(rounded, {1.0625f, 1.125f}, {1, 1}, 16), 20.0f);  // 17.0625: 18; 19.125: 20

  rounded.exact_products = false;
  rounded.product = ParseFormat("e5m2");
  EXPECT_EQ(dot(rounded, {1.125f}, {1}), 1.0f);
}

TEST(ReferenceGemm, KahanByHand) {
  // 16 + 1 = 17 rounds to 16 in e4m3. With a further 1, Kahan summation recovers the lost 1: 16 +
  // (1 - (-1)) = 18.
  EXPECT_EQ(dot(make("e4m3", Scheme::kahan), {16, 1}, {1, 1}), 16.0f);
  EXPECT_EQ(dot(make("e4m3", Scheme::kahan), {16, 1, 1}, {1, 1, 1}), 18.0f);
  EXPECT_EQ(dot(make("e4m3", Scheme::kahan), {240, 240, 1}, {1, 1, 1}),
            std::numeric_limits<float>::infinity());
}

TEST(ReferenceGemm, ChunksByHand) {
  Accumulator a = make("e4m3", Scheme::chunked);
  a.chunk = 2;
  EXPECT_EQ(dot(a, {1, 1, 1}, {1, 1, 1}, 16), 20.0f);  // 16 + 2; then the tie 19
  EXPECT_EQ(dot(a, {1, 1}, {1, 1}, 16), 18.0f);
}

TEST(ReferenceGemm, PairsByHand) {
  const Accumulator a = make("e4m3", Scheme::pairwise);
  // Five terms: (16 + 1) + (1 + 1) = 16 + 2 = 18. The odd term is added last: 18 + 1 = 19 is a tie
  // and goes to 20.
  EXPECT_EQ(dot(a, {16, 1, 1, 1, 1}, {1, 1, 1, 1, 1}), 20.0f);
  // Six terms: ((16 + 1) + (1 + 1)) + (1 + 1) = 18 + 2 = 20.
  EXPECT_EQ(dot(a, {16, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1}), 20.0f);
  // Seven terms: ((16 + 1) + (1 + 1)) + ((1 + 1) + 1) = 18 + 3 = 21, which is a tie and goes to 20.
  EXPECT_EQ(dot(a, {16, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1}), 20.0f);
  EXPECT_EQ(dot(a, {}, {}, -0.0f), 0.0f);
  EXPECT_TRUE(std::signbit(dot(a, {}, {}, -0.0f)));
}

Accumulator unit(int block, int fraction_bits, const char* sum = "fp32") {
  Accumulator a;
  a.scheme = Scheme::block_fma;
  a.unit = BlockFma{};
  a.unit->a = a.unit->b = ParseFormat("fp16");
  a.unit->block = block;
  a.unit->fraction_bits = fraction_bits;
  a.unit->sum = ParseFormat(sum);
  return a;
}

TEST(ReferenceGemm, BlocksByHand) {
  const auto run = [](const Accumulator& a, std::vector<float> x, std::vector<float> y, float c) {
    return reference::dot(a, x, y, c, 0, testing::kKey);
  };
  // With one fraction bit and a largest term of 1, terms are cut to multiples of 1/2, so each 0.75
  // becomes 0.5.
  EXPECT_EQ(run(unit(4, 1), {1, 0.75f, 0.75f}, {1, 1, 1}, 0), 2.0f);
  EXPECT_EQ(run(unit(1, 1), {1, 0.75f, 0.75f}, {1, 1, 1}, 0), 2.0f);
  EXPECT_EQ(run(unit(4, 1), {1, -0.75f}, {1, 1}, 0), 0.5f);  // toward zero
  // 1.5 * 1.5 = 2.25 has the exponent 0, the sum of its operands' exponents. With one fraction bit,
  // 2.25 is cut to a multiple of 1/2: to 2.
  EXPECT_EQ(run(unit(4, 1), {1.5f}, {1.5f}, 0), 2.0f);
  EXPECT_EQ(run(unit(4, 2), {1.5f}, {1.5f}, 0), 2.25f);
  // A subnormal fp16 operand has the exponent emin = -14. The product 2^-24 * 2^14 therefore has
  // the exponent -14 + 14 = 0.
  EXPECT_EQ(run(unit(4, 3), {0x1p-24f, 1}, {0x1p14f, 0x1p-3f}, 0), 0x1p-3f);
  // The addend is aligned and cut like a product, unless aligns_addend is false.
  EXPECT_EQ(run(unit(4, 3), {0x1p-4f}, {1}, 1), 1.0f);
  Accumulator separate = unit(4, 3);
  separate.unit->aligns_addend = false;
  EXPECT_EQ(run(separate, {0x1p-4f}, {1}, 1), 1.0625f);
  // A unit with 13 fraction bits loses 2^-20 next to 1. With promote = 4, the unit's sum is added
  // to a binary32 sum every four terms, and 2^-20 is preserved.
  Accumulator promoted = unit(4, 13, "e8m13");
  const std::vector<float> x = {1, 0, 0, 0, 0x1p-10f};
  const std::vector<float> y = {1, 1, 1, 1, 0x1p-10f};
  EXPECT_EQ(run(promoted, x, y, 0), 1.0f);
  promoted.unit->promote = 4;
  EXPECT_EQ(run(promoted, x, y, 0), 1.0f + 0x1p-20f);
}

#ifdef CPD_TEST_RANDOM123
TEST(ReferenceGemm, PhiloxIsRandom123s) {
  std::mt19937_64 generator(3);
  for (int i = 0; i < 200; ++i) {
    const auto word = [&] { return static_cast<std::uint32_t>(generator()); };
    const std::array<std::uint32_t, 4> counter = {word(), word(), word(), word()};
    const std::uint64_t seed = generator();
    const auto own = reference::philox_words(counter, seed);
    const r123::Philox4x32::ctr_type theirs = r123::Philox4x32()(
        {{counter[0], counter[1], counter[2], counter[3]}},
        {{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}});
    for (std::size_t w = 0; w < 4; ++w) ASSERT_EQ(own[w], theirs[w]);
  }
}
#endif

// In e4m3 with three random bits, 16 + 1 is rounded up for random integers R >= 4. The addend, the
// product and the sum use integers number 0, 16 and 17 of the element's stream. Another order would
// change the result.
TEST(ReferenceGemm, DrawsInProgramOrder) {
  Accumulator a = make("e4m3");
  a.rounding.mode = Rounding::stochastic;
  a.rounding.random_bits = 3;
  for (std::uint64_t index = 0; index < 64; ++index) {
    const auto draw = [&](std::uint64_t t) {
      const auto words = reference::philox_words(
          {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(t / 16 << 8), 6, 0}, 5);
      return words[t % 16 / 4] >> (t % 4 * 8) & 7;
    };
    float s = draw(0) >= 4 ? 18.0f : 16.0f;         // 17
    const float p = draw(16) >= 4 ? 1.125f : 1.0f;  // 1.0625
    const float sum = s + p;                        // 17, 17.125, 19, 19.125
    const float part = (sum - s) / 2 * 8;           // in eighths of the gap
    s += std::floor(part) + static_cast<float>(draw(17)) >= 8 ? 2.0f : 0.0f;
    const std::vector<float> x = {1.0625f};
    const std::vector<float> y = {1.0f};
    ASSERT_EQ(reference::dot(a, x, y, 17.0f, index, {5, 6}), s) << index;
  }
}

}  // namespace
}  // namespace cpd
