// SPDX-License-Identifier: Apache-2.0
//
// Tests that Gemm on every backend gives the oracle's results for special values, and for values
// for which a simplified computation would be wrong.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/testing/bits.h"
#include "tests/testing/gemm.h"
#include "tests/testing/gemm_cases.h"
#include "tests/testing/near_ties.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using testing::accumulator_of;
using testing::all_values;
using testing::exact_products;
using testing::gemm_formats;
using testing::gemm_matches;
using testing::gemm_roundings;
using testing::kInf;
using testing::kNan;
using testing::operands;
using testing::schemes;
using testing::Tensor;
using testing::Turns;
using testing::Values;

// --- Values that catch short cuts ----------------------------------------------------------------

/// A page of memory after which reads end the process.
class LastPage {
 public:
  LastPage() {
    memory_ = mmap(nullptr, 2 * size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory_, MAP_FAILED);
    EXPECT_EQ(mprotect(end(), size_, PROT_NONE), 0);
  }
  LastPage(const LastPage&) = delete;
  LastPage& operator=(const LastPage&) = delete;
  ~LastPage() { munmap(memory_, 2 * size_); }
  /// Copies the values to the end of the memory page, and returns them as a matrix.
  [[nodiscard]] TensorView Put(const std::vector<float>& values, std::int64_t rows,
                               std::int64_t columns) const {
    float* const at = reinterpret_cast<float*>(end()) - values.size();
    std::ranges::copy(values, at);
    return View(at, DType::f32, std::array<std::int64_t, 2>{rows, columns});
  }

 private:
  [[nodiscard]] std::uint8_t* end() const { return static_cast<std::uint8_t*>(memory_) + size_; }
  std::size_t size_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory_ = nullptr;
};

/// A kernel packs rows or columns together in panels. If the operands do not fill whole panels, the
/// kernel must not read past the operands' end.
TEST(Gemm, OperandsAtTheEndOfMemory) {
  const LastPage left;
  const LastPage right;
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const auto& [m, k, n] : {std::array{5, 7, 9}, {1, 3, 1}, {13, 16, 17}, {3, 33, 31}}) {
      std::vector<float> a(static_cast<std::size_t>(m * k), 0.5F);
      std::vector<float> b(static_cast<std::size_t>(k * n), 2.0F);
      const TensorView x = left.Put(a, m, k);
      TensorView y = right.Put(b, k, n);
      std::vector<float> sums(static_cast<std::size_t>(m * n));
      const TensorView out = View(sums.data(), DType::f32, std::array<std::int64_t, 2>{m, n});
      for (const bool turned : {false, true}) {
        if (turned) y.stride = {1, k};
        for (const char* text : {"fp32 sequential", "e6m9 sequential", "e6m9 kahan",
                                 "fp32 chunked inner=e6m9 chunk=4", "int32"}) {
          Gemm(x, y, ParseAccumulator(text), out);
          EXPECT_EQ(sums, std::vector<float>(sums.size(), static_cast<float>(k)))
              << backend << ", " << text << ", " << m << " x " << k << " x " << n;
        }
      }
    }
  }
}

float product_of(float x, float y, const Accumulator& accumulator, const float* c = nullptr) {
  const Tensor a({1, 1}, {x});
  const Tensor b({1, 1}, {y});
  const Tensor addend({1, 1}, {c != nullptr ? *c : 0.0f});
  Tensor out({1, 1}, {-7.0f});
  const TensorView start = addend.view();
  Gemm(a.view(), b.view(), accumulator, out.view(), c != nullptr ? &start : nullptr);
  return out.read()[0];
}

TEST(GemmValues, StorageTrapVectors) {
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const bool exact : {false, true}) {
      Accumulator a = accumulator_of("e4m3");
      a.exact_products = exact;
      EXPECT_EQ(product_of(0x1.a30fecp+0f, 0x1.4c52bp-1f, a), 1.125f) << backend;
    }
    // Products are rounded into a format with more mantissa bits than the accumulator's format.
    Accumulator wide = accumulator_of("e8m3");
    wide.product = ParseFormat("e5m10");
    const float tiny = 0x1p-30f;
    EXPECT_EQ(product_of(1.0625f, 1.0f, wide, &tiny), 1.125f) << backend;
    // The product is below binary32's normal numbers.
    const Accumulator e8m10 = accumulator_of("e8m10");
    const float expected =
        reference::round(reference::spec_of(e8m10.format),
                         multiply(reference::exact(0x1.43p-60f), reference::exact(0x1.fb4p-76f)));
    EXPECT_EQ(product_of(0x1.43p-60f, 0x1.fb4p-76f, e8m10), expected) << backend;
    // With 24 random bits, stochastic rounding needs product bits far below the sum's last place.
    Accumulator stochastic = accumulator_of("e5m2");
    stochastic.rounding.mode = Rounding::stochastic;
    const float big = 49152.0f;
    const float got = product_of(0x1p-8f, 0x1p-8f, stochastic, &big);
    const std::vector<float> a = {0x1p-8f};
    EXPECT_EQ(got, reference::dot(stochastic, a, a, big)) << backend;
  }
}

