// SPDX-License-Identifier: Apache-2.0
//
// Tests merged dimensions, strips and boxes. Strips and boxes are the ranges in which kernels visit
// the elements of a strided tensor. Kernels must visit the elements that a loop over single
// elements visits, in the same order. The random integers of a box must be the integers of its
// single elements.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "cpd/backend/cpu/boxes.h"
#include "cpd/base/plans.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

/// Returns a view of a tensor with this shape. Dimension order[0] is the outermost in memory.
TensorView InMemory(const std::vector<std::int64_t>& shape, const std::vector<int>& order) {
  TensorView x = View(nullptr, DType::f32, shape);
  std::int64_t stride = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    x.stride[static_cast<std::size_t>(*d)] = stride;
    stride *= shape[static_cast<std::size_t>(*d)];
  }
  return x;
}

std::int64_t OffsetOf(const TensorView& x, std::int64_t index) {
  std::int64_t offset = 0;
  for (int d = x.rank - 1; d >= 0; --d) {
    offset += index % x.shape[static_cast<std::size_t>(d)] * x.stride[static_cast<std::size_t>(d)];
    index /= x.shape[static_cast<std::size_t>(d)];
  }
  return offset;
}

TEST(MergedDimensions, KeepTheOrderOfElements) {
  const std::vector<std::vector<std::int64_t>> shapes = {
      {2, 3, 5, 7}, {1, 3, 1, 4}, {6, 1, 1, 1}, {1, 1, 1, 1}, {4, 1, 9, 2}};
  std::vector<int> order = {0, 1, 2, 3};
  do {
    for (const auto& shape : shapes) {
      const TensorView x = InMemory(shape, order);
      const TensorView y = InMemory(shape, {0, 1, 2, 3});
      TensorView a = x, b = y;
      const std::array views = {&a, &b};
      MergeDimensions(views);
      ASSERT_EQ(a.size(), x.size());
      ASSERT_EQ(a.rank, b.rank);
      for (std::int64_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(OffsetOf(a, i), OffsetOf(x, i));
        ASSERT_EQ(OffsetOf(b, i), i);
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
  TensorView one = View(nullptr, DType::f32, std::vector<std::int64_t>{3, 4, 5});
  TensorView* const alone[] = {&one};
  MergeDimensions(alone);
  EXPECT_EQ(one.rank, 1);
}

TEST(StripsOf, CoverOnce) {
  struct Case {
    std::vector<std::int64_t> shape;
    std::vector<int> order;
  };
  for (const Case& c : std::vector<Case>{{{100, 33}, {1, 0}},
                                         {{3, 40, 5}, {0, 2, 1}},
                                         {{2, 3, 17, 4}, {0, 3, 1, 2}},
                                         {{64, 2}, {1, 0}},
                                         {{5, 1, 70}, {2, 1, 0}}}) {
    const TensorView x = InMemory(c.shape, c.order);
    TensorView merged = x;
    TensorView* const views[] = {&merged};
    MergeDimensions(views);
    const std::int64_t height = merged.shape[static_cast<std::size_t>(merged.rank) - 2];
    for (const std::int64_t multiple : {1, 3, 32, 100}) {
      const Strips strips(x, 20, multiple);
      ASSERT_TRUE(strips.fit());
      for (std::int64_t i = 0; i < x.size();) {
        const Strips::Strip strip = strips.of(i);
        ASSERT_EQ(strip.begin, i);
        ASSERT_EQ(strip.size, strip.box.rows * strip.box.columns);
        const bool is_last = OffsetOf(x, i) % height + strip.box.rows == height;
        ASSERT_TRUE(is_last || strip.box.rows % multiple == 0) << multiple;
        ASSERT_EQ(strips.of(i + strip.size - 1).begin, i);
        for (std::int64_t k = 0; k < strip.size; ++k) {
          const std::int64_t row = k / strip.box.columns, column = k % strip.box.columns;
          ASSERT_EQ(
              strip.box.offset + row * strip.box.row_stride + column * strip.box.column_stride,
              OffsetOf(x, i + k));
        }
        i += strip.size;
      }
    }
  }
}

TEST(StripsOf, OnlyWhatIsContiguousBeforeTheLastDimension) {
  EXPECT_FALSE(Strips(InMemory({3, 4}, {0, 1}), 16, 1).fit());
  EXPECT_FALSE(Strips(InMemory({7}, {0}), 16, 1).fit());
  EXPECT_FALSE(Strips(InMemory({3, 4, 5}, {2, 1, 0}), 16, 1).fit());
  EXPECT_FALSE(Strips(InMemory({64, std::int64_t{1} << 20}, {1, 0}), 16, 1).fit());  // too large
  EXPECT_TRUE(Strips(InMemory({64, 40}, {1, 0}), 16, 1).have(64, 40));
  EXPECT_FALSE(Strips(InMemory({64, 40}, {1, 0}), 16, 1).have(40, 64));
}

TEST(StripReaders, ReadRangesAcrossStrips) {
  const TensorView x = InMemory({50, 6}, {1, 0});
  const Strips strips(x, 16, 1);
  std::vector<float> kept;
  int reads = 0;
  const auto read = [&](const Box& box) {
    ++reads;
    kept.resize(static_cast<std::size_t>(box.rows * box.columns));
    for (std::int64_t k = 0; k < box.rows * box.columns; ++k) {
      const std::int64_t row = k / box.columns, column = k % box.columns;
      const std::int64_t at = box.offset + row * box.row_stride + column * box.column_stride;
      kept[static_cast<std::size_t>(k)] = static_cast<float>(at);
    }
    return kept.data();
  };
  StripReader<float> reader(strips);
  std::vector<float> buffer;
  for (const std::int64_t n : {1, 5, 97, 98, 299}) {
    for (std::int64_t begin = 0; begin + n <= 300; ++begin) {
      const float* values = reader.Read(read, begin, n, buffer);
      for (std::int64_t k = 0; k < n; ++k) {
        ASSERT_EQ(values[k], static_cast<float>(OffsetOf(x, begin + k))) << begin << " " << n;
      }
    }
  }
  reads = 0;
  StripReader<float> again(strips);
  for (std::int64_t i = 0; i < 300; i += 6) again.Read(read, i, 6, buffer);
  EXPECT_EQ(reads, 4);
}

TEST(IntegersOfBoxes, AreThoseOfTheirIndices) {
  for (const int bits : {7, 8, 16, 24}) {
    RoundingOptions o{.mode = Rounding::stochastic, .random_bits = bits};
    const RoundPlan plan = PlanOf(MakeFormat(4, 3), o, testing::kKey);
    const auto all = testing::run_random_integers(o, 9000, 0, testing::kKey);
    BoxIntegers integers(plan);
    const std::vector<Box> boxes = {{0, 1, 1, 1, 1},        {5, 1, 300, 300, 1},
                                    {256, 3, 256, 256, 1},  {77, 9, 70, 700, 1},
                                    {300, 40, 50, 1, 128},  {1023, 515, 3, 1, 2000},
                                    {512, 256, 16, 1, 512}, {11, 20, 30, 1, 20}};
    for (const Box& box : boxes) {
      const std::uint32_t* got = integers.Read(box);
      for (std::int64_t r = 0; r < box.rows; ++r) {
        for (std::int64_t c = 0; c < box.columns; ++c) {
          const std::int64_t at = box.offset + r * box.row_stride + c * box.column_stride;
          ASSERT_EQ(got[r * box.columns + c], all[static_cast<std::size_t>(at)])
              << bits << " bits, " << at;
        }
      }
    }
  }
}

}  // namespace
}  // namespace cpd
