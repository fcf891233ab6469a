// SPDX-License-Identifier: Apache-2.0
//
// Tests Cast, Encode and Decode of scaled formats: every backend gives the results that the
// definition gives for one element at a time. Tests also layouts, types, threads, given scales and
// errors. test_scale_rules.cpp tests the scale that belongs to a largest magnitude.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cpd/numeric/scaled/scaled_elements.h"
#include "cpd/ops/block_layout.h"
#include "cpd/ops/hadamard.h"
#include "cpd/ops/scaled.h"
#include "cpd/spec/axis.h"
#include "cpd/spec/error.h"
#include "tests/testing/backends.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/threads.h"

namespace cpd {
namespace {

using testing::bits_equal;
using testing::view_of;
using Shape = std::vector<std::int64_t>;
using Floats = std::vector<float>;
using Bytes = std::vector<std::uint8_t>;

const std::vector<std::string> kScaledFormats = {
    "mxfp8",
    "mxfp8-e5m2",
    "mxfp6-e3m2",
    "mxfp6-e2m3",
    "mxfp4",
    "mxint8",
    "nvfp4",
    "fp8-tensor",
    "fp8-row",
    "fp8-block",
    "fp8-block 4x4",
    "bfp8",
    "int4 row",
    "mxfp8 rule=rceil arithmetic=torchao",
    "e4m3fn 3x5 scale=fp32 arithmetic=te",
    "e5m2 row scale=fp32 arithmetic=torchao rule=max_pow2",
    "mxfp6-e3m2 arithmetic=microxcaling",
    "nvfp4 arithmetic=torchao",
    "nvfp4 arithmetic=exact outer=row",
    "e2m3 2x3 scale=bf16 tensor_scale=bf16",
    "bf16 5 scale=e5m2 rule=up non_finite=element"};

struct Case {
  Shape shape;
  int axis;
};
const std::vector<Case> kCases = {{{70}, 0},      {{1}, -1},          {{5, 37}, 1},
                                  {{37, 5}, 0},   {{3, 33, 4}, 1},    {{3, 4, 33}, -1},
                                  {{4, 3, 9}, 0}, {{2, 3, 5, 16}, -2}};

std::int64_t Count(const Shape& shape) {
  std::int64_t n = 1;
  for (const std::int64_t extent : shape) n *= extent;
  return n;
}

RoundingOptions Saturating(Rounding mode = Rounding::nearest_even) {
  RoundingOptions o;
  o.mode = mode;
  o.overflow = Overflow::saturate;
  o.random_bits = 7;
  return o;
}

/// Returns values of many binades with ties and zeros. If `wild` is true, the values also include
/// bit patterns of all kinds.
Floats Values(const Format& element, std::int64_t n, bool wild, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  const reference::Spec spec = reference::spec_of(element);
  const Floats odd = testing::mixed_values(spec, static_cast<std::size_t>(n), seed);
  Floats x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double tie = element.magnitude(static_cast<std::uint32_t>(bits() % element.max_code())) +
                       element.magnitude(1) / 2;
    const double any = static_cast<double>(static_cast<std::int64_t>(bits())) * 0x1p-62;
    x[i] =
        static_cast<float>(std::ldexp(bits() % 2 == 0 ? tie : any, static_cast<int>(bits() % 5)));
    if (wild && bits() % 4 == 0) x[i] = odd[i];
    if (bits() % 16 == 0) x[i] = bits() % 2 == 0 ? 0.0F : -0.0F;
  }
  if (wild && n > 40) std::fill_n(x.begin() + 3, 36, 0.0F);
  return x;
}

/// The results of casting and encoding one tensor. They are compared bit by bit.
struct Made {
  Floats values;
  Bytes codes, scales, tensor;
  bool operator==(const Made& other) const {
    return bits_equal(std::span<const float>(values), std::span<const float>(other.values)) &&
           codes == other.codes && scales == other.scales && tensor == other.tensor;
  }
};

Bytes Packed(const Format& format, std::int64_t n) {
  return Bytes(static_cast<std::size_t>(PackedBytes(format, n)), 0xA5);
}

/// Returns whether x contains a NaN that the element format cannot encode and that does not make
/// the block's scale NaN.
bool HasNoCodes(const Scaled& scaled, const Floats& x) {
  return !scaled.element.has_nan() && scaled.non_finite == NonFinite::element &&
         std::ranges::any_of(x, [](float v) { return std::isnan(v); });
}

Made MakeAll(const TensorView& x, const Scaled& scaled, int axis, const RoundingOptions& o,
             bool codes = true, const GivenScales& given = {}) {
  Made made;
  const auto n = static_cast<std::size_t>(x.size());
  const std::span<const std::int64_t> shape(x.shape.data(), static_cast<std::size_t>(x.rank));
  made.values.resize(n);
  Cast(x, scaled, axis, o, View(made.values.data(), DType::f32, shape), given, testing::kKey);
  if (!codes) return made;
  const ScaleCounts counts = CountScales(scaled, shape, axis);
  made.codes = Packed(scaled.element, x.size());
  made.scales = Packed(scaled.scale, counts.blocks);
  TensorView tensor;
  if (scaled.tensor_scale) {
    made.tensor = Packed(*scaled.tensor_scale, counts.tensor);
    tensor = view_of(made.tensor);
  }
  const TensorView* second = scaled.tensor_scale ? &tensor : nullptr;
  Encode(x, scaled, axis, o, view_of(made.codes), view_of(made.scales), second, given,
         testing::kKey);
  Floats decoded(n);
  Decode(view_of(made.codes), scaled, axis, view_of(made.scales), second,
         View(decoded.data(), DType::f32, shape));
  for (std::size_t i = 0; i < n; ++i) {
    const bool signless = decoded[i] == 0 && made.values[i] == 0;  // -0 may have no code
    if (signless && !scaled.element.has_negative_zero()) continue;
    if (!testing::same_bits(decoded[i], made.values[i])) {
      ADD_FAILURE() << ToString(scaled) << ": decoded " << testing::hex(decoded[i]) << ", cast "
                    << testing::hex(made.values[i]) << " at " << i;
      break;
    }
  }
  return made;
}

// ---- the definition -----------------------------------------------------------------------------

/// Returns the largest |x| of each block. If `with_nan` is true, returns NaN for a block that
/// contains a NaN.
Floats Largest(const Floats& x, const std::vector<std::int64_t>& block_of, std::int64_t blocks,
               bool with_nan) {
  Floats a(static_cast<std::size_t>(blocks));
  for (std::size_t i = 0; i < x.size(); ++i) {
    float& most = a[static_cast<std::size_t>(block_of[i])];
    const float magnitude = std::abs(x[i]);
    if (std::isnan(x[i]) ? with_nan : magnitude > most) most = magnitude;
  }
  return a;
}

/// Returns the number of each element's block, by the library's BlockLayout. test_block_layout.cpp
/// tests that layout.
std::vector<std::int64_t> BlockOf(const BlockShape& block, const Shape& shape, int axis) {
  const BlockLayout layout =
      LayoutOf(block, shape, ResolveAxis(axis, static_cast<int>(shape.size())));
  std::vector<std::int64_t> result;
  for (std::int64_t p = 0; p < layout.planes; ++p) {
    for (std::int64_t i = 0; i < layout.height; ++i) {
      for (std::int64_t t = 0; t < layout.middle; ++t) {
        for (std::int64_t j = 0; j < layout.width; ++j) result.push_back(layout.block(p, i, t, j));
      }
    }
  }
  return result;
}

void PutCode(Bytes& packed, std::size_t index, int bits, std::uint64_t code) {
  for (int b = 0; b < bits; ++b) {
    const std::size_t at = index * static_cast<std::size_t>(bits) + static_cast<std::size_t>(b);
    packed[at / 8] |= static_cast<std::uint8_t>((code >> b & 1) << at % 8);
  }
}

Made Definition(const Floats& x, const Case& c, const Scaled& scaled, const RoundingOptions& o,
                bool bf16 = false) {
  const ScaledPlan plan = make_scaled_plan(scaled, o, bf16, testing::kKey);
  const reference::Spec spec = reference::spec_of(scaled.element);
  const ScaleCounts counts = CountScales(scaled, c.shape, c.axis);
  const auto block_of = BlockOf(scaled.block, c.shape, c.axis);
  const auto cell_of = BlockOf({.kind = scaled.outer}, c.shape, c.axis);
  const Floats largest = Largest(x, block_of, counts.blocks, plan.makes_nan);
  std::vector<OuterScale<double>> outer(1, {1, 1});
  Floats outer_scales;
  if (scaled.tensor_scale) {
    outer.clear();
    for (const float a : Largest(x, cell_of, counts.tensor, plan.makes_nan)) {
      outer.push_back(outer_scale<double>(a, plan));
      outer_scales.push_back(static_cast<float>(outer.back().scale));
    }
  }
  std::vector<std::uint32_t> random(x.size());
  if (o.mode == Rounding::stochastic)
    random = testing::run_random_integers(o, x.size(), 0, testing::kKey);

  Made made;
  made.codes.assign(static_cast<std::size_t>(PackedBytes(scaled.element, Count(c.shape))), 0);
  Floats scales(static_cast<std::size_t>(counts.blocks));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto b = static_cast<std::size_t>(block_of[i]);
    const OuterScale<double> above = outer[scaled.tensor_scale ? cell_of[i] : 0];
    const BlockScale<double> block = block_scale<double>(largest[b], above, 1, plan);
    scales[b] = static_cast<float>(block.scale);
    const double both = block.scale * above.scale;
    double quotient = static_cast<float>(x[i] * static_cast<float>(block.factor));
    if (scaled.arithmetic == Arithmetic::exact) {
      quotient = both == 0 && !std::isnan(x[i]) ? std::copysign(0.0, static_cast<double>(x[i]))
                                                : divide_to_odd<double>(x[i], both);
    }
    const auto element = reference::round_exact(spec, reference::exact(quotient),
                                                testing::oracle_options(o, random[i]));
    const double q = reference::to_float(element);
    const auto value = static_cast<float>(q * both);
    made.values.push_back(std::isnan(value) ? testing::from_bits(reference::kNanBits) : value);
    const auto code = reference::encode(spec, element);
    PutCode(made.codes, i, scaled.element.bits(), code.value_or(0));
  }
  made.scales = testing::run_encode(scales, scaled.scale);
  if (scaled.tensor_scale) made.tensor = testing::run_encode(outer_scales, *scaled.tensor_scale);
  return made;
}

