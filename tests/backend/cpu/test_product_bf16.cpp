// SPDX-License-Identifier: Apache-2.0
//
// Tests that ProductOfBf16 gives the bits of the documented sums, and the exact sums of integers.
// The cases cover every layout, both element types, the edges of tiles and panels, batches and
// threads. Tests also the operands that ProductOfBf16 declines, and its errors.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cpd/backend/bf16_kernels.h"
#include "cpd/backend/cpu/product_bf16.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

using Floats = std::vector<float>;
constexpr float kUntouched = 7.5F;

/// Returns the nearest bf16 number toward zero.
float cut(float x) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xFFFF0000U); }

/// N matrices of R x C values, stored in one of two types, by rows or by columns, without gaps.
class Matrices {
 public:
  Matrices(std::array<std::int64_t, 3> shape, const Floats& values, DType dtype, bool by_columns)
      : values_(values), halves_(values.size()), view_(View(values_.data(), DType::f32, shape)) {
    const auto [n, rows, columns] = shape;
    if (by_columns) {
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t c = 0; c < columns; ++c) {
            values_[(i * columns + c) * rows + r] = values[(i * rows + r) * columns + c];
          }
        }
      }
      view_.stride = {rows * columns, 1, rows};
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      halves_[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values_[i]) >> 16);
    }
    if (dtype == DType::bf16) view_.data = halves_.data();
    view_.dtype = dtype;
  }
  [[nodiscard]] const TensorView& view() const { return view_; }

 private:
  Floats values_;
  std::vector<std::uint16_t> halves_;
  TensorView view_;
};

struct ProductCase {
  std::int64_t n, m, k, l;
};

/// Calls check(element, exact, sum) for each element of the product. `exact` is the exact sum, and
/// `sum` is the sum in the documented order.
template <class Check>
void for_elements(const ProductCase& c, const Floats& a, const Floats& b, Check check) {
  for (std::int64_t n = 0; n < c.n; ++n) {
    for (std::int64_t i = 0; i < c.m; ++i) {
      for (std::int64_t j = 0; j < c.l; ++j) {
        const auto product = [&](std::int64_t k) {  // binary32 holds it
          return k == c.k ? 0.0F : a[(n * c.m + i) * c.k + k] * b[(n * c.k + k) * c.l + j];
        };
        double exact = 0;
        float sum = 0;
        for (std::int64_t k = 0; k < c.k; k += 2) {
          for (const float each : {product(k + 1), product(k)}) {
            exact += static_cast<double>(each);
            sum += each;
          }
        }
        check((n * c.m + i) * c.l + j, exact, sum);
      }
    }
  }
}

Floats drawn(std::int64_t count, unsigned seed, bool integers) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Floats x(static_cast<std::size_t>(count));
  for (float& each : x) {
    const float value = normal(generator);
    each = integers ? std::trunc(4 * value) : cut(value);
  }
  return x;
}

const std::array<ProductCase, 9> kProductCases{{{1, 1, 1, 1},
                                                {1, 6, 2, 64},
                                                {1, 7, 33, 65},
                                                {1, 1, 129, 200},
                                                {1, 131, 127, 3},
                                                {1, 200, 40, 70},
                                                {1, 5, 4099, 17},
                                                {9, 13, 66, 20},
                                                {2, 0, 3, 4}}};

class ProductOfBf16s : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (Bf16Kernels() == nullptr) GTEST_SKIP() << "this CPU has no instruction for bf16";
  }
};