// The product or the addend is a tie of the format. The other of the two, which may be far below
// the precision of binary32 or binary64, decides the tie.
TEST(GemmValues, FusedSumsNextToTiesOfFarApartTerms) {
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
    for (const RoundingOptions& o : gemm_roundings()) {
      for (Accumulator accumulator : schemes(ParseFormat(format))) {
        accumulator.rounding = o;
        ASSERT_TRUE(gemm_matches({x, y, &start}, accumulator));
      }
    }
  }
}

TEST(GemmValues, FmaNextToTies) {
  for (const char* format : {"e4m3", "e5m2", "e6m9", "e5m10", "e8m7", "e4m3fn"}) {
    const std::size_t rows = testing::kSanitized ? 64 : 8192;  // 2^18 problems
    const testing::FmaProblems p =
        testing::NearTies(reference::spec_of(ParseFormat(format)), 3).make(rows, 32);
    EXPECT_GE(2 * p.near_ties, rows * 32) << format;
    const auto n = static_cast<std::int64_t>(rows);
    const Tensor a({n, 1, 1}, p.a);
    const Tensor b({n, 1, 32}, p.b);
    const Tensor c({n, 1, 32}, p.c);
    EXPECT_TRUE(gemm_matches({a, b, &c}, exact_products(accumulator_of(format))));
  }
}