class ScaledOn : public testing::OnBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, ScaledOn, ::testing::ValuesIn(testing::kBuiltBackends),
                         [](const auto& test) { return std::string(test.param); });

void ExpectMade(const Made& expected, const Made& got, const Floats& x, const std::string& about) {
  ASSERT_TRUE(bits_equal(expected.values, got.values, x)) << about;
  if (got.codes.empty()) return;
  ASSERT_EQ(expected.scales, got.scales) << about;
  ASSERT_EQ(expected.tensor, got.tensor) << about;
  ASSERT_EQ(expected.codes, got.codes) << about;
}

std::string About(const std::string& text, const Case& c) {
  std::string about = text + " along " + std::to_string(c.axis) + " of";
  for (const std::int64_t n : c.shape) about += " " + std::to_string(n);
  return about;
}

TEST_P(ScaledOn, IsTheDefinition) {
  for (const std::string& text : kScaledFormats) {
    const Scaled scaled = ParseScaled(text);
    for (const Case& c : kCases) {
      for (const bool wild : {false, true}) {
        const Floats x = Values(scaled.element, Count(c.shape), wild, 3);
        const bool codes = !HasNoCodes(scaled, x);
        for (const Rounding mode :
             {Rounding::nearest_even, Rounding::toward_zero, Rounding::stochastic}) {
          const RoundingOptions o = Saturating(mode);
          const Made got = MakeAll(View(x.data(), DType::f32, c.shape), scaled, c.axis, o, codes);
          ExpectMade(Definition(x, c, scaled, o), got, x,
                     About(text, c) + ", " + ToString(mode) + (wild ? ", wild" : ""));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

/// The inputs are bfloat16 or binary16. If the output has the type of x, it is the binary32 result
/// rounded once more.
TEST_P(ScaledOn, SixteenBitInputs) {
  for (const std::string& text : kScaledFormats) {
    const Scaled scaled = ParseScaled(text);
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const Format storage = ParseFormat(dtype == DType::bf16 ? "bf16" : "fp16");
      for (const Case& c : kCases) {
        const Floats wide = Values(scaled.element, Count(c.shape), true, 5);
        std::vector<std::uint16_t> x(wide.size()), y(wide.size()), expected(wide.size());
        Cast(view_of(wide), storage, {}, view_of(x, dtype));
        Floats exact(wide.size());
        Cast(view_of(x, dtype), storage, {}, view_of(exact));
        const Made made = Definition(exact, c, scaled, Saturating(), dtype == DType::bf16);
        const TensorView in = View(x.data(), dtype, c.shape);
        ExpectMade(made, MakeAll(in, scaled, c.axis, Saturating(), !HasNoCodes(scaled, exact)),
                   exact, About(text, c) + ", " + ToString(dtype));
        if (HasFatalFailure()) return;
        Cast(view_of(made.values), storage, {}, view_of(expected, dtype));
        Cast(in, scaled, c.axis, Saturating(), View(y.data(), dtype, c.shape), {}, testing::kKey);
        ASSERT_EQ(expected, y) << About(text, c);
      }
    }
  }
}

// ---- layouts ------------------------------------------------------------------------------------

TEST_P(ScaledOn, Strides) {
  const std::array<std::int64_t, 3> shape = {4, 6, 11};
  struct Layout {
    std::int64_t offset;
    std::array<std::int64_t, 3> stride;
  };
  const std::array<Layout, 6> layouts = {{{0, {66, 11, 1}},
                                          {0, {132, 22, 2}},
                                          {0, {1, 4, 24}},
                                          {263, {-66, -11, -1}},
                                          {10, {66, 11, -1}},
                                          {5, {0, 1, 6}}}};
  for (const std::string text :
       {"mxfp8 block=4", "nvfp4 block=4", "fp8-row", "e5m2 2x3 scale=fp32"}) {
    const Scaled scaled = ParseScaled(text);
    const Floats storage = Values(scaled.element, 1000, false, 4);
    for (int axis = 0; axis < 3; ++axis) {
      for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
        for (const Layout& in : layouts) {
          TensorView x = View(storage.data() + in.offset, DType::f32, shape);
          std::ranges::copy(in.stride, x.stride.begin());
          Floats dense(4 * 6 * 11);
          Cast(x, kFp32, {}, View(dense.data(), DType::f32, shape));
          const Made expected =
              MakeAll(View(dense.data(), DType::f32, shape), scaled, axis, Saturating(mode));
          ExpectMade(expected, MakeAll(x, scaled, axis, Saturating(mode)), dense, text);
          for (const Layout& to : layouts) {
            if (to.stride[0] == 0) continue;
            Floats out(700, 7.0F);
            TensorView y = View(out.data() + to.offset, DType::f32, shape);
            std::ranges::copy(to.stride, y.stride.begin());
            Cast(x, scaled, axis, Saturating(mode), y, {}, testing::kKey);
            Floats got(dense.size());
            Cast(y, kFp32, {}, View(got.data(), DType::f32, shape));
            ASSERT_TRUE(bits_equal(expected.values, got, dense)) << text << " along " << axis;
            ASSERT_GE(std::ranges::count(out, 7.0F), 700 - 264) << "written elsewhere";
          }
        }
      }
    }
  }
}

/// Returns a view with this shape. If `turned` is true, the last two dimensions are exchanged in
/// memory.
TensorView Turned(const void* data, DType dtype, const Shape& shape, bool turned) {
  TensorView x = View(data, dtype, shape);
  if (turned) {
    const std::size_t last = shape.size() - 1;
    x.stride[last - 1] = 1;
    x.stride[last] = shape[last - 1];
  }
  return x;
}

/// Tests transposed tensors. Their shapes lie around the sizes of the ranges that kernels visit at
/// once, and of the blocks in which random integers are made. All values are exact in bf16.
TEST(ScaledBackends, TransposedTensorsAreTheDefinition) {
  const std::vector<Case> cases = {{{70, 300}, 0}, {{70, 300}, 1},   {{300, 17}, 0},
                                   {{300, 17}, 1}, {{2, 33, 70}, 1}, {{1, 64}, 1},
                                   {{64, 1}, 0},   {{600, 2}, 0},    {{3, 20, 9}, 0}};
  for (const std::string text : {"mxfp8", "nvfp4", "int4 row", "e4m3fn 3x5 scale=fp32",
                                 "fp8-tensor", "e4m3fn 280 scale=fp32", "mxfp8 block=100",
                                 "nvfp4 arithmetic=exact outer=row", "mxfp4 transform=hadamard2"}) {
    const Scaled scaled = ParseScaled(text);
    for (const Case& c : testing::thinned(cases, 3)) {
      if (scaled.transform && c.shape[static_cast<std::size_t>(c.axis)] % 2 != 0) continue;
      const std::int64_t n = Count(c.shape);
      Floats x = Values(scaled.element, n, false, 7);
      x = testing::run_cast(x, ParseFormat("bf16"), {});
      for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
        const RoundingOptions o = Saturating(mode);
        Floats whole = x;
        if (scaled.transform) {
          const TensorView of = View(x.data(), DType::f32, c.shape);
          Transform(of, *scaled.transform, c.axis, false, View(whole.data(), DType::f32, c.shape));
        }
        const Made made = Definition(whole, c, scaled, o);
        for (const std::string& backend : testing::backends()) {
          const testing::WithBackend forced(backend);
          for (const bool turned_x : {false, true}) {
            for (const bool turned_y : {false, true}) {
              for (const DType dtype : {DType::f32, DType::bf16}) {
                if (dtype == DType::bf16 &&
                    (scaled.transform || scaled.arithmetic != Arithmetic::exact))
                  continue;
                Floats from(x.size()), to(x.size(), 7.0F), got(x.size());
                const TensorView in = Turned(from.data(), dtype, c.shape, turned_x);
                const TensorView out = Turned(to.data(), dtype, c.shape, turned_y);
                Cast(View(x.data(), DType::f32, c.shape), ParseFormat("bf16"), {}, in);
                Cast(in, scaled, c.axis, o, out, {}, testing::kKey);
                Cast(out, kFp32, {}, View(got.data(), DType::f32, c.shape));
                const std::string about = About(text, c) + ", " + ToString(mode) + " on " +
                                          backend + (turned_x ? ", x turned" : "") +
                                          (turned_y ? ", out turned" : "");
                const Format held = dtype == DType::f32 ? kFp32 : ParseFormat("bf16");
                const Floats wanted = testing::run_cast(made.values, held, {});
                ASSERT_TRUE(bits_equal(wanted, got, x)) << about;
                if (!turned_y) ExpectMade(made, MakeAll(in, scaled, c.axis, o), x, about);
                if (turned_x != turned_y || dtype != DType::f32) continue;
                Cast(in, scaled, c.axis, o, in, {}, testing::kKey);
                Cast(in, kFp32, {}, View(got.data(), DType::f32, c.shape));
                ASSERT_TRUE(bits_equal(made.values, got, x)) << about << ", in place";
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(ScaledOn, InPlaceAndUnaligned) {
  for (const std::string& text : kScaledFormats) {
    const Scaled scaled = ParseScaled(text);
    const Case c{{9, 35}, text.size() % 2 == 0 ? 0 : 1};
    const Floats x = Values(scaled.element, Count(c.shape), false, 6);
    const Made expected =
        MakeAll(View(x.data(), DType::f32, c.shape), scaled, c.axis, Saturating());
    for (std::size_t offset = 0; offset < 5; ++offset) {
      Floats room(x.size() + 5);
      std::ranges::copy(x, room.begin() + static_cast<std::ptrdiff_t>(offset));
      const TensorView here = View(room.data() + offset, DType::f32, c.shape);
      ExpectMade(expected, MakeAll(here, scaled, c.axis, Saturating()), x, text);
      Cast(here, scaled, c.axis, Saturating(), here, {}, testing::kKey);
      ASSERT_TRUE(
          bits_equal(expected.values, std::span<const float>(room.data() + offset, x.size()), x))
          << text;
    }
  }
}

TEST_P(ScaledOn, ScalarAndEmptyTensors) {
  for (const std::string& text : kScaledFormats) {
    const Scaled scaled = ParseScaled(text);
    float x = -3, y = 0;
    TensorView in = View(&x, DType::f32, 1);
    TensorView out = View(&y, DType::f32, 1);
    float expected = 0;
    Cast(in, scaled, -1, Saturating(), View(&expected, DType::f32, 1), {}, testing::kKey);
    in.rank = out.rank = 0;
    Cast(in, scaled, -1, Saturating(), out, {}, testing::kKey);
    EXPECT_EQ(y, expected) << text;
    for (const Shape& shape : {Shape{0}, Shape{4, 0}, Shape{0, 4}}) {
      const Made made = MakeAll(View(nullptr, DType::f32, shape), scaled, -1, Saturating());
      EXPECT_TRUE(made.codes.empty());
    }
  }
}

// ---- sizes, threads -----------------------------------------------------------------------------

/// The tensors are large enough for several threads and for stores that bypass the caches. For some
/// formats, the scales of blocks need a separate pass over the tensor.
TEST(ScaledThreads, ChangeNothing) {
  const std::vector<std::pair<std::string, Case>> all = {{"mxfp8", {{1030, 2050}, -1}},
                                                         {"mxfp8", {{1030, 2050}, 0}},
                                                         {"mxfp4", {{70001}, 0}},
                                                         {"nvfp4", {{333, 1001}, -1}},
                                                         {"nvfp4", {{333, 1001}, 0}},
                                                         {"fp8-tensor", {{400, 501}, -1}},
                                                         {"fp8-row", {{3, 140001}, -1}},
                                                         {"fp8-row", {{140001, 3}, 0}},
                                                         {"fp8-block 128x128", {{500, 700}, -1}},
                                                         {"mxfp6-e3m2 block=7", {{300, 333}, 0}},
                                                         {"int4 600x400", {{1300, 500}, -1}}};
  for (const auto& [text, c] : testing::thinned(all, 2)) {
    const Scaled scaled = ParseScaled(text);
    const Floats x = Values(scaled.element, Count(c.shape), false, 9);
    for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
      Made first;
      for (const char* threads : testing::thinned<const char*>({"3", "1", "8"}, 3)) {
        const testing::WithThreads forced(threads);
        Made made = MakeAll(View(x.data(), DType::f32, c.shape), scaled, c.axis, Saturating(mode));
        if (first.values.empty())
          first = std::move(made);
        else
          ExpectMade(first, made, x, About(text, c) + " on " + threads + " threads");
        if (HasFatalFailure()) return;
      }
      const testing::WithBackend scalar("scalar");
      ExpectMade(first,
                 MakeAll(View(x.data(), DType::f32, c.shape), scaled, c.axis, Saturating(mode)), x,
                 About(text, c) + ", scalar");
      if (HasFatalFailure()) return;
    }
  }
}

TEST(ScaledThreads, ALargeBlockIsTheDefinition) {
  const Case c{{3, 50001}, -1};
  for (const std::string text :
       {"fp8-tensor", "e2m1 3x60000 scale=e8m0", "e4m3fn tensor rule=rceil"}) {
    const Scaled scaled = ParseScaled(text);
    const Floats x = Values(scaled.element, Count(c.shape), false, 2);
    ExpectMade(Definition(x, c, scaled, Saturating()),
               MakeAll(View(x.data(), DType::f32, c.shape), scaled, c.axis, Saturating()), x, text);
  }
}

// ---- scales from elsewhere ----------------------------------------------------------------------

TEST_P(ScaledOn, GivenScalesAreTaken) {
  for (const std::string& text : kScaledFormats) {
    const Scaled scaled = ParseScaled(text);
    const Case c{{9, 35}, -1};
    const Floats x = Values(scaled.element, Count(c.shape), false, 6);
    const TensorView in = View(x.data(), DType::f32, c.shape);
    const Made made = MakeAll(in, scaled, c.axis, Saturating());
    const ScaleCounts counts = CountScales(scaled, c.shape, c.axis);
    // Passes the scales to Cast and Encode first as codes, and then as numbers.
    TensorView blocks = view_of(made.scales), tensor = view_of(made.tensor);
    GivenScales given{.blocks = &blocks, .tensor = scaled.tensor_scale ? &tensor : nullptr};
    ExpectMade(made, MakeAll(in, scaled, c.axis, Saturating(), true, given), x, text + ", codes");
    Floats to(x.size()), got(x.size());
    const TensorView out = Turned(to.data(), DType::f32, c.shape, true);
    Cast(in, scaled, c.axis, Saturating(), out, given, testing::kKey);
    Cast(out, kFp32, {}, View(got.data(), DType::f32, c.shape));
    EXPECT_TRUE(bits_equal(made.values, got, x)) << text << ", out turned";
    const Floats numbers =
        testing::run_decode(made.scales, scaled.scale, static_cast<std::size_t>(counts.blocks));
    Floats outer;
    if (scaled.tensor_scale) {
      outer = testing::run_decode(made.tensor, *scaled.tensor_scale,
                                  static_cast<std::size_t>(counts.tensor));
    }
    blocks = view_of(numbers);
    tensor = view_of(outer);
    ExpectMade(made, MakeAll(in, scaled, c.axis, Saturating(), true, given), x, text + ", numbers");
    if (scaled.tensor_scale) {
      given.blocks = nullptr;  // blocks' own below a given second level
      const Made below = MakeAll(in, scaled, c.axis, Saturating(), true, given);
      EXPECT_EQ(below.tensor, made.tensor) << text;
    }
  }
}

TEST_P(ScaledOn, GivenLargestAreTaken) {
  for (const std::string& text : kScaledFormats) {
    const Scaled scaled = ParseScaled(text);
    const Case c{{9, 35}, -1};
    const Floats x = Values(scaled.element, Count(c.shape), false, 6);
    const TensorView in = View(x.data(), DType::f32, c.shape);
    const BlockShape cells = scaled.tensor_scale ? BlockShape{.kind = scaled.outer} : scaled.block;
    const ScaleCounts counts = CountScales(scaled, c.shape, c.axis);
    const std::int64_t n = scaled.tensor_scale ? counts.tensor : counts.blocks;
    const Floats largest = Largest(x, BlockOf(cells, c.shape, c.axis), n, true);
    const TensorView amax = view_of(largest);
    ExpectMade(MakeAll(in, scaled, c.axis, Saturating()),
               MakeAll(in, scaled, c.axis, Saturating(), true, {.largest = &amax}), x, text);
  }
}

}  // namespace
}  // namespace cpd
