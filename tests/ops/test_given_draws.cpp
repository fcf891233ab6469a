// SPDX-License-Identifier: Apache-2.0
//
// Tests random integers that the caller passes. If the caller passes the integers that a seed and a
// stream generate, every operation gives its result for that seed and stream, on every backend.
// Single operations are also compared with the oracle. tests/python/ops/test_random.py compares
// sums and products with a rational oracle.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cpd/numeric/draws/philox.h"
#include "cpd/ops/gemm.h"
#include "cpd/ops/reduce.h"
#include "cpd/spec/error.h"
#include "cpd/spec/presets.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

using testing::view_of;
using Sizes = std::vector<std::int64_t>;

RoundingOptions stochastic(int random_bits, Variant variant = Variant::A) {
  RoundingOptions o;
  o.mode = Rounding::stochastic;
  o.random_bits = random_bits;
  o.variant = variant;
  return o;
}

/// Returns `draws` random integers for each element: number 0 of the element's random stream, then
/// numbers `first`, `first` + 1 and so on.
std::vector<std::uint32_t> drawn(const RoundingOptions& o, std::int64_t elements,
                                 std::int64_t draws, std::int64_t first) {
  std::vector<std::uint32_t> all;
  for (std::int64_t i = 0; i < elements; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    for (std::int64_t t = 0; t < draws; ++t) {
      const auto number = static_cast<std::uint64_t>(t == 0 ? 0 : first + t - 1);
      all.push_back(fold_draw(o.random_bits, testing::kKey.seed, testing::kKey.stream,
                              static_cast<std::uint32_t>(index), index, number));
    }
  }
  return all;
}

std::vector<float> normal(std::size_t n, std::uint64_t seed) {
  return testing::moderate_values(reference::spec_of(ParseFormat("e4m3")), static_cast<int>(n),
                                  seed);
}

TEST(GivenDraws, SingleOperations) {
  const Format format = ParseFormat("e4m3");
  const reference::Spec spec = reference::spec_of(format);
  const std::vector<float> x = normal(333, 1);
  const std::vector<float> y = normal(333, 2);
  const std::vector<float> z = normal(333, 3);
  for (const Variant variant : testing::kVariants) {
    const RoundingOptions o = stochastic(6, variant);
    std::vector<std::uint32_t> random(333);
    for (std::size_t i = 0; i < random.size(); ++i) random[i] = i * 37 % 64;
    const TensorView given = view_of(random);
    for (const std::string& backend : testing::backends()) {
      const testing::WithBackend forced(backend);
      std::vector<float> sum(333), product(333), fused(333);
      Add(view_of(x), view_of(y), format, o, view_of(sum), {}, &given);
      Mul(view_of(x), view_of(y), format, o, view_of(product), {}, &given);
      Fma(view_of(x), view_of(y), view_of(z), format, o, view_of(fused), {}, &given);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const auto options = testing::oracle_options(o, random[i]);
        ASSERT_TRUE(testing::same_bits(sum[i], reference::add(spec, x[i], y[i], options)));
        ASSERT_TRUE(testing::same_bits(product[i], reference::mul(spec, x[i], y[i], options)));
        ASSERT_TRUE(testing::same_bits(fused[i], reference::fma(spec, x[i], y[i], z[i], options)))
            << backend << " at " << i;
      }
    }
  }
}

TEST(GivenDraws, Sums) {
  const Sizes shape = {13, 5000};
  const std::vector<float> x = normal(13 * 5000, 4);
  for (const char* text : {"e4m3 sequential", "e5m2 kahan", "e6m9 chunked inner=e4m3 chunk=5",
                           "bf16 pairwise", "e4m3fnuz pairwise", "e8m22 sequential"}) {
    for (const int bits : {3, 12, 24}) {
      Accumulator acc = ParseAccumulator(text);
      acc.rounding = stochastic(bits, bits == 12 ? Variant::B : Variant::A);
      const std::int64_t draws = DrawsOfSum(acc, 13);
      const std::vector<std::uint32_t> random = drawn(acc.rounding, 5000, draws, 1);
      for (const std::string& backend : testing::backends()) {
        const testing::WithBackend forced(backend);
        const TensorView view = View(x.data(), DType::f32, shape);
        std::vector<float> wanted(5000), got(5000);
        Sum(view, 0, acc, view_of(wanted), testing::kKey);
        Accumulator other = acc;
        const TensorView given = View(random.data(), DType::u32, Sizes{5000, draws});
        Sum(view, 0, other, view_of(got), {}, &given);
        EXPECT_TRUE(
            testing::bits_equal(std::span<const float>(wanted), std::span<const float>(got)))
            << backend << ", " << text << ", N " << bits;
      }
    }
  }
}

