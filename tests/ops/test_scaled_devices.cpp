// SPDX-License-Identifier: Apache-2.0
//
// Tests that scaled formats have the scalar kernels' bits on every device: values, codes and
// scales, for all rules, layouts, types and given scales. Tests also the errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cpd/ops/codec.h"
#include "cpd/ops/scaled.h"
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/devices.h"
#include "tests/testing/hadamard.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

using Shape = std::vector<std::int64_t>;
using Bytes = std::vector<std::uint8_t>;

/// The tested formats. They cover every arithmetic (`exact`, `te`, `torchao`, …) with its rules for
/// scales, every kind of block, one and two levels of scales, and both ways of computing elements.
const std::vector<std::string> kDeviceFormats = {
    "mxfp8",
    "mxfp8-e5m2",
    "mxfp6-e3m2",
    "mxfp4",
    "mxint8",
    "nvfp4",
    "nvfp4 choose=mae",
    "nvfp4 choose=mse arithmetic=exact",
    "nvfp4 outer=row choose=mse",
    "nvfp4 choose=mse scale_max=256 block=16x16",
    "e2m1 4x4 scale=e4m3fn choose=mse",
    "e2m1 5 scale=e4m3fn choose=mae",
    "e4m3fn 2x7 scale=fp32 choose=mse",
    "fp8-tensor",
    "fp8-row",
    "fp8-block",
    "fp8-block 4x4",
    "bfp8",
    "int4 row",
    "int8 row rule=up",
    "mxfp8 rule=ceil",
    "mxfp8 rule=even",
    "mxfp8 rule=rceil arithmetic=torchao",
    "mxfp8 rule=rceil arithmetic=te",
    "e4m3fn 3x5 scale=fp32 arithmetic=te",
    "e5m2 row scale=fp32 arithmetic=torchao rule=max_pow2",
    "e4m3fn 1x16 scale=fp32 arithmetic=deepgemm",
    "mxfp6-e3m2 arithmetic=microxcaling",
    "nvfp4 arithmetic=torchao",
    "nvfp4 arithmetic=exact outer=row",
    "nvfp4 outer=row",
    "e4m3fn 32 scale=bf16 tensor_scale=bf16",
    "e2m3 2x3 scale=bf16 tensor_scale=bf16",
    "bf16 5 scale=e5m2 rule=up non_finite=element",
    "nvfp4 transform=hadamard16:te",
    "mxfp4 transform=hadamard64:signs=0x9b3cf0a56d21e847",
    "e4m3fn 64 scale=fp32 margin=2",
    "e4m3fn 64 scale=e8m0",
    "e4m3fn 128 scale=e8m0",
};

struct DeviceCase {
  Shape shape;
  int axis;
};
const std::vector<DeviceCase> kDeviceCases = {
    {{70}, 0},        {{1}, -1},          {{5, 37}, 1},     {{37, 5}, 0},   {{3, 33, 4}, 1},
    {{2, 3, 64}, -1}, {{4, 3, 9}, 0},     {{64, 48}, 0},    {{3, 4096}, 1}, {{5008}, 0},
    {{70, 64}, 0},    {{3, 47, 6, 7}, 1}, {{2, 80, 33}, 1}, {{33, 36}, 0},  {{130, 12}, 0}};

RoundingOptions Options(Rounding mode) {
  RoundingOptions options;
  options.mode = mode;
  options.overflow = Overflow::saturate;
  options.random_bits = 7;
  return options;
}

std::int64_t CountOf(const Shape& shape) {
  std::int64_t n = 1;
  for (const std::int64_t extent : shape) n *= extent;
  return n;
}

