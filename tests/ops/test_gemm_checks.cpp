// SPDX-License-Identifier: Apache-2.0
//
// Tests that Gemm refuses invalid shapes, types, memory and accumulators, and then writes nothing.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cpd/spec/error.h"
#include "cpd/spec/presets.h"
#include "tests/testing/gemm.h"
#include "tests/testing/gemm_cases.h"

namespace cpd {
namespace {

using testing::accumulator_of;
using testing::Shape;

/// Returns the text of the Error that the call throws; empty if it throws none.
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
      Gemm(view(a, s.a), view(b, s.b), accumulator_of("e4m3"), view(out, s.out),
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
                  Gemm(view(a, {2, 2}, type(0)), view(b, {2, 2}, type(1)), accumulator_of("e4m3"),
                       view(out, {2, 2}, type(2)), &c);
                }),
                "")
          << ToString(wrong) << ", operand " << which;
    }
  }
  // The type of the result must hold every value of the accumulator's format.
  for (const auto& [type, format] :
       {std::pair{DType::f16, "bf16"}, std::pair{DType::bf16, "fp16"},
        std::pair{DType::bf16, "e6m9"}, std::pair{DType::f16, "fp32"}}) {
    const std::string text = error_of([&, type = type, format = format] {
      Gemm(view(a, square), view(b, square), accumulator_of(format), view(out, square, type));
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
  EXPECT_NE(error_of([&] { Gemm(whole, view(other, square), accumulator_of("e4m3"), inside); }),
            "");
  EXPECT_NE(error_of([&] { Gemm(view(other, square), whole, accumulator_of("e4m3"), inside); }),
            "");
  EXPECT_NE(error_of([&] {
              Gemm(view(other, square), view(other, square), accumulator_of("e4m3"), inside,
                   &whole);
            }),
            "");
  TensorView folded = whole;  // rows on top of each other
  folded.stride[0] = 0;
  EXPECT_NE(error_of([&] {
              Gemm(view(other, square), view(other, square), accumulator_of("e4m3"), folded);
            }),
            "");
  const TensorView first = View(memory.data(), DType::f32, Shape{1, 4});
  folded = View(memory.data() + 32, DType::f32, Shape{2, 4});
  folded.stride[0] = 0;
  EXPECT_NE(error_of([&] { Gemm(view(other, {2, 1}), first, accumulator_of("e4m3"), folded); }),
            "");
  TensorView reversed = View(memory.data() + 15, DType::f32, square);  // from the highest element
  reversed.stride[0] = -4;
  reversed.stride[1] = -1;
  EXPECT_NE(error_of([&] { Gemm(reversed, view(other, square), accumulator_of("e4m3"), inside); }),
            "");
  for (const float x : memory) ASSERT_EQ(x, 1.0f);
  const TensorView behind = View(memory.data() + 16, DType::f32, square);
  const TensorView after = View(memory.data() + 32, DType::f32, square);
  EXPECT_EQ(error_of([&] { Gemm(whole, after, accumulator_of("e4m3"), behind); }), "");
  EXPECT_EQ(memory[16], 4.0f);
  EXPECT_EQ(memory[31], 4.0f);
}

TEST(GemmErrors, BatchesOfOneBroadcast) {
  const std::vector<float> ones(64, 1.0f);
  std::vector<float> out(24);
  EXPECT_EQ(error_of([&] {
              Gemm(view(ones, {1, 3, 4}), view(ones, {2, 4, 4}), accumulator_of("e4m3"),
                   View(out.data(), DType::f32, Shape{2, 3, 4}));
            }),
            "");
  EXPECT_EQ(out, std::vector<float>(24, 4.0f));
}

/// A stochastic product takes up to six random integers for each value of k. The random stream of
/// an element has 2^24 blocks of four words, and two blocks are reserved. A longer product is
/// refused.
TEST(GemmErrors, StochasticProductsAreAsLongAsTheirCounters) {
  Accumulator accumulator = accumulator_of("e4m3");
  accumulator.rounding.mode = Rounding::stochastic;
  accumulator.rounding.random_bits = 24;
  const std::int64_t most = ((std::int64_t{1} << 24) - 2) * 4 / 6;
  const float one = 1;
  std::vector<float> out(1, -7.0f);
  TensorView a = View(&one, DType::f32, Shape{1, most + 1});
  TensorView b = View(&one, DType::f32, Shape{most + 1, 1});
  a.stride = b.stride = {};
  const std::string text = error_of([&] { Gemm(a, b, accumulator, view(out, {1, 1})); });
  EXPECT_EQ(text, "a stochastic product takes at most " + std::to_string(most) +
                      " values of k with these options, got " + std::to_string(most + 1));
  EXPECT_EQ(out[0], -7.0f);
}

TEST(GemmErrors, AccumulatorsThatDoNotFit) {
  const std::vector<float> a(16), b(16), out(16);
  const Shape square = {4, 4};
  const auto message = [&](const Accumulator& accumulator) {
    return error_of(
        [&] { Gemm(view(a, square), view(b, square), accumulator, view(out, square)); });
  };
  Accumulator chunks = accumulator_of("e4m3", Scheme::chunked);
  for (const std::int64_t chunk : {std::int64_t{0}, std::int64_t{-1}}) {
    chunks.chunk = chunk;
    EXPECT_NE(message(chunks).find(std::to_string(chunk)), std::string::npos) << message(chunks);
  }
  for (const int bits : {0, 25, -3}) {
    Accumulator stochastic = accumulator_of("e4m3");
    stochastic.rounding.mode = Rounding::stochastic;
    stochastic.rounding.random_bits = bits;
    EXPECT_NE(message(stochastic).find(std::to_string(bits)), std::string::npos);
  }
  Accumulator both = accumulator_of("e4m3");
  both.product = ParseFormat("e5m2");
  both.exact_products = true;
  EXPECT_NE(message(both), "") << "a product format and exact products";
  Accumulator inner = accumulator_of("e4m3");
  inner.inner = ParseFormat("e5m2");
  EXPECT_NE(message(inner), "") << "an inner format without chunks";
  EXPECT_NE(message(accumulator_of("e4m3", Scheme::block_fma)), "") << "block_fma without a unit";
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

TEST(GemmErrors, PartsThatCannotGoOn) {
  const std::vector<float> x(4);
  const std::vector<float> y(4);
  const std::array<std::int64_t, 2> square{2, 2};
  const TensorView a = View(x.data(), DType::f32, square);
  const TensorView out = View(y.data(), DType::f32, square);
  const auto refuse = [&](const char* text, const GemmPart& part, const std::string& why) {
    try {
      Gemm(a, a, ParseAccumulator(text), out, nullptr, part);
      ADD_FAILURE() << "no error for " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  const std::string goes_on = "only sequential sums go on from any product";
  refuse("e4m3 pairwise", {.product = 2}, goes_on);
  refuse("e4m3 kahan", {.product = 2}, goes_on);
  refuse("e4m3 chunked chunk=4", {.product = 2}, goes_on);
  refuse("e4m3 sequential", {.product = -1}, goes_on);
  refuse("e4m3 sequential rounding=stochastic", {.product = std::int64_t{1} << 40},
         "values of k with these");
  refuse("e4m3 sequential rounding=stochastic",
         {.product = std::numeric_limits<std::int64_t>::max()}, "values of k with these");
  refuse("e4m3 sequential", {.element = -1}, "a part's elements must be numbers below 2^40");
  refuse("e4m3 sequential", {.element = std::int64_t{1} << 40}, "must be numbers below 2^40");
}

TEST(GemmErrors, UnknownNames) {
  const std::string unknown = error_of([] { ParseName<Scheme>("scheme", "kahn"); });
  EXPECT_NE(unknown.find("kahn"), std::string::npos);
  EXPECT_NE(unknown.find("pairwise"), std::string::npos);
  EXPECT_NE(error_of([] { Preset("h1000"); }).find("h1000"), std::string::npos);
}

}  // namespace
}  // namespace cpd
