// SPDX-License-Identifier: Apache-2.0
//
// Tests Add, Mul and Fma, each one exact operation and one rounding, and Sum over a dimension.
// Every backend of the CPU, and a GPU, must give the oracle's results.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cpd/ops/arithmetic.h"
#include "cpd/oracle/reference_sum.h"
#include "tests/testing/bits.h"
#include "tests/testing/devices.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

using reference::Spec;
using testing::view_of;
using Device = testing::OnBackendOrGpu;
using Views = std::vector<TensorView>;

enum class Verb { add, mul, fma };
constexpr std::array kVerbs = {Verb::add, Verb::mul, Verb::fma};
constexpr std::array<const char*, 3> kVerbNames = {"add", "mul", "fma"};

struct OperandValues {
  std::vector<float> x, y, z;
  void push(float a, float b, float c) {
    x.push_back(a);
    y.push_back(b);
    z.push_back(c);
  }
  std::string describe(std::size_t i) const {
    return ", operands " + testing::hex(x[i]) + ", " + testing::hex(y[i]) + ", " +
           testing::hex(z[i]);
  }
};

std::vector<float> run(const Device& device, Verb verb, const OperandValues& in,
                       const Format& format, const RoundingOptions& o) {
  std::vector<float> result(in.x.size());
  device.Compute({view_of(in.x), view_of(in.y), view_of(in.z)}, view_of(result),
                 [&](const Views& there, const TensorView& out) {
                   if (verb == Verb::add)
                     return Add(there[0], there[1], format, o, out, testing::kKey);
                   if (verb == Verb::mul)
                     return Mul(there[0], there[1], format, o, out, testing::kKey);
                   Fma(there[0], there[1], there[2], format, o, out, testing::kKey);
                 });
  return result;
}

std::vector<float> oracle(Verb verb, const OperandValues& in, const Format& format,
                          const RoundingOptions& o) {
  const Spec spec = reference::spec_of(format);
  std::vector<std::uint32_t> random(in.x.size());
  if (o.mode == Rounding::stochastic)
    random = testing::run_random_integers(o, in.x.size(), 0, testing::kKey);
  std::vector<float> out(in.x.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const reference::Options opts = testing::oracle_options(o, random[i]);
    switch (verb) {
      case Verb::add:
        out[i] = reference::add(spec, in.x[i], in.y[i], opts);
        break;
      case Verb::mul:
        out[i] = reference::mul(spec, in.x[i], in.y[i], opts);
        break;
      case Verb::fma:
        out[i] = reference::fma(spec, in.x[i], in.y[i], in.z[i], opts);
        break;
    }
  }
  return out;
}

bool check(Verb verb, const OperandValues& in, const Format& format, const RoundingOptions& o) {
  const std::vector<float> expected = oracle(verb, in, format, o);
  bool good = true;
  static std::size_t turn = 0;
  const bool is_for_gpu = testing::is_chosen_on_cpu(++turn, 16);
  for (const std::string& backend : testing::devices()) {
    const Device device(backend);
    if (!device.on_host() && !is_for_gpu) continue;
    const std::vector<float> got = run(device, verb, in, format, o);
    const auto equal =
        testing::bits_equal(std::span<const float>(expected), std::span<const float>(got),
                            [&](std::size_t i) { return in.describe(i); });
    EXPECT_TRUE(equal) << backend << ", " << kVerbNames[static_cast<std::size_t>(verb)] << ", "
                       << testing::describe(format, o);
    good = good && equal;
  }
  return good;
}

float as_binary32(const reference::Exact& x) {
  reference::Options truncate;
  truncate.rounding = Rounding::toward_zero;
  truncate.overflow = Overflow::saturate;
  return reference::round(Spec{}, x, truncate);
}

