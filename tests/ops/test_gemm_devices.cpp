// SPDX-License-Identifier: Apache-2.0
//
// Tests that matrix products have the same bits on every device, for schemes, formats, modes,
// shapes, layouts, types and kernels. A GPU's BLAS must be within the error bound that holds for
// any order of summation.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cpd/ops/gemm.h"
#include "cpd/spec/error.h"
#include "cpd/spec/presets.h"
#include "tests/testing/devices.h"
#include "tests/testing/gemm.h"
#include "tests/testing/gemm_cases.h"
#include "tests/testing/gemm_devices.h"

namespace cpd {
namespace {

using testing::GemmDevices;
using testing::Layout;
using testing::OnGpu;
using testing::OnGpuView;
using testing::schemes_of_tiles;
using testing::Shape;
using testing::Tensor;
using testing::Values;

std::vector<RoundingOptions> device_roundings() {
  std::vector<RoundingOptions> all;
  RoundingOptions o;
  for (const Rounding mode : testing::kDeterministicModes) {
    o.mode = mode;
    all.push_back(o);
  }
  o.mode = Rounding::stochastic;
  for (const Variant variant : testing::kVariants) {
    for (const int random_bits : {1, 8, 13, 24}) {
      o.random_bits = random_bits;
      o.variant = variant;
      all.push_back(o);
    }
  }
  return all;
}

TEST_F(GemmDevices, EverySchemeFormatAndRounding) {
  for (const char* name : {"e4m3", "e5m2", "e6m9", "e8m7", "e5m10", "e8m23", "e4m3fn", "e4m3fnuz",
                           "e3m0", "e4m3:nosub", "e8m10", "e2m1", "binary8p4se"}) {
    const Format format = ParseFormat(name);
    for (const Values kind : testing::kValues) {
      const std::int64_t depth = kind == Values::wild || kind == Values::mixed ? 5 : 70;
      const Tensor a = Make({70, depth}, kind, format);
      const Tensor b = Make({depth, 67}, kind, format);
      const Tensor c = Make({70, 67}, Values::mixed, format);
      int turn = 0;
      for (Accumulator accumulator : schemes_of_tiles(format)) {
        for (const RoundingOptions& o : device_roundings()) {
          accumulator.rounding = o;
          // Nearest-even is always tested, and the other modes in turn.
          if (++turn % 4 != 0 && o.mode != Rounding::nearest_even) continue;
          if (!testing::is_chosen_on_cpu(static_cast<std::size_t>(turn), 40)) continue;
          if (turn % 5 == 0) accumulator.rounding.overflow = Overflow::saturate;
          ASSERT_TRUE(SameEverywhere({a, b, turn % 2 == 0 ? &c : nullptr}, accumulator)) << name;
        }
      }
    }
  }
}

TEST_F(GemmDevices, Shapes) {
  const Format format = ParseFormat("e4m3");
  const std::vector<Accumulator> all = schemes_of_tiles(format);
  std::size_t turn = 0;
  for (const std::int64_t m : {1, 15, 16, 17, 63, 64, 65, 130}) {
    for (const std::int64_t n : {1, 15, 17, 63, 64, 65, 131}) {
      for (const std::int64_t k : {0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 257}) {
        Accumulator accumulator = all[++turn % all.size()];
        if (!testing::is_chosen_on_cpu(turn, 16)) continue;
        if (turn % 3 == 0) accumulator.rounding.mode = Rounding::stochastic;
        const Tensor a = Make({m, k}, Values::on_grid, format);
        const Tensor b = Make({k, n}, Values::on_grid, format);
        const Tensor c = Make({n}, Values::on_grid, format);
        ASSERT_TRUE(SameEverywhere({a, b, turn % 2 == 0 ? &c : nullptr}, accumulator));
      }
    }
  }
}

/// Tests stochastic sums. With more random bits, fewer random integers fit in a 32-bit word, and
/// sums may not fit in binary32; the numbers of bits lie around these limits. The values include
/// sums that overflow, operands beyond the format, and NaN.
TEST_F(GemmDevices, ShortStochasticSteps) {
  std::size_t pick = 0;
  for (const char* name : {"e4m3", "e5m2", "e6m9", "e8m7", "e3m2", "e2m1", "e4m3fnuz", "e5m0"}) {
    const Format format = ParseFormat(name);
    for (const Values kind : testing::kValues) {
      for (const std::int64_t depth : {1, 5, 64, 67, 131}) {
        const Tensor a = Make({17, depth}, kind, format);
        const Tensor b = Make({depth, 19}, kind, format);
        const Tensor c = Make({17, 19}, Values::mixed, format);
        for (const int random_bits : {1, 8, 9, 13, 16, 17, 18, 24}) {
          if (!testing::is_chosen_on_cpu(pick++, 4)) continue;
          Accumulator accumulator{.format = format};
          accumulator.rounding = {.mode = Rounding::stochastic, .random_bits = random_bits};
          accumulator.exact_products = pick % 3 == 0;
          if (pick % 5 == 0) accumulator.rounding.overflow = Overflow::saturate;
          ASSERT_TRUE(SameEverywhere({a, b, pick % 2 == 0 ? &c : nullptr}, accumulator))
              << name << ", " << random_bits << " bits";
        }
      }
    }
  }
}

/// A range of rows has the same bits as in the whole product. Two calls, for two ranges of k, also
/// give the bits of the whole product if the second begins with the first one's result.
TEST_F(GemmDevices, PartsAreThoseOfTheWhole) {
  const Format format = ParseFormat("e4m3");
  const Tensor a = Make({37, 96}, Values::on_grid, format);
  const Tensor b = Make({96, 19}, Values::on_grid, format);
  const auto part = [](TensorView view, std::size_t dim, std::int64_t from, std::int64_t n) {
    view.data = static_cast<float*>(view.data) + from * view.stride[dim];
    view.shape[dim] = n;
    return view;
  };
  for (const char* text : {"e4m3 sequential rounding=stochastic",
                           "e4m3 sequential rounding=stochastic random_bits=8 product=exact",
                           "e4m3 chunked chunk=8 rounding=stochastic random_bits=13"}) {
    const Accumulator accumulator = ParseAccumulator(text);
    const std::vector<float> nothing(37 * 19, -7.0F);
    const Tensor whole({37, 19}, nothing);
    Gemm(a.view(), b.view(), accumulator, whole.view(), nullptr, testing::kKey);
    for (const std::string& name : testing::devices()) {
      const testing::OnBackendOrGpu device(name);
      testing::Copies there = device.There();
      const Tensor parts({37, 19}, nothing);
      const Tensor so_far({37, 19}, nothing);
      const TensorView x = there(a.view());
      const TensorView y = there(b.view());
      const TensorView to = there(parts.view());
      const TensorView first = there(so_far.view());
      for (const auto& [from, n] : {std::pair{0, 16}, {16, 20}, {36, 1}}) {
        const TensorView c = part(first, 0, from, n);
        Gemm(part(part(x, 0, from, n), 1, 0, 40), part(y, 0, 0, 40), accumulator, c, nullptr,
             GemmPart{.element = 19 * from}, testing::kKey);
        Gemm(part(part(x, 0, from, n), 1, 40, 56), part(y, 0, 40, 56), accumulator,
             part(to, 0, from, n), &c, GemmPart{.element = 19 * from, .product = 40},
             testing::kKey);
      }
      there.Read(parts.view());
      const std::vector<float> expected = whole.read();
      const std::vector<float> got = parts.read();
      EXPECT_TRUE(
          testing::bits_equal(std::span<const float>(expected), std::span<const float>(got)))
          << text << ", " << name;
    }
  }
}

TEST_F(GemmDevices, LargeProductsOnEveryShortRoute) {
  const Format format = ParseFormat("e4m3");
  std::vector<Accumulator> all = schemes_of_tiles(format);
  Accumulator fp32;
  all.push_back(fp32);
  fp32.exact_products = true;
  all.push_back(fp32);
  for (const Values kind : {Values::on_grid, Values::arbitrary, Values::large}) {
    const std::int64_t rows = testing::kOnGpuItself ? 300 : 70;
    const std::int64_t depth = testing::kOnGpuItself ? 1000 : 130;
    const Tensor a = Make({rows, depth}, kind, format);
    const Tensor b = Make({depth, 700 * rows / 300}, kind, format);
    for (const Accumulator& accumulator : testing::few_on_cpu(all, 3)) {
      ASSERT_TRUE(SameEverywhere({a, b}, accumulator));
    }
  }
}

/// Tests products and sums of all pairs of a format's finite values. The products have enough tiles
/// for the GPU to compute them two at a time in 16-bit floats (bf16 for e5m2, else fp16).
TEST_F(GemmDevices, AllPairsOfFormatsOfFewBits) {
  for (const char* name : {"e4m3", "e4m3fn", "e5m2", "e3m2", "e2m1"}) {
    const Accumulator accumulator = testing::accumulator_of(name);
    std::vector<float> finite;
    for (const float x : testing::all_values(accumulator.format)) {
      if (std::isfinite(x) && (x != 0 || !std::signbit(x))) finite.push_back(x);
    }
    const auto n = static_cast<std::int64_t>(finite.size());
    const std::int64_t repeats = (testing::kOnGpuItself ? 48000 : 720) / n + 1;
    std::vector<float> many;
    for (std::int64_t i = 0; i < repeats; ++i)
      many.insert(many.end(), finite.begin(), finite.end());
    const Tensor a({repeats * n, 1}, many);
    const Tensor b({1, n}, finite);
    ASSERT_TRUE(SameEverywhere({a, b}, accumulator)) << name;
    const Tensor ones({repeats * n, 1}, std::vector<float>(many.size(), 1.0F));
    ASSERT_TRUE(SameEverywhere({ones, b, &a}, accumulator)) << name;
  }
}

TEST_F(GemmDevices, LayoutsTypesAndBatches) {
  constexpr std::array kTypes = {DType::f32, DType::bf16, DType::f16};
  const Format format = ParseFormat("e4m3");
  const std::vector<Accumulator> all = schemes_of_tiles(format);
  std::size_t turn = 0;
  for (const Layout la : testing::kLayouts) {
    for (const Layout lb : testing::kLayouts) {
      for (const Layout lo : testing::kLayouts) {
        if (!testing::is_chosen_on_cpu(++turn, 6)) continue;
        const Shape of_b = turn % 3 == 0 ? Shape{9, 66} : Shape{2, 1, 9, 66};
        const Tensor a = Make({2, 3, 65, 9}, Values::arbitrary, format, la, kTypes[turn % 3]);
        const Tensor b = Make(of_b, Values::arbitrary, format, lb, kTypes[turn / 3 % 3]);
        const Tensor c = Make({3, 65, 1}, Values::arbitrary, format, la, kTypes[turn / 2 % 3]);
        Accumulator accumulator = all[turn % all.size()];
        if (turn % 2 == 0) accumulator.rounding.mode = Rounding::stochastic;
        ASSERT_TRUE(SameEverywhere({a, b, &c, lo, kTypes[turn / 9 % 3]}, accumulator));
      }
    }
  }
}

/// Tests every preset of a matrix unit, and units that take the values of k in other orders. The
/// operands have similar sizes, or some are special values.
TEST_F(GemmDevices, MatrixUnits) {
  std::vector<std::string> texts{
      "fp32 block_fma a=e4m3fn b=e5m2 block=4 group=8 fraction_bits=3",
      "fp32 block_fma a=e4m3fn b=e5m2 block=3 group=12 stride=6 take=3 promote=24",
      "fp32 block_fma a=e4m3fn b=e5m2 block=16 group=48 stride=8 take=1 sum=fp16",
      "fp16 block_fma a=e4m3fn b=e5m2 block=16 group=32 promote=32 sum=fp16 "
      "sum_rounding=nearest_even min_exponent=-21"};
  for (const NamedSpec& info : Presets()) texts.emplace_back(info.name);
  std::size_t turn = 0;
  for (const std::string& text : texts) {
    for (const std::int64_t k : {0, 1, 5, 16, 33, 65, 130, 200}) {
      Accumulator accumulator = ParseAccumulator(text);
      const bool aligned = accumulator.unit->adder == Adder::aligned;
      if (!testing::is_chosen_on_cpu(++turn, aligned ? 12 : 3)) continue;
      const bool has_nan = accumulator.unit->a.has_nan() && accumulator.unit->b.has_nan();
      const Values special = has_nan ? Values::mixed : Values::small;
      const Tensor x = MakeRounded({40, k}, special, accumulator.unit->a);
      const Tensor y = MakeRounded({k, 35}, special, accumulator.unit->b);
      const Tensor a = MakeRounded({40, k}, Values::on_grid, accumulator.unit->a);
      const Tensor b = MakeRounded({k, 35}, Values::on_grid, accumulator.unit->b);
      const Tensor c = Make({40, 35}, Values::arbitrary, accumulator.format);
      ASSERT_TRUE(SameEverywhere({x, y, turn % 2 == 0 ? &c : nullptr}, accumulator)) << text;
      ASSERT_TRUE(SameEverywhere({a, b}, accumulator)) << text;
      ASSERT_TRUE(SameEverywhere({a, b, &c}, accumulator)) << text;
      accumulator.format = ParseFormat("e6m9");
      if (accumulator.unit->promote == 0) {
        accumulator.unit->promote = std::max(2 * accumulator.unit->block, accumulator.unit->group);
      }
      for (const RoundingOptions& o : testing::few_on_cpu(device_roundings(), 8)) {
        accumulator.rounding = o;
        ASSERT_TRUE(SameEverywhere({a, b, &c}, accumulator)) << text;
      }
    }
  }
}

/// Tests units whose sums a GPU computes in tiles of 64 x 64, with incomplete tiles and incomplete
/// steps of k. The layouts, types and batches vary. Results in fp16 are included, because a unit
/// may add products in another order for them.
TEST_F(GemmDevices, MatrixUnitsByTiles) {
  std::size_t turn = 0;
  for (const char* text : {"v100", "v100 output=fp16", "a100", "a100-tf32", "ada-fp8", "h100-fp16",
                           "h100-fp16 output=fp16", "h100-bf16", "h100-fp8", "deepseek-promoted",
                           "hopper-mma-fp8", "hopper-mma-fp8 output=fp16"}) {
    const std::string name(text);
    const std::size_t end = name.find(' ');
    const bool half = end != std::string::npos;
    const Accumulator accumulator =
        Preset(name.substr(0, end), ParseFormat(half ? "fp16" : "fp32"));
    const Format operand = accumulator.unit->a;
    for (const std::int64_t k : {1, 31, 33, 70}) {
      if (!testing::is_chosen_on_cpu(++turn, 2)) continue;
      const Values kind = testing::kValues[turn % testing::kValues.size()];
      const Layout layout = testing::kLayouts[turn % 4];
      const Tensor a = MakeRounded({2, 1, 65, k}, kind, operand, layout);
      const Tensor b = MakeRounded({3, k, 70}, kind, operand, testing::kLayouts[turn / 4 % 4]);
      const Tensor c = Make({65, 1}, Values::mixed, accumulator.format, layout, DType::f32);
      ASSERT_TRUE(SameEverywhere({a, b, nullptr, layout}, accumulator)) << text;
      ASSERT_TRUE(SameEverywhere({a, b, &c, layout}, accumulator)) << text;
    }
  }
}

/// With promotion, a unit's sum is added to the accumulator after every `promote` values of k. Each
/// of these additions must be rounded with a new random integer.
TEST_F(GemmDevices, PromotionsDraw) {
  Accumulator accumulator = Preset("h100-fp8");
  accumulator.format = ParseFormat("e6m9");
  accumulator.unit->promote = 2 * accumulator.unit->block;
  accumulator.rounding = device_roundings().back();
  const Tensor a = MakeRounded({40, 300}, Values::on_grid, accumulator.unit->a);
  const Tensor b = MakeRounded({300, 35}, Values::on_grid, accumulator.unit->b);
  const Tensor c = Make({40, 35}, Values::arbitrary, accumulator.format);
  ASSERT_TRUE(SameEverywhere({a, b}, accumulator));
  ASSERT_TRUE(SameEverywhere({a, b, &c}, accumulator));
}

/// The first warp loads only rows of ones, and other warps load rows of tiny values. The warps must
/// combine the ranges of their values, because the first warp's range alone would permit sums in
/// binary32. Tests the general kernel and tiles of 64 x 64.
TEST_F(GemmDevices, RangesOfATileAreThoseOfAllThreads) {
  const Tensor ones({64, 35}, std::vector<float>(64 * 35, 1.0F));
  std::vector<float> a(40 * 64, 1.0F);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (i / 64 % 4 != 0) a[i] = 0x1p-126F;
  }
  for (const char* text : {"fp32 block_fma a=bf16 b=bf16 block=6", "h100-bf16"}) {
    ASSERT_TRUE(SameEverywhere({Tensor({40, 64}, a), ones}, ParseAccumulator(text))) << text;
  }
}

/// A test fixture for features of Gemm that only devices other than the CPU have.
class GemmGpu : public GemmDevices {
 protected:
  void SetUp() override { GpuTest::SetUp(); }
  static void Run(const testing::Product& product, const testing::GemmCase& g,
                  const Accumulator& accumulator, const Tensor& out) {
    const testing::OnBackendOrGpu device(testing::tests_only("sim") ? "sim" : "cuda");
    GemmDevices::Run(device, product, g, accumulator, out);
  }
};

TEST_F(GemmGpu, SeedAndStreamMayLieOnTheGpu) {
  const std::uint64_t numbers[] = {0x0123456789ABCDEFULL, 0xFEDCBA9876543210ULL};
  const OnGpu numbers_gpu(driver(), numbers, sizeof(numbers));
  const Tensor a = Make({33, 50}, Values::arbitrary, ParseFormat("e4m3"));
  const Tensor b = Make({50, 35}, Values::arbitrary, ParseFormat("e4m3"));
  for (Accumulator accumulator : schemes_of_tiles(ParseFormat("e4m3"))) {
    accumulator.rounding.mode = Rounding::stochastic;
    accumulator.rounding.random_bits = 8;
    const Tensor host({33, 35}, std::vector<float>(33 * 35, -7.0F));
    const Tensor device({33, 35}, std::vector<float>(33 * 35, -7.0F));
    Gemm(a.view(), b.view(), accumulator, host.view(), nullptr, RandomKey{numbers[0], numbers[1]});
    RandomKey key{7, 7};  // not used
    key.device_seed = static_cast<const std::uint64_t*>(
        numbers_gpu.View(View(numbers, DType::i64, 2), numbers).data);
    key.device_stream = key.device_seed + 1;
    const auto product = [&](const TensorView& x, const TensorView& y, const Accumulator& sums,
                             const TensorView& out,
                             const TensorView* c) { Gemm(x, y, sums, out, c, key); };
    Run(product, {a, b}, accumulator, device);
    const std::vector<float> x = host.read();
    const std::vector<float> y = device.read();
    ASSERT_TRUE(testing::bits_equal<float>(x, y)) << testing::describe(accumulator);
  }
}

TEST_F(GemmGpu, OperandsThatAUnitDoesNotTakeAreRefused) {
  const Accumulator accumulator = Preset("h100-fp16");
  const Tensor a({1, 2}, {1.0F, 0x1.001p0F});
  const Tensor b({2, 1}, {1.0F, 1.0F});
  const Tensor out({1, 1}, {7.0F});
  EXPECT_THROW(Run(testing::kGemm, {a, b}, accumulator, out), Error);
  EXPECT_EQ(out.read()[0], 7.0F);

  for (const std::size_t wrong :
       {std::size_t{0}, std::size_t{255}, std::size_t{256}, std::size_t{9000}, std::size_t{9999}}) {
    std::vector<float> values(10000, 1.0F);
    values[wrong] = values[9999] = 0x1.001p0F;
    const Tensor many({100, 100}, values);
    const Tensor ones({100, 1}, std::vector<float>(100, 1.0F));
    const Tensor column({100, 1}, std::vector<float>(100, 7.0F));
    try {
      Run(testing::kGemm, {many, ones}, accumulator, column);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_TRUE(std::string(error.what()).ends_with("at element " + std::to_string(wrong)))
          << error.what();
    }
  }
}

TEST_F(GemmGpu, CublasIsWithinTheBound) {
  for (const Layout la : testing::kLayouts) {
    for (const Layout lb : testing::kLayouts) {
      for (const Layout lo : testing::kLayouts) {
        const Tensor a = Make({3, 33, 70}, Values::arbitrary, kFp32, la);
        const Tensor b = Make({70, 41}, Values::arbitrary, kFp32, lb);
        const Tensor c = Make({41}, Values::arbitrary, kFp32);
        const Tensor out({3, 33, 41}, std::vector<float>(3 * 33 * 41, -7.0F), lo);
        try {
          Run(GemmByBlas, {a, b, &c}, {}, out);
        } catch (const MachineError& error) {
          if (std::string(error.what()).find("libcublas was not found") == std::string::npos) throw;
          GTEST_SKIP() << error.what();
        }
        ASSERT_TRUE(out.gaps_untouched());
        const std::vector<float> got = out.read();
        for (std::size_t i = 0; i < got.size(); ++i) {
          double sum = c.values()[i % 41];
          double magnitude = std::fabs(sum);
          for (std::size_t k = 0; k < 70; ++k) {
            const double term =
                double{a.values()[i / 41 * 70 + k]} * double{b.values()[k * 41 + i % 41]};
            sum += term;
            magnitude += std::fabs(term);
          }
          ASSERT_LE(std::fabs(got[i] - sum), 72 * 0x1p-24 * magnitude) << i;
        }
      }
    }
  }
}

/// The kernel adds the products of a chunk in several steps along k. If a step has a value that
/// does not fit in 16 bits, the kernel computes the four quarters of a tile one after the other.
/// The kernel counts the products of the present chunk. Each quarter must begin with the same
/// count.
TEST_F(GemmDevices, ChunksBesideValuesThatHalvesDoNotHold) {
  constexpr std::int64_t kSide = 130;
  constexpr std::int64_t kDepth = 100;
  std::vector<float> x(static_cast<std::size_t>(kSide * kDepth));
  std::vector<float> y(static_cast<std::size_t>(kDepth * kSide));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.125F * static_cast<float>(i * 37 % 23) - 1;
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = 0.125F * static_cast<float>(i * 53 % 19) - 1;
  for (std::size_t row = 0; row < kSide; row += 50) x[row * kDepth + 40] = 1 + 0x1p-20F;
  const Tensor a({kSide, kDepth}, x);
  const Tensor b({kDepth, kSide}, y);
  for (const char* text :
       {"e4m3 chunked chunk=64", "fp32 chunked inner=e4m3 product=e4m3 chunk=64"}) {
    testing::queued_kernels();
    EXPECT_TRUE(SameEverywhere({a, b}, ParseAccumulator(text)));
    if (const auto kernels = testing::queued_kernels()) {
      EXPECT_EQ(*kernels, std::vector<std::string>{"multiply_halves"}) << text;
    }
  }
}

/// Tests batches of two dimensions, also with one dimension broadcast, and overlapping windows of a
/// row. The values are small integers, so their sums are exact in any order.
TEST_F(GemmGpu, CublasTakesAnyBatchAndOverlappingRows) {
  std::vector<float> x(60);
  std::vector<float> y(120);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 11) - 5;
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = static_cast<float>(i % 7) - 3;
  const auto expect_product = [&](const TensorView& a, const TensorView& b) {
    const std::array<std::int64_t, 4> shape{a.shape[0], b.shape[1], a.shape[2], b.shape[3]};
    std::vector<float> got(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
    const OnGpuView out(driver(), View(got.data(), DType::f32, shape));
    const OnGpuView left(driver(), a);
    const OnGpuView right(driver(), b);
    GemmByBlas(left.view(), right.view(), {}, out.view());
    out.Read();
    const auto at = [](const TensorView& t, std::int64_t p, std::int64_t q, std::int64_t i,
                       std::int64_t j) {
      return static_cast<const float*>(
          t.data)[p * t.stride[0] + q * t.stride[1] + i * t.stride[2] + j * t.stride[3]];
    };
    std::size_t index = 0;
    for (std::int64_t p = 0; p < shape[0]; ++p) {
      for (std::int64_t q = 0; q < shape[1]; ++q) {
        for (std::int64_t i = 0; i < shape[2]; ++i) {
          for (std::int64_t j = 0; j < shape[3]; ++j, ++index) {
            float sum = 0;
            for (std::int64_t k = 0; k < a.shape[3]; ++k) {
              sum += at(a, p, q, i, k) * at(b, p, q, k, j);
            }
            ASSERT_EQ(got[index], sum) << p << ", " << q << ", " << i << ", " << j;
          }
        }
      }
    }
  };
  try {
    TensorView a = View(x.data(), DType::f32, std::array<std::int64_t, 4>{2, 3, 2, 5});
    TensorView b = View(y.data(), DType::f32, std::array<std::int64_t, 4>{2, 3, 5, 4});
    expect_product(a, b);
    a.stride[1] = 0;  // one matrix for all three
    expect_product(a, b);
    b.stride[0] = 0;
    expect_product(a, b);
    a = View(x.data(), DType::f32, std::array<std::int64_t, 4>{2, 3, 6, 5});
    a.stride = {15, 5, 2, 1};
    expect_product(a, b);
  } catch (const MachineError& error) {
    if (std::string(error.what()).find("libcublas was not found") == std::string::npos) throw;
    GTEST_SKIP() << error.what();
  }
}

}  // namespace
}  // namespace cpd
