// SPDX-License-Identifier: Apache-2.0
//
// Tests Cast and Encode of scaled formats where binary32 or bfloat16 cannot hold every intermediate
// result. The cases are scales of all sizes, given scales of 0, and results in bfloat16.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "cpd/numeric/scaled/scaled_elements.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/scaled.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

using testing::kInf;
using testing::view_of;
using Floats = std::vector<float>;
using Bytes = std::vector<std::uint8_t>;

class ScaledExtremes : public testing::OnBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, ScaledExtremes, ::testing::ValuesIn(testing::kBuiltBackends),
                         [](const auto& test) { return std::string(test.param); });

RoundingOptions SaturatingNearest() {
  RoundingOptions o;
  o.overflow = Overflow::saturate;
  return o;
}

/// Returns blocks of four values. The first value of each block has the largest magnitude, from 2^e
/// to 2^(e + 1).
Floats NearPower(int e, std::size_t n) {
  std::mt19937_64 bits(static_cast<std::uint64_t>(e + 200));
  std::uniform_real_distribution<double> size(0.0, 2.0);
  Floats x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const double magnitude = i % 4 == 0 ? std::ldexp(1 + size(bits) / 2, e)
                                        : std::ldexp(size(bits), e - 1 - static_cast<int>(i % 9));
    const auto value = static_cast<float>(std::min(magnitude, 0x1.FFFFFEp127));
    x[i] = i % 3 == 0 ? -value : value;
  }
  return x;
}

/// Encodes x, which has blocks of four values, in the scaled format. Returns the blocks' scales.
Floats ScalesOf(const Floats& x, const Scaled& scaled) {
  const auto n = static_cast<std::int64_t>(x.size());
  Bytes codes(static_cast<std::size_t>(PackedBytes(scaled.element, n)));
  Bytes scales(static_cast<std::size_t>(PackedBytes(scaled.scale, n / 4)));
  Encode(view_of(x), scaled, -1, SaturatingNearest(), view_of(codes), view_of(scales), nullptr);
  return testing::run_decode(scales, scaled.scale, x.size() / 4);
}

/// Replaces all but the first value of each block. Divided by the scale, the new values lie next to
/// ties between values of the element format.
void MakeNearTies(Floats& x, const Floats& scales, const Format& element) {
  std::mt19937_64 bits(7);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i % 4 == 0) continue;
    const auto code = static_cast<std::uint32_t>(bits() % (element.max_code() / 2));
    const double tie = (element.magnitude(code) + element.magnitude(code + 1)) / 2;
    const auto near = static_cast<float>(tie * scales[i / 4]);
    if (near < std::fabs(x[i / 4 * 4])) x[i] = i % 3 == 0 ? -near : near;
  }
}

/// Each element must be the exact quotient of the value and its block's scale, rounded once, for
/// scales of any size.
TEST_P(ScaledExtremes, ScalesOfAllSizes) {
  constexpr std::size_t kCount = 64;
  for (const char* text : {"e4m3fn 4 scale=fp32", "e5m2 4 scale=fp32", "e2m1 4 scale=fp32",
                           "int8 4 scale=fp32", "e4m3fn 4 scale=bf16 rule=up", "mxfp8 block=4"}) {
    const Scaled scaled = ParseScaled(text);
    ASSERT_EQ(scaled.arithmetic, Arithmetic::exact) << text;
    const reference::Spec spec = reference::spec_of(scaled.element);
    for (int e = -149; e <= 127; ++e) {
      Floats x = NearPower(e, kCount);
      const Floats scales = ScalesOf(x, scaled);
      if (e % 2 == 0) MakeNearTies(x, scales, scaled.element);
      Floats values(kCount);
      Cast(view_of(x), scaled, -1, SaturatingNearest(), view_of(values));
      for (std::size_t i = 0; i < kCount; ++i) {
        const double scale = scales[i / 4];
        const double quotient = scale == 0 ? 0.0 * x[i] : divide_to_odd<double>(x[i], scale);
        const auto element = reference::round_exact(
            spec, reference::exact(quotient), testing::oracle_options(SaturatingNearest(), 0));
        const auto expected = static_cast<float>(double{reference::to_float(element)} * scale);
        ASSERT_EQ(testing::bits_of(values[i]), testing::bits_of(expected))
            << text << ", e " << e << ", x " << x[i] << ", scale " << scale;
      }
    }
  }
}

