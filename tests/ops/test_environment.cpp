// SPDX-License-Identifier: Apache-2.0
//
// Tests that the program's floating-point environment (subnormals flushed to zero, or another
// rounding mode) changes no bit of any result. One set of cases covers every operation, and the
// references too.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cfenv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cpd/backend/blas.h"
#include "cpd/ops/exact.h"
#include "cpd/ops/reduce.h"
#include "cpd/ops/scaled.h"
#include "cpd/scale/aps.h"
#include "cpd/spec/error.h"
#include "cpd/study/cost.h"
#include "cpd/study/roundoff.h"
#include "tests/testing/flushing.h"
#include "tests/testing/gemm.h"
#include "tests/testing/reduce.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

using testing::view_of;

/// A list of the results of operations, stored as bytes, each with a name.
class Results {
 public:
  template <class T>
  void Add(const std::string& name, const std::vector<T>& values) {
    std::vector<std::uint8_t> bytes(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    all_.emplace_back(name, std::move(bytes));
  }
  void Add(const std::string& name, double value) { Add(name, std::vector<double>{value}); }
  /// Adds the result of run() to the list of results. If run() throws an Error, adds its text.
  template <class Run>
  void Try(const std::string& name, const Run& run) {
    try {
      Add(name, run());
    } catch (const Error& error) {
      std::string text = error.what();
      // Removes the number from the error's text, because the C library formats it in the program's
      // rounding mode.
      const std::size_t number = text.find("got ");
      const std::size_t after = text.find(" at element");
      if (number < after && after != std::string::npos) text.erase(number, after - number);
      Add(name, std::vector<char>(text.begin(), text.end()));
    }
  }
  const auto& all() const { return all_; }

 private:
  std::vector<std::pair<std::string, std::vector<std::uint8_t>>> all_;
};

/// Returns numbers of all sizes, including subnormal ones. The numbers are made from bit patterns,
/// without floating-point arithmetic.
std::vector<float> Numbers(std::size_t n) {
  constexpr std::array<std::uint32_t, 12> kFirst = {0x00000001, 0x80000001, 0x00400000, 0x807FFFFF,
                                                    0x00800000, 0x00800001, 0x3F800000, 0xBF800001,
                                                    0x7F7FFFFF, 0x00000000, 0x80000000, 0x0000ABCD};
  std::vector<float> x(n);
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < n; ++i) {
    state = state * 1664525 + 1013904223;
    const std::uint32_t tiny = (state >> 3) & 0x81FFFFFF;  // exponents of the lowest binades
    x[i] = std::bit_cast<float>(i < kFirst.size() ? kFirst[i] : i % 3 == 0 ? state >> 2 : tiny);
  }
  return x;
}
std::vector<double> Doubles(std::size_t n) {
  std::vector<double> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    // Every fourth number is a subnormal number of binary64. The other numbers are as small as
    // binary32's subnormal numbers.
    const std::uint64_t field = i % 4 == 3 ? 0 : 1023 - 155 + i % 12;
    x[i] = std::bit_cast<double>(field << 52 | 0x000F123456789ABCULL * (i + 1) >> 12);
  }
  return x;
}

RoundingOptions Options(Rounding mode, Overflow overflow = Overflow::ieee) {
  RoundingOptions o;
  o.mode = mode;
  o.overflow = overflow;
  o.random_bits = 9;
  return o;
}

constexpr std::array kFormats = {"bf16",       "e8m0", "e8m3",          "e5m2",
                                 "fp16",       "tf32", "e1m2:bias=140", "e4m3fn:unsigned",
                                 "e8m3:nosub", "e8m20"};
constexpr std::array kModes = {Rounding::nearest_even, Rounding::up, Rounding::stochastic};
constexpr std::size_t kCount = 300;