TEST(GemmValues, AllPairsOfEightBitFormats) {
  Turns turns;
  for (const char* name : {"e4m3", "e5m2", "e3m4", "e4m3fn", "e4m3fnuz", "binary8p4se", "e2m5"}) {
    const Format format = ParseFormat(name);
    const std::vector<float> values = all_values(format);
    const auto n = static_cast<std::int64_t>(values.size());
    const Tensor a({n, 1}, values);
    const Tensor b({1, n}, values);
    const Tensor ones({n, 1}, std::vector<float>(values.size(), 1.0f));
    const bool all = std::string_view(name) == "e4m3";  // the exhaustive tests: all of them
    for (const RoundingOptions& o : gemm_roundings()) {
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

TEST(GemmValues, SpecialValues) {
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
      for (const RoundingOptions& o : gemm_roundings()) {
        for (Accumulator accumulator : schemes(ParseFormat(format))) {
          if (!turns.one_of(1)) continue;
          accumulator.rounding = o;
          ASSERT_TRUE(gemm_matches({a, b, &c}, accumulator)) << "1 in " << rarely;
        }
      }
    }
  }
}

TEST(GemmValues, SignsOfZeroSums) {
  const Tensor minus({1, 3}, {-0.0f, -0.0f, -0.0f});
  const Tensor ones({3, 2}, {1, 1, 1, 1, 1, 1});
  const Tensor cancel({1, 3}, {1.0f, -1.0f, -0.0f});
  const Tensor c({2}, {-0.0f, 0.0f});
  const Tensor empty_a({1, 0}, {});
  const Tensor empty_b({0, 2}, {});
  for (const RoundingOptions& o : gemm_roundings()) {
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

/// Sums that go up to the largest value, to the overflow threshold, beyond it and back. `terms`
/// holds the terms of each sum in a row, and `starts` holds the addend of each sum.
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

TEST(GemmValues, SumsAtTheLargestValue) {
  Turns turns;
  for (const Format& format : gemm_formats()) {
    if (format.max() > 1e30 || format.max_code() < 2) continue;
    const Walks w = walks_to_the_end(format);
    const auto rows = static_cast<std::int64_t>(w.starts.size());
    const auto depth = static_cast<std::int64_t>(w.depth);
    const Tensor a({rows, depth}, w.terms);
    const Tensor c({rows, 1}, w.starts);
    std::vector<float> mixture(w.depth * 33, 1.0f);
    for (std::size_t i = 0; i < mixture.size(); i += 11) mixture[i] = -1.0f;
    const Tensor b({depth, 33}, mixture);
    for (const RoundingOptions& o : gemm_roundings()) {
      for (Accumulator accumulator : schemes(format)) {
        if (!turns.one_of(3)) continue;
        accumulator.rounding = o;
        ASSERT_TRUE(gemm_matches({a, b, &c}, accumulator));
      }
    }
  }
}

// In a large product, one element overflows, is infinite or NaN. All other elements are small.
TEST(GemmValues, OneSumThatOverflowsAmongMany) {
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

// The sum is a number whose last bit is 1, plus an exact product just below half a unit in the last
// place. The product comes at a different value of k each time. A sum in binary32 would lose the
// product's last bits and round to the next number.
TEST(GemmValues, AnExactSumOfManyBitsAtEveryValueOfK) {
  constexpr float kOdd = 1 + 0x1p-10F;
  constexpr int kCount = 19;
  Accumulator accumulator = accumulator_of("e3m10");
  accumulator.exact_products = true;
  for (int at = 1; at < kCount; ++at) {
    std::vector<float> left(9 * kCount), right(kCount * 35);
    for (int i = 0; i < 9; ++i) left[i * kCount] = left[i * kCount + at] = kOdd;
    for (int j = 0; j < 35; ++j) {
      right[j] = 1;
      right[at * 35 + j] = 0x1p-11F * (1 - 0x1p-10F);
    }
    const Tensor a({9, kCount}, left);
    const Tensor b({kCount, 35}, right);
    ASSERT_TRUE(gemm_matches({a, b, nullptr}, accumulator)) << at;
  }
}

// Some products are exact in the format because the operands have few bits. Other products need one
// more bit, or are multiples of only half the format's least spacing. The products lie around the
// least spacing, in the middle of the range, and at its end.
TEST(GemmValues, ProductsThatNeedNoRounding) {
  Turns turns;
  std::mt19937_64 generator(8);
  for (const char* name :
       {"e4m3", "e5m2", "e2m1", "e3m0", "e6m9", "e5m10", "e8m7", "e4m3fnuz", "e3m2:nosub"}) {
    const Format format = ParseFormat(name);
    const int least = format.min_quantum_exponent();
    for (const int bits : {format.precision() - 1, format.precision(), format.precision() + 1}) {
      const int left = std::max(bits / 2, 1);
      const int right = std::max(bits - left, 1);
      // The exponent of the last bit that the smallest product of a and b may have.
      for (const int last : {least - 1, least, least + 1, (least + format.emax()) / 2 - bits,
                             format.emax() - bits - 2, format.emax() - bits}) {
        const int of_a = last / 2 + left;
        const int of_b = last - last / 2 + right;
        const Tensor a({9, 19}, testing::numbers_around(of_a, 1, left, 9 * 19, generator));
        const Tensor b({19, 35}, testing::numbers_around(of_b, 1, right, 19 * 35, generator));
        for (const Overflow overflow : testing::kPolicies) {
          for (Accumulator accumulator : schemes(format)) {
            if (!turns.one_of(2)) continue;
            accumulator.rounding.overflow = overflow;
            ASSERT_TRUE(gemm_matches({a, b, nullptr}, accumulator)) << bits << " bits, " << last;
          }
        }
      }
    }
  }
}

// Tests products in which the sums of different columns pass the largest value at different values
// of k.
TEST(GemmValues, SumsThatGrowPastTheLargestValue) {
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
      for (const RoundingOptions& o : gemm_roundings()) {
        for (Accumulator accumulator : schemes(format)) {
          if (!turns.one_of(3)) continue;
          accumulator.rounding = o;
          ASSERT_TRUE(gemm_matches({a, b, nullptr}, accumulator)) << share;
        }
      }
    }
  }
}

// Tests operands far from 1 whose products are in the format's range. One operand is huge or below
// binary32's normal numbers, for all k or for some k.
TEST(GemmValues, OperandsFarFromOne) {
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
        for (const RoundingOptions& o : gemm_roundings()) {
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

// One element of the addend c is infinite, NaN, huge or tiny. All other elements are 0.
TEST(GemmValues, OneAddendAmongMany) {
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

// All terms are zeros of both signs, or products that underflow. Tests the signs of sums that stay
// zero.
TEST(GemmValues, SumsThatStayAtZero) {
  Turns turns;
  std::mt19937_64 generator(7);
  const std::vector<float> pool = {0.0f, -0.0f, 0x1p-80f, -0x1p-80f, 0x1p-149f, -0x1p-149f};
  const auto fill = [&](std::size_t n) {
    std::vector<float> values(n);
    for (float& x : values) x = pool[generator() % pool.size()];
    return values;
  };
  for (const char* name : {"e4m3", "e5m2", "e4m3fnuz", "e8m7", "e3m2:nosub", "e8m23"}) {
    for (const std::int64_t k : {1, 2, 7, 17}) {
      const auto depth = static_cast<std::size_t>(k);
      const Tensor a({9, k}, fill(9 * depth));
      const Tensor b({k, 66}, fill(66 * depth));
      const Tensor c({9, 66}, fill(std::size_t{9} * 66));
      for (const RoundingOptions& o : gemm_roundings()) {
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

}  // namespace
}  // namespace cpd
