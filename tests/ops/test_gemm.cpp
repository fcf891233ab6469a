// SPDX-License-Identifier: Apache-2.0
//
// Gemm on every backend against the oracle (reference_gemm.h): schemes, formats, modes, shapes,
// layouts, types, special values, random bits, threads, errors.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "cpd/numeric/error.h"
#include "tests/testing/gemm.h"
#include "tests/testing/near_ties.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::gemm_matches;
using testing::Layout;
using testing::operands;
using testing::Shape;
using testing::Tensor;
using testing::Values;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Accumulator make(const char* format, Scheme scheme = Scheme::sequential) {
  Accumulator a;
  a.format = ParseFormat(format);
  a.scheme = scheme;
  return a;
}

/// Lets one case of so many through, fewer under a sanitizer.
class Turns {
 public:
  bool one_of(std::uint64_t cases) {
    return ++count_ % (cases * (testing::kSanitized ? 23 : 1)) == 0;
  }

 private:
  std::uint64_t count_ = 0;
};

Accumulator exact_products(Accumulator a) {
  a.exact_products = true;
  return a;
}

/// Every scheme on a format, products rounded into it, into another format, and exact.
std::vector<Accumulator> schemes(const Format& format) {
  std::vector<Accumulator> all;
  for (const Scheme scheme :
       {Scheme::sequential, Scheme::kahan, Scheme::chunked, Scheme::pairwise}) {
    Accumulator a;
    a.format = format;
    a.scheme = scheme;
    if (scheme == Scheme::chunked) a.chunk = 4;
    all.push_back(a);
    all.push_back(exact_products(a));
    a.product = ParseFormat("e5m2");
    all.push_back(a);
  }
  Accumulator chunks;
  chunks.format = format;
  chunks.scheme = Scheme::chunked;
  chunks.inner = ParseFormat("e5m7");
  chunks.chunk = 7;
  all.push_back(chunks);
  chunks.exact_products = true;
  chunks.chunk = 1;
  all.push_back(chunks);
  return all;
}

std::vector<Format> formats() {
  std::vector<Format> all;
  for (const char* name :
       {"e4m3",        "e5m2",         "e3m2:nosub",  "e3m0",        "e2m1",       "e3m4",
        "e6m9",        "e5m10",        "e8m7",        "e8m10",       "e8m23",      "e4m3fn",
        "e4m3fnuz",    "e5m2fnuz",     "binary8p4se", "binary8p3sf", "e4m3:nosub", "e4m3:bias=11",
        "e5m2:bias=3", "e6m9:bias=60", "e4m0",        "e1m2",        "e8m3",       "e5m11",
        "e8m12",       "e8m22"}) {
    all.push_back(ParseFormat(name));
  }
  all.push_back(MakeFormat(3, 2));
  all.push_back(MakeFormat(2, 1));
  all.push_back(MakeFormat(2, 3));
  return testing::thinned(std::move(all));
}

/// Terms after which sums of such values are still finite, more or less.
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

std::vector<RoundingOptions> roundings() {
  std::vector<RoundingOptions> all;
  for (const Overflow overflow : testing::kPolicies) {
    RoundingOptions o;
    o.overflow = overflow;
    for (const Rounding mode : testing::kDeterministicModes) {
      o.mode = mode;
      all.push_back(o);
    }
    o.mode = Rounding::stochastic;
    o.random_bits = overflow == Overflow::ieee ? 24 : 7;
    o.variant = overflow == Overflow::ieee ? Variant::A : Variant::C;
    o.seed = 0x123456789ABCDEF0u;
    o.stream = 77;
    all.push_back(o);
  }
  return all;
}

// --- Every scheme --------------------------------------------------------------------------------