// Returns operands whose exact result is a point where the rounding changes, or lies just beside
// one.
OperandValues near_ties(const Format& format, std::size_t n, std::uint64_t seed) {
  const Spec spec = reference::spec_of(format);
  std::mt19937_64 generator(seed);
  const auto pool = testing::mixed_values(spec, 256, seed + 1);
  const auto middling = testing::moderate_values(spec, 256, seed + 2);
  const auto any = [&] { return pool[generator() % pool.size()]; };
  const auto mid = [&] { return middling[generator() % middling.size()]; };
  const auto tiny = [&] {
    constexpr std::array<float, 6> kTiny = {0x1p-149f,  -0x1p-149f, 0x1p-126f,
                                            -0x1p-126f, 0x1p-60f,   -0x1p-60f};
    return kTiny[generator() % kTiny.size()];
  };
  OperandValues in;
  const std::vector<float> specials = testing::special_values();
  for (std::size_t i = 0; in.x.size() < n; ++i) {
    const float a = any();
    const float b = mid();
    switch (i % 8) {
      case 0:
        in.push(a, any(), any());
        break;
      case 1:
        in.push(b, mid(), mid());
        break;
      case 2:  // a tie and something too small for binary32 to show beside it
        in.push(a, tiny(), mid());
        break;
      case 3:  // a tiny product beside a tie
        in.push(tiny(), b, a);
        break;
      case 4:  // the sum is `a`, but for what binary32 loses
        in.push(b, as_binary32(add(reference::exact(a), negate(reference::exact(b)))), a);
        break;
      case 5: {  // the product cancels, or leaves `a`
        const float y = mid();
        const auto product = multiply(reference::exact(b), reference::exact(y));
        in.push(b, y, as_binary32(add(reference::exact(a), negate(product))));
        break;
      }
      case 6:  // exact cancellation and its neighbors
        in.push(
            b, testing::from_bits(testing::bits_of(-b) + static_cast<std::uint32_t>(i / 8 % 3) - 1),
            -b * b);
        break;
      default:
        in.push(specials[generator() % specials.size()], specials[generator() % specials.size()],
                generator() % 2 == 0 ? a : specials[generator() % specials.size()]);
    }
  }
  return in;
}

TEST(Arithmetic, EveryIeeeFormatAndMode) {
  int failures = 0;
  for (const Format& format : testing::ieee_formats()) {
    const OperandValues in = near_ties(format, 330, static_cast<std::uint64_t>(format.bits()));
    for (const Verb verb : kVerbs) {
      for (const Rounding mode : testing::kDeterministicModes) {
        failures += check(verb, in, format, testing::options_of(mode)) ? 0 : 1;
        if (failures > 20) FAIL() << "more than 20 failures; the rest is left out";
      }
    }
  }
}

TEST(Arithmetic, EveryEncoding) {
  int failures = 0;
  std::size_t turn = 0;
  for (const Format& format : testing::encoding_formats()) {
    const OperandValues in = near_ties(format, 160, turn + 5);
    for (const Verb verb : kVerbs) {
      for (const Overflow overflow : testing::kPolicies) {
        const Rounding mode = testing::kDeterministicModes[turn++ % 6];
        failures += check(verb, in, format, testing::options_of(mode, overflow)) ? 0 : 1;
        if (failures > 20) FAIL() << "more than 20 failures; the rest is left out";
      }
    }
  }
}

TEST(Arithmetic, Stochastic) {
  int failures = 0;
  for (const Format& format : testing::named_formats()) {
    const OperandValues in = near_ties(format, 512, 77);
    for (const Verb verb : kVerbs) {
      for (const int random_bits : {1, 5, 8, 12, 16, 20, 24}) {
        for (const Variant variant : testing::kVariants) {
          RoundingOptions o = testing::options_of(Rounding::stochastic);
          o.random_bits = random_bits;
          o.variant = variant;
          failures += check(verb, in, format, o) ? 0 : 1;
          if (failures > 20) FAIL() << "more than 20 failures; the rest is left out";
        }
      }
    }
  }
}

/// Tests sums near and beyond binary32's largest number, with stochastic rounding.
TEST(Arithmetic, SumsBeyondBinary32) {
  std::mt19937_64 bits(12);
  OperandValues in;
  for (int i = 0; i < 512; ++i) {
    const auto large = [&] {
      return testing::from_bits(0x7E000000U + static_cast<std::uint32_t>(bits() % 0x1800000));
    };
    const float sign = bits() % 2 == 0 ? 1.0F : -1.0F;
    const float x = sign * large();
    in.push(x, i % 4 == 0 ? sign * 1.75F : sign * large(), sign * large());
  }
  for (const char* format : {"bf16", "e8m3", "e8m14", "tf32", "e8m3:bias=130", "e6m9"}) {
    for (const int random_bits : {1, 3, 8}) {
      for (const Overflow overflow : testing::kPolicies) {
        RoundingOptions o = testing::options_of(Rounding::stochastic, overflow);
        o.random_bits = random_bits;
        for (const Verb verb : kVerbs) check(verb, in, ParseFormat(format), o);
      }
    }
  }
}

