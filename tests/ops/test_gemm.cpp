// SPDX-License-Identifier: Apache-2.0
//
// Tests that Gemm on every backend gives the oracle's results (reference_gemm.h) for schemes,
// formats, modes, shapes, layouts, types and threads. Other files test values (test_gemm_values),
// random bits (test_gemm_draws), matrix units (test_gemm_block_fma) and errors (test_gemm_checks).
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "cpd/spec/presets.h"
#include "tests/testing/gemm.h"
#include "tests/testing/gemm_cases.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/threads.h"

namespace cpd {
namespace {

using testing::accumulator_of;
using testing::gemm_formats;
using testing::gemm_matches;
using testing::gemm_roundings;
using testing::Layout;
using testing::operands;
using testing::schemes;
using testing::Shape;
using testing::Tensor;
using testing::Turns;
using testing::Values;

/// Returns the number of terms of each sum for operands of a kind, such as large values. The number
/// is so small that most sums are finite.
std::int64_t depth_of(Values kind) {
  switch (kind) {
    case Values::wild:
      return 2;
    case Values::mixed:
      return 3;
    case Values::large:
      return 9;
    default:
      return 19;
  }
}

// --- Every scheme --------------------------------------------------------------------------------

TEST(Gemm, EverySchemeFormatModeAndKindOfValues) {
  int failures = 0;
  std::uint64_t seed = 0;
  Turns turns;
  for (const Format& format : gemm_formats()) {
    for (const Values kind : testing::kValues) {
      const std::int64_t depth = depth_of(kind);
      const Shape shape_a = {9, depth};
      const Shape shape_b = {depth, 33};
      const auto count = [](const Shape& s) {
        return static_cast<std::size_t>(testing::count_of(s));
      };
      const Tensor a(shape_a, operands(kind, format, count(shape_a), ++seed));
      const Tensor b(shape_b, operands(kind, format, count(shape_b), ++seed));
      const Tensor c({9, 33}, operands(Values::mixed, format, 9 * 33, ++seed));
      for (Accumulator accumulator : schemes(format)) {
        for (const RoundingOptions& o : gemm_roundings()) {
          // Nearest-even and stochastic rounding are always tested, and the other modes in turn.
          const bool always = o.overflow == Overflow::ieee &&
                              (o.mode == Rounding::nearest_even || o.mode == Rounding::stochastic);
          if (!turns.one_of(always ? 1 : 7)) continue;
          accumulator.rounding = o;
          const auto equal = gemm_matches({a, b, ++seed % 2 == 0 ? &c : nullptr}, accumulator);
          EXPECT_TRUE(equal) << "values " << static_cast<int>(kind);
          if (!equal && ++failures > 12) FAIL() << "more than 12 failures; the rest is left out";
        }
      }
    }
  }
}

// --- Shapes --------------------------------------------------------------------------------------

void check_shape(std::int64_t m, std::int64_t k, std::int64_t n, const Accumulator& accumulator,
                 std::uint64_t seed, int& failures) {
  const Tensor a(
      {m, k}, operands(Values::on_grid, accumulator.format, static_cast<std::size_t>(m * k), seed));
  const Tensor b({k, n}, operands(Values::on_grid, accumulator.format,
                                  static_cast<std::size_t>(k * n), seed + 1));
  const Tensor c({m, n}, operands(Values::on_grid, accumulator.format,
                                  static_cast<std::size_t>(m * n), seed + 2));
  const auto equal = gemm_matches({a, b, seed % 2 == 0 ? &c : nullptr}, accumulator);
  EXPECT_TRUE(equal) << m << " x " << k << " x " << n;
  if (!equal) ++failures;
}

TEST(Gemm, SmallShapes) {
  int failures = 0;
  std::uint64_t seed = 1;
  std::mt19937_64 generator(5);
  constexpr std::array kSizes = {0, 1, 2, 3, 7, 8, 9, 13, 15, 16, 17, 29, 31, 32, 33, 37};
  const std::vector<Accumulator> all = schemes(ParseFormat("e4m3"));
  for (const int m : kSizes) {
    for (const int n : kSizes) {
      for (int i = 0; i < 4; ++i) {
        const int k = kSizes[generator() % kSizes.size()];
        Accumulator accumulator = all[++seed % all.size()];
        if (generator() % 4 == 0) accumulator.rounding.mode = Rounding::stochastic;
        check_shape(m, k, n, accumulator, seed, failures);
        if (failures > 8) FAIL() << "more than 8 failures; the rest is left out";
      }
    }
  }
}

TEST(Gemm, DeepAndWideShapes) {
  int failures = 0;
  std::uint64_t seed = 1;
  const std::vector<Shape> shapes = {
      {7, 63, 31},    {8, 64, 32},  {9, 65, 33},  {9, 127, 33}, {9, 128, 33}, {9, 129, 33},
      {9, 255, 33},   {9, 256, 33}, {9, 257, 33}, {3, 383, 5},  {3, 384, 5},  {3, 385, 5},
      {9, 511, 33},   {9, 512, 33}, {9, 513, 33}, {2, 767, 3},  {2, 769, 3},  {9, 1025, 33},
      {2, 2051, 3},   {1, 4099, 1}, {64, 5, 64},  {65, 5, 65},  {63, 3, 127}, {128, 3, 129},
      {257, 3, 63},   {5, 3, 511},  {5, 3, 513},  {1, 3, 1031}, {1031, 3, 1}, {97, 101, 103},
      {130, 300, 70}, {1, 1, 4099}, {4099, 1, 1}};
  Turns turns;
  for (const Accumulator& base : schemes(ParseFormat("e5m7"))) {
    for (const Shape& s : shapes) {
      const bool large = s[0] * s[1] * s[2] > 200'000;
      if (!turns.one_of(large ? 7 : 2)) continue;
      Accumulator accumulator = base;
      if (++seed % 3 == 0) accumulator.rounding.mode = Rounding::stochastic;
      accumulator.rounding.random_bits = 1 + static_cast<int>(seed % 24);
      check_shape(s[0], s[1], s[2], accumulator, seed, failures);
      if (failures > 8) FAIL() << "more than 8 failures; the rest is left out";
    }
  }
}

// Tests chunked sums. The chunks of terms end before, at and after the ends of the blocks of k in
// which the library computes.
TEST(Gemm, ChunksOfAnyLength) {
  int failures = 0;
  for (const std::int64_t chunk : {1, 2, 3, 31, 63, 64, 65, 100, 255, 256, 257, 300, 1000, 5000}) {
    for (const std::int64_t k : {1, 64, 65, 257, 600, 1030}) {
      Accumulator accumulator = accumulator_of("e6m9", Scheme::chunked);
      accumulator.inner = ParseFormat("e5m4");
      accumulator.chunk = chunk;
      accumulator.exact_products = (chunk + k) % 2 == 0;
      accumulator.rounding.mode =
          (chunk + k) % 3 == 0 ? Rounding::stochastic : Rounding::nearest_even;
      accumulator.rounding.random_bits = 10;
      check_shape(3, k, 35, accumulator, static_cast<std::uint64_t>(chunk * 10000 + k), failures);
    }
  }
  EXPECT_EQ(failures, 0);
}

// --- Memory --------------------------------------------------------------------------------------

TEST(Gemm, EveryLayoutAndType) {
  int failures = 0;
  std::uint64_t seed = 9;
  constexpr std::array kTypes = {DType::f32, DType::bf16, DType::f16};
  const Format format = ParseFormat("e4m3");
  const std::vector<Accumulator> all = schemes(format);
  for (const Layout la : testing::kLayouts) {
    for (const Layout lb : testing::kLayouts) {
      for (const Layout lo : testing::kLayouts) {
        ++seed;
        const DType ta = kTypes[seed % 3];
        const DType tb = kTypes[seed / 3 % 3];
        const DType to = kTypes[seed / 9 % 3];
        const DType tc = kTypes[seed / 2 % 3];
        const Tensor a({2, 17, 21}, operands(Values::arbitrary, format, 2 * 17 * 21, seed), la, ta);
        const Tensor b({2, 21, 35}, operands(Values::arbitrary, format, 2 * 21 * 35, seed + 1), lb,
                       tb);
        const Tensor c({2, 17, 35}, operands(Values::arbitrary, format, 2 * 17 * 35, seed + 2), lb,
                       tc);
        const auto equal =
            gemm_matches({a, b, seed % 3 != 0 ? &c : nullptr, lo, to}, all[seed % all.size()]);
        EXPECT_TRUE(equal) << "layouts " << static_cast<int>(la) << static_cast<int>(lb)
                           << static_cast<int>(lo) << ", types " << ToString(ta) << " "
                           << ToString(tb) << " " << ToString(to);
        if (!equal && ++failures > 8) FAIL() << "more than 8 failures; the rest is left out";
      }
    }
  }
}

TEST(Gemm, OperandsOfStrideZero) {
  const Format format = ParseFormat("e4m3");
  const Tensor ones = Tensor::broadcast({9, 70}, 1.0f);
  const Tensor b({70, 33}, operands(Values::arbitrary, format, 70 * 33, 3));
  const Tensor c = Tensor::broadcast({9, 33}, -3.0f);
  for (const Accumulator& accumulator : schemes(format)) {
    EXPECT_TRUE(gemm_matches({ones, b, &c}, accumulator));
  }
  const Tensor a({9, 70}, operands(Values::arbitrary, format, 9 * 70, 4));
  const Tensor thirds = Tensor::broadcast({70, 33}, 1.0f / 3);
  EXPECT_TRUE(gemm_matches({a, thirds, nullptr}, accumulator_of("e4m3")));
}

struct BroadcastCase {
  Shape a, b, c;
};

TEST(Gemm, BatchesAndAddendsBroadcast) {
  const std::vector<BroadcastCase> cases = {
      {{3, 5, 7}, {7, 4}, {}},
      {{5, 7}, {3, 7, 4}, {4}},
      {{2, 1, 5, 7}, {3, 7, 4}, {5, 1}},
      {{2, 3, 5, 7}, {2, 3, 7, 4}, {1, 3, 1, 4}},
      {{2, 1, 5, 7}, {1, 3, 7, 4}, {2, 3, 5, 4}},
      {{1, 5, 7}, {6, 7, 4}, {1}},
      {{6, 5, 7}, {1, 7, 4}, {6, 1, 1}},
      {{4, 1, 3, 9, 2}, {2, 1, 2, 33}, {2, 1, 9, 1}},
      {{0, 5, 7}, {7, 4}, {4}},
      {{2, 0, 5, 7}, {2, 1, 7, 4}, {5, 4}},
      {{3, 0, 7}, {3, 7, 4}, {}},
      {{3, 5, 0}, {3, 0, 4}, {3, 1, 4}},
      {{3, 5, 0}, {3, 0, 4}, {}},
      {{130, 1, 3}, {130, 3, 1}, {130, 1, 1}},
  };
  const Format format = ParseFormat("e4m3");
  std::uint64_t seed = 0;
  for (const BroadcastCase& shapes : cases) {
    for (Accumulator accumulator : schemes(format)) {
      if (++seed % 3 == 0) accumulator.rounding.mode = Rounding::stochastic;
      accumulator.rounding.random_bits = 8;
      const auto fill = [&](const Shape& s) {
        return operands(Values::arbitrary, format, static_cast<std::size_t>(testing::count_of(s)),
                        ++seed);
      };
      const Layout layout = testing::kLayouts[seed % 4];
      const Tensor a(shapes.a, fill(shapes.a), layout);
      const Tensor b(shapes.b, fill(shapes.b), layout);
      const Tensor c(shapes.c, fill(shapes.c), layout);
      const bool has_c = !shapes.c.empty();
      ASSERT_TRUE(gemm_matches({a, b, has_c ? &c : nullptr}, accumulator));
    }
  }
}

// --- Unsigned formats ----------------------------------------------------------------------------

TEST(Gemm, UnsignedFormats) {
  for (const char* name : {"e4m3:unsigned", "e5m3fn:unsigned", "binary8p3ue", "e3m2:unsigned"}) {
    const Format format = ParseFormat(name);
    const Tensor a({3, 5}, operands(Values::on_grid, format, 15, 1));
    const Tensor b({5, 9}, operands(Values::on_grid, format, 45, 2));
    for (const RoundingOptions& o : gemm_roundings()) {
      for (Accumulator accumulator : schemes(format)) {
        accumulator.rounding = o;
        ASSERT_TRUE(gemm_matches<reference::ExactArithmetic>({a, b, nullptr}, accumulator)) << name;
      }
    }
  }
}

// --- Threads -------------------------------------------------------------------------------------

std::vector<const char*> threads_of_tests() {
  if (testing::kSanitized) return {"1", "3"};
  if (testing::kEverything) return {"1", "2", "3", "5", "16"};
  return {"1", "3", "16"};
}

/// Expects that a product has the same bits with every number of threads.
void ThreadsChangeNothing(const Accumulator& accumulator, const Tensor& a, const Tensor& b,
                          const std::vector<std::int64_t>& shape) {
  std::size_t size = 1;
  for (const std::int64_t n : shape) size *= static_cast<std::size_t>(n);
  std::vector<float> first;
  for (const char* threads : threads_of_tests()) {
    const testing::WithThreads set(threads);
    Tensor out(shape, std::vector<float>(size, -7.0f));
    Gemm(a.view(), b.view(), accumulator, out.view());
    const std::vector<float> got = out.read();
    if (first.empty()) first = got;
    ASSERT_TRUE(testing::bits_equal(std::span<const float>(first), std::span<const float>(got)))
        << threads << " threads, " << testing::describe(accumulator);
  }
}

TEST(Gemm, ThreadsChangeNothing) {
  const Format format = ParseFormat("e4m3");
  const std::vector<Shape> shapes = {{70, 90, 160}, {3, 300, 300},  {600, 150, 2},
                                     {513, 2, 545}, {33, 2500, 31}, {1, 2000, 100}};
  std::vector<Accumulator> all = schemes(format);
  all.push_back(Preset("h100-fp8"));
  for (const Shape& s : testing::thinned(shapes, 3)) {
    const auto size = [&](std::size_t i, std::size_t j) {
      return static_cast<std::size_t>(s[i] * s[j]);
    };
    const Tensor a({s[0], s[1]}, operands(Values::on_grid, format, size(0, 1), 1));
    const Tensor b({s[1], s[2]}, operands(Values::on_grid, format, size(1, 2), 2));
    for (Accumulator accumulator : testing::thinned(all, 2)) {
      for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
        if (accumulator.unit && mode == Rounding::stochastic) continue;  // fp32 holds its sums
        accumulator.rounding.mode = mode;
        ThreadsChangeNothing(accumulator, a, b, {s[0], s[2]});
      }
    }
  }
}

TEST(Gemm, ThreadsChangeNothingInBatches) {
  const Format format = ParseFormat("e4m3");
  for (const std::int64_t batch : testing::thinned<std::int64_t>({3, 64, 7}, 2)) {
    const std::vector<std::int64_t> shape{batch, 35, 37};
    const auto n = static_cast<std::size_t>(batch);
    const Tensor a({batch, 35, 40}, operands(Values::on_grid, format, n * 35 * 40, 1));
    const Tensor b({batch, 40, 37}, operands(Values::on_grid, format, n * 40 * 37, 2));
    for (Accumulator accumulator : schemes(format)) {
      for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
        accumulator.rounding.mode = mode;
        ThreadsChangeNothing(accumulator, a, b, shape);
      }
    }
  }
}

}  // namespace
}  // namespace cpd