TEST(Gemm, EverySchemeFormatModeAndKindOfValues) {
  int failures = 0;
  std::uint64_t seed = 0;
  Turns turns;
  for (const Format& format : formats()) {
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
        for (const RoundingOptions& o : roundings()) {
          // Nearest-even and stochastic rounding always, the others in turn.
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

// Chunks that end before, at and after the library's own blocks.
TEST(Gemm, ChunksOfAnyLength) {
  int failures = 0;
  for (const std::int64_t chunk : {1, 2, 3, 31, 63, 64, 65, 100, 255, 256, 257, 300, 1000, 5000}) {
    for (const std::int64_t k : {1, 64, 65, 257, 600, 1030}) {
      Accumulator accumulator = make("e6m9", Scheme::chunked);
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
  EXPECT_TRUE(gemm_matches({a, thirds, nullptr}, make("e4m3")));
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

// --- Values that catch short cuts ----------------------------------------------------------------

float product_of(float x, float y, const Accumulator& accumulator, const float* c = nullptr) {
  const Tensor a({1, 1}, {x});
  const Tensor b({1, 1}, {y});
  const Tensor addend({1, 1}, {c != nullptr ? *c : 0.0f});
  Tensor out({1, 1}, {-7.0f});
  const TensorView start = addend.view();
  Gemm(a.view(), b.view(), accumulator, out.view(), c != nullptr ? &start : nullptr);
  return out.read()[0];
}

TEST(Gemm, CarrierTrapVectors) {
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const bool exact : {false, true}) {
      Accumulator a = make("e4m3");
      a.exact_products = exact;
      EXPECT_EQ(product_of(0x1.a30fecp+0f, 0x1.4c52bp-1f, a), 1.125f) << backend;
    }
    // A product format wider than the accumulator.
    Accumulator wide = make("e8m3");
    wide.product = ParseFormat("e5m10");
    const float tiny = 0x1p-30f;
    EXPECT_EQ(product_of(1.0625f, 1.0f, wide, &tiny), 1.125f) << backend;
    // A product below binary32's normal numbers.
    const Accumulator e8m10 = make("e8m10");
    const float expected =
        reference::round(reference::spec_of(e8m10.format),
                         multiply(reference::exact(0x1.43p-60f), reference::exact(0x1.fb4p-76f)));
    EXPECT_EQ(product_of(0x1.43p-60f, 0x1.fb4p-76f, e8m10), expected) << backend;
    // Bits that nu needs at N = 24.
    Accumulator stochastic = make("e5m2");
    stochastic.rounding.mode = Rounding::stochastic;
    const float big = 49152.0f;
    const float got = product_of(0x1p-8f, 0x1p-8f, stochastic, &big);
    const std::vector<float> a = {0x1p-8f};
    EXPECT_EQ(got, reference::dot(stochastic, a, a, big)) << backend;
  }
}

// The tie is decided by a bit far below what binary32, or binary64, keeps.
TEST(Gemm, FusedSumsNextToTiesOfFarApartTerms) {
  std::vector<float> a, b, c;
  for (const float sign : {1.0f, -1.0f}) {
    for (int e = -148; e <= -3; e += 5) {
      for (const float tie : {1.0625f, 1.1875f, 240.0f + 8.0f, 0x1.88p-6f, 0x1p-10f}) {
        a.push_back(tie);
        b.push_back(1.0f);
        c.push_back(std::ldexp(sign, e));
        a.push_back(std::ldexp(sign, e / 2));
        b.push_back(std::ldexp(1.0f, e / 2));
        c.push_back(tie);
      }
    }
  }
  const auto n = static_cast<std::int64_t>(a.size());
  const Tensor x({n, 1, 1}, a);
  const Tensor y({n, 1, 1}, b);
  const Tensor start({n, 1, 1}, c);
  for (const char* format : {"e4m3", "e8m3", "e4m3fn", "e5m2", "e8m10", "e8m20"}) {
    for (const RoundingOptions& o : roundings()) {
      for (Accumulator accumulator : schemes(ParseFormat(format))) {
        accumulator.rounding = o;
        ASSERT_TRUE(gemm_matches({x, y, &start}, accumulator));
      }
    }
  }
}

TEST(Gemm, FmaNextToTies) {
  for (const char* format : {"e4m3", "e5m2", "e6m9", "e5m10", "e8m7", "e4m3fn"}) {
    const std::size_t rows = testing::kSanitized ? 64 : 8192;  // 2^18 problems
    const testing::FmaProblems p =
        testing::NearTies(reference::spec_of(ParseFormat(format)), 3).make(rows, 32);
    EXPECT_GE(2 * p.near_ties, rows * 32) << format;
    const auto n = static_cast<std::int64_t>(rows);
    const Tensor a({n, 1, 1}, p.a);
    const Tensor b({n, 1, 32}, p.b);
    const Tensor c({n, 1, 32}, p.c);
    EXPECT_TRUE(gemm_matches({a, b, &c}, exact_products(make(format))));
  }
}

/// The values of all codes of an 8-bit format, NaN and infinities among them.
std::vector<float> all_values(const Format& format) {
  std::vector<float> values;
  values.reserve(std::size_t{1} << format.bits());
  for (std::uint64_t code = 0; code < (std::uint64_t{1} << format.bits()); ++code) {
    values.push_back(reference::decode(reference::spec_of(format), code));
  }
  return values;
}

TEST(Gemm, AllPairsOfEightBitFormats) {
  Turns turns;
  for (const char* name : {"e4m3", "e5m2", "e3m4", "e4m3fn", "e4m3fnuz", "binary8p4se", "e2m5"}) {
    const Format format = ParseFormat(name);
    const std::vector<float> values = all_values(format);
    const auto n = static_cast<std::int64_t>(values.size());
    const Tensor a({n, 1}, values);
    const Tensor b({1, n}, values);
    const Tensor ones({n, 1}, std::vector<float>(values.size(), 1.0f));
    const bool all = std::string_view(name) == "e4m3";  // the exhaustive tests: all of them
    for (const RoundingOptions& o : roundings()) {
      const bool usual = o.mode == Rounding::nearest_even || o.mode == Rounding::stochastic;
      if ((!all && !usual) || !turns.one_of(1)) continue;
      Accumulator accumulator;
      accumulator.format = format;
      accumulator.rounding = o;
      ASSERT_TRUE(gemm_matches({a, b, nullptr}, accumulator)) << "products";
      ASSERT_TRUE(gemm_matches({a, b, nullptr}, exact_products(accumulator))) << "exact products";
      ASSERT_TRUE(gemm_matches({ones, b, &a}, accumulator)) << "sums";
      ASSERT_TRUE(gemm_matches({ones, b, &a}, exact_products(accumulator))) << "exact sums";
    }
  }
}

// --- Special values ------------------------------------------------------------------------------

TEST(Gemm, SpecialValues) {
  Turns turns;
  const std::vector<float> pool = {0.0f, -0.0f, 1.0f,    -1.0f,    kInf,  -kInf,  kNan,
                                   240,  -240,  0x1p-9f, 0x1p-40f, 3e38f, -3e38f, 1e-45f};
  std::mt19937_64 generator(8);
  const auto fill = [&](std::size_t n, std::size_t rarely) {
    std::vector<float> values(n);
    for (float& x : values) {
      x = generator() % rarely == 0 ? pool[generator() % pool.size()]
                                    : static_cast<float>(generator() % 5) - 2.0f;
    }
    return values;
  };
  for (const char* format : {"e4m3", "e5m2", "e4m3fn", "e4m3fnuz", "e2m1", "e8m7", "e3m0"}) {
    for (const std::size_t rarely : {std::size_t{1}, std::size_t{4}, std::size_t{40}}) {
      const Tensor a({9, 12}, fill(9 * 12, rarely));
      const Tensor b({12, 34}, fill(12 * 34, rarely));
      const Tensor c({9, 34}, fill(9 * 34, rarely));
      for (const RoundingOptions& o : roundings()) {
        for (Accumulator accumulator : schemes(ParseFormat(format))) {
          if (!turns.one_of(1)) continue;
          accumulator.rounding = o;
          ASSERT_TRUE(gemm_matches({a, b, &c}, accumulator)) << "1 in " << rarely;
        }
      }
    }
  }
}

TEST(Gemm, SignsOfZeroSums) {
  const Tensor minus({1, 3}, {-0.0f, -0.0f, -0.0f});
  const Tensor ones({3, 2}, {1, 1, 1, 1, 1, 1});
  const Tensor cancel({1, 3}, {1.0f, -1.0f, -0.0f});
  const Tensor c({2}, {-0.0f, 0.0f});
  const Tensor empty_a({1, 0}, {});
  const Tensor empty_b({0, 2}, {});
  for (const RoundingOptions& o : roundings()) {
    for (Accumulator accumulator : schemes(ParseFormat("e4m3"))) {
      accumulator.rounding = o;
      for (const Tensor* start : {static_cast<const Tensor*>(nullptr), &c}) {
        ASSERT_TRUE(gemm_matches({minus, ones, start}, accumulator));
        ASSERT_TRUE(gemm_matches({cancel, ones, start}, accumulator));
        ASSERT_TRUE(gemm_matches({empty_a, empty_b, start}, accumulator));
      }
    }
  }
}

/// Sums that walk up to the largest value, to the overflow threshold, beyond it and back. Each row
/// of `a` is a walk (its first value is the addend), for every column of ones.
struct Walks {
  std::vector<float> terms;
  std::vector<float> starts;
  std::size_t depth = 0;

  void push(float start, std::vector<float> walk) {
    walk.resize(depth, 0.0f);
    starts.push_back(start);
    terms.insert(terms.end(), walk.begin(), walk.end());
  }
};

Walks walks_to_the_end(const Format& format) {
  Walks w;
  w.depth = 6;
  const auto max = static_cast<float>(format.max());
  const auto last = static_cast<float>(format.max() - format.magnitude(format.max_code() - 1));
  for (const float sign : {1.0f, -1.0f}) {
    const float m = sign * max;
    const float gap = sign * last;
    for (const float part : {0.0f, 0.25f, 0.5f, 0.50001f, 0.75f, 1.0f, 1.5f, 2.0f}) {
      w.push(m, {part * gap, -gap, -gap, gap});
      w.push(m, {part * gap, -m, -gap, m});
      w.push(m - gap, {gap, part * gap, part * gap, -m});
      w.push(0.0f, {m / 2, m / 2, part * gap, -m, -m, m});
      w.push(m / 2, {m / 2, m / 4, -m / 2, m});
    }
    w.push(m, {m, m, -m, -m, m});
    w.push(m, {m, -m, -m, -m, m});
    w.push(3 * m, {-m, -m, -m, -m, m});
  }
  return w;
}

TEST(Gemm, SumsAtTheLargestValue) {
  Turns turns;
  for (const Format& format : formats()) {
    if (format.max() > 1e30 || format.max_code() < 2) continue;
    const Walks w = walks_to_the_end(format);
    const auto rows = static_cast<std::int64_t>(w.starts.size());
    const auto depth = static_cast<std::int64_t>(w.depth);
    const Tensor a({rows, depth}, w.terms);
    const Tensor c({rows, 1}, w.starts);
    std::vector<float> mixture(w.depth * 33, 1.0f);
    for (std::size_t i = 0; i < mixture.size(); i += 11) mixture[i] = -1.0f;
    const Tensor b({depth, 33}, mixture);
    for (const RoundingOptions& o : roundings()) {
      for (Accumulator accumulator : schemes(format)) {
        if (!turns.one_of(3)) continue;
        accumulator.rounding = o;
        ASSERT_TRUE(gemm_matches({a, b, &c}, accumulator));
      }
    }
  }
}

// One element in a large product overflows, is infinite, or is a NaN; all others are small.
TEST(Gemm, OneSumThatOverflowsAmongMany) {
  const Format format = ParseFormat("e4m3");
  Turns turns;
  for (const float culprit : {200.0f, 1e30f, kInf, kNan, 0x1p-120f}) {
    std::vector<float> values = operands(Values::on_grid, format, 65 * 130, 5);
    std::vector<float> others = operands(Values::on_grid, format, 130 * 70, 6);
    values[33 * 130 + 77] = culprit;
    others[77 * 70 + 41] = 3.0f;
    const Tensor a({65, 130}, values);
    const Tensor b({130, 70}, others);
    for (Accumulator accumulator : schemes(format)) {
      for (const Overflow overflow : testing::kPolicies) {
        if (!turns.one_of(3)) continue;
        accumulator.rounding.overflow = overflow;
        ASSERT_TRUE(gemm_matches({a, b, nullptr}, accumulator)) << culprit;
      }
    }
  }
}

// Growth: the sums of a column pass the largest value at different k.
TEST(Gemm, SumsThatGrowPastTheLargestValue) {
  Turns turns;
  for (const char* name : {"e4m3", "e5m2", "e3m2:nosub", "e4m3fn"}) {
    const Format format = ParseFormat(name);
    const auto max = static_cast<float>(format.max());
    std::mt19937_64 generator(4);
    for (const float share : {0.02f, 0.1f, 0.4f}) {
      std::vector<float> left(9 * 60), right(60 * 35);
      for (float& x : left) x = static_cast<float>(generator() % 16) / 8.0f;
      for (float& x : right) {
        x = share * max * static_cast<float>(generator() % 16) / 16.0f;
        if (generator() % 5 == 0) x = -x;
      }
      const Tensor a({9, 60}, left);
      const Tensor b({60, 35}, right);
      for (const RoundingOptions& o : roundings()) {
        for (Accumulator accumulator : schemes(format)) {
          if (!turns.one_of(3)) continue;
          accumulator.rounding = o;
          ASSERT_TRUE(gemm_matches({a, b, nullptr}, accumulator)) << share;
        }
      }
    }
  }
}

// Operands far from 1 whose products are of the format's size: what is huge, or below binary32's
// normal numbers, is one operand alone, for all k or for some.
TEST(Gemm, OperandsFarFromOne) {
  Turns turns;
  std::mt19937_64 generator(6);
  for (const char* name : {"e4m3", "e5m2", "e3m0", "e6m9", "e5m10", "e8m7", "e8m3", "e8m23"}) {
    const Format format = ParseFormat(name);
    for (const int shift : {20, 60, 90, 110, 120, 126, 135, 145}) {
      for (const bool alike : {true, false}) {
        std::vector<float> left = testing::numbers_around(0, 1, 4, 9 * 11, generator);
        std::vector<float> right = testing::numbers_around(0, 1, 4, 11 * 35, generator);
        for (std::size_t k = 0; k < 11; ++k) {
          const int s = alike || k % 3 == 0 ? shift : k % 3 == 1 ? -shift : 0;
          const int own = std::clamp(s, -140, 125);
          const int other = std::clamp(-s, -140, 125);
          for (std::size_t i = 0; i < 9; ++i) left[i * 11 + k] = std::ldexp(left[i * 11 + k], own);
          for (std::size_t j = 0; j < 35; ++j) {
            right[k * 35 + j] = std::ldexp(right[k * 35 + j], other);
          }
        }
        const Tensor a({9, 11}, left);
        const Tensor b({11, 35}, right);
        for (const RoundingOptions& o : roundings()) {
          const bool nearest = o.mode == Rounding::nearest_even && o.overflow == Overflow::ieee;
          for (Accumulator accumulator : schemes(format)) {
            if (!turns.one_of(nearest ? 1 : 5)) continue;
            accumulator.rounding = o;
            ASSERT_TRUE(gemm_matches({a, b, nullptr}, accumulator)) << "2^" << shift;
          }
        }
      }
    }
  }
}

// An addend that is infinite, NaN, huge or tiny, in one place of many.
TEST(Gemm, OneAddendAmongMany) {
  const Format format = ParseFormat("e4m3");
  const Tensor a({17, 20}, operands(Values::on_grid, format, 17 * 20, 5));
  const Tensor b({20, 70}, operands(Values::on_grid, format, 20 * 70, 6));
  for (const float culprit : {kInf, -kInf, kNan, 1e38f, -250.0f, 240.0f, 0x1p-149f, -0.0f}) {
    std::vector<float> start(17 * 70, 0.0f);
    start[9 * 70 + 33] = culprit;
    const Tensor c({17, 70}, start);
    for (Accumulator accumulator : schemes(format)) {
      for (const Overflow overflow : testing::kPolicies) {
        accumulator.rounding.overflow = overflow;
        ASSERT_TRUE(gemm_matches({a, b, &c}, accumulator)) << culprit;
      }
    }
  }
}

// Only zeros of both signs, and products that vanish: the signs of sums that never leave zero.
TEST(Gemm, SumsThatStayAtZero) {
  Turns turns;
  std::mt19937_64 generator(7);
  const std::vector<float> pool = {0.0f, -0.0f, 0x1p-80f, -0x1p-80f, 0x1p-149f, -0x1p-149f};
  const auto fill = [&](std::size_t n) {
    std::vector<float> values(n);
    for (float& x : values) x = pool[generator() % pool.size()];
    return values;
  };
  for (const char* name : {"e4m3", "e5m2", "e4m3fnuz", "e8m7", "e3m2:nosub", "e8m23"}) {
    for (const std::int64_t k : {1, 2, 7}) {
      const auto depth = static_cast<std::size_t>(k);
      const Tensor a({9, k}, fill(9 * depth));
      const Tensor b({k, 66}, fill(66 * depth));
      const Tensor c({9, 66}, fill(std::size_t{9} * 66));
      for (const RoundingOptions& o : roundings()) {
        for (Accumulator accumulator : schemes(ParseFormat(name))) {
          if (!turns.one_of(1)) continue;
          accumulator.rounding = o;
          ASSERT_TRUE(gemm_matches({a, b, nullptr}, accumulator));
          ASSERT_TRUE(gemm_matches({a, b, &c}, accumulator));
        }
      }
    }
  }
}

// --- Unsigned formats ----------------------------------------------------------------------------

TEST(Gemm, UnsignedFormats) {
  for (const char* name : {"e4m3:unsigned", "e5m3fn:unsigned", "binary8p3ue", "e3m2:unsigned"}) {
    const Format format = ParseFormat(name);
    const Tensor a({3, 5}, operands(Values::on_grid, format, 15, 1));
    const Tensor b({5, 9}, operands(Values::on_grid, format, 45, 2));
    for (const RoundingOptions& o : roundings()) {
      for (Accumulator accumulator : schemes(format)) {
        accumulator.rounding = o;
        ASSERT_TRUE(gemm_matches<reference::ExactArithmetic>({a, b, nullptr}, accumulator)) << name;
      }
    }
  }
}

// --- Random bits ---------------------------------------------------------------------------------

TEST(Gemm, StochasticRoundingTakesTheDocumentedDraws) {
  int failures = 0;
  std::uint64_t seed = 1;
  Turns turns;
  for (const char* name : {"e4m3", "e5m2", "e6m9", "e5m10", "e8m7", "e8m23"}) {
    const Format format = ParseFormat(name);
    const Tensor a({2, 9, 19}, operands(Values::arbitrary, format, 2 * 9 * 19, 31));
    const Tensor b({2, 19, 37}, operands(Values::arbitrary, format, 2 * 19 * 37, 32));
    const Tensor c({9, 1}, operands(Values::arbitrary, format, 9, 33));
    for (const int bits : {1, 7, 8, 9, 16, 17, 24}) {
      for (const Variant variant : testing::kVariants) {
        for (Accumulator accumulator : schemes(format)) {
          if (!turns.one_of(2)) continue;
          accumulator.rounding.mode = Rounding::stochastic;
          accumulator.rounding.random_bits = bits;
          accumulator.rounding.variant = variant;
          ++seed;
          accumulator.rounding.seed = seed << 33 | seed;
          accumulator.rounding.stream = seed % 2 == 0 ? ~seed : seed;
          const auto equal = gemm_matches({a, b, seed % 3 == 0 ? nullptr : &c}, accumulator);
          EXPECT_TRUE(equal);
          if (!equal && ++failures > 8) FAIL() << "more than 8 failures; the rest is left out";
        }
      }
    }
  }
}

struct EnumeratedCase {
  float x;
  int bits;
  std::array<std::size_t, 3> up;  // of 2^bits random integers, by variant
};

// E5M2: 259 is 3/64 of its gap above 256, 277 is 21/64, 311 is 55/64. Among many elements every
// random integer occurs; each must give what the variant's rule says of it.
TEST(Gemm, EveryRandomIntegerOfTheExactVectors) {
  constexpr std::array<EnumeratedCase, 3> kCases = {
      {{259, 5, {1, 2, 2}}, {277, 3, {2, 3, 3}}, {311, 3, {6, 7, 7}}}};
  const std::vector<float> ones(64, 1.0f);
  const Tensor b({1, 64}, ones);
  for (const EnumeratedCase& e : kCases) {
    const Tensor a({32, 1}, std::vector<float>(32, e.x));
    for (std::size_t v = 0; v < 3; ++v) {
      Accumulator accumulator = make("e5m2");
      accumulator.rounding.mode = Rounding::stochastic;
      accumulator.rounding.random_bits = e.bits;
      accumulator.rounding.variant = testing::kVariants[v];
      for (const std::string& backend : testing::backends()) {
        const testing::WithBackend forced(backend);
        Tensor out({32, 64}, std::vector<float>(std::size_t{32} * 64, -7.0f));
        Gemm(a.view(), b.view(), accumulator, out.view());
        const std::vector<float> got = out.read();
        const std::size_t integers = std::size_t{1} << e.bits;
        std::vector<float> of_integer(integers, 0.0f);
        for (std::size_t i = 0; i < got.size(); ++i) {
          float& seen = of_integer[reference::Draws(accumulator.rounding, i).next().random];
          ASSERT_TRUE(seen == 0.0f || seen == got[i]) << backend << ", element " << i;
          seen = got[i];
        }
        const auto occurring = [&](float value) {
          return static_cast<std::size_t>(std::count(of_integer.begin(), of_integer.end(), value));
        };
        EXPECT_EQ(occurring(320), e.up[v]) << backend << ", " << e.x;
        EXPECT_EQ(occurring(256), integers - e.up[v]) << backend << ", " << e.x;
      }
    }
  }
}

// Draws far along a deep sum.
TEST(Gemm, DrawsOfDeepSums) {
  for (const Accumulator& base : schemes(ParseFormat("e5m7"))) {
    for (const int bits : {5, 12, 20}) {
      Accumulator accumulator = base;
      accumulator.rounding.mode = Rounding::stochastic;
      accumulator.rounding.random_bits = bits;
      const Tensor a({1, 1100}, operands(Values::arbitrary, base.format, 1100, 1));
      const Tensor b({1100, 33}, operands(Values::arbitrary, base.format, 1100 * 33, 2));
      ASSERT_TRUE(gemm_matches({a, b, nullptr}, accumulator));
    }
  }
}

// --- Block FMA -----------------------------------------------------------------------------------

std::vector<Accumulator> units() {
  std::vector<Accumulator> all;
  for (const PresetInfo& preset : Presets()) all.push_back(Preset(preset.name));
  const auto push = [&](const char* a, const char* b, int block, int f, bool aligns, int least,
                        const char* sum, Rounding rounding, std::int64_t promote) {
    Accumulator accumulator;
    accumulator.scheme = Scheme::block_fma;
    accumulator.unit = BlockFma{ParseFormat(a), ParseFormat(b),   block,    f,      aligns,
                                least,          ParseFormat(sum), rounding, promote};
    all.push_back(accumulator);
  };
  push("fp16", "fp16", 4, 23, true, -133, "fp32", Rounding::toward_zero, 0);
  push("fp16", "fp16", 4, 23, true, -133, "fp32", Rounding::nearest_even, 0);
  push("e4m3fn", "e5m2", 32, 13, true, -139, "e8m13", Rounding::toward_zero, 0);
  push("e4m3fn", "e5m2", 32, 13, true, -139, "e8m13", Rounding::toward_zero, 128);
  push("e4m3", "e4m3", 3, 1, true, -20, "fp32", Rounding::toward_zero, 6);
  push("e4m3", "e4m3", 64, 30, true, -133, "fp32", Rounding::nearest_even, 0);
  push("bf16", "bf16", 8, 24, true, -132, "fp32", Rounding::toward_zero, 0);
  push("bf16", "bf16", 16, 25, false, -133, "fp32", Rounding::toward_zero, 0);
  push("fp16", "fp16", 1, 10, false, -133, "fp16", Rounding::nearest_even, 0);
  push("fp16", "fp16", 16, 25, false, -133, "e6m9", Rounding::nearest_even, 32);
  push("e5m2", "e5m2", 16, 7, true, 2, "e5m7", Rounding::toward_zero, 0);
  return all;
}

/// Values of the unit's operand format: around 1, of all sizes, and with specials.
std::vector<float> unit_operands(const Format& format, int kind, std::size_t n,
                                 std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  const reference::Spec spec = reference::spec_of(format);
  if (kind == 0) {
    return testing::numbers_around(0, 3, format.man + 1, n, generator);
  }
  std::vector<float> values(n);
  for (float& x : values) {
    const std::uint64_t magnitude =
        generator() % (kind == 2 ? spec.magnitudes() : spec.max_code() + 1);
    const std::uint64_t sign = generator() % 2 * spec.magnitudes();
    x = reference::decode(spec, magnitude + sign);
  }
  return values;
}

TEST(Gemm, BlockFma) {
  Turns turns;
  int failures = 0;
  std::uint64_t seed = 0;
  for (Accumulator accumulator : units()) {
    const BlockFma& unit = accumulator.unit.value();
    for (const int kind : {0, 1, 2}) {
      for (const std::int64_t depth : {1, 3, 4, 15, 16, 17, 33, 64, 127, 129, 300}) {
        if ((kind == 2 && depth > 20) || !turns.one_of(depth > 100 ? 4 : 1)) continue;
        const auto k = static_cast<std::size_t>(depth);
        const Tensor a({9, depth}, unit_operands(unit.a, kind, 9 * k, ++seed));
        const Tensor b({depth, 33}, unit_operands(unit.b, kind, 33 * k, ++seed));
        const Tensor c({9, 33}, unit_operands(unit.sum, kind, 9 * 33, ++seed));
        const auto equal = gemm_matches({a, b, seed % 2 == 0 ? &c : nullptr}, accumulator);
        EXPECT_TRUE(equal) << "values " << kind;
        if (!equal && ++failures > 8) FAIL() << "more than 8 failures; the rest is left out";
      }
    }
  }
}

TEST(Gemm, BlockFmaWithoutTerms) {
  for (const Accumulator& accumulator : units()) {
    const Tensor a({2, 0}, {});
    const Tensor b({0, 3}, {});
    const Tensor c({3}, {-0.0f, 1.0f + 0x1p-20f, kInf});
    ASSERT_TRUE(gemm_matches({a, b, &c}, accumulator));
    ASSERT_TRUE(gemm_matches({a, b, nullptr}, accumulator));
  }
}

// --- Threads -------------------------------------------------------------------------------------

class WithThreads {
 public:
  explicit WithThreads(const char* count) { setenv("CPD_NUM_THREADS", count, 1); }
  ~WithThreads() { unsetenv("CPD_NUM_THREADS"); }
  WithThreads(const WithThreads&) = delete;
  WithThreads& operator=(const WithThreads&) = delete;
};

TEST(Gemm, ThreadsChangeNothing) {
  const Format format = ParseFormat("e4m3");
  const std::vector<Shape> shapes = {{150, 170, 160}, {3, 300, 300}, {600, 150, 2}};
  std::vector<Accumulator> all = schemes(format);
  all.push_back(Preset("h100-fp8"));
  for (const Shape& s : shapes) {
    const auto size = [&](std::size_t i, std::size_t j) {
      return static_cast<std::size_t>(s[i] * s[j]);
    };
    const Tensor a({s[0], s[1]}, operands(Values::on_grid, format, size(0, 1), 1));
    const Tensor b({s[1], s[2]}, operands(Values::on_grid, format, size(1, 2), 2));
    for (Accumulator accumulator : all) {
      for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
        accumulator.rounding.mode = mode;
        std::vector<float> first;
        for (const char* threads : {"1", "2", "5"}) {
          const WithThreads set(threads);
          Tensor out({s[0], s[2]}, std::vector<float>(size(0, 2), -7.0f));
          Gemm(a.view(), b.view(), accumulator, out.view());
          const std::vector<float> got = out.read();
          if (first.empty()) first = got;
          ASSERT_TRUE(
              testing::bits_equal(std::span<const float>(first), std::span<const float>(got)))
              << threads << " threads, " << testing::describe(accumulator);
        }
      }
    }
  }
}

// --- Errors --------------------------------------------------------------------------------------

/// The message of the Error that the call throws; empty where it throws none.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TensorView view(const std::vector<float>& x, const Shape& shape, DType dtype = DType::f32) {
  return View(x.data(), dtype, shape);
}

struct BadShapes {
  Shape a, b, out, c;
  const char* says;
};

TEST(GemmErrors, ShapesThatDoNotFit) {
  const std::vector<float> a(200), b(200), c(200);
  const std::vector<float> out(200, -7.0f);
  const std::vector<BadShapes> cases = {
      {{4}, {4, 3}, {3}, {}, "two dimensions"},
      {{3, 4}, {4}, {3}, {}, "two dimensions"},
      {{3, 4}, {4, 5}, {15}, {}, "out"},
      {{3, 4}, {5, 6}, {3, 6}, {}, "4"},
      {{3, 4}, {4, 5}, {5, 3}, {}, "out"},
      {{3, 4}, {4, 5}, {1, 3, 5, 1}, {}, "out"},
      {{2, 3, 4}, {3, 4, 5}, {2, 3, 5}, {}, "broadcast"},
      {{2, 3, 4}, {4, 5}, {3, 5}, {}, "out"},
      {{3, 4}, {4, 5}, {3, 5}, {4}, "broadcast"},
      {{3, 4}, {4, 5}, {3, 5}, {2, 3, 5}, "broadcast"},
      {{3, 4}, {4, 5}, {3, 5}, {5, 3}, "broadcast"},
      {{3, 0}, {1, 5}, {3, 5}, {}, "0"},
  };
  for (const BadShapes& s : cases) {
    const TensorView addend = view(c, s.c);
    const std::string text = error_of([&] {
      Gemm(view(a, s.a), view(b, s.b), make("e4m3"), view(out, s.out),
           s.c.empty() ? nullptr : &addend);
    });
    EXPECT_NE(text, "") << testing::text_of(s.a) << testing::text_of(s.b);
    EXPECT_NE(text.find(s.says), std::string::npos) << text;
  }
  for (const float x : out) ASSERT_EQ(x, -7.0f);  // nothing was written
}

TEST(GemmErrors, TypesThatDoNotFit) {
  const std::vector<float> a(64), b(64);
  const std::vector<float> out(64);
  const Shape square = {4, 4};
  for (const DType wrong : {DType::f64, DType::u8, DType::u32, DType::i64}) {
    for (int which = 0; which < 4; ++which) {
      const auto type = [&](int i) { return i == which ? wrong : DType::f32; };
      const TensorView c = view(b, {2, 2}, type(3));
      EXPECT_NE(error_of([&] {
                  Gemm(view(a, {2, 2}, type(0)), view(b, {2, 2}, type(1)), make("e4m3"),
                       view(out, {2, 2}, type(2)), &c);
                }),
                "")
          << ToString(wrong) << ", operand " << which;
    }
  }
  // The result's type must hold the format.
  for (const auto& [type, format] :
       {std::pair{DType::f16, "bf16"}, std::pair{DType::bf16, "fp16"},
        std::pair{DType::bf16, "e6m9"}, std::pair{DType::f16, "fp32"}}) {
    const std::string text = error_of([&, type = type, format = format] {
      Gemm(view(a, square), view(b, square), make(format), view(out, square, type));
    });
    EXPECT_NE(text.find(ToString(type)), std::string::npos) << text;
  }
}

TEST(GemmErrors, ResultThatSharesMemory) {
  std::vector<float> memory(64, 1.0f);
  const std::vector<float> other(16, 1.0f);
  const Shape square = {4, 4};
  const TensorView inside = View(memory.data() + 8, DType::f32, square);
  const TensorView whole = View(memory.data(), DType::f32, square);
  EXPECT_NE(error_of([&] { Gemm(whole, view(other, square), make("e4m3"), inside); }), "");
  EXPECT_NE(error_of([&] { Gemm(view(other, square), whole, make("e4m3"), inside); }), "");
  EXPECT_NE(error_of([&] {
              Gemm(view(other, square), view(other, square), make("e4m3"), inside, &whole);
            }),
            "");
  TensorView folded = whole;  // rows on top of each other
  folded.stride[0] = 0;
  EXPECT_NE(error_of([&] { Gemm(view(other, square), view(other, square), make("e4m3"), folded); }),
            "");
  for (const float x : memory) ASSERT_EQ(x, 1.0f);
}

TEST(GemmErrors, AccumulatorsThatDoNotFit) {
  const std::vector<float> a(16), b(16), out(16);
  const Shape square = {4, 4};
  const auto message = [&](const Accumulator& accumulator) {
    return error_of(
        [&] { Gemm(view(a, square), view(b, square), accumulator, view(out, square)); });
  };
  Accumulator chunks = make("e4m3", Scheme::chunked);
  for (const std::int64_t chunk : {std::int64_t{0}, std::int64_t{-1}}) {
    chunks.chunk = chunk;
    EXPECT_NE(message(chunks).find(std::to_string(chunk)), std::string::npos) << message(chunks);
  }
  for (const int bits : {0, 25, -3}) {
    Accumulator stochastic = make("e4m3");
    stochastic.rounding.mode = Rounding::stochastic;
    stochastic.rounding.random_bits = bits;
    EXPECT_NE(message(stochastic).find(std::to_string(bits)), std::string::npos);
  }
  Accumulator both = make("e4m3");
  both.product = ParseFormat("e5m2");
  both.exact_products = true;
  EXPECT_NE(message(both), "") << "a product format and exact products";
  Accumulator inner = make("e4m3");
  inner.inner = ParseFormat("e5m2");
  EXPECT_NE(message(inner), "") << "an inner format without chunks";
  EXPECT_NE(message(make("e4m3", Scheme::block_fma)), "") << "block_fma without a unit";
  Accumulator unit = Preset("v100");
  unit.scheme = Scheme::sequential;
  EXPECT_NE(message(unit), "") << "a unit without block_fma";
  const auto with = [&](auto change) {
    Accumulator accumulator = Preset("v100");
    change(*accumulator.unit);
    return message(accumulator);
  };
  EXPECT_NE(with([](BlockFma& u) { u.block = 0; }), "");
  EXPECT_NE(with([](BlockFma& u) { u.block = 65; }).find("65"), std::string::npos);
  EXPECT_NE(with([](BlockFma& u) { u.fraction_bits = 0; }), "");
  EXPECT_NE(with([](BlockFma& u) { u.fraction_bits = 31; }).find("31"), std::string::npos);
  EXPECT_NE(with([](BlockFma& u) { u.rounding = Rounding::up; }), "");
  EXPECT_NE(with([](BlockFma& u) { u.promote = u.block + 1; }), "");
  EXPECT_NE(with([](BlockFma& u) { u.promote = -4; }), "");
}

TEST(GemmErrors, UnknownNames) {
  EXPECT_NE(error_of([] { ParseScheme("kahn"); }).find("kahn"), std::string::npos);
  EXPECT_NE(error_of([] { ParseScheme("kahn"); }).find("pairwise"), std::string::npos);
  EXPECT_NE(error_of([] { Preset("h1000"); }).find("h1000"), std::string::npos);
}

}  // namespace
}  // namespace cpd
