// SPDX-License-Identifier: Apache-2.0
//
// Tests the short conversions of bf16 and fp16 that kernels use: for every code, they give the
// results of the rounding kernel. Tests also that several codes packed in one integer agree with
// the definition of packing.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/elements.h"
#include "tests/testing/bits.h"

namespace cpd {
namespace {

using testing::bits_of;

template <DType type>
void ExpectTheRoundingKernels() {
  constexpr RoundPlan plan = cuda::half_plan<type>();
  for (std::uint32_t i = 0; i < 1 << 16; ++i) {
    const auto code = static_cast<std::uint16_t>(i);
    const auto value = value_of_code<float>(i, plan);
    ASSERT_EQ(bits_of(cuda::widen<type>(code)), bits_of(value)) << i;
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(cuda::widen_code<type>(code))) << i;
    } else {
      ASSERT_EQ(cuda::code_of_held<type>(value), code) << i;
      ASSERT_EQ(cuda::narrow<type>(value), code) << i;
    }
  }
  const auto nan = testing::from_bits(Pattern<float>::quiet_nan);
  ASSERT_EQ(cuda::code_of_held<type>(nan), cuda::narrow<type>(nan));
}

/// Tests random values of any exponent. The values lie between codes of the type, and some of them
/// are ties.
template <DType type>
void ExpectNearest() {
  constexpr RoundPlan plan = cuda::half_plan<type>();
  std::mt19937 random(11);
  for (int i = 0; i < 1 << 20; ++i) {
    const std::uint32_t low = i % 4 == 0 ? 0x8000U : i % 4 == 1 ? 0x1000U : random() & 0xFFFFU;
    const float x = testing::from_bits((random() & 0xFFFF0000U) | low);
    const auto code = round_to_whole_code<Rounding::nearest_even>(x, 0U, plan);
    ASSERT_EQ(cuda::narrow<type>(x), code) << bits_of(x);
  }
}

TEST(Elements, OthersAreRoundedToNearest) {
  ExpectNearest<DType::bf16>();
  ExpectNearest<DType::f16>();
}

TEST(Elements, Bf16) { ExpectTheRoundingKernels<DType::bf16>(); }
TEST(Elements, Fp16) {
  ExpectTheRoundingKernels<DType::f16>();
  // If a product of floats is NaN on a GPU, its pattern is 0x7FFFFFFF.
  EXPECT_EQ(cuda::code_of_held<DType::f16>(testing::from_bits(0x7FFFFFFF)), 0x7E00);
}

template <DType type>
void ExpectFour() {
  cuda::Pack<type> pack;
  const std::array<float, 4> values = {1.5F, -0.0F, -2.0F, 0x1p-14F};
  pack.set(values[0], values[1], values[2], values[3]);
  std::array<std::uint16_t, 4> memory{};
  for (int i = 0; i < 4; ++i) {
    const float value = values.at(static_cast<std::size_t>(i));
    EXPECT_EQ(bits_of(pack.get(i)), bits_of(value));
    if constexpr (type == DType::f32) continue;
    cuda::set_value_of<type>(memory.data(), i, value);
    EXPECT_EQ(bits_of(cuda::value_of<type>(memory.data(), i)), bits_of(value));
  }
  const cuda::Pack<type> doubled =
      cuda::changed<cuda::Stored::held>(pack, [](float v) { return 2 * v; });
  for (int i = 0; i < 4; ++i) EXPECT_EQ(bits_of(doubled.get(i)), bits_of(2 * pack.get(i)));
}

TEST(Elements, PacksHaveFourValues) {
  ExpectFour<DType::f32>();
  ExpectFour<DType::bf16>();
  ExpectFour<DType::f16>();
}

TEST(Elements, ShortCodesArePackedByTheDefinition) {
  std::mt19937 random(7);
  for (int bits = 1; bits <= 8; ++bits) {
    for (int round = 0; round < 200; ++round) {
      std::array<std::uint32_t, 8> codes{};
      for (std::uint32_t& code : codes) code = random() % (1U << bits);
      std::array<std::uint8_t, 9> expected{};
      std::array<std::uint8_t, 9> packed{};
      expected.fill(0xA5);
      packed.fill(0xA5);
      pack_group(codes.data(), 8, bits, expected.data());
      cuda::pack_short(codes.data(), bits, packed.data());
      ASSERT_EQ(packed, expected) << bits;
      std::array<std::uint32_t, 8> back{};
      cuda::unpack_short(packed.data(), bits, back.data());
      ASSERT_EQ(back, codes) << bits;
    }
  }
}

}  // namespace
}  // namespace cpd