/// Returns values over many binades, with zeros, blocks of zeros and subnormals. Unless `finite` is
/// true, some values are NaN or Inf.
std::vector<float> Values(std::size_t n, unsigned seed, bool finite) {
  std::vector<float> x = testing::hadamard_values(n, seed);
  for (std::size_t i = 0; i < n; ++i) {
    if (i % 97 > 60) x[i] = 0;
    if (i % 53 == 7) x[i] *= 0x1p-130F;
    if (i % 41 == 3) x[i] *= 0x1p40F;
    if (!finite && i % 211 == 20) x[i] = std::numeric_limits<float>::infinity();
    if (!finite && i % 307 == 30) x[i] = std::numeric_limits<float>::quiet_NaN();
  }
  if (finite) {
    for (float& v : x) v = std::isfinite(v) ? v : 1.0F;
  }
  return x;
}

bool TakesTransform(const Scaled& scaled, const DeviceCase& c) {
  if (!scaled.transform) return true;
  const int axis = c.axis < 0 ? c.axis + static_cast<int>(c.shape.size()) : c.axis;
  return c.shape[static_cast<std::size_t>(axis)] % scaled.transform->size == 0;
}

/// The codes and scales that an encoding writes.
struct Codes {
  Bytes packed, scales, tensor_scales;
  bool operator==(const Codes&) const = default;
};

class ScaledDevices : public testing::SameOnDevices {
 protected:
  static Codes EncodeAt(testing::Copies there, const TensorView& x, const Scaled& scaled, int axis,
                        const RoundingOptions& options) {
    const ScaleCounts counts =
        CountScales(scaled, {x.shape.data(), static_cast<std::size_t>(x.rank)}, axis);
    Codes codes;
    codes.packed.resize(static_cast<std::size_t>(PackedBytes(scaled.element, x.size())), 9);
    codes.scales.resize(static_cast<std::size_t>(PackedBytes(scaled.scale, counts.blocks)), 9);
    if (scaled.tensor_scale) {
      codes.tensor_scales.resize(
          static_cast<std::size_t>(PackedBytes(*scaled.tensor_scale, counts.tensor)), 9);
    }
    const TensorView packed = testing::view_of(codes.packed);
    const TensorView scales = testing::view_of(codes.scales);
    const TensorView outer = testing::view_of(codes.tensor_scales);
    Encode(there(x), scaled, axis, options, there(packed), there(scales),
           scaled.tensor_scale ? there(&outer) : nullptr, {}, testing::kKey);
    for (const TensorView& written : {packed, scales, outer}) there.Read(written);
    return codes;
  }
  void ExpectSameCodes(const TensorView& x, const Scaled& scaled, int axis,
                       const RoundingOptions& options) const {
    ExpectSame(
        [&](testing::Copies there) { return EncodeAt(std::move(there), x, scaled, axis, options); },
        ToString(scaled) + " along " + std::to_string(axis));
  }

  /// Expects that a cast on the device gives the scalar kernels' bits. `random` holds the integers
  /// for stochastic rounding, or is null. If `like_x` is true, the result has the strides of x.
  void ExpectSameCast(const TensorView& x, const Scaled& scaled, int axis,
                      const RoundingOptions& options, const TensorView* random = nullptr,
                      bool like_x = false, const GivenScales& given = {}) const {
    const auto cast = [&](testing::Copies there) {
      Bytes y(static_cast<std::size_t>(x.size()) * SizeOf(x.dtype), 3);
      TensorView out = View(y.data(), x.dtype, Shape(x.shape.begin(), x.shape.begin() + x.rank));
      if (like_x) out.stride = x.stride;
      Cast(there(x), scaled, axis, options, there(out),
           {.blocks = there(given.blocks), .largest = there(given.largest)}, testing::kKey,
           there(random));
      there.Read(out);
      return y;
    };
    ExpectSame(cast,
               ToString(scaled) + " along " + std::to_string(axis) + " " + ToString(options.mode));
  }

