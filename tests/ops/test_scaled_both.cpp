// SPDX-License-Identifier: Apache-2.0
//
// Tests casts of scaled formats that write more than one result: casts along two axes, and casts
// that write the scales separately.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cpd/ops/codec.h"
#include "cpd/ops/scaled.h"

namespace cpd {
namespace {

using Floats = std::vector<float>;

constexpr std::int64_t kRows = 48, kColumns = 80;
const std::vector<std::int64_t> kShape = {kRows, kColumns};

Floats Values() {
  Floats x(kRows * kColumns);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(static_cast<int>(i * 7919 % 1000) - 500) / 77.0F;
  }
  return x;
}

TensorView ViewOf(const Floats& x) { return View(x.data(), DType::f32, kShape); }

/// CastBoth must give the results of two casts, also if its second result is a transposed view.
TEST(ScaledBoth, IsTwoCasts) {
  const Floats x = Values();
  const RoundingOptions options{.overflow = Overflow::saturate};
  for (const char* text : {"mxfp8", "nvfp4", "fp8-row", "fp8-block 16x16"}) {
    for (const bool turned : {false, true}) {
      const Scaled scaled = ParseScaled(text);
      Floats rows(x.size()), columns(x.size()), first(x.size()), second(x.size());
      const auto as = [&](const Floats& y) {
        TensorView view = ViewOf(y);
        if (turned) view.stride[0] = 1;
        if (turned) view.stride[1] = kRows;
        return view;
      };
      Cast(ViewOf(x), scaled, 1, options, ViewOf(rows));
      Cast(ViewOf(x), scaled, 0, options, as(columns));
      CastBoth(ViewOf(x), scaled, {-1, 0}, options, ViewOf(first), as(second));
      EXPECT_EQ(first, rows) << text;
      EXPECT_EQ(second, columns) << text;
    }
  }
}

/// Each value of the cast is the element times its scale.
TEST(ScaledApart, TimesTheScaleIsTheCast) {
  const Floats x = Values();
  const RoundingOptions options{.overflow = Overflow::saturate};
  for (const char* text : {"mxfp8", "nvfp4", "nvfp4 outer=row"}) {
    const Scaled scaled = ParseScaled(text);
    const BlockShape level = scaled.tensor_scale ? BlockShape{.kind = scaled.outer} : scaled.block;
    const std::vector<std::int64_t> grid = ScaleGrid(level, kShape, 1);
    const std::int64_t across = grid.empty() ? 1 : grid[1];
    Floats scales(static_cast<std::size_t>(grid.empty() ? 1 : grid[0] * grid[1]));
    Floats values(x.size()), apart(x.size());
    Cast(ViewOf(x), scaled, 1, options, ViewOf(values));
    CastApart(ViewOf(x), scaled, 1, options, ViewOf(apart), View(scales));
    for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
      const std::int64_t row = grid.empty() ? 0 : i / kColumns;
      const std::int64_t wide = scaled.tensor_scale ? kColumns : scaled.block.columns;
      const float scale = scales[static_cast<std::size_t>(row * across + i % kColumns / wide)];
      ASSERT_EQ(apart[static_cast<std::size_t>(i)] * scale, values[static_cast<std::size_t>(i)])
          << text << ", " << i;
    }
  }
}

/// The one block of an empty tensor has the scale 0, and its outer scale is 1.
TEST(ScaledEmpty, HasScales) {
  const TensorView none = View(nullptr, DType::f32, 0), no_codes = View(nullptr, DType::u8, 0);
  const std::vector<std::int64_t> shape{0};
  const auto decoded = [](const Format& format, const TensorView& codes) {
    Floats one(1, 7);
    Decode(codes, format, View(one));
    return one[0];
  };
  std::vector<std::uint8_t> codes(4, 7);
  const TensorView written = View(codes.data(), DType::u8, 4);
  const Scaled one_level = ParseScaled("fp8-tensor"), two_levels = ParseScaled("nvfp4");
  ASSERT_EQ(CountScales(one_level, shape, 0).blocks, 1);
  Encode(none, one_level, 0, {}, no_codes, written, nullptr);
  EXPECT_EQ(decoded(one_level.scale, written), 0);
  ASSERT_EQ(CountScales(two_levels, shape, 0).tensor, 1);
  Encode(none, two_levels, 0, {}, no_codes, no_codes, &written);
  EXPECT_EQ(decoded(*two_levels.tensor_scale, written), 1);
}

}  // namespace
}  // namespace cpd