TEST_P(ProductOfBf16s, EveryLayout) {
  const bool integers = GetParam();
  for (const ProductCase& c : kProductCases) {
    const Floats a = drawn(c.n * c.m * c.k, 1, integers);
    const Floats b = drawn(c.n * c.k * c.l, 2, integers);
    for (int form = 0; form < 16; ++form) {
      const DType of_a = (form & 1) != 0 ? DType::bf16 : DType::f32;
      const DType of_b = (form & 2) != 0 ? DType::bf16 : DType::f32;
      const Matrices left({c.n, c.m, c.k}, a, of_a, (form & 4) != 0);
      const Matrices right({c.n, c.k, c.l}, b, of_b, (form & 8) != 0);
      const std::array<std::int64_t, 3> shape{c.n, c.m, c.l};
      Floats out(static_cast<std::size_t>(c.n * c.m * c.l) + 1, kUntouched);
      ASSERT_TRUE(ProductOfBf16(left.view(), right.view(), View(out.data(), DType::f32, shape)));
      EXPECT_EQ(out.back(), kUntouched);
      for_elements(c, a, b, [&](std::int64_t i, double exact, float sum) {
        EXPECT_EQ(std::bit_cast<std::uint32_t>(out[i]), std::bit_cast<std::uint32_t>(sum))
            << c.m << " x " << c.k << " x " << c.l << " form " << form << " element " << i;
        if (integers) EXPECT_EQ(static_cast<double>(out[i]), exact);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Values, ProductOfBf16s, ::testing::Bool(),
                         [](const auto& of) { return of.param ? "Integers" : "Normal"; });

bool takes(float a, float b) {
  const std::array<std::int64_t, 3> shape{1, 1, 3};
  const std::array<std::int64_t, 3> turned{1, 3, 1};
  const std::array<std::int64_t, 3> one{1, 1, 1};
  const Floats x{1, a, 0}, y{0, 1, b};
  Floats out(1);
  return ProductOfBf16(View(x.data(), DType::f32, shape), View(y.data(), DType::f32, turned),
                       View(out.data(), DType::f32, one));
}

TEST(ProductOfBf16, DeclinesWhereASumMightBeSubnormal) {
  if (Bf16Kernels() == nullptr) GTEST_SKIP() << "this CPU has no instruction for bf16";
  EXPECT_TRUE(takes(0x1p-56F, 0x1p-56F));
  EXPECT_FALSE(takes(0x1p-56F, 0x1p-57F));
  EXPECT_TRUE(takes(0x1p-112F, 1));
  EXPECT_FALSE(takes(0x1.FEp-113F, 1));
  EXPECT_FALSE(takes(0x1p-127F, 1));
  EXPECT_FALSE(takes(1, -0x1p-133F));
  EXPECT_TRUE(takes(0, -0.0F));
}

TEST(ProductOfBf16, InfinitiesAndNan) {
  if (Bf16Kernels() == nullptr) GTEST_SKIP() << "this CPU has no instruction for bf16";
  const float inf = std::numeric_limits<float>::infinity();
  const Floats x{inf, 1, std::numeric_limits<float>::quiet_NaN(), 1, 1, -inf, 0x1.FEp127F, 4};
  const Floats y{1, 2};
  Floats out(4);
  const std::array<std::int64_t, 3> of_x{1, 4, 2}, of_y{1, 2, 1}, of_out{1, 4, 1};
  ASSERT_TRUE(ProductOfBf16(View(x.data(), DType::f32, of_x), View(y.data(), DType::f32, of_y),
                            View(out.data(), DType::f32, of_out)));
  EXPECT_EQ(out[0], inf);
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_EQ(out[2], -inf);
  EXPECT_EQ(out[3], 0x1.FEp127F);
}

TEST(ProductOfBf16, EmptySums) {
  if (Bf16Kernels() == nullptr) GTEST_SKIP() << "this CPU has no instruction for bf16";
  const std::array<std::int64_t, 3> of_x{1, 2, 0}, of_y{1, 0, 2}, of_out{1, 2, 2};
  Floats out(4, kUntouched);
  ASSERT_TRUE(ProductOfBf16(View(nullptr, DType::f32, of_x), View(nullptr, DType::f32, of_y),
                            View(out.data(), DType::f32, of_out)));
  EXPECT_EQ(out, Floats(4));
}

/// Returns the pattern of the bf16 number nearest to y, ties to even. Compares both neighbors of y
/// in binary64.
std::uint16_t nearest_half(float y) {
  const std::uint32_t low = std::bit_cast<std::uint32_t>(y) >> 16;
  const auto value = [](std::uint32_t half) {
    return static_cast<double>(std::bit_cast<float>(half << 16));
  };
  const double below = std::abs(static_cast<double>(y) - value(low));
  const double above = std::abs(value(low + 1) - static_cast<double>(y));
  const bool up = above < below || (above == below && low % 2 != 0);
  return static_cast<std::uint16_t>(low + (up ? 1 : 0));
}

/// Returns a view of scales: one scale for each row of the product (`of` is 'r'), for each column
/// ('c'), or one scale for all elements.
TensorView scales_of(const Floats& values, const ProductCase& c, char of) {
  TensorView view = View(values.data(), DType::f32, std::array<std::int64_t, 2>{c.m, c.l});
  view.stride = {of == 'r' ? 1 : 0, of == 'c' ? 1 : 0};
  return view;
}

TEST(ProductOfBf16, ScalesThenBiasThenOneRounding) {
  if (Bf16Kernels() == nullptr) GTEST_SKIP() << "this CPU has no instruction for bf16";
  for (const ProductCase& c :
       {ProductCase{1, 7, 33, 65}, {2, 200, 40, 70}, {1, 1, 4099, 1}, {3, 5, 0, 17}}) {
    const Floats a = drawn(c.n * c.m * c.k, 1, false);
    const Floats b = drawn(c.n * c.k * c.l, 2, false);
    Floats scale = drawn(c.m + c.l, 3, false), other = drawn(c.m + c.l, 4, false);
    for (float& each : other) each *= 1.1F;  // more bits than bf16
    const Floats bias = drawn(c.l, 5, false);
    const Matrices left({c.n, c.m, c.k}, a, DType::bf16, false);
    const Matrices right({c.n, c.k, c.l}, b, DType::bf16, true);
    const std::array<std::int64_t, 3> shape{c.n, c.m, c.l};
    const auto size = static_cast<std::size_t>(c.n * c.m * c.l);
    const TensorView added = View(bias.data(), DType::f32, c.l);
    for (const auto& [first, second, with_bias] : {std::tuple('1', 'c', true),
                                                   {'r', 'c', true},
                                                   {'c', 'r', false},
                                                   {'1', '-', true},
                                                   {'-', '-', false}}) {
      const TensorView by_first = scales_of(scale, c, first);
      const TensorView by_second = scales_of(other, c, second);
      const ProductFinish finish{.first = first == '-' ? nullptr : &by_first,
                                 .second = second == '-' ? nullptr : &by_second,
                                 .bias = with_bias ? &added : nullptr};
      Floats out(size + 1, kUntouched);
      std::vector<std::uint16_t> halves(size + 1, 7);
      ASSERT_TRUE(
          ProductOfBf16(left.view(), right.view(), View(out.data(), DType::f32, shape), finish));
      ASSERT_TRUE(ProductOfBf16(left.view(), right.view(), View(halves.data(), DType::bf16, shape),
                                finish));
      EXPECT_EQ(out.back(), kUntouched);
      EXPECT_EQ(halves.back(), 7);
      for_elements(c, a, b, [&](std::int64_t i, double, float sum) {
        const std::int64_t row = i / c.l % c.m, column = i % c.l;
        const auto scaled = [&](float y, const Floats& by, char of) {
          return of == '-' ? y : y * by[of == 'r' ? row : of == 'c' ? column : 0];
        };
        float y = scaled(scaled(sum, scale, first), other, second);
        if (with_bias) y += bias[column];
        EXPECT_EQ(std::bit_cast<std::uint32_t>(out[i]), std::bit_cast<std::uint32_t>(y))
            << first << second << " element " << i;
        EXPECT_EQ(halves[i], nearest_half(y)) << first << second << " element " << i;
      });
    }
  }
}

TEST(ProductOfBf16, TheRoundingIntoBf16TakesEdges) {
  if (Bf16Kernels() == nullptr) GTEST_SKIP() << "this CPU has no instruction for bf16";
  const Floats ones{1};
  const float inf = std::numeric_limits<float>::infinity();
  const Floats bias{-1,
                    0x1.00FFFFp0F - 1,
                    0x1.01p0F - 1,
                    0x1.03p0F - 1,
                    0x1.010002p0F - 1,
                    0x1.FFp127F,
                    -0x1.FEFFFEp127F,
                    inf,
                    -inf,
                    std::numeric_limits<float>::quiet_NaN()};
  const std::array<std::int64_t, 3> of_a{1, 1, 1}, of_out{1, 1, 10};
  const Floats many(10, 1);
  std::vector<std::uint16_t> out(10);
  const TensorView added = View(bias.data(), DType::f32, 10);
  ASSERT_TRUE(ProductOfBf16(View(ones.data(), DType::f32, of_a),
                            View(many.data(), DType::f32, of_out),
                            View(out.data(), DType::bf16, of_out), {.bias = &added}));
  const std::vector<std::uint16_t> expected{0,      0x3F80, 0x3F80, 0x3F82, 0x3F81,
                                            0x7F80, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0};
  EXPECT_EQ(out, expected);
}

TEST(ProductOfBf16, Errors) {
  const Floats x(64);
  Floats out(64);
  const std::array<std::int64_t, 3> shape{1, 8, 8};
  const std::array<std::int64_t, 3> wrong{1, 4, 16};
  const TensorView good = View(x.data(), DType::f32, shape);
  const TensorView to = View(out.data(), DType::f32, shape);
  TensorView gaps = good;
  gaps.shape = {1, 4, 4};
  gaps.stride = {64, 16, 2};
  const auto refusal = [&](const TensorView& a, const TensorView& result) -> std::string {
    try {
      ProductOfBf16(a, good, result);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(gaps, to), "a must have rows or columns without gaps");
  EXPECT_EQ(refusal(View(x.data(), DType::f32, wrong), to),
            "a, b and out must be N x M x K, N x K x L and N x M x L");
  constexpr const char* kBatch = "a must be a batch of matrices on the CPU, of fp32 or bf16";
  EXPECT_EQ(refusal(View(x.data(), DType::f16, shape), to), kBatch);
  EXPECT_EQ(refusal(View(x.data(), DType::f32, 64), to), kBatch);
  EXPECT_EQ(refusal(good, View(out.data(), DType::f16, shape)),
            "out must be a batch of matrices on the CPU, of fp32 or bf16");
  TensorView columns = to;
  std::swap(columns.stride[1], columns.stride[2]);
  EXPECT_EQ(refusal(good, columns), "out of a product must be contiguous");
  const auto refused = [&](const ProductFinish& finish) -> std::string {
    try {
      ProductOfBf16(good, good, to, finish);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const std::array<std::int64_t, 2> square{8, 8};
  const TensorView whole = View(x.data(), DType::f32, square);
  EXPECT_EQ(refused({.first = &whole}),
            "first must be M x L fp32 scales of rows or of columns on the CPU");
  EXPECT_EQ(refused({.second = &whole}),
            "second must be M x L fp32 scales of rows or of columns on the CPU");
  const TensorView half = View(x.data(), DType::bf16, 8);
  EXPECT_EQ(refused({.bias = &half}), "bias must be L contiguous fp32 numbers on the CPU");
}

}  // namespace
}  // namespace cpd
