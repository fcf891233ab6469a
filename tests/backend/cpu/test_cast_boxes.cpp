// SPDX-License-Identifier: Apache-2.0
//
// Tests that a cast of a transposed tensor gives the oracle's value for each element. Shapes lie
// around the size of a box, the range of elements that a kernel visits at once. The cases also vary
// the types, the number of threads, and the memory order of x, `out` and the caller's random
// integers. Some casts are in place.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "cpd/ops/cast.h"
#include "cpd/ops/scaled.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

using testing::view_of;
using Shape = std::vector<std::int64_t>;
using Floats = std::vector<float>;
using Integers = std::vector<std::uint32_t>;

class BoxesOn : public testing::OnBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, BoxesOn, ::testing::ValuesIn(testing::kBuiltBackends),
                         [](const auto& test) { return std::string(test.param); });

/// Sets the strides of x for a tensor whose dimension order[0] is the outermost in memory. `gap`
/// elements stay unused after each innermost row.
void Reorder(TensorView& x, const std::vector<int>& order, std::int64_t gap = 0) {
  std::int64_t stride = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    x.stride[static_cast<std::size_t>(*d)] = stride;
    stride = stride * x.shape[static_cast<std::size_t>(*d)] + (d == order.rbegin() ? gap : 0);
  }
}

/// Returns the offset in memory of the element with the row-major number `index`.
std::size_t PlaceOf(const TensorView& x, std::int64_t index) {
  std::int64_t offset = 0;
  for (int d = x.rank - 1; d >= 0; --d) {
    offset += index % x.shape[static_cast<std::size_t>(d)] * x.stride[static_cast<std::size_t>(d)];
    index /= x.shape[static_cast<std::size_t>(d)];
  }
  return static_cast<std::size_t>(offset);
}

/// Returns memory in which the view x finds `values`, given in row-major order. All memory between
/// the elements of x holds `rest`.
template <class T>
std::vector<T> Placed(const std::vector<T>& values, const TensorView& x, T rest) {
  std::vector<T> memory(PlaceOf(x, x.size() - 1) + 1, rest);
  for (std::size_t i = 0; i < values.size(); ++i) {
    memory[PlaceOf(x, static_cast<std::int64_t>(i))] = values[i];
  }
  return memory;
}

auto Same(const Floats& expected, const Floats& got) {
  return testing::bits_equal(std::span<const float>(expected), std::span<const float>(got));
}

RoundingOptions Stochastic(int bits) { return {.mode = Rounding::stochastic, .random_bits = bits}; }

struct Case {
  Shape shape;
  std::vector<std::vector<int>> orders;
};
const std::vector<std::vector<int>> kPlane = {{0, 1}, {1, 0}};
const std::vector<Case> kCases = {
    {{65, 513}, kPlane},
    {{64, 256}, kPlane},
    {{17, 700}, kPlane},
    {{300, 3}, kPlane},
    {{1, 40}, kPlane},
    {{40, 1}, kPlane},
    {{3, 66, 31}, {{0, 1, 2}, {0, 2, 1}, {2, 0, 1}, {2, 1, 0}, {1, 2, 0}}},
    {{2, 5, 9, 7}, {{0, 1, 2, 3}, {0, 2, 3, 1}, {3, 2, 1, 0}}},
    {{0, 5}, kPlane}};

/// The inputs, the oracle's results, and the random integers that the oracle used.
struct Expected {
  Floats x, y;
  Integers random;
};

Expected ExpectedOf(const Format& format, const Shape& shape, const RoundingOptions& o,
                    const Format* held = nullptr) {
  std::int64_t n = 1;
  for (const std::int64_t extent : shape) n *= extent;
  Expected all;
  all.x = testing::mixed_values(reference::spec_of(format), static_cast<std::size_t>(n), 9);
  if (held != nullptr) all.x = testing::run_cast(all.x, *held, {});
  all.random.resize(all.x.size());
  if (o.mode == Rounding::stochastic)
    all.random = testing::run_random_integers(o, all.x.size(), 0, testing::kKey);
  all.y = testing::oracle_cast(all.x, format, o, &all.random);
  return all;
}