  void ExpectSameDecode(const Codes& codes, const Scaled& scaled, const Shape& shape,
                        int axis) const {
    const TensorView outer = testing::view_of(codes.tensor_scales);
    const auto decode = [&](testing::Copies there) {
      Bytes y(static_cast<std::size_t>(4 * CountOf(shape)));
      const TensorView out = View(y.data(), DType::f32, shape);
      Decode(there(testing::view_of(codes.packed)), scaled, axis,
             there(testing::view_of(codes.scales)), scaled.tensor_scale ? there(&outer) : nullptr,
             there(out));
      there.Read(out);
      return y;
    };
    ExpectSame(decode, ToString(scaled) + " along " + std::to_string(axis));
  }

  /// Expects that a cast along two axes gives the results of two casts.
  void ExpectSameBoth(const TensorView& x, const Scaled& scaled, const std::array<int, 2>& axes,
                      const RoundingOptions& options, std::array<DType, 2> types) const {
    const std::size_t bytes = static_cast<std::size_t>(x.size()) * sizeof(float);
    std::array<Bytes, 2> expected{Bytes(bytes + 1, 3), Bytes(bytes + 1, 3)};
    std::array<Bytes, 2> got = expected;
    const auto view = [&](std::array<Bytes, 2>& to, std::size_t i) {
      return View(to[i].data(), types[i], Shape(x.shape.begin(), x.shape.begin() + x.rank));
    };
    Cast(x, scaled, axes[0], options, view(expected, 0), {}, testing::kKey);
    Cast(x, scaled, axes[1], options, view(expected, 1), {}, testing::kKey);
    testing::Copies there = There();
    CastBoth(there(x), scaled, axes, options, there(view(got, 0)), there(view(got, 1)),
             testing::kKey);
    for (const std::size_t i : {0, 1}) there.Read(view(got, i));
    EXPECT_EQ(expected, got) << ToString(scaled) << " along " << axes[0] << " and " << axes[1]
                             << " " << ToString(options.mode) << ", " << x.shape[0] << " rows";
  }
  void ExpectSameBoth(const TensorView& x, const Scaled& scaled, const std::array<int, 2>& axes,
                      const RoundingOptions& options) const {
    ExpectSameBoth(x, scaled, axes, options, {x.dtype, x.dtype});
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, ScaledDevices, ::testing::ValuesIn(testing::Backends()),
                         testing::NameOf);

TEST_P(ScaledDevices, Casts) {
  unsigned number = 0;
  for (const std::string& text : kDeviceFormats) {
    const Scaled scaled = ParseScaled(text);
    for (const DeviceCase& c : kDeviceCases) {
      if (!TakesTransform(scaled, c)) continue;
      for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic, Rounding::up}) {
        ++number;
        const std::vector<float> x =
            Values(static_cast<std::size_t>(CountOf(c.shape)), number, number % 2 == 0);
        ExpectSameCast(View(x.data(), DType::f32, c.shape), scaled, c.axis, Options(mode));
      }
    }
  }
}

TEST_P(ScaledDevices, OfAnyTypeAndStride) {
  for (const DType type : {DType::bf16, DType::f16}) {
    const Format format = type == DType::bf16 ? MakeFormat(8, 7) : MakeFormat(5, 10);
    const auto codes = testing::run_encode(Values(3 * 64 * 2, 5, true), format);
    TensorView x = View(codes.data(), type, Shape{3, 64});
    for (const char* text :
         {"mxfp8", "nvfp4", "e4m3fn 3x5 scale=fp32 arithmetic=te", "fp8-tensor"}) {
      for (const bool spread : {false, true}) {
        x.stride = spread ? std::array<std::int64_t, TensorView::kMaxRank>{2, 6}
                          : std::array<std::int64_t, TensorView::kMaxRank>{64, 1};
        ExpectSameCast(x, ParseScaled(text), 1, Options(Rounding::nearest_even));
        ExpectSameCast(x, ParseScaled(text), 0, Options(Rounding::stochastic));
      }
    }
    // Tests blocks of neighboring elements and blocks along columns. The last block is shorter than
    // the others.
    const auto more = testing::run_encode(Values(70 * 64, 6, true), format);
    const TensorView y = View(more.data(), type, Shape{70, 64});
    for (const char* text : {"mxfp8", "nvfp4", "e4m3fn 128 scale=e8m0"}) {
      for (const int axis : {0, 1}) {
        ExpectSameCast(y, ParseScaled(text), axis, Options(Rounding::nearest_even));
      }
    }
  }
}

