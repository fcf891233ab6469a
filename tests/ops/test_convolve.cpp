// SPDX-License-Identifier: Apache-2.0
//
// Tests that convolutions, which read the images in place, give the oracle's products of unfolded
// images.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cpd/ops/convolve.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/gemm_cases.h"
#include "tests/testing/refusal.h"
#include "tests/testing/windows.h"

namespace cpd {
namespace {

using testing::along;
using testing::drawn_windows;
using testing::Layout;
using testing::one_of;
using testing::operands;
using testing::Shape;
using testing::Tensor;
using testing::unfolded;
using testing::Values;

const std::vector<const char*> kSums = {
    "fp32 sequential",
    "fp32 fma",
    "e4m3 sequential",
    "e4m3 fma",
    "e5m2 chunked chunk=5 inner=e4m3",
    "e6m9 chunked chunk=4 product=exact",
    "bf16 kahan",
    "e5m7 pairwise",
    "e2m1 sequential",
    "e4m3fnuz fma",
    "e5m3 sequential rounding=toward_zero",
    "e4m3 sequential rounding=down",
    "e5m7 sequential rounding=stochastic random_bits=9",
    "e4m3 chunked chunk=3 rounding=stochastic",
    "fp32 fixed width=24 fraction=9",
    "fp32 fixed width=12 fraction=4 overflow=saturate",
};

/// Returns the oracle's product. For accumulators of integers, returns Gemm's product.
std::vector<float> product_of(const Tensor& a, const Tensor& b, const Accumulator& accumulator,
                              const Shape& shape, const Tensor* c = nullptr) {
  if (!accumulator.fixed) return testing::oracle_gemm(a, b, accumulator, shape, c);
  const Tensor out(shape, std::vector<float>(static_cast<std::size_t>(testing::count_of(shape))));
  const TensorView addend = c == nullptr ? TensorView{} : c->view();
  Gemm(a.view(), b.view(), accumulator, out.view(), c == nullptr ? nullptr : &addend,
       testing::kKey);
  return out.read();
}

/// Random operands of a convolution.
struct Drawn {
  std::mt19937 draw;
  Windows windows;
  std::int64_t groups = 1, images = 1, channels = 1, outputs = 1;
  Shape image;
  Accumulator accumulator;