// Tests all pairs of 8-bit values.
TEST(Arithmetic, EightBitFormatsAllPairs) {
  int failures = 0;
  std::int64_t pairs = 0;
  std::size_t turn = 0;
  for (const char* name : {"e4m3", "e5m2", "e3m4", "e4m3fn", "e5m2fnuz", "e4m3fnuz", "binary8p4se",
                           "e6m1", "e2m5", "e7m0"}) {
    const Format format = ParseFormat(name);
    const Spec spec = reference::spec_of(format);
    OperandValues in;
    for (std::uint64_t a = 0; a < 256; ++a) {
      for (std::uint64_t b = 0; b < 256; ++b) {
        in.push(reference::decode(spec, a), reference::decode(spec, b), 0.0f);
      }
    }
    for (const Verb verb : {Verb::add, Verb::mul}) {
      const std::size_t other = 1 + turn++ % 5;
      for (const Rounding mode : {Rounding::nearest_even, testing::kDeterministicModes[other]}) {
        failures += check(verb, in, format, testing::options_of(mode)) ? 0 : 1;
        pairs += 65536;
        if (failures > 20) FAIL() << "more than 20 failures; the rest is left out";
      }
    }
  }
  RecordProperty("pairs", static_cast<int>(pairs));
}

TEST(Arithmetic, KnownResults) {
  OperandValues in;
  in.push(0x1.a30fecp+0f, 0x1.4c52bp-1f, 0.0f);
  const OperandValues hidden = [] {
    OperandValues o;
    o.push(0x1.43p-60f, 0x1.fb4p-76f, 0.0f);
    return o;
  }();
  const OperandValues beyond = [] {
    OperandValues o;
    o.push(1.0625f, 1.0f, 0x1p-30f);
    o.push(57344.0f, 1.0f, 0x1p-16f);
    return o;
  }();
  for (const std::string& backend : testing::devices()) {
    const Device device(backend);
    EXPECT_EQ(run(device, Verb::mul, in, ParseFormat("e4m3"), {})[0], 1.125f) << backend;
    EXPECT_EQ(run(device, Verb::fma, beyond, MakeFormat(8, 3), {})[0], 1.125f) << backend;
    const float product = run(device, Verb::mul, hidden, MakeFormat(8, 10), {})[0];
    EXPECT_TRUE(testing::same_bits(
        product, reference::mul(reference::spec_of(MakeFormat(8, 10)), 0x1.43p-60f, 0x1.fb4p-76f)))
        << backend << ": " << testing::hex(product);
  }
}

// Operands may be strided or broadcast (stride 0). The result may be written over an operand.
TEST(Arithmetic, StridesAndBroadcast) {
  const Format format = ParseFormat("e4m3");
  const Spec spec = reference::spec_of(format);
  const auto matrix = testing::moderate_values(spec, 15, 1);
  const auto row = testing::moderate_values(spec, 5, 2);
  for (const std::string& backend : testing::devices()) {
    const Device device(backend);
    const std::array<std::int64_t, 2> shape = {3, 5};
    TensorView x = View(matrix.data(), DType::f32, shape);
    TensorView y = View(row.data(), DType::f32, shape);
    y.stride[0] = 0;
    std::vector<float> out(15);
    TensorView transposed = View(out.data(), DType::f32, shape);
    transposed.stride[0] = 1;
    transposed.stride[1] = 3;
    device.Compute({x, y}, transposed, [&](const Views& in, const TensorView& to) {
      Add(in[0], in[1], format, {}, to);
    });
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < 5; ++j) {
        const float expected = reference::add(spec, matrix[5 * i + j], row[j]);
        EXPECT_TRUE(testing::same_bits(expected, out[i + 3 * j])) << backend;
      }
    }
  }
}

TEST(Arithmetic, HalfOperands) {
  const Format format = ParseFormat("e4m3");
  std::vector<std::uint16_t> x = {0x3C00, 0x4200, 0xFC00, 0x0001};  // fp16: 1, 3, -Inf, 2^-24
  std::vector<std::uint16_t> y = {0x3400, 0x3666, 0x7C00, 0x8001};  // 0.25, 0.39990234, Inf, -2^-24
  std::vector<std::uint16_t> out(4);
  for (const std::string& backend : testing::devices()) {
    const Device device(backend);
    device.Compute(
        {view_of(x, DType::f16), view_of(y, DType::f16)}, view_of(out, DType::f16),
        [&](const Views& in, const TensorView& to) { Add(in[0], in[1], format, {}, to); });
    EXPECT_EQ(out, (std::vector<std::uint16_t>{0x3D00, 0x4300, 0x7E00, 0x0000})) << backend;
  }
}