TEST_P(BoxesOn, AreTheOracle) {
  const Format format = ParseFormat("e4m3");
  for (const Case& c : kCases) {
    for (const RoundingOptions& o :
         {RoundingOptions{}, RoundingOptions{.mode = Rounding::up}, Stochastic(7), Stochastic(8),
          Stochastic(16), Stochastic(24)}) {
      const Expected all = ExpectedOf(format, c.shape, o);
      if (all.x.empty()) {
        const TensorView none = View(nullptr, DType::f32, c.shape);
        Cast(none, format, o, none, testing::kKey);
        continue;
      }
      for (const auto& in : c.orders) {
        for (const auto& to : c.orders) {
          for (const std::int64_t gap : {0, 3}) {
            TensorView x = View(nullptr, DType::f32, c.shape), y = x;
            Reorder(x, in, gap);
            Reorder(y, to, 2 * gap);
            const Floats from = Placed(all.x, x, 1.0F);
            Floats made = Placed(all.x, y, 7.0F);
            const Floats wanted = Placed(all.y, y, 7.0F);
            x.data = const_cast<float*>(from.data());
            y.data = made.data();
            Cast(x, format, o, y, testing::kKey);
            ASSERT_TRUE(Same(wanted, made))
                << testing::describe(format, o) << ", " << c.shape[0] << " x " << c.shape[1];
            if (in != to) continue;
            Floats here = Placed(all.x, x, 7.0F);
            x.data = here.data();
            Cast(x, format, o, x, testing::kKey);
            ASSERT_TRUE(Same(Placed(all.y, x, 7.0F), here)) << "in place";
          }
        }
      }
    }
  }
}

TEST_P(BoxesOn, TakeACallersIntegers) {
  const Format format = ParseFormat("e5m2");
  const RoundingOptions o = Stochastic(16);
  for (const Case& c : kCases) {
    const Expected all = ExpectedOf(format, c.shape, o);
    if (all.x.empty()) continue;
    for (const auto& in : c.orders) {
      for (const auto& of_random : c.orders) {
        for (const auto& to : c.orders) {
          TensorView x = View(nullptr, DType::f32, c.shape), y = x;
          TensorView random = View(nullptr, DType::u32, c.shape);
          Reorder(x, in);
          Reorder(y, to);
          Reorder(random, of_random);
          Floats from = Placed(all.x, x, 1.0F), made(from.size());
          Integers integers = Placed(all.random, random, 0U);
          x.data = from.data();
          y.data = made.data();
          random.data = integers.data();
          RoundingOptions other = o;
          Cast(x, format, other, y, {}, &random);
          ASSERT_TRUE(Same(Placed(all.y, y, 7.0F), made));
        }
      }
    }
  }
}

template <class T>
void ExpectOfType(DType in, DType to, const Format& held, const Format& format) {
  for (const Case& c : kCases) {
    for (const RoundingOptions& o : {RoundingOptions{}, Stochastic(8)}) {
      const Expected all = ExpectedOf(format, c.shape, o, &held);
      if (all.x.empty()) continue;
      for (const auto& x_order : c.orders) {
        for (const auto& y_order : c.orders) {
          TensorView x = View(nullptr, in, c.shape), y = View(nullptr, to, c.shape);
          TensorView wide = View(nullptr, DType::f32, c.shape);
          Reorder(x, x_order);
          Reorder(y, y_order);
          std::vector<T> from(all.x.size());
          x.data = from.data();
          Cast(View(all.x.data(), DType::f32, c.shape), held, {}, x);
          std::vector<std::uint64_t> made(all.x.size());
          y.data = made.data();
          Cast(x, format, o, y, testing::kKey);
          Floats got(all.x.size());
          wide.data = got.data();
          Cast(y, kFp32, {}, wide);
          ASSERT_TRUE(Same(all.y, got)) << ToString(in) << " to " << ToString(to);
        }
      }
    }
  }
}