/// Stochastic rounding cuts a quotient to a multiple of 2^-N, and then adds the random integer
/// times 2^-N. Each quotient here lies just below such a multiple m, and is cut to m - 2^-N. If the
/// quotient were rounded to m, the sum would reach the next code; the right code is one lower. The
/// test computes the cut in integers: the greatest c with c * scale <= x * 2^N.
TEST_P(ScaledExtremes, QuotientsJustBelowAStep) {
  constexpr int kBits = 24;
  constexpr std::int64_t kSteps = std::int64_t{1} << kBits;
  const Scaled scaled = ParseScaled("int8 4 scale=fp32");
  RoundingOptions o = SaturatingNearest();
  o.mode = Rounding::stochastic;
  o.random_bits = kBits;
  std::mt19937_64 bits(11);
  std::uniform_real_distribution<float> size(1.0F, 100.0F);
  const float scale = 0x1.5A3C6Ap-3F;
  Floats x;
  std::vector<std::uint32_t> random;
  Bytes expected;
  while (x.size() < 64) {
    const float value = size(bits) * scale;
    const long double quotient = static_cast<long double>(value) * kSteps / scale;
    auto cut = static_cast<std::int64_t>(quotient);
    if (static_cast<long double>(cut) * scale > static_cast<long double>(value) * kSteps) --cut;
    if (quotient - static_cast<long double>(cut) < 1 - 0x1p-11L) continue;
    const std::int64_t integer = (kSteps - (cut + 1) % kSteps) % kSteps;
    x.push_back(value);
    random.push_back(static_cast<std::uint32_t>(integer));
    expected.push_back(static_cast<std::uint8_t>((cut + integer) / kSteps));
  }
  const Floats scales(x.size() / 4, scale);
  const TensorView blocks = view_of(scales);
  const TensorView integers = view_of(random);
  Bytes codes(x.size());
  Bytes packed_scales(4 * scales.size());
  Encode(view_of(x), scaled, -1, o, view_of(codes), view_of(packed_scales), nullptr,
         {.blocks = &blocks}, {}, &integers);
  EXPECT_EQ(codes, expected);
}

/// If the caller gives a scale of 0, each value becomes a zero with the value's sign, even an
/// infinity.
TEST_P(ScaledExtremes, GivenScalesOfZero) {
  const Floats x = {kInf, -kInf, 1, -1, 0, -0.0F, 0x1.FFFFFEp127F, -0x1p-149F};
  const Floats zeros(2, 0.0F);
  const TensorView blocks = view_of(zeros);
  for (const char* text : {"e4m3fn 4 scale=fp32", "e5m2 4 scale=fp32", "e4m3fn 4 scale=e5m2"}) {
    const Scaled scaled = ParseScaled(text);
    for (const Overflow overflow : {Overflow::ieee, Overflow::saturate}) {
      RoundingOptions o;
      o.overflow = overflow;
      Floats values(x.size(), 7);
      Cast(view_of(x), scaled, -1, o, view_of(values), {.blocks = &blocks});
      Bytes codes(x.size(), 0x55);
      Bytes scales(static_cast<std::size_t>(PackedBytes(scaled.scale, 2)));
      Encode(view_of(x), scaled, -1, o, view_of(codes), view_of(scales), nullptr,
             {.blocks = &blocks});
      for (std::size_t i = 0; i < x.size(); ++i) {
        const bool minus = std::signbit(x[i]);
        EXPECT_EQ(testing::bits_of(values[i]), testing::bits_of(minus ? -0.0F : 0.0F))
            << text << ", " << x[i];
        EXPECT_EQ(codes[i], minus ? 0x80 : 0) << text << ", " << x[i];
      }
    }
  }
}

/// If the library reports that bfloat16 holds all values of a scaled format, casts to bfloat16 must
/// equal casts to binary32. The library reports this for formats whose values have few bits.
TEST_P(ScaledExtremes, BfloatsHoldAllValuesOrNot) {
  constexpr std::size_t kCount = 64;
  for (const char* text :
       {"mxfp8 block=4", "nvfp4 block=4", "e4m3fn 4 scale=fp32", "mxint8 block=4",
        "bf16 4 scale=fp32", "e4m3fn 4 scale=bf16", "e2m1 4 scale=e8m0"}) {
    const Scaled scaled = ParseScaled(text);
    int held = 0;
    for (int e = -149; e <= 127; e += 3) {
      const Floats x = NearPower(e, kCount);
      Floats wide(kCount);
      Floats narrow(kCount);
      std::vector<std::uint16_t> bits(kCount);
      Cast(view_of(x), scaled, -1, SaturatingNearest(), view_of(wide));
      const bool holds =
          CastWhereHeld(view_of(x), scaled, -1, SaturatingNearest(), view_of(bits, DType::bf16));
      Cast(view_of(bits, DType::bf16), kFp32, {}, view_of(narrow));
      const bool equal =
          testing::bits_equal(std::span<const float>(wide), std::span<const float>(narrow));
      EXPECT_TRUE(equal || !holds) << text << ", e " << e;
      held += holds ? 1 : 0;
    }
    const bool few_bits = std::string(text).starts_with("mx");
    EXPECT_TRUE(held > 80 || !few_bits) << text << ", held " << held;
  }
}

}  // namespace
}  // namespace cpd