TEST(Arithmetic, RefusesBadArguments) {
  std::vector<float> x(6), y(5), out(6);
  std::vector<double> wide(6);
  const Format f = ParseFormat("e4m3");
  EXPECT_THROW(Add(view_of(x), view_of(y), f, {}, view_of(out)), Error);
  EXPECT_THROW(Mul(view_of(x), view_of(x), f, {}, view_of(y)), Error);
  EXPECT_THROW(Mul(view_of(wide), view_of(y), f, {}, view_of(wide)), Error);
  EXPECT_THROW(Fma(view_of(x), view_of(x), view_of(y), f, {}, view_of(out)), Error);
  RoundingOptions bad;
  bad.mode = Rounding::stochastic;
  bad.random_bits = 25;
  EXPECT_THROW(Add(view_of(x), view_of(x), f, bad, view_of(out), testing::kKey), Error);
}

// --- Sum over a dimension ------------------------------------------------------------------------

std::vector<float> column_of(const std::vector<float>& x, std::span<const std::int64_t> shape,
                             int dim, std::int64_t outer, std::int64_t inner) {
  std::int64_t inner_size = 1;
  for (std::size_t d = static_cast<std::size_t>(dim) + 1; d < shape.size(); ++d) {
    inner_size *= shape[d];
  }
  const std::int64_t length = shape[static_cast<std::size_t>(dim)];
  std::vector<float> column;
  for (std::int64_t k = 0; k < length; ++k) {
    column.push_back(x[static_cast<std::size_t>((outer * length + k) * inner_size + inner)]);
  }
  return column;
}

TEST(Sum, EveryDimensionOfATensor) {
  const std::array<std::int64_t, 3> shape = {4, 9, 5};
  for (const char* name : {"e4m3", "bf16", "e6m9", "fp32", "e4m3fn"}) {
    const Format format = ParseFormat(name);
    const Spec spec = reference::spec_of(format);
    const std::vector<float> x = testing::moderate_values(spec, 180, 3);
    for (const Scheme scheme : {Scheme::sequential, Scheme::kahan}) {
      Accumulator a;
      a.format = format;
      a.scheme = scheme;
      for (int dim = 0; dim < 3; ++dim) {
        std::vector<std::int64_t> kept;
        std::int64_t inner_size = 1;
        for (int d = 0; d < 3; ++d) {
          if (d != dim) kept.push_back(shape[static_cast<std::size_t>(d)]);
          if (d > dim) inner_size *= shape[static_cast<std::size_t>(d)];
        }
        std::vector<float> expected(static_cast<std::size_t>(kept[0] * kept[1]));
        for (std::size_t i = 0; i < expected.size(); ++i) {
          const auto at = static_cast<std::int64_t>(i);
          const auto column = column_of(x, shape, dim, at / inner_size, at % inner_size);
          expected[i] = scheme == Scheme::kahan ? reference::sum_kahan(spec, column)
                                                : reference::sum_sequential(spec, column);
        }
        for (const std::string& backend : testing::devices()) {
          const Device device(backend);
          std::vector<float> out(expected.size());
          device.Compute({View(x.data(), DType::f32, shape)}, View(out.data(), DType::f32, kept),
                         [&](const Views& in, const TensorView& to) {
                           Sum(in[0], dim, a, to, testing::kKey);
                         });
          EXPECT_TRUE(
              testing::bits_equal(std::span<const float>(expected), std::span<const float>(out)))
              << backend << ", " << name << ", " << ToString(scheme) << ", dim " << dim;
        }
      }
    }
  }
}

