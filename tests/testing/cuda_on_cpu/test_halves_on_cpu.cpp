// SPDX-License-Identifier: Apache-2.0
//
// Tests products and sums in 16-bit lanes (fp16 or bf16). The tests check for which formats plans
// allow 16-bit lanes, that all pairs of values are rounded exactly, and which matrix products use
// these lanes.
#include <dlfcn.h>
#include <gtest/gtest.h>  // before CUDA's words

#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gemm_halves.h"
#include "tests/testing/cuda_on_cpu/cuda_bf16.h"
#include "tests/testing/cuda_on_cpu/cuda_fp16.h"
#include "tests/testing/cuda_on_cpu/cuda_runtime.h"
#include "tests/testing/gemm.h"
#include "tests/testing/gemm_cases.h"
#include "tests/testing/gemm_devices.h"

namespace cpd {
namespace {

using testing::GemmDevices;
using testing::Tensor;

struct Formats {
  const char* product;
  const char* sum;

  friend void PrintTo(const Formats& formats, std::ostream* to) {
    *to << formats.product << " to " << formats.sum;
  }
};

FastPlan plan_of(const Formats& formats) {
  return make_gemm_plan(Scheme::sequential, ParseFormat(formats.product), false,
                        ParseFormat(formats.sum), {}, 0)
      .fast;
}

constexpr Formats kFp16[] = {{"e4m3", "e4m3"},
                             {"e4m3fn", "e4m3fn"},
                             {"e4m3fnuz", "e4m3fnuz"},
                             {"e4m3:bias=6", "e4m3:bias=6"},
                             {"e4m3:bias=11", "e4m3:bias=11"},
                             {"binary8p4se", "binary8p4se"},
                             {"e3m3", "e3m3"},
                             {"e3m2", "e3m2"},
                             {"e2m3", "e2m3"},
                             {"e2m1", "e2m1"},
                             {"e4m2", "e4m2"},
                             {"e4m2", "e4m3"},
                             {"e3m2", "e4m3"},
                             {"e2m1", "e3m3"},
                             {"e2m1", "e4m3fn"}};
constexpr Formats kBf16[] = {
    {"e5m2", "e5m2"}, {"e5m2fnuz", "e5m2fnuz"}, {"binary8p3se", "binary8p3se"},
    {"e5m1", "e5m2"}, {"e4m1", "e4m1"},         {"e5m1", "e5m1"},
    {"e6m2", "e6m2"}, {"e7m2", "e7m2"},         {"e4m2", "e5m2"}};
constexpr Formats kNeither[] = {{"e4m4", "e4m4"},
                                {"e5m3", "e5m3"},
                                {"e5m10", "e5m10"},
                                {"e8m7", "e8m7"},
                                {"e8m23", "e8m23"},
                                {"e4m0", "e4m0"},
                                {"e4m3:nosub", "e4m3:nosub"},
                                {"e5m2", "e4m3"},
                                {"e4m3", "e5m2"},
                                {"e4m3:bias=5", "e4m3:bias=5"},
                                {"e4m3:bias=12", "e4m3:bias=12"},
                                {"e8m2", "e8m2"},
                                {"e4m3", "e5m10"}};

TEST(Halves, FormatsOfPlans) {
  for (const Formats& f : kFp16)
    EXPECT_EQ(plan_of(f).half, Half::fp16) << ::testing::PrintToString(f);
  for (const Formats& f : kBf16)
    EXPECT_EQ(plan_of(f).half, Half::bf16) << ::testing::PrintToString(f);
  for (const Formats& f : kNeither)
    EXPECT_EQ(plan_of(f).half, Half::none) << ::testing::PrintToString(f);
  const Format format = ParseFormat("e4m3");
  const auto half_of = [&](Scheme scheme, bool exact, Rounding mode) {
    return make_gemm_plan(scheme, format, exact, format, {.mode = mode}, 0).fast.half;
  };
  EXPECT_EQ(half_of(Scheme::sequential, false, Rounding::nearest_even), Half::fp16);
  EXPECT_EQ(half_of(Scheme::sequential, true, Rounding::nearest_even), Half::none);
  EXPECT_EQ(half_of(Scheme::kahan, false, Rounding::nearest_even), Half::none);
  EXPECT_EQ(half_of(Scheme::pairwise, false, Rounding::nearest_even), Half::none);
  EXPECT_EQ(half_of(Scheme::sequential, false, Rounding::nearest_away), Half::none);
  EXPECT_EQ(half_of(Scheme::sequential, false, Rounding::stochastic), Half::none);
}

// --- the emulation's arithmetic ---

/// Compares every emulated operation that is a form of a * b + c with the oracle.
template <Half kHalf>
void expect_rounded_once() {
  using Word = decltype(cuda::PairOf<kHalf>::word);
  using Lane = decltype(Word::x);
  Accumulator fused;
  fused.format = format_of(kHalf);
  fused.exact_products = true;
  std::minstd_rand random(5);
  const auto any = [&] { return Lane{static_cast<std::uint16_t>(random())}; };
  const auto near_tie = [&](Lane a, Lane b) {  // a sum with it is a tie, or next to one
    const Lane c = Lane::round(-a.value() * b.value() * (random() % 2 == 0 ? 1 : 512));
    return Lane{static_cast<std::uint16_t>(c.code + random() % 3)};
  };
  const auto expect = [&](Lane got, Lane a, Lane b, Lane c) {
    const float x[] = {static_cast<float>(a.value())};
    const float y[] = {static_cast<float>(b.value())};
    const float expected = reference::dot<reference::ExactArithmetic>(
        fused, std::vector<float>(x, x + 1), std::vector<float>(y, y + 1),
        static_cast<float>(c.value()));
    const auto value = static_cast<float>(got.value());
    ASSERT_TRUE(testing::bits_of(value) == testing::bits_of(expected) ||
                (std::isnan(value) && std::isnan(expected)))
        << a.value() << " * " << b.value() << " + " << c.value() << ": " << value;
  };
  const Lane one = Lane::round(1);
  const Lane zero = Lane::round(-0.0);
  for (int i = 0; i < 20000; ++i) {
    const Lane a = any();
    const Lane b =
        i % 4 == 0 ? Lane{static_cast<std::uint16_t>(a.code ^ (random() & 0x87FF))} : any();
    const Lane c = i % 2 == 0 ? any() : near_tie(a, b);
    const Word x{a, b};
    const Word y{b, c};
    const Word z{c, a};
    expect(__hfma2(x, y, z).x, a, b, c);
    expect(__hfma2(x, y, z).y, b, c, a);
    expect(__hadd2_rn(x, z).x, a, one, c);
    expect(__hsub2_rn(z, __hneg2(x)).y, b, one, a);
    expect(__hmul2_rn(x, y).y, b, c, zero);
  }
}
TEST(Halves, Fp16IsRoundedOnce) { expect_rounded_once<Half::fp16>(); }
TEST(Halves, Bf16IsRoundedOnce) { expect_rounded_once<Half::bf16>(); }

// --- all pairs ---

/// Returns each finite value of a format once.
std::vector<float> finite_values(const char* name) {
  std::set<float> values;
  for (const float x : testing::all_values(ParseFormat(name))) {
    if (std::isfinite(x)) values.insert(x == 0 ? 0.0F : x);
  }
  return {values.begin(), values.end()};
}
/// Returns numbers with as many bits as a lane holds, and exponents around 0 and far from it.
template <Half kHalf>
std::vector<float> held_values() {
  std::vector<int> exponents = {-126, -100, -64, -63, 50, 90, 127};
  for (int exponent = -20; exponent <= 20; ++exponent) exponents.push_back(exponent);
  std::vector<float> values = {0.0F, -0.0F};
  const int steps = 1 << (cuda::HeldOperands<kHalf>::kBits - 1);
  for (const int exponent : exponents) {
    for (int i = 0; i < steps; ++i) {
      const float x =
          std::ldexp(1.0F + static_cast<float>(i) / static_cast<float>(steps), exponent);
      if (!cuda::HeldOperands<kHalf>::has(x)) continue;
      values.push_back(x);
      values.push_back(-x);
    }
  }
  return values;
}

/// Puts x and y into the two lanes of a word.
template <Half kHalf>
cuda::PairOf<kHalf> pair_of(float x, float y) {
  using Word = decltype(cuda::PairOf<kHalf>::word);
  using Lane = decltype(Word::x);
  return Word{Lane::round(x), Lane::round(y)};
}
/// Returns whether the lanes are x and -x. A zero must be +0 in both lanes.
template <class Pair>
bool is_pair(Pair got, double x) {
  const auto is = [](auto lane, double value) {
    return lane.value() == value && (value != 0 || lane.code == 0);
  };
  return is(got.word.x, x) && is(got.word.y, -x);
}

struct Counts {
  int products = 0, sums = 0;
};

template <Half kHalf>
Counts expect_exact_pairs(const Formats& formats) {
  using V = cuda::PairOf<kHalf>;
  const FastPlan plan = plan_of(formats);
  const SplitFormat<V> of_product(plan.man_product, plan.product_quantum, false);
  const SplitFormat<V> of_sum(plan.man_sum, plan.sum_quantum, false);
  const RoundPlan product = make_plan(ParseFormat(formats.product), {});
  const RoundPlan sum = make_plan(ParseFormat(formats.sum), {});
  const auto rounded = [](double x, const RoundPlan& to) {
    return round<Rounding::nearest_even>(x, std::uint64_t{0}, to);
  };
  Counts counts;
  const std::vector<float> held = held_values<kHalf>();
  for (const float a : held) {
    for (const float b : held) {
      const float size = std::fabs(a * b);
      if (!(bound_products(plan, size, 1, std::fabs(b)) <= plan.product_limit)) continue;
      const V p = split_short(pair_of<kHalf>(a, b) * pair_of<kHalf>(b, -a), of_product);
      const double expected = rounded(double{a} * b, product);
      if (!is_pair(p, expected)) ADD_FAILURE() << a << " * " << b;
      ++counts.products;
    }
  }
  const std::vector<float> products = finite_values(formats.product);
  for (const float s : finite_values(formats.sum)) {
    for (const float p : products) {
      if (!(std::fabs(s) <= sum_limit(plan, std::fabs(p)))) continue;
      const V got = split(pair_of<kHalf>(s, -s) + pair_of<kHalf>(p, -p), of_sum);
      const double expected = rounded(double{s} + p, sum);
      if (!is_pair(got, expected)) ADD_FAILURE() << s << " + " << p;
      ++counts.sums;
    }
  }
  return counts;
}

class HalvesOf : public ::testing::TestWithParam<Formats> {};
TEST_P(HalvesOf, AllPairsAreExact) {
  const Formats& formats = GetParam();
  const Counts counts = plan_of(formats).half == Half::fp16
                            ? expect_exact_pairs<Half::fp16>(formats)
                            : expect_exact_pairs<Half::bf16>(formats);
  EXPECT_GT(counts.products, 50000);
  EXPECT_GT(counts.sums, 50);
}
INSTANTIATE_TEST_SUITE_P(Fp16, HalvesOf, ::testing::ValuesIn(kFp16));
INSTANTIATE_TEST_SUITE_P(Bf16, HalvesOf, ::testing::ValuesIn(kBf16));

TEST(Halves, HeldOperands) {
  using Fp16 = cuda::HeldOperands<Half::fp16>;
  using Bf16 = cuda::HeldOperands<Half::bf16>;
  for (const float x : {0.0F, 1.0F, 1.9375F, 63488.0F, 0x1p-20F, 0x1.Fp-20F}) {
    EXPECT_TRUE(Fp16::has(x) && Fp16::has(-x)) << x;
  }
  for (const float x : {1.03125F, 0x1.08p3F, 65536.0F, 0x1.Fp-21F, 0x1p-140F, HUGE_VALF, NAN}) {
    EXPECT_FALSE(Fp16::has(x) || Fp16::has(-x)) << x;
  }
  for (const float x : {0.0F, 1.75F, 0x1.8p127F, 0x1p-126F}) {
    EXPECT_TRUE(Bf16::has(x) && Bf16::has(-x)) << x;
  }
  for (const float x : {1.125F, 0x1.Ep5F, 0x1.8p-127F, HUGE_VALF, NAN}) {
    EXPECT_FALSE(Bf16::has(x) || Bf16::has(-x)) << x;
  }
}

// --- products of matrices ---

/// Tests which products of two matrices are computed in 16-bit lanes. Counts them by the fused
/// operations on pairs of 16-bit floats that the kernel executed.
class HalvesGpu : public GemmDevices {
 protected:
  static constexpr std::int64_t kSums = cuda::kHalvesSide * cuda::kHalvesSide;
  static constexpr std::int64_t kOfThread = kSums / cuda::kWideThreads;