void Casts(Results& results) {
  const std::vector<float> x = Numbers(kCount);
  const std::vector<double> wide = Doubles(kCount);
  for (const char* name : kFormats) {
    const Format format = ParseFormat(name);
    for (const Rounding mode : kModes) {
      for (const Overflow overflow : testing::kPolicies) {
        const RoundingOptions o = Options(mode, overflow);
        const std::string about = testing::describe(format, o);
        results.Add("cast " + about, testing::run_cast(x, format, o, nullptr, testing::kKey));
        results.Add("cast f64 " + about,
                    testing::run_cast(wide, format, o, nullptr, testing::kKey));
        std::vector<float> narrow(wide.size());
        Cast(view_of(wide), format, o, view_of(narrow), testing::kKey);
        results.Add("cast f64 to f32 " + about, narrow);
        for (const DType type : {DType::bf16, DType::f16}) {
          std::vector<std::uint16_t> half(x.size());
          results.Try("cast to 16 bits " + about, [&] {
            Cast(view_of(x), format, o, view_of(half, type), testing::kKey);
            return half;
          });
          results.Try("cast from 16 bits " + about, [&] {
            std::vector<float> y(half.size());
            Cast(view_of(half, type), format, o, view_of(y), testing::kKey);
            return y;
          });
        }
        const auto packed = testing::run_encode(x, format, o, testing::kKey);
        results.Add("encode " + about, packed);
        results.Add("decode " + about, testing::run_decode(packed, format, x.size()));
        const auto n = static_cast<std::int64_t>(x.size());
        for (const int shift : {-140, 20}) {
          std::vector<float> y(x.size());
          CastScaled(format, o, shift, 0, n, x.data(), y.data(), testing::kKey);
          results.Add("cast scaled " + about, y);
          std::vector<std::uint8_t> codes(packed.size());
          EncodeScaled(format, o, shift, 0, n, x.data(), codes.data(), testing::kKey);
          results.Add("encode scaled " + about, codes);
          DecodeScaled(format, -shift, 3.0f, n, codes.data(), y.data());
          results.Add("decode scaled " + about, y);
        }
      }
    }
    results.Add("facts", std::vector<double>{format.max(), format.lowest(), format.min_normal(),
                                             format.min_subnormal(), format.epsilon()});
  }
}

/// Tests exceptions for a few elements, and for 3,000 elements. For 3,000, the library finds most
/// exceptions by comparisons with limits.
void Exceptions(Results& results) {
  const std::vector<float> x = Numbers(3000);
  const std::vector<float> y(x.rbegin(), x.rend());
  const TensorView right = view_of(y);
  for (const char* name : {"bf16", "e8m3", "e4m3", "e8m20"}) {
    const Format format = ParseFormat(name);
    for (const Rounding mode : kModes) {
      const RoundingOptions o = Options(mode);
      for (const soft::Operation op :
           {soft::Operation::cast, soft::Operation::mul, soft::Operation::div}) {
        const TensorView* second = op == soft::Operation::cast ? nullptr : &right;
        std::vector<std::uint8_t> flags(x.size());
        Flags(op, {view_of(x), second}, format, o, soft::Tininess::after, view_of(flags),
              testing::kKey);
        results.Add(ToString(op) + " flags " + testing::describe(format, o), flags);
      }
    }
  }
}

void Sums(Results& results) {
  const std::vector<float> x = Numbers(kCount);
  std::vector<float> y(x.rbegin(), x.rend());
  const std::array<std::int64_t, 2> shape = {30, 10};
  for (const char* name : kFormats) {
    const Format format = ParseFormat(name);
    for (const Rounding mode : kModes) {
      const RoundingOptions o = Options(mode);
      const std::string about = testing::describe(format, o);
      std::vector<float> out(x.size());
      Add(view_of(x), view_of(y), format, o, view_of(out), testing::kKey);
      results.Add("add " + about, out);
      Mul(view_of(x), view_of(y), format, o, view_of(out), testing::kKey);
      results.Add("mul " + about, out);
      Fma(view_of(x), view_of(y), view_of(x), format, o, view_of(out), testing::kKey);
      results.Add("fma " + about, out);
      for (const Scheme scheme :
           {Scheme::sequential, Scheme::kahan, Scheme::chunked, Scheme::pairwise}) {
        std::vector<float> sums(10);
        Sum(View(x.data(), DType::f32, shape), 0, {format, scheme, o}, view_of(sums),
            testing::kKey);
        results.Add("sum " + ToString(scheme) + about, sums);
      }
    }
  }
}

