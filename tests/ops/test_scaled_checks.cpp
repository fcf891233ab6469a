// SPDX-License-Identifier: Apache-2.0
//
// Tests the arguments that Cast, Encode and Decode of scaled formats refuse, with each error
// message once. A refused call writes nothing. Tests also the number of scales.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cpd/backend/explain.h"
#include "cpd/ops/scaled.h"
#include "cpd/spec/error.h"
#include "tests/testing/flushing.h"
#include "tests/testing/refusal.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

using testing::view_of;
using Shape = std::vector<std::int64_t>;
using Floats = std::vector<float>;
using Bytes = std::vector<std::uint8_t>;

RoundingOptions SaturatedOptions(Rounding mode = Rounding::nearest_even) {
  RoundingOptions o;
  o.mode = mode;
  o.overflow = Overflow::saturate;
  o.random_bits = 7;
  return o;
}

class ScaledErrors : public ::testing::Test {
 protected:
  Floats x = Floats(8, 1.1F);
  Floats y = Floats(8, 7.0F);
  Bytes codes = Bytes(8), scales = Bytes(2);
  Bytes tensor = Bytes(4);
  const Scaled mx = ParseScaled("mxfp8 block=4");
  const Scaled nv = ParseScaled("nvfp4 block=4");

  template <class Call>
  void Expect(const std::string& message, const Call& call) {
    std::string text = "nothing";
    try {
      call();
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_NE(text.find(message), std::string::npos) << "'" << message << "': " << text;
    for (const float v : y) EXPECT_EQ(v, 7.0F) << "written on error: " << message;
  }
  void ExpectCast(const std::string& message, const TensorView& in, const Scaled& scaled,
                  const TensorView& out, const GivenScales& given = {}, int axis = -1,
                  const RoundingOptions& o = SaturatedOptions(),
                  const TensorView* random = nullptr) {
    Expect(message, [&] { Cast(in, scaled, axis, o, out, given, {}, random); });
  }
  void ExpectEncode(const std::string& message, const Scaled& scaled, const TensorView& packed,
                    const TensorView& of_blocks, const TensorView* of_tensor = nullptr) {
    Expect(message, [&] {
      Encode(view_of(x), scaled, -1, SaturatedOptions(), packed, of_blocks, of_tensor);
    });
  }
};

TEST_F(ScaledErrors, TensorsAndFormats) {
  ExpectCast("x must be fp32, bf16 or fp16 for scaled formats, got fp64",
             view_of(std::vector<double>(8)), mx, view_of(y));
  ExpectCast("out must be fp32, bf16 or fp16 for scaled formats, got fp64", view_of(x), mx,
             view_of(std::vector<double>(8)));
  ExpectCast("x", view_of(codes), mx, view_of(y));
  ExpectCast("x and out", View(x.data(), DType::f32, 7), mx, view_of(y));
  EXPECT_REFUSAL("out must be contiguous bf16 on the CPU, got fp32",
                 CastWhereHeld(view_of(x), mx, -1, SaturatedOptions(), view_of(y)));
  ExpectCast("axis must be -1…0, got 1", view_of(x), mx, view_of(y), {}, 1);
  ExpectCast("axis must be -1…0, got -2", view_of(x), mx, view_of(y), {}, -2);
  Scaled wrong = mx;
  wrong.margin = 65;
  ExpectCast("margin must be -64…64, got 65", view_of(x), wrong, view_of(y));
  TensorView far = view_of(x);
  far.device = Device::cuda;
  ExpectCast("all tensors must be on one device", far, mx, view_of(y));
}

TEST_F(ScaledErrors, Rounding) {
  RoundingOptions o = SaturatedOptions(Rounding::stochastic);
  o.random_bits = 25;
  ExpectCast("random_bits", view_of(x), mx, view_of(y), {}, -1, o);
  const std::vector<std::uint32_t> large(8, 1 << 7);
  const TensorView beyond = view_of(large);
  ExpectCast("2^random_bits = 128", view_of(x), mx, view_of(y), {}, -1,
             SaturatedOptions(Rounding::stochastic), &beyond);
  ExpectCast("", view_of(x), mx, view_of(y), {}, -1, SaturatedOptions(), &beyond);
}

TEST_F(ScaledErrors, GivenScales) {
  const Floats two = {1, 2};
  const TensorView good = view_of(two), short_one = View(two.data(), DType::f32, 1);
  ExpectCast("give scales or amax, not both", view_of(x), mx, view_of(y),
             {.blocks = &good, .largest = &good});
  ExpectCast("tensor scales are for two levels", view_of(x), mx, view_of(y), {.tensor = &good});
  ExpectCast("the scales of two levels are a pair", view_of(x), nv, view_of(y), {.blocks = &good});
  ExpectCast("scales must be 2 contiguous fp32 numbers or their packed codes, got 1 of fp32",
             view_of(x), mx, view_of(y), {.blocks = &short_one});
  ExpectCast("amax must be 2 contiguous fp32 numbers", view_of(x), mx, view_of(y),
             {.largest = &short_one});
  const Bytes bytes(3);
  const TensorView wrong_bytes = view_of(bytes);
  ExpectCast("", view_of(x), mx, view_of(y), {.blocks = &wrong_bytes});
  const Floats odd = {1, 3};
  const TensorView not_powers = view_of(odd);
  ExpectCast("scales must be numbers of e8m0, got 3", view_of(x), mx, view_of(y),
             {.blocks = &not_powers});
  const Floats minus = {1, -2};
  const TensorView negative = view_of(minus);
  ExpectCast("scales must not be negative", view_of(x), ParseScaled("e4m3fn 4 scale=fp32"),
             view_of(y), {.blocks = &negative});
}

/// The scale 1.25 * 2^-127 is refused, because its cast to e8m0 differs. Both are subnormal, so if
/// the program flushes subnormals, a floating-point comparison would find them equal.
TEST_F(ScaledErrors, GivenScalesThatAreSubnormal) {
#if defined(CPD_TEST_FLUSHES)
  const Floats between = {1, std::bit_cast<float>(0x00500000U)};
  const TensorView scales_between = view_of(between);
  const testing::Flushing flushing;
  ExpectCast("scales must be numbers of e8m0, got", view_of(x), mx, view_of(y),
             {.blocks = &scales_between});
#endif
}

TEST_F(ScaledErrors, GivenCodesWhileExplaining) {
  for (const std::size_t size : {1, 2, 3}) {
    const Bytes bytes(size);
    const TensorView view = view_of(bytes);
    const auto explain = [&] {
      static_cast<void>(Explain(
          [&] { Cast(view_of(x), mx, -1, SaturatedOptions(), view_of(y), {.blocks = &view}); }));
    };
    Expect(size == 2 ? "nothing" : "scales must be 2 contiguous bytes, of 2 codes of e8m0, got",
           explain);
  }
}

TEST_F(ScaledErrors, Sizes) {
  const TensorView second = view_of(tensor);
  ExpectEncode("packed must be 8 contiguous bytes, of 8 codes of e4m3fn, got 7 of", mx,
               View(codes.data(), DType::u8, 7), view_of(scales));
  ExpectEncode("scales must be 2 contiguous bytes, of 2 codes of e8m0, got 1 of", mx,
               view_of(codes), View(scales.data(), DType::u8, 1));
  ExpectEncode("one level has no tensor scales", mx, view_of(codes), view_of(scales), &second);
  const TensorView half = View(codes.data(), DType::u8, 4);
  ExpectEncode("two levels have tensor scales too", nv, half, view_of(scales));
  const TensorView short_one = View(tensor.data(), DType::u8, 3);
  ExpectEncode("tensor scales must be 4 contiguous bytes, of 1 codes of fp32, got 3", nv, half,
               view_of(scales), &short_one);
  Expect("packed must be 8 contiguous bytes",
         [&] { Decode(half, mx, -1, view_of(scales), nullptr, view_of(y)); });
  Expect("scales must be 2 contiguous bytes", [&] {
    Decode(view_of(codes), mx, -1, View(scales.data(), DType::u8, 1), nullptr, view_of(y));
  });
  Expect("two levels have tensor scales too",
         [&] { Decode(half, nv, -1, view_of(scales), nullptr, view_of(y)); });
}

TEST_F(ScaledErrors, NanWithoutACode) {
  const TensorView second = view_of(tensor);
  x[6] = x[5] = std::numeric_limits<float>::quiet_NaN();
  ExpectEncode("element 5 is NaN, and e2m1 has no code for NaN", nv,
               View(codes.data(), DType::u8, 4), view_of(scales), &second);
  // In a block whose scale is NaN, all elements have code 0.
  Bytes packed(4, 0xFF);
  Encode(view_of(x), ParseScaled("mxfp4 block=4"), -1, SaturatedOptions(), view_of(packed),
         view_of(scales), nullptr);
  EXPECT_EQ(scales[1], 0xFF);
  EXPECT_EQ(packed[2], 0);
  EXPECT_EQ(packed[3], 0);
}

TEST_F(ScaledErrors, CandidatesOfLargeBlocks) {
  const Floats large(400 * 400, 1.0F);
  Floats out(large.size());
  const Scaled scaled = ParseScaled("e2m1 400x400 scale=e4m3fn choose=mae");
  const Shape shape = {400, 400};
  Expect("choose is for blocks of at most 131072 values", [&] {
    Cast(View(large.data(), DType::f32, shape), scaled, -1, SaturatedOptions(),
         View(out.data(), DType::f32, shape));
  });
}

TEST(ScaledCounts, AreThoseOfTheGrids) {
  const Shape shape = {3, 33};
  EXPECT_EQ(CountScales(ParseScaled("mxfp8"), shape, -1).blocks, 6);
  EXPECT_EQ(CountScales(ParseScaled("mxfp8"), shape, 0).blocks, 33);
  EXPECT_EQ(CountScales(ParseScaled("mxfp8"), shape, 0).tensor, 0);
  EXPECT_EQ(CountScales(ParseScaled("nvfp4"), shape, -1).blocks, 9);
  EXPECT_EQ(CountScales(ParseScaled("nvfp4"), shape, -1).tensor, 1);
  EXPECT_EQ(CountScales(ParseScaled("nvfp4 outer=row"), shape, -1).tensor, 3);
  EXPECT_EQ(CountScales(ParseScaled("fp8-tensor"), shape, -1).blocks, 1);
}

}  // namespace
}  // namespace cpd