TEST_P(ScaledDevices, TransposedTensors) {
  for (const std::string& text : kDeviceFormats) {
    const Scaled scaled = ParseScaled(text);
    for (const DeviceCase& c :
         std::vector<DeviceCase>{{{70, 64}, 0}, {{64, 33}, 1}, {{2, 32, 48}, 1}}) {
      if (!TakesTransform(scaled, c)) continue;
      const std::vector<float> values = Values(static_cast<std::size_t>(CountOf(c.shape)), 4, true);
      TensorView x = View(values.data(), DType::f32, c.shape);
      const std::size_t last = c.shape.size() - 1;
      x.stride[last - 1] = 1;
      x.stride[last] = c.shape[last - 1];
      for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
        ExpectSameCast(x, scaled, c.axis, Options(mode), nullptr, true);
      }
    }
  }
}

/// Tests blocks of subnormal numbers next to ordinary blocks. The scales of subnormal blocks are
/// too small for the computation in binary32.
TEST_P(ScaledDevices, TinyBlocksBesideOthers) {
  for (const Shape& shape : {Shape{70, 64}, Shape{160, 192}}) {
    std::vector<float> values = Values(static_cast<std::size_t>(CountOf(shape)), 9, true);
    const auto columns = static_cast<std::size_t>(shape[1]);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % columns % 5 == 0 || i / columns % 7 == 3) values[i] = std::ldexp(values[i], -135);
    }
    const TensorView x = View(values.data(), DType::f32, shape);
    const RoundingOptions nearest = Options(Rounding::nearest_even);
    for (const char* text :
         {"e4m3fn 32 scale=e8m0ieee:bias=150", "e2m1 16 scale=e8m0ieee:bias=150",
          "e4m3fn 128 scale=e8m0ieee:bias=150", "e4m3fn 32 scale=fp32", "mxfp8"}) {
      const Scaled scaled = ParseScaled(text);
      ExpectSameBoth(x, scaled, {1, 0}, nearest);
      for (const int axis : {0, 1}) {
        ExpectSameCast(x, scaled, axis, nearest);
        ExpectSameCast(x, scaled, axis, Options(Rounding::stochastic));
        ExpectSameCodes(x, scaled, axis, nearest);
      }
    }
  }
}

TEST_P(ScaledDevices, CastsBothWaysAsTwoCasts) {
  struct Case {
    Shape shape;
    std::array<int, 2> axes;
  };
  unsigned number = 0;
  for (const Case& c : std::vector<Case>{{{70, 64}, {1, 0}},
                                         {{2, 96, 40}, {2, 1}},
                                         {{2, 96, 40}, {1, 0}},
                                         {{300, 200}, {-1, -2}},
                                         {{2, 130, 256}, {-1, -2}},
                                         {{3, 33, 37}, {-1, -2}},
                                         {{64, 32}, {0, 1}},
                                         {{64, 48}, {0, 0}},
                                         {{32, 64, 8}, {0, 1}},
                                         {{32, 3, 40}, {2, 0}},
                                         {{32, 3, 64}, {2, 0}},
                                         {{5008}, {0, 0}},
                                         {{0, 32}, {1, 0}}}) {
    const auto size = static_cast<std::size_t>(CountOf(c.shape));
    for (const std::string& text : kDeviceFormats) {
      const Scaled scaled = ParseScaled(text);
      if (!TakesTransform(scaled, {c.shape, c.axes[0]}) ||
          !TakesTransform(scaled, {c.shape, c.axes[1]})) {
        continue;
      }
      for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
        ++number;
        if (mode == Rounding::stochastic && number % 8 != 0) continue;
        if (!testing::is_chosen_on_cpu(number, 2)) continue;
        std::vector<float> x = Values(size, number, number % 3 == 0);
        x.resize(size + 1);  // so that empty ones have an address
        ExpectSameBoth(View(x.data(), DType::f32, c.shape), scaled, c.axes, Options(mode));
      }
    }
  }
  for (const DType type : {DType::bf16, DType::f16}) {
    const Format format = type == DType::bf16 ? MakeFormat(8, 7) : MakeFormat(5, 10);
    const auto codes = testing::run_encode(Values(200 * 264, 5, true), format);
    const TensorView x = View(codes.data(), type, Shape{200, 264});
    for (const char* text : {"mxfp8", "nvfp4", "fp8-block"}) {
      ExpectSameBoth(x, ParseScaled(text), {-1, -2}, Options(Rounding::nearest_even));
    }
  }
}