  Drawn(unsigned seed, bool spread) : draw(seed) {
    const auto rank = static_cast<int>(one_of(draw, 1, 3));
    windows = drawn_windows(draw, rank, spread);
    groups = one_of(draw, 1, 2);
    images = one_of(draw, 1, 3);
    channels = one_of(draw, 1, 3);
    outputs = one_of(draw, 1, 4);
    image = {images, groups * channels};
    for (int d = 0; d < rank; ++d) image.push_back(one_of(draw, 1, 5));
    accumulator = ParseAccumulator(kSums[seed % kSums.size()]);
  }
  std::vector<float> values(const Shape& shape, unsigned seed) {
    const Values kind = testing::kValues[draw() % testing::kValues.size()];
    const auto n = static_cast<std::size_t>(testing::count_of(shape));
    std::vector<float> found = operands(kind, accumulator.format, n, seed);
    if (draw() % 2 == 0) {  // finite, and many zeros
      for (float& x : found) x = draw() % 3 == 0 || !(x - x == 0.0f) ? 0.0f : x;
    }
    return found;
  }
  Layout layout() { return testing::kLayouts[draw() % testing::kLayouts.size()]; }
};

void check_convolve(unsigned seed, bool spread) {
  Drawn d(seed, spread);
  const Shape kernel = along(d.windows, &WindowAxis::kernel, {d.groups, d.outputs, d.channels});
  const Tensor x(d.image, d.values(d.image, seed), d.layout());
  const Tensor w(kernel, d.values(kernel, seed + 1), d.layout());
  const Tensor c({d.groups, d.outputs}, d.values({d.groups, d.outputs}, seed + 2));
  const bool given = d.draw() % 2 == 0;
  const Tensor columns = unfolded(x, d.groups, d.windows);
  const std::int64_t terms = columns.shape()[2];
  const Shape product = {d.images, d.groups, d.outputs, d.windows.places()};
  const Tensor rows({d.groups, d.outputs, terms}, w.values());
  const Tensor start({d.groups, d.outputs, 1}, c.values());
  const std::vector<float> wanted =
      product_of(rows, columns, d.accumulator, product, given ? &start : nullptr);
  const Shape shape = along(d.windows, &WindowAxis::places, {d.images, d.groups * d.outputs});
  const Tensor out(shape, std::vector<float>(wanted.size(), -7.0f), d.layout());
  const TensorView addend = c.view();
  Convolve(x.view(), w.view(), given ? &addend : nullptr, d.windows, d.accumulator, out.view(),
           testing::kKey);
  ASSERT_TRUE(testing::bits_equal<float>(wanted, out.read())) << testing::describe(d.accumulator);
  ASSERT_TRUE(out.gaps_untouched());
}

TEST(Convolve, IsTheProductOfUnfoldedImages) {
  for (unsigned seed = 0; seed < 320 && !HasFatalFailure(); ++seed) check_convolve(seed, false);
}

TEST(Convolve, IsTheProductOfSpreadImages) {
  for (unsigned seed = 0; seed < 640 && !HasFatalFailure(); ++seed) check_convolve(seed, true);
}

TEST(Correlate, IsTheProductOfGatheredImages) {
  for (unsigned seed = 0; seed < 320; ++seed) {
    Drawn d(seed, false);
    const Shape places = along(d.windows, &WindowAxis::places, {d.images, d.groups * d.outputs});
    const Tensor x(d.image, d.values(d.image, seed), d.layout());
    const Tensor g(places, d.values(places, seed + 1), d.layout());
    const Tensor columns = unfolded(x, d.groups, d.windows);
    const std::int64_t terms = columns.shape()[2];
    const std::int64_t windows = d.windows.places();
    const std::int64_t depth = d.images * windows;
    std::vector<float> a;
    std::vector<float> b;
    for (std::int64_t row = 0; row < d.groups * d.outputs; ++row) {
      for (std::int64_t k = 0; k < depth; ++k) {
        const std::int64_t line = k / windows * d.groups * d.outputs + row;
        a.push_back(g.values()[static_cast<std::size_t>(line * windows + k % windows)]);
      }
    }
    for (std::int64_t group = 0; group < d.groups; ++group) {
      for (std::int64_t k = 0; k < depth; ++k) {
        for (std::int64_t term = 0; term < terms; ++term) {
          const std::int64_t line = (k / windows * d.groups + group) * terms + term;
          b.push_back(columns.values()[static_cast<std::size_t>(line * windows + k % windows)]);
        }
      }
    }
    const Tensor left({d.groups, d.outputs, depth}, a);
    const Tensor right({d.groups, depth, terms}, b);
    const std::vector<float> wanted =
        product_of(left, right, d.accumulator, {d.groups, d.outputs, terms});
    const Shape shape = along(d.windows, &WindowAxis::kernel, {d.groups * d.outputs, d.channels});
    const Tensor out(shape, std::vector<float>(wanted.size(), -7.0f));
    Correlate(g.view(), x.view(), d.groups, d.windows, d.accumulator, out.view(), testing::kKey);
    ASSERT_TRUE(testing::bits_equal<float>(wanted, out.read()))
        << seed << ", " << testing::describe(d.accumulator);
  }
}

TEST(Correlate, ItsResultIsContiguous) {
  Windows windows;
  windows.rank = 1;
  windows.axes[0] = {3, 1, 1, 1, 0, 1};  // one window of three elements
  const Tensor x({1, 2, 3}, std::vector<float>(6));
  const Tensor g({1, 2, 1}, std::vector<float>(2));
  const Tensor out({2, 2, 3}, std::vector<float>(12));
  TensorView transposed = out.view();
  std::swap(transposed.stride[0], transposed.stride[1]);
  EXPECT_REFUSAL(
      "out of a correlation must be contiguous",
      Correlate(g.view(), x.view(), 1, windows, ParseAccumulator("fp32 sequential"), transposed));
}

// --- zeros between elements ----------------------------------------------------------------------

/// Convolves an image with a kernel of three weights, and returns the first of the three results.
/// The image has one channel and two elements; both elements are x. Two zeros lie before the first
/// element, and `spread` - 1 zeros lie between the two elements.
float first_place(const char* sums, const std::vector<float>& weights, float x,
                  std::int64_t spread = 2) {
  Windows windows;
  windows.rank = 1;
  windows.axes[0] = {3, 3, 1, 1, 2, spread};
  const Tensor image({1, 1, 2}, {x, x});
  const Tensor w({1, 1, 1, 3}, weights);
  const Tensor out({1, 1, 3}, {-7, -7, -7});
  Convolve(image.view(), w.view(), nullptr, windows, ParseAccumulator(sums), out.view());
  return out.read()[0];
}

TEST(Convolve, ZerosBetweenElementsCountWhereTheyChangeASum) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  // The first result is the sum 0 * w0 + 0 * w1 + x * w2. Here 0 * Inf makes it NaN.
  EXPECT_TRUE(first_place("fp32 sequential", {kInf, 1, 1}, 1) != 1.0f);
  EXPECT_EQ(first_place("fp32 sequential", {2, 1, 1}, 3), 3.0f);
  // With fma, the exact result -2^-18 underflows to -0. A product that is -0 before it is added to
  // +0 gives +0.
  EXPECT_EQ(testing::bits_of(first_place("e4m3 fma", {-1, -1, -0x1p-9f}, 0x1p-9f)), 0x80000000U);
  EXPECT_EQ(testing::bits_of(first_place("e4m3 sequential", {-1, -1, -1}, 0)), 0U);
}

/// In a format without zero, the sum of a chunk of zeros is the least number, 2^-127, and not 0.
TEST(Convolve, ChunksOfZerosCountWithoutAZero) {
  EXPECT_EQ(first_place("fp32 chunked chunk=2 inner=e8m0", {1, 1, 0x1p-100f}, 0x1p-20f),
            0x1p-120f + 0x1p-127f);
  // With spread = 3, the image's elements can only be at positions that are multiples of 3. Neither
  // zero of the first chunk (terms at positions -2 and -1) is at such a position.
  EXPECT_EQ(first_place("fp32 chunked chunk=2 inner=e8m0", {1, 1, 0x1p-100f}, 0x1p-20f, 3),
            0x1p-120f + 0x1p-127f);
}

TEST(Convolve, StepsBetweenSpreadElements) {
  Windows windows;
  windows.rank = 1;
  windows.axes[0] = {1, 2, 2, 1, 0, 2};  // each place is on an element
  const Tensor out({1, 1, 2}, {-7, -7});
  Convolve(Tensor({1, 1, 2}, {3, 5}).view(), Tensor({1, 1, 1, 1}, {1}).view(), nullptr, windows,
           ParseAccumulator("fp32 sequential"), out.view());
  EXPECT_EQ(out.read(), (std::vector<float>{3, 5}));
}

TEST(Convolve, AZeroAfterAnUnderflowIsPositive) {
  Windows windows;
  windows.rank = 1;
  windows.axes[0] = {2, 2, 1, 1, 1, 2};  // the second place: element 0, then a zero
  const Tensor image({1, 1, 1}, {0x1p-9f});
  const Tensor out({1, 1, 2}, {-7, -7});
  for (const float after : {1.0f, -1.0f}) {
    const Tensor w({1, 1, 1, 2}, {-0x1p-9f, after});
    Convolve(image.view(), w.view(), nullptr, windows, ParseAccumulator("e4m3 fma"), out.view());
    EXPECT_EQ(testing::bits_of(out.read()[1]), after > 0 ? 0U : 0x80000000U);
  }
}

// --- refusals ------------------------------------------------------------------------------------

std::string refusal(const Tensor& x, const Tensor& w, const Tensor& out, const Windows& windows,
                    const char* sums = "fp32 sequential") {
  try {
    Convolve(x.view(), w.view(), nullptr, windows, ParseAccumulator(sums), out.view());
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Convolve, RefusesWhatDoesNotFit) {
  Windows windows;
  windows.rank = 1;
  windows.axes[0] = {2, 3, 1, 1, 0, 1};
  const auto zeros = [](Shape shape) {
    return Tensor(shape, std::vector<float>(static_cast<std::size_t>(testing::count_of(shape))));
  };
  const Tensor x = zeros({1, 2, 4});
  const Tensor w = zeros({1, 3, 2, 2});
  const Tensor out = zeros({1, 3, 3});
  EXPECT_EQ(refusal(x, w, out, windows), "");
  EXPECT_EQ(refusal(x, w, zeros({1, 3, 4}), windows), "out must be 1 x 3 x 3");
  EXPECT_EQ(refusal(x, zeros({1, 3, 1, 2}), out, windows), "w must be 1 x 3 x 2 x 2");
  EXPECT_EQ(refusal(x, zeros({3, 1, 1, 2}), out, windows),
            "groups must divide x's channels, got 3 and 2");
  EXPECT_EQ(
      refusal(zeros({1, 2, 4, 1}), w, out, windows),
      "images must have 1…8 dimensions in addition to two, and windows along each, got 4 and 1");
  windows.axes[0].step = 0;
  EXPECT_EQ(refusal(x, w, out, windows), "step, dilation and spread of windows must be at least 1");
  windows.axes[0].step = 1;
  windows.axes[0].spread = 0;
  EXPECT_EQ(refusal(x, w, out, windows), "step, dilation and spread of windows must be at least 1");
  windows.axes[0].spread = windows.axes[0].step = 1;
  const Tensor wide({1, 2, 4}, {0, 0, 0, 0, 0, 0, 0, 65});
  EXPECT_EQ(refusal(wide, w, out, windows, "h100-fp8"),
            "b must hold values of e4m3fn, got 65.000000 at element 11");
}

}  // namespace
}  // namespace cpd