void Products(Results& results) {
  const testing::Tensor a({12, 25}, Numbers(kCount));
  const testing::Tensor b({25, 12}, Numbers(kCount));
  const testing::Tensor c({12}, Numbers(12));
  const TensorView addend = c.view();
  const auto product = [&](const Accumulator& accumulator, const auto& gemm) {
    testing::Tensor out({12, 12}, std::vector<float>(144));
    gemm(a.view(), b.view(), accumulator, out.view(), &addend);
    return out.read();
  };
  for (const char* text :
       {"fp32 sequential", "fp32 fma", "bf16 sequential", "e8m7 kahan", "e8m9 fma", "e5m2 pairwise",
        "e8m3 chunked chunk=4", "e8m7 sequential rounding=stochastic", "e8m0 sequential",
        "a100-tf32", "h100-fp8", "e8m7 block_fma a=tf32 b=tf32 sum=fp32"}) {
    results.Try(text, [&] { return product(ParseAccumulator(text), testing::kGemm); });
  }
  const testing::Tensor a_scales({12, 3}, Numbers(36));
  const testing::Tensor b_scales({3, 1}, Numbers(3));
  const TensorView of_a = a_scales.view();
  const TensorView of_b = b_scales.view();
  for (const char* text : {"fp32 sequential", "e8m7 kahan", "bf16 chunked chunk=3"}) {
    const auto scaled = [&](const TensorView& x, const TensorView& y,
                            const Accumulator& accumulator, const TensorView& out,
                            const TensorView* start) {
      GemmScaled(x, {&of_a, 10, 1}, y, {&of_b, 10, 0}, accumulator, ScalesAt::block, out, start,
                 testing::kKey);
    };
    results.Try(std::string("scaled ") + text,
                [&] { return product(ParseAccumulator(text), scaled); });
  }
  if (!CpuBlas().empty()) results.Try("blas", [&] { return product({}, GemmByBlas); });
}

void ScaledFormats(Results& results) {
  const std::vector<float> x = Numbers(kCount);
  const std::array<std::int64_t, 2> shape = {10, 30};
  const TensorView in = View(x.data(), DType::f32, shape);
  for (const char* text :
       {"mxfp8", "mxint8 block=7", "nvfp4", "nvfp4 arithmetic=torchao", "nvfp4 choose=mse",
        "e2m1 16 scale=e4m3fn choose=mae", "fp8-row", "fp8-row arithmetic=te", "fp8-block 4x4",
        "fp8-tensor arithmetic=torchao", "mxfp4 arithmetic=microxcaling", "e8m7 5 scale=bf16",
        "e8m3 2x3 scale=e8m3 tensor_scale=bf16"}) {
    const Scaled scaled = ParseScaled(text);
    for (const Rounding mode : kModes) {
      for (const int axis : {0, 1}) {
        const RoundingOptions o = Options(mode, Overflow::saturate);
        const std::string about = text + (" " + ToString(mode)) + " along " + std::to_string(axis);
        std::vector<float> y(x.size());
        const TensorView out = View(y.data(), DType::f32, shape);
        Cast(in, scaled, axis, o, out, {}, testing::kKey);
        results.Add("scaled cast " + about, y);
        const ScaleCounts counts = CountScales(scaled, shape, axis);
        const auto bytes = [](const Format& format, std::int64_t n) {
          return std::vector<std::uint8_t>(static_cast<std::size_t>(PackedBytes(format, n)));
        };
        std::vector<std::uint8_t> codes = bytes(scaled.element, in.size());
        std::vector<std::uint8_t> scales = bytes(scaled.scale, counts.blocks);
        std::vector<std::uint8_t> outer = bytes(kFp32, counts.tensor);
        if (scaled.tensor_scale) outer = bytes(*scaled.tensor_scale, counts.tensor);
        const TensorView second = view_of(outer);
        const TensorView* tensor = scaled.tensor_scale ? &second : nullptr;
        Encode(in, scaled, axis, o, view_of(codes), view_of(scales), tensor, {}, testing::kKey);
        results.Add("scaled encode " + about, codes);
        results.Add("scales " + about, scales);
        results.Add("tensor scales " + about, outer);
        Decode(view_of(codes), scaled, axis, view_of(scales), tensor, out);
        results.Add("scaled decode " + about, y);
      }
    }
  }
}

void Scales(Results& results) {
  for (const float x : Numbers(40)) {
    results.Try("aps exponent", [&] {
      return ApsExponent(std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFF), 6) *
             1.0;
    });
  }
  results.Add("larger magnitude", std::vector<float>{LargerMagnitude(0x1p-149F, 0x1p-148F),
                                                     LargerMagnitude(0x1.8p-130F, 0.0F)});
  const std::vector<float> x = Numbers(9);
  const std::vector<float> tiny(x.begin(), x.begin() + 4);
  const LayerRange range = MeasureRange(view_of(tiny));
  results.Add("range", std::vector<float>{range.max_abs});
}