TEST_P(BoxesOn, OfEveryType) {
  const Format e4m3 = ParseFormat("e4m3");
  ExpectOfType<std::uint16_t>(DType::bf16, DType::bf16, ParseFormat("bf16"), e4m3);
  ExpectOfType<std::uint16_t>(DType::f16, DType::f16, ParseFormat("fp16"), e4m3);
  ExpectOfType<std::uint16_t>(DType::bf16, DType::f32, ParseFormat("bf16"), e4m3);
  ExpectOfType<float>(DType::f32, DType::f16, kFp32, e4m3);
  ExpectOfType<double>(DType::f64, DType::f64, kFp32, e4m3);
}

/// Tests shapes that are large enough for several threads, for boxes (ranges that a kernel visits
/// at once), and for stores that bypass the caches. One shape divides into whole boxes, the other
/// does not.
TEST(BoxesOnThreads, ChangeNothing) {
  const Format format = ParseFormat("e4m3");
  for (const Shape& shape : {Shape{1100, 2064}, Shape{1280, 2048}}) {
    for (const RoundingOptions& o : {RoundingOptions{}, Stochastic(8)}) {
      const Expected all = ExpectedOf(format, shape, o);
      for (const char* threads : {"1", "3"}) {
        setenv("CPD_NUM_THREADS", threads, 1);
        for (const auto& in : kPlane) {
          for (const auto& to : kPlane) {
            TensorView x = View(nullptr, DType::f32, shape), y = x;
            Reorder(x, in);
            Reorder(y, to);
            Floats from = Placed(all.x, x, 1.0F), made(from.size(), 7.0F);
            x.data = from.data();
            y.data = made.data();
            Cast(x, format, o, y, testing::kKey);
            EXPECT_TRUE(Same(Placed(all.y, y, 7.0F), made))
                << threads << " threads, " << testing::describe(format, o);
          }
        }
        unsetenv("CPD_NUM_THREADS");
      }
    }
  }
}

/// Compares scaled casts of transposed tensors with scaled casts of contiguous tensors. The tests
/// of scaled formats compare the contiguous casts with the definition. Some threads begin within a
/// strip (a range of whole rows) or within a block of the scaled format.
TEST(BoxesOnThreads, OfScaledFormats) {
  for (const Shape& shape : {Shape{300, 1100}, Shape{1100, 300}}) {
    const std::int64_t n = shape[0] * shape[1];
    const Floats values = testing::mixed_values(reference::spec_of(ParseFormat("e4m3")),
                                                static_cast<std::size_t>(n), 9);
    TensorView x = View(nullptr, DType::f32, shape), y = x;
    Reorder(x, {1, 0});
    const Floats from = Placed(values, x, 1.0F);
    x.data = const_cast<float*>(from.data());
    for (const char* text : {"mxfp8", "e4m3fn row scale=fp32", "nvfp4", "e4m3fn 48 scale=fp32"}) {
      for (const int axis : {0, 1}) {
        RoundingOptions o = Stochastic(8);
        o.overflow = Overflow::saturate;
        Floats wanted(values.size());
        Cast(View(values.data(), DType::f32, shape), ParseScaled(text), axis, o,
             View(wanted.data(), DType::f32, shape), {}, testing::kKey);
        for (const char* threads : {"1", "3"}) {
          setenv("CPD_NUM_THREADS", threads, 1);
          for (const auto& to : kPlane) {
            Reorder(y, to);
            Floats made(values.size(), 7.0F);
            y.data = made.data();
            Cast(x, ParseScaled(text), axis, o, y, {}, testing::kKey);
            EXPECT_TRUE(Same(Placed(wanted, y, 7.0F), made)) << text << " along " << axis;
          }
          unsetenv("CPD_NUM_THREADS");
        }
      }
    }
  }
}

}  // namespace
}  // namespace cpd