TEST_P(ScaledDevices, CastsBothWaysIntoOtherTypes) {
  const std::vector<float> x = Values(64 * 96, 3, true);
  for (const auto& types : {std::array{DType::bf16, DType::f32}, std::array{DType::f32, DType::f16},
                            std::array{DType::f16, DType::f16}}) {
    ExpectSameBoth(View(x.data(), DType::f32, Shape{64, 96}), ParseScaled("mxfp8"), {1, 0},
                   Options(Rounding::nearest_even), types);
  }
}

/// A cast in blocks of neighboring elements reads its operand only once, so it queues one kernel.
/// tests/backend/test_fast_kernels.cpp tests the other kernels that read an operand once.
TEST_P(ScaledDevices, KernelsOfOnePass) {
  using Names = std::vector<std::string>;
  if (on_host() || !testing::queued_kernels()) GTEST_SKIP() << "kernels have no names";
  const std::vector<float> values = Values(256 * 128, 2, true);
  const TensorView x = View(values.data(), DType::f32, Shape{256, 128});
  const RoundingOptions nearest = Options(Rounding::nearest_even);
  for (const char* text : {"mxfp8", "fp8-block", "nvfp4"}) {
    const Scaled scaled = ParseScaled(text);
    Names names = {"cast_short_blocks"};
    if (scaled.tensor_scale) names.insert(names.begin(), {"find_largest_of_all", "form_cells"});
    ExpectSameCast(x, scaled, 1, nearest);
    EXPECT_EQ(testing::queued_kernels(), names) << text;
    ExpectSameDecode(EncodeAt(testing::Copies(nullptr), x, scaled, 1, nearest), scaled, {256, 128},
                     1);
    EXPECT_EQ(testing::queued_kernels().value().back(), "decode_scaled_packs") << text;
  }
}

TEST_P(ScaledDevices, TakesRandomIntegers) {
  const std::vector<float> x = Values(3 * 70, 8, true);
  std::vector<std::uint32_t> integers(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) integers[i] = (i * 37) % 128;
  const Shape shape{3, 70};
  const TensorView random = View(integers.data(), DType::u32, shape);
  for (const char* text : {"mxfp8", "nvfp4", "int8 row"}) {
    ExpectSameCast(View(x.data(), DType::f32, shape), ParseScaled(text), 1,
                   Options(Rounding::stochastic), &random);
  }
  integers[5] = 128;
  EXPECT_THROW(ExpectSameCast(View(x.data(), DType::f32, shape), ParseScaled("mxfp8"), 1,
                              Options(Rounding::stochastic), &random),
               Error);
}