/// Tests the memory layouts of the summed terms. The elements of one term form a contiguous row,
/// the terms of one element are contiguous, rows have gaps, or strides are arbitrary. There are
/// more terms than a kernel reads at once.
TEST(Sum, LayoutsOfManyTerms) {
  constexpr std::int64_t kTerms = 150, kRows = 3, kColumns = 100, kGap = 7;
  const Format format = ParseFormat("e5m7");
  const Spec spec = reference::spec_of(format);
  const std::vector<float> x =
      testing::moderate_values(spec, static_cast<std::size_t>(kTerms * kRows * kColumns), 5);
  constexpr std::array<std::int64_t, 2> kept{kRows, kColumns};
  const std::array<std::array<std::int64_t, 3>, 5> strides{
      {{kRows * kColumns, kColumns, 1},
       {1, kColumns * kTerms, kTerms},
       {1, kColumns * (kTerms + kGap), kTerms + kGap},
       {1, kTerms * (kColumns + kGap), kTerms},
       {kRows, 1, kTerms * kRows}}};
  for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
    for (const Scheme scheme : {Scheme::sequential, Scheme::kahan, Scheme::pairwise}) {
      Accumulator a;
      a.format = format;
      a.scheme = scheme;
      a.rounding.mode = mode;
      std::vector<float> expected;
      for (const auto& [by_term, by_row, by_column] : strides) {
        const std::int64_t size =
            (kTerms - 1) * by_term + (kRows - 1) * by_row + (kColumns - 1) * by_column + 1;
        std::vector<float> laid(static_cast<std::size_t>(size));
        for (std::int64_t i = 0; i < kTerms * kRows * kColumns; ++i) {
          const std::int64_t column = i % kColumns, row = i / kColumns % kRows;
          const std::int64_t at =
              i / kColumns / kRows * by_term + row * by_row + column * by_column;
          laid[static_cast<std::size_t>(at)] = x[static_cast<std::size_t>(i)];
        }
        TensorView view =
            View(laid.data(), DType::f32, std::array<std::int64_t, 3>{kRows, kColumns, kTerms});
        view.stride = {by_row, by_column, by_term};
        for (const std::string& backend : testing::devices()) {
          const Device device(backend);
          std::vector<float> out(kRows * kColumns);
          device.Compute(
              {view}, View(out.data(), DType::f32, kept),
              [&](const Views& in, const TensorView& to) { Sum(in[0], 2, a, to, testing::kKey); });
          if (expected.empty()) expected = out;
          EXPECT_TRUE(
              testing::bits_equal(std::span<const float>(expected), std::span<const float>(out)))
              << backend << ", " << ToString(a) << ", strides " << by_row << ", " << by_column
              << ", " << by_term;
        }
      }
      if (mode != Rounding::nearest_even || scheme == Scheme::pairwise) continue;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        std::vector<float> column;
        for (std::size_t k = i; k < x.size(); k += expected.size()) column.push_back(x[k]);
        const float sum = scheme == Scheme::kahan ? reference::sum_kahan(spec, column)
                                                  : reference::sum_sequential(spec, column);
        EXPECT_EQ(testing::bits_of(sum), testing::bits_of(expected[i])) << i;
      }
    }
  }
}

TEST(Sum, OverlappingWindows) {
  std::vector<float> x(18);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * i);
  TensorView windows = View(x.data(), DType::f32, std::array<std::int64_t, 3>{2, 3, 4});
  windows.stride[0] = 12;
  windows.stride[1] = windows.stride[2] = 1;
  for (const std::string& backend : testing::devices()) {
    std::vector<float> out(12);
    Device(backend).Compute({windows},
                            View(out.data(), DType::f32, std::array<std::int64_t, 2>{3, 4}),
                            [](const Views& in, const TensorView& to) {
                              Sum(in[0], 0, ParseAccumulator("fp32 sequential"), to, testing::kKey);
                            });
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < 4; ++j) EXPECT_EQ(out[4 * i + j], x[i + j] + x[12 + i + j]);
    }
  }
}

/// The tensor has overlapping windows: its first two dimensions have equal strides, and the summed
/// dimension is contiguous.
TEST(Sum, WindowsOfOneStride) {
  std::vector<float> x(3 * 8 + 2 * 8 + 5);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * i);
  TensorView windows = View(x.data(), DType::f32, std::array<std::int64_t, 3>{3, 2, 5});
  windows.stride[0] = windows.stride[1] = 8;
  std::vector<float> out(6);
  Sum(windows, 2, ParseAccumulator("fp32 sequential"),
      View(out.data(), DType::f32, std::array<std::int64_t, 2>{3, 2}), testing::kKey);
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 2; ++j) {
      float sum = 0;
      for (std::size_t k = 0; k < 5; ++k) sum += x[8 * (i + j) + k];
      EXPECT_EQ(out[2 * i + j], sum) << i << ", " << j;
    }
  }
}

TEST(Sum, EmptySumIsZeroAndEmptyOutputIsFine) {
  std::vector<float> x;
  std::vector<float> out(3, 7.0f);
  const std::array<std::int64_t, 2> shape = {0, 3};
  const std::array<std::int64_t, 1> kept = {3};
  Sum(View(x.data(), DType::f32, shape), 0, {}, View(out.data(), DType::f32, kept));
  for (const float v : out) EXPECT_EQ(testing::bits_of(v), 0u);
  const std::array<std::int64_t, 1> none = {0};
  Sum(View(x.data(), DType::f32, shape), 1, {}, View(x.data(), DType::f32, none));
}

TEST(Sum, RefusesBadArguments) {
  std::vector<float> x(6), out(3);
  const std::array<std::int64_t, 2> shape = {2, 3};
  const TensorView view = View(x.data(), DType::f32, shape);
  EXPECT_THROW(Sum(view, 2, {}, view_of(out)), Error);
  EXPECT_THROW(Sum(view, 1, {}, view_of(out)), Error);
}

}  // namespace
}  // namespace cpd