  /// Returns the number of products that were computed in 16-bit lanes. Products outside the
  /// matrix, in incomplete tiles and incomplete steps of k, count too. Fails if a result's bits
  /// differ from the CPU's.
  std::int64_t InHalves(const testing::GemmCase& g, const Accumulator& accumulator) const {
    const std::uint64_t before = cuda_on_cpu::half_fmas;
    EXPECT_TRUE(SameEverywhere(g, accumulator));
    constexpr int kFusedOfPair = 3;
    return static_cast<std::int64_t>(cuda_on_cpu::half_fmas - before) * 2 / kFusedOfPair;
  }
};

Tensor ones(std::int64_t rows, std::int64_t columns) {
  return {{rows, columns}, std::vector<float>(static_cast<std::size_t>(rows * columns), 1.0F)};
}

TEST_F(HalvesGpu, TakeProductsOfFewBits) {
  for (const char* name : {"e4m3", "e5m2", "e3m2"}) {
    const Accumulator accumulator = testing::accumulator_of(name);
    const Tensor a = MakeRounded({70, 70}, testing::Values::on_grid, accumulator.format);
    const Tensor b = MakeRounded({70, 130}, testing::Values::on_grid, accumulator.format);
    const std::int64_t all = 2 * kSums * 72;
    const std::int64_t halves = InHalves({a, b}, accumulator);
    EXPECT_LE(halves, all) << name;
    EXPECT_GT(halves, name == std::string("e3m2") ? 0 : all / 2) << name;  // e3m2 ends at 28
  }
  const Tensor a = ones(64, 64);
  EXPECT_EQ(InHalves({a, a}, testing::accumulator_of("e4m3")), 0);  // one tile, as fast without
}

// The matrix products in the tests below have 70 x 130 results, which two tiles compute. The
// results of one row belong to 16 threads in the first tile, and to one thread in the second.
constexpr std::int64_t kThreadsOfRow = 16 + 1;

/// A row of 15s times ones has the running sums 15, 30, and so on. Before each group of 4 products,
/// the kernel bounds the next sums. After two groups the bound exceeds 240 (e4m3's largest value),
/// so the remaining products of that row are added in binary32.
TEST_F(HalvesGpu, LeaveSumsNearTheLimit) {
  std::vector<float> values(70 * 32, 1.0F);
  std::fill_n(values.begin(), 32, 15.0F);
  const Tensor a({70, 32}, values);
  const Accumulator accumulator = testing::accumulator_of("e4m3");
  EXPECT_EQ(InHalves({a, ones(32, 130)}, accumulator),
            2 * kSums * 32 - kThreadsOfRow * kOfThread * (32 - 8));
}

/// A tile sums 32 values of k in each step. If an operand of a step does not fit in 16 bits, the
/// tile computes that step in binary32. If a sum becomes infinite or NaN, the threads of that sum
/// compute all further steps in binary32. This holds even if zeros beyond the matrix's edge cause
/// the NaN.
TEST_F(HalvesGpu, LeaveOtherOperands) {
  const Accumulator accumulator = testing::accumulator_of("e4m3");
  const std::int64_t held = 2 * kSums * 64;
  const auto halves_with = [&](float x) {
    std::vector<float> values(70 * 96, 0.0625F);
    values[40] = x;
    return InHalves({Tensor({70, 96}, values), ones(96, 130)}, accumulator);
  };
  for (const float x : {0x1.08p0F, 0x1p-24F}) EXPECT_EQ(halves_with(x), held) << x;
  EXPECT_EQ(halves_with(1e9F), held - kThreadsOfRow * kOfThread * 32);
  for (const float x : {HUGE_VALF, NAN}) EXPECT_EQ(halves_with(x), held - 32 * kOfThread * 32) << x;
}

TEST_F(HalvesGpu, LeaveNegativeZeros) {
  const Tensor a({70, 32}, std::vector<float>(70 * 32, -0.0F));
  const Tensor b = ones(32, 130);
  const Tensor c({1}, {-0.0F});
  const Accumulator accumulator = testing::accumulator_of("e4m3");
  EXPECT_EQ(InHalves({a, b, &c}, accumulator), (2 * kSums - 16 * kThreadsOfRow * kOfThread) * 32);
  EXPECT_EQ(InHalves({a, b}, accumulator), 2 * kSums * 32);
}

TEST_F(HalvesGpu, ChunksLayoutsAndTypes) {
  Accumulator accumulator = testing::accumulator_of("e5m10", Scheme::chunked);
  accumulator.inner = accumulator.product = ParseFormat("e4m3");
  std::size_t turn = 0;
  for (const int chunk : {4, 12, 100}) {
    accumulator.chunk = chunk;
    for (const auto layout : testing::kLayouts) {
      const DType type = ++turn % 2 == 0 ? DType::bf16 : DType::f16;
      const Tensor a =
          Make({2, 70, 38}, testing::Values::on_grid, ParseFormat("e4m3"), layout, type);
      const Tensor b = Make({38, 70}, testing::Values::on_grid, ParseFormat("e4m3"), layout);
      const Tensor c = Make({70}, testing::Values::arbitrary, ParseFormat("e4m3"));
      EXPECT_GT(InHalves({a, b, turn % 2 == 0 ? &c : nullptr}, accumulator), kSums * 38) << turn;
    }
  }
}

}  // namespace
}  // namespace cpd