TEST_P(ScaledDevices, EncodesAndDecodes) {
  std::size_t number = 0;
  for (const std::string& text : kDeviceFormats) {
    const Scaled scaled = ParseScaled(text);
    for (const DeviceCase& c : kDeviceCases) {
      if (!TakesTransform(scaled, c)) continue;
      if (!testing::is_chosen_on_cpu(++number, 3)) continue;
      const bool finite = number % 3 != 0 || !scaled.element.has_nan();
      std::vector<float> x =
          Values(static_cast<std::size_t>(CountOf(c.shape)), static_cast<unsigned>(number), finite);
      if (scaled.transform) {  // whose sums are to stay finite
        for (float& v : x) v = std::clamp(v, -1e6F, 1e6F);
      }
      const TensorView view = View(x.data(), DType::f32, c.shape);
      const RoundingOptions options =
          Options(number % 2 == 0 ? Rounding::nearest_even : Rounding::stochastic);
      SCOPED_TRACE(number);
      ExpectSameCodes(view, scaled, c.axis, options);
      ExpectSameDecode(EncodeAt(testing::Copies(nullptr), view, scaled, c.axis, options), scaled,
                       c.shape, c.axis);
    }
  }
}

TEST_P(ScaledDevices, TakesScalesThatAreGiven) {
  const Shape shape{2, 64};
  const std::vector<float> x = Values(128, 12, true);
  const std::vector<float> scales = {0.25F, 0, 8, 0x1p-120F};
  const std::vector<float> largest = {3, 0, 1000, 1e-30F};
  for (const bool magnitudes : {false, true}) {
    const TensorView numbers = View(magnitudes ? largest : scales);
    const GivenScales given =
        magnitudes ? GivenScales{.largest = &numbers} : GivenScales{.blocks = &numbers};
    for (const char* text : {"e4m3fn 32 scale=fp32", "e4m3fn 32 scale=fp32 arithmetic=te"}) {
      ExpectSameCast(View(x.data(), DType::f32, shape), ParseScaled(text), 1,
                     Options(Rounding::nearest_even), nullptr, false, given);
    }
  }
}

TEST_P(ScaledDevices, Refuses) {
  const Shape shape{2, 64};
  std::vector<float> x = Values(128, 12, true);
  x[70] = x[71] = std::numeric_limits<float>::quiet_NaN();
  const TensorView from = View(x.data(), DType::f32, shape);
  const RoundingOptions nearest = Options(Rounding::nearest_even);
  const auto refuses = [](const std::string& message, const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), message);
    }
  };
  refuses("element 70 is NaN, and e2m1 has no code for NaN", [&] {
    static_cast<void>(EncodeAt(There(), from, ParseScaled("mxfp4 non_finite=element"), 1, nearest));
  });
  if (on_host()) return;  // test_scaled_checks.cpp has the CPU's other texts
  const std::vector<float> scales = {1, 3, -1, 1};
  const TensorView given = View(scales);
  const std::vector<float> to(128);
  const TensorView out = View(to.data(), DType::f32, shape);
  for (const auto& [text, message] :
       {std::pair{"mxfp8",
                  "scales must be numbers of e8m0, none negative, got another at element 1"},
        std::pair{"e4m3fn 32 scale=bf16",
                  "scales must be numbers of bf16, none negative, got another at element 2"}}) {
    testing::Copies there = There();
    refuses(message, [&] {
      Cast(there(from), ParseScaled(text), 1, nearest, there(out), {.blocks = there(&given)},
           testing::kKey);
    });
  }
  EXPECT_THROW(Cast(There()(from), ParseScaled("mxfp8"), 1, nearest, out, {}, testing::kKey),
               Error);
}

TEST_P(ScaledDevices, AnEmptyTensor) {
  const Shape shape{0, 32};
  const std::vector<float> none(1);
  for (const char* text : {"mxfp8", "nvfp4", "fp8-tensor"}) {
    ExpectSameCodes(View(none.data(), DType::f32, shape), ParseScaled(text), 1,
                    Options(Rounding::nearest_even));
  }
}

}  // namespace
}  // namespace cpd