void Studies(Results& results) {
  const std::vector<float> x = Numbers(kCount);
  std::vector<double> sum = Doubles(kCount);
  AddToReference(view_of(x), view_of(sum));
  AddToReference(view_of(Doubles(kCount)), view_of(sum));
  results.Add("reference", sum);
  DivideReference(view_of(sum), 3);
  results.Add("mean", sum);
  const Roundoff lost = MeasureRoundoff(view_of(sum), view_of(x));
  results.Add("roundoff", std::vector<double>{lost.error, lost.relative_rms,
                                              static_cast<double>(lost.zero_references)});
  const std::vector<std::int64_t> sizes{1000};
  results.Add("time", TimeOf({}, 4, sizes, 0x1p-1070, 0x1p-1074));
}

void Reductions(Results& results) {
  testing::Ranks ranks(6);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::vector<float> x = Numbers(kCount + 11 * r);
    x.erase(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(11 * r));
    ranks[r] = {x, std::vector<float>(40, std::bit_cast<float>(0x00000123U))};
    for (float& value : ranks[r][0]) {  // APS takes no sums beyond binary32
      if ((std::bit_cast<std::uint32_t>(value) & 0x7F800000) > 0x70000000) value = 1;
    }
  }
  std::vector<Reduce> specs(6);
  specs[1].average = true;
  specs[2].format = specs[2].accumulator.format = ParseFormat("e5m2");
  specs[2].aps = Aps::on;
  specs[2].average = true;
  specs[3].format = specs[3].accumulator.format = specs[3].result = ParseFormat("bf16");
  specs[3].accumulator.scheme = Scheme::kahan;
  specs[3].group_size = 2;
  specs[3].order = Order::ring;
  specs[3].average = true;
  specs[4].format = ParseFormat("e8m3");
  specs[4].accumulator.format = ParseFormat("e8m9");
  specs[4].accumulator.rounding.mode = specs[4].rounding.mode = Rounding::stochastic;
  specs[4].order = Order::tree;
  specs[5].loss_scale = 0x1p-120;
  specs[5].average = true;
  for (const Reduce& spec : specs) {
    std::vector<TensorReport> reports;
    for (const auto& layer : testing::virtual_reduce(spec, ranks, &reports)) {
      results.Add("all-reduce in " + ToString(spec.format), layer);
    }
    for (const TensorReport& report : reports) {
      results.Add("report of " + ToString(spec.format),
                  std::vector<std::int64_t>{report.shift, report.non_finite, report.overflowed,
                                            report.underflowed});
    }
  }
}

Results Everything() {
  Results results;
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    Casts(results);
    Exceptions(results);
    Sums(results);
    Products(results);
    ScaledFormats(results);
  }
  Scales(results);
  Studies(results);
  Reductions(results);
  return results;
}

void ExpectSame(const Results& expected, const Results& got, const std::string& under) {
  ASSERT_EQ(expected.all().size(), got.all().size());
  int failures = 0;
  for (std::size_t i = 0; i < expected.all().size(); ++i) {
    if (expected.all()[i] == got.all()[i]) continue;
    ADD_FAILURE() << under << ": " << expected.all()[i].first << " has other bits";
    if (++failures > 8) FAIL() << "more than 8 failures; the rest is left out";
  }
}

#if defined(CPD_TEST_FLUSHES)
// This test runs first. The state that the library stores in its first call is therefore made while
// subnormals are flushed.
TEST(Environment, AFlushingProgramsResultsAreTheSame) {
  std::optional<testing::Flushing> flushing(std::in_place);
  volatile float least = std::bit_cast<float>(1U);
  volatile bool flushes = least == 0.0f;
  const Results flushed = Everything();
  EXPECT_TRUE(testing::Flushing::is_on()) << "the program's flags are restored";
  flushing.reset();
  EXPECT_TRUE(flushes);
  ExpectSame(Everything(), flushed, "flushing");
}
#endif

TEST(Environment, AnotherRoundingModesResultsAreTheSame) {
  const Results expected = Everything();
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    const Results got = Everything();
    EXPECT_EQ(std::fegetround(), mode) << "the program's mode is restored";
    std::fesetround(FE_TONEAREST);
    ExpectSame(expected, got, "rounding mode " + std::to_string(mode));
  }
}

}  // namespace
}  // namespace cpd