TEST(GivenDraws, Products) {
  constexpr std::int64_t kRows = 13, kDepth = 137, kColumns = 45;
  const std::vector<float> a = normal(kRows * kDepth, 5);
  std::vector<float> b = normal(kDepth * kColumns, 6);
  for (float& value : b) value /= 64;
  const std::vector<float> c = normal(kColumns, 7);
  const TensorView view_a = View(a.data(), DType::f32, Sizes{kRows, kDepth});
  const TensorView view_b = View(b.data(), DType::f32, Sizes{kDepth, kColumns});
  for (const char* text :
       {"e4m3 sequential", "e5m2 sequential product=exact", "e5m2 kahan", "bf16 pairwise",
        "e6m9 chunked inner=e4m3 chunk=50", "e4m3 pairwise product=exact"}) {
    for (const int bits : {4, 11, 24}) {
      Accumulator acc = ParseAccumulator(text);
      acc.rounding = stochastic(bits);
      const std::int64_t draws = DrawsOfGemm(acc, kDepth);
      const std::int64_t first = 4 * draws_per_word(bits);
      const std::vector<std::uint32_t> random = drawn(acc.rounding, kRows * kColumns, draws, first);
      for (const std::string& backend : testing::backends()) {
        const testing::WithBackend forced(backend);
        std::vector<float> wanted(kRows * kColumns), got(kRows * kColumns);
        const TensorView addend = view_of(c);
        const Sizes shape = {kRows, kColumns};
        Gemm(view_a, view_b, acc, View(wanted.data(), DType::f32, shape), &addend, testing::kKey);
        Accumulator other = acc;
        const TensorView given = View(random.data(), DType::u32, Sizes{kRows, kColumns, draws});
        Gemm(view_a, view_b, other, View(got.data(), DType::f32, shape), &addend, {}, &given);
        EXPECT_TRUE(
            testing::bits_equal(std::span<const float>(wanted), std::span<const float>(got)))
            << backend << ", " << text << ", N " << bits;
      }
    }
  }
}

TEST(GivenDraws, IntegersOfAnyLayout) {
  Accumulator acc;
  acc.format = ParseFormat("e4m3");
  acc.rounding = stochastic(5);
  const std::vector<float> x = normal(3 * 7, 8);
  std::vector<std::uint32_t> random(21), turned(21);
  for (std::size_t i = 0; i < 7; ++i) {
    for (std::size_t t = 0; t < 3; ++t) {
      random[3 * i + t] = static_cast<std::uint32_t>((11 * i + 7 * t) % 32);
      turned[7 * t + i] = random[3 * i + t];
    }
  }
  const TensorView view = View(x.data(), DType::f32, Sizes{3, 7});
  TensorView given = View(random.data(), DType::u32, Sizes{7, 3});
  std::vector<float> wanted(7), got(7);
  Sum(view, 0, acc, view_of(wanted), {}, &given);
  given.data = turned.data();
  given.stride = {1, 7};
  Sum(view, 0, acc, view_of(got), {}, &given);
  EXPECT_EQ(wanted, got);
}

TEST(GivenDraws, RefusedBeforeAnythingIsWritten) {
  const Format format = ParseFormat("e4m3");
  const std::vector<float> x(6, 1.0F);
  std::vector<float> out(6, 7.0F);
  std::vector<std::uint32_t> random(6, 15);
  TensorView given = view_of(random);
  const RoundingOptions o = stochastic(4);
  Accumulator acc;
  acc.rounding = o;
  const TensorView matrix = View(x.data(), DType::f32, Sizes{2, 3});
  const TensorView sums = View(out.data(), DType::f32, Sizes{3});
  EXPECT_THROW(Add(view_of(x), view_of(x), format, {}, view_of(out), {}, &given), Error);
  EXPECT_THROW(Sum(matrix, 0, acc, sums, {}, &given), Error);  // 6, not 3 x 2
  given = View(random.data(), DType::u32, Sizes{3, 2});
  EXPECT_THROW(Sum(matrix, 0, {}, sums, {}, &given), Error);
  EXPECT_THROW(Add(view_of(x), view_of(x), format, o, view_of(out), {}, &given), Error);
  EXPECT_THROW(Gemm(matrix, View(x.data(), DType::f32, Sizes{3, 2}), acc,
                    View(out.data(), DType::f32, Sizes{2, 2}), nullptr, {}, &given),
               Error);
  random[5] = 16;
  EXPECT_THROW(Sum(matrix, 0, acc, sums, {}, &given), Error);
  given = view_of(random);
  EXPECT_THROW(Mul(view_of(x), view_of(x), format, o, view_of(out), {}, &given), Error);
  const std::vector<float> other(6);
  given = view_of(other);
  EXPECT_THROW(Fma(view_of(x), view_of(x), view_of(x), format, o, view_of(out), {}, &given), Error);
  EXPECT_EQ(out, std::vector<float>(6, 7.0F));
  EXPECT_EQ(DrawsOfGemm({}, 9), 0);
  acc.chunk = 0;
  EXPECT_THROW(DrawsOfSum(acc, 9), Error);
  EXPECT_THROW(DrawsOfGemm(acc, 9), Error);
  EXPECT_THROW(DrawsOfSum(Preset("h100-fp8"), 9), Error);
}

}  // namespace
}  // namespace cpd
