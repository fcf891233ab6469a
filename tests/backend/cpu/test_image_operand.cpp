// SPDX-License-Identifier: Apache-2.0
//
// Tests the operands of a convolution's matrix product, which are read from the images in place.
// Every range of every operand matrix must hold the values that the definition of a convolution's
// windows gives.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "cpd/backend/cpu/image_operand.h"
#include "tests/testing/bits.h"
#include "tests/testing/gemm_cases.h"
#include "tests/testing/windows.h"

namespace cpd {
namespace {

using testing::drawn_windows;
using testing::Layout;
using testing::one_of;
using testing::operands;
using testing::Shape;
using testing::Tensor;
using testing::under;
using testing::Values;

constexpr std::array kTypes = {DType::f32, DType::bf16, DType::f16};

struct Drawn {
  std::mt19937 draw;
  int rank = 1;
  Windows windows;
  Shape shape;
  std::int64_t groups = 1;

  Drawn(unsigned seed, bool spread) : draw(seed) {
    rank = static_cast<int>(one_of(draw, 1, 3));
    windows = drawn_windows(draw, rank, spread);
    groups = one_of(draw, 1, 3);
    shape = {one_of(draw, 1, 3), groups * one_of(draw, 1, 3)};
    for (int d = 0; d < rank; ++d) shape.push_back(one_of(draw, 1, 7));
  }
  Tensor image(unsigned seed) {
    const auto layout = testing::kLayouts[draw() % testing::kLayouts.size()];
    const std::vector<float> values =
        operands(Values::on_grid, ParseFormat("e4m3"),
                 static_cast<std::size_t>(testing::count_of(shape)), seed);
    return {shape, values, layout, kTypes[draw() % kTypes.size()]};
  }
};

void check_parts(const ImageOperand& operand, ImageOperand::Batch batch, ImageOperand::Rows rows,
                 Drawn& drawn, const Tensor& image, unsigned seed) {
  const std::int64_t channels = drawn.shape[1] / drawn.groups;
  const std::int64_t taps = drawn.windows.taps();
  const std::int64_t places = drawn.windows.places();
  const bool all_images = batch == ImageOperand::Batch::groups;
  const std::int64_t windows = places * (all_images ? drawn.shape[0] : 1);
  const std::int64_t matrices = drawn.groups * (all_images ? 1 : drawn.shape[0]);
  const bool turned = rows == ImageOperand::Rows::windows;
  ImageBuffer buffer;
  for (int part = 0; part < 4; ++part) {
    const std::int64_t number = one_of(drawn.draw, 0, matrices - 1);
    const std::int64_t term = one_of(drawn.draw, 0, channels * taps - 1);
    const std::int64_t terms = one_of(drawn.draw, 1, channels * taps - term);
    const std::int64_t first = one_of(drawn.draw, 0, windows - 1);
    const std::int64_t count = one_of(drawn.draw, 1, windows - first);
    const TensorView got = turned ? operand.Read(number, first, count, term, terms, buffer)
                                  : operand.Read(number, term, terms, first, count, buffer);
    for (std::int64_t t = 0; t < terms; ++t) {
      for (std::int64_t w = 0; w < count; ++w) {
        const std::int64_t window = first + w;
        const std::int64_t of = all_images ? window / places : number / drawn.groups;
        const std::int64_t channel = number % drawn.groups * channels + (term + t) / taps;
        const float wanted =
            under(image, drawn.windows, of, channel, (term + t) % taps, window % places);
        const std::int64_t at =
            turned ? w * got.stride[0] + t * got.stride[1] : t * got.stride[0] + w * got.stride[1];
        ASSERT_TRUE(testing::same_bits(static_cast<const float*>(got.data)[at], wanted))
            << "seed " << seed << ", term " << term + t << ", window " << window;
      }
    }
  }
}

TEST(ImageOperand, PartsAreWhatTheDefinitionSays) {
  for (unsigned seed = 0; seed < 600; ++seed) {
    Drawn drawn(seed, seed % 2 == 0);
    const Tensor image = drawn.image(seed + 1);
    for (const auto batch : {ImageOperand::Batch::groups, ImageOperand::Batch::images_and_groups}) {
      for (const auto rows : {ImageOperand::Rows::terms, ImageOperand::Rows::windows}) {
        const ImageOperand operand(image.view(), drawn.groups, drawn.windows, batch, rows);
        check_parts(operand, batch, rows, drawn, image, seed);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(ImageOperand, PutsResultsInPlace) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    Drawn drawn(seed, false);
    const Tensor image = drawn.image(seed + 1);
    const Tensor result(drawn.shape, std::vector<float>(image.values().size(), -7.0f),
                        testing::kLayouts[seed % testing::kLayouts.size()],
                        kTypes[seed % kTypes.size()]);
    Windows windows;
    windows.rank = drawn.rank;
    for (std::size_t d = 0; d < static_cast<std::size_t>(drawn.rank); ++d) {
      windows.axes[d].places = drawn.shape[d + 2];
    }
    constexpr auto kTerms = ImageOperand::Rows::terms;
    constexpr auto kGroups = ImageOperand::Batch::groups;
    const ImageOperand from(image.view(), drawn.groups, windows, kGroups, kTerms);
    const ImageOperand to(result.view(), drawn.groups, windows, kGroups, kTerms);
    ImageBuffer buffer;
    ImageBuffer other;
    const std::int64_t channels = drawn.shape[1] / drawn.groups;
    const std::int64_t columns = windows.places() * drawn.shape[0];
    const std::int64_t cut = columns / 2;
    for (std::int64_t group = 0; group < drawn.groups; ++group) {
      const TensorView values = from.Read(group, 0, channels, 0, columns, buffer);
      const auto* data = static_cast<const float*>(values.data);
      to.Write(group, 0, channels, 0, cut, data, columns, other);
      to.Write(group, 0, channels, cut, columns - cut, data + cut, columns, other);
    }
    // e4m3 is used because every tensor type holds its values exactly.
    ASSERT_TRUE(testing::bits_equal<float>(image.values(), result.read())) << seed;
    ASSERT_TRUE(result.gaps_untouched());
  }
}

}  // namespace
}  // namespace cpd
