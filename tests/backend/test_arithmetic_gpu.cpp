// SPDX-License-Identifier: Apache-2.0
//
// The GPU gives the CPU's bits: add, mul, fma and sum, every mode and scheme.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cpd/ops/arithmetic.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/gemm.h"
#include "cpd/ops/reduce.h"
#include "tests/testing/bits.h"
#include "tests/testing/cuda_memory.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

using testing::CudaDriver;
using testing::OnGpu;

class ArithmeticGpu : public testing::GpuTest {};

constexpr std::int64_t kTerms = 7;
constexpr std::int64_t kColumns = 997;
constexpr std::int64_t kSize = kTerms * kColumns;

/// Values near the format's range, wild ones, and (double) any bits at all.
template <class T>
std::vector<T> inputs(const Format& format, std::uint64_t seed) {
  const reference::Spec spec = reference::spec_of(format);
  const auto moderate = testing::moderate_values(spec, kSize, seed);
  const auto wild = testing::mixed_values(spec, kSize, seed + 1);
  std::mt19937_64 bits(seed);
  std::vector<T> values(moderate.begin(), moderate.end());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % 3 == 0) values[i] = static_cast<T>(wild[i]);
    if (i % 7 == 0 && sizeof(T) == 8) values[i] = static_cast<T>(std::bit_cast<double>(bits()));
  }
  return values;
}

std::vector<RoundingOptions> all_options() {
  std::vector<RoundingOptions> all;
  for (const Rounding mode : testing::kDeterministicModes) {
    all.emplace_back();
    all.back().mode = mode;
  }
  for (const int random_bits : {8, 13, 24}) {
    all.emplace_back();
    all.back().mode = Rounding::stochastic;
    all.back().random_bits = random_bits;
  }
  return all;
}

/// Operands on both sides, and what run(operands, out) makes of them in each.
template <class T>
class BothSides {
 public:
  BothSides(const CudaDriver& driver, const Format& format)
      : driver_(driver),
        values_{inputs<T>(format, 1), inputs<T>(format, 3), inputs<T>(format, 5)},
        memory_{OnGpu(driver, values_[0].data(), kSize * sizeof(T)),
                OnGpu(driver, values_[1].data(), kSize * sizeof(T)),
                OnGpu(driver, values_[2].data(), kSize * sizeof(T))} {}

  using Views = std::array<TensorView, 3>;

  template <class Run>
  void ExpectSame(std::int64_t results, Run run, const std::string& about) const {
    const std::array<std::int64_t, 2> shape{kTerms, kColumns};
    const DType type = sizeof(T) == 8 ? DType::f64 : DType::f32;
    Views host;
    Views device;
    for (std::size_t i = 0; i < 3; ++i) {
      host[i] = View(values_[i].data(), type, shape);
      device[i] = memory_[i].View(host[i], values_[i].data());
    }
    const std::vector<T> expected(static_cast<std::size_t>(results));
    std::vector<T> got(expected.size());
    TensorView out = results == kSize ? View(expected.data(), type, shape)
                                      : View(expected.data(), type, results);
    const OnGpu on_gpu(driver_, got.data(), got.size() * sizeof(T));
    run(host, out);
    run(device, on_gpu.View(out, expected.data()));
    on_gpu.Read(got.data());
    EXPECT_TRUE(testing::bits_equal(std::span<const T>(expected), std::span<const T>(got)))
        << about;
  }

 private:
  const CudaDriver& driver_;
  std::array<std::vector<T>, 3> values_;
  std::array<OnGpu, 3> memory_;
};

template <class T>
void expect_operations(const CudaDriver& driver, const Format& format) {
  const BothSides<T> sides(driver, format);
  using Views = typename BothSides<T>::Views;
  for (const RoundingOptions& o : testing::few_on_cpu(all_options(), 3)) {
    const std::string about = testing::describe(format, o);
    sides.ExpectSame(
        kSize, [&](const Views& in, const TensorView& out) { Add(in[0], in[1], format, o, out); },
        "add, " + about);
    sides.ExpectSame(
        kSize, [&](const Views& in, const TensorView& out) { Mul(in[0], in[1], format, o, out); },
        "mul, " + about);
    sides.ExpectSame(
        kSize,
        [&](const Views& in, const TensorView& out) { Fma(in[0], in[1], in[2], format, o, out); },
        "fma, " + about);
    if constexpr (sizeof(T) == 8) continue;  // refused
    sides.ExpectSame(
        kSize, [&](const Views& in, const TensorView& out) { Div(in[0], in[1], format, o, out); },
        "div, " + about);
    sides.ExpectSame(
        kSize, [&](const Views& in, const TensorView& out) { Sqrt(in[0], format, o, out); },
        "sqrt, " + about);
  }
}

template <class T>
void expect_sums(const CudaDriver& driver, const Format& format) {
  const BothSides<T> sides(driver, format);
  for (const RoundingOptions& o : testing::few_on_cpu(all_options(), 3)) {
    for (const Scheme scheme :
         {Scheme::sequential, Scheme::kahan, Scheme::chunked, Scheme::pairwise}) {
      Accumulator accumulator{.format = format, .scheme = scheme, .rounding = o};
      if (scheme == Scheme::chunked) accumulator.chunk = 3;
      for (const int dim : {0, 1}) {
        sides.ExpectSame(
            dim == 0 ? kColumns : kTerms,
            [&](const auto& in, const TensorView& out) { Sum(in[0], dim, accumulator, out); },
            ToString(accumulator) + " over " + std::to_string(dim));
      }
    }
  }
}

/// Sums of rows whose terms are neighbours, on both sides of a block's rows and a line's terms.
TEST_F(ArithmeticGpu, SumsOfRowsGiveTheCpusBits) {
  std::mt19937 random(5);
  for (const auto& [rows, terms] :
       {std::pair{1, 33}, {63, 2}, {64, 32}, {65, 31}, {130, 100}, {3, 1}, {2, 0}}) {
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      const std::int64_t width = terms + 3;
      std::vector<std::uint8_t> memory(static_cast<std::size_t>(rows * width) * SizeOf(type));
      TensorView x = View(memory.data(), type, std::array<std::int64_t, 2>{rows, width});
      std::vector<float> values(static_cast<std::size_t>(rows * width));
      for (float& value : values) value = std::normal_distribution<float>()(random);
      Cast(View(values), ParseFormat(ToString(type)), {}, View(memory.data(), type, rows * width));
      x.shape[1] = terms;
      const testing::OnGpuView device(driver(), x);
      for (const char* text :
           {"fp32 sequential", "e4m3 sequential", "bf16 kahan", "e4m3 kahan", "e4m3 pairwise",
            "fp32 chunked inner=e5m6 chunk=8", "e4m3 sequential rounding=stochastic",
            "e3m2 sequential rounding=toward_zero"}) {
        const Accumulator accumulator = ParseAccumulator(text);
        std::vector<float> expected(static_cast<std::size_t>(rows));
        std::vector<float> got(expected.size());
        Sum(x, 1, accumulator, View(expected));
        const OnGpu out(driver(), got.data(), 4 * got.size());
        Sum(device.view(), 1, accumulator, out.View(View(got), got.data()));
        out.Read(got.data());
        EXPECT_TRUE(
            testing::bits_equal(std::span<const float>(expected), std::span<const float>(got)))
            << rows << " rows of " << terms << " " << ToString(type) << ", " << text;
      }
    }
  }
}

TEST_F(ArithmeticGpu, OperationsGiveTheCpusBits) {
  for (const char* name : {"e4m3", "e5m2", "e3m0", "e4m3fn", "e8m0", "bf16", "fp32"}) {
    expect_operations<float>(driver(), ParseFormat(name));
    expect_operations<double>(driver(), ParseFormat(name));
  }
}

/// Contiguous tensors of one type are read four values at a time.
TEST_F(ArithmeticGpu, KernelsOfPacks) {
  if (!testing::queued_kernels()) GTEST_SKIP() << "kernels have names on the CPU alone";
  std::vector<std::uint16_t> codes(1000);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(65 * i);
  for (const DType type : {DType::bf16, DType::f16}) {
    const TensorView x = View(codes.data(), type, std::int64_t{1000});
    std::vector<std::uint16_t> expected(codes.size());
    std::vector<std::uint16_t> got(codes.size());
    const testing::OnGpuView from(driver(), x);
    const testing::OnGpuView to(driver(), View(got.data(), type, std::int64_t{1000}));
    Add(x, x, ParseFormat("e4m3"), {}, View(expected.data(), type, std::int64_t{1000}));
    Add(from.view(), from.view(), ParseFormat("e4m3"), {}, to.view());
    to.Read();
    EXPECT_EQ(expected, got) << ToString(type);
    EXPECT_EQ(testing::queued_kernels(), std::vector<std::string>{"operate_all_packs"});
  }
}

/// Operands of one type that lie otherwise in memory than x, and of binary64 beside binary32.
TEST_F(ArithmeticGpu, OperandsOfOtherLayoutsAndTypes) {
  constexpr std::int64_t n = 1000;
  const Format format = ParseFormat("e4m3");
  const std::vector<float> x = inputs<float>(format, 1);
  const std::vector<float> y = inputs<float>(format, 3);
  std::vector<double> wide = inputs<double>(format, 5);
  for (std::size_t i = 0; i < wide.size(); i += 5) {
    wide[i] = std::bit_cast<double>(0x7FE1 * i);  // products below binary64
    wide[i + 1] = (1 + 0x1p-4) / x[i + 1];        // products next to a tie
  }
  const TensorView plain = View(x.data(), DType::f32, n);
  TensorView apart = View(y.data(), DType::f32, n);
  apart.stride[0] = 3;
  TensorView reversed = View(y.data() + n - 1, DType::f32, n);
  reversed.stride[0] = -1;
  TensorView one = View(y.data() + 7, DType::f32, n);
  one.stride[0] = 0;
  const TensorView doubles = View(wide.data(), DType::f64, n);
  const auto expect_same = [&](const TensorView& a, const TensorView& b, const TensorView& c,
                               const std::string& about) {
    const testing::OnGpuView on_gpu[] = {{driver(), a}, {driver(), b}, {driver(), c}};
    for (const RoundingOptions& o : all_options()) {
      for (const int operation : {0, 1, 2}) {
        const auto run = [&](const TensorView& p, const TensorView& q, const TensorView& r,
                             const TensorView& out) {
          if (operation == 0) return Add(p, q, format, o, out);
          if (operation == 1) return Mul(p, q, format, o, out);
          Fma(p, q, r, format, o, out);
        };
        std::vector<float> expected(n);
        std::vector<float> got(n);
        run(a, b, c, View(expected));
        const OnGpu out(driver(), got.data(), 4 * got.size());
        run(on_gpu[0].view(), on_gpu[1].view(), on_gpu[2].view(), out.View(View(got), got.data()));
        out.Read(got.data());
        EXPECT_TRUE(
            testing::bits_equal(std::span<const float>(expected), std::span<const float>(got)))
            << about << ", operation " << operation << ", " << testing::describe(format, o);
      }
    }
  };
  expect_same(plain, apart, plain, "y apart");
  expect_same(plain, reversed, plain, "y reversed");
  expect_same(plain, one, plain, "one y");
  expect_same(apart, plain, plain, "x apart");
  expect_same(plain, plain, apart, "z apart");
  expect_same(plain, plain, doubles, "z of binary64");
  expect_same(plain, doubles, plain, "y of binary64");
}

/// Rows that end where memory ends: nothing behind them is read.
TEST_F(ArithmeticGpu, SumsOfRowsAtTheEndOfMemory) {
  if (!testing::kCudaOnCpu) GTEST_SKIP() << "only the CPU's memory can be protected";
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const memory =
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const end = static_cast<std::uint8_t*>(memory) + page;
  ASSERT_EQ(mprotect(end, page, PROT_NONE), 0);
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [rows, terms] : {std::pair{3, 33}, {33, 2}, {1, 65}, {2, 64}}) {
      const std::size_t bytes = static_cast<std::size_t>(rows * terms) * SizeOf(type);
      TensorView x =
          View(end - bytes, type, std::array<std::int64_t, 2>{std::int64_t{rows}, terms});
      const std::vector<float> ones(static_cast<std::size_t>(rows * terms), 1.0F);
      Cast(View(ones), ParseFormat(ToString(type)), {}, View(x.data, type, rows * terms));
      x.device = Device::cuda;
      std::vector<float> got(static_cast<std::size_t>(rows));
      const OnGpu out(driver(), got.data(), 4 * got.size());
      Sum(x, 1, ParseAccumulator("fp32 sequential"), out.View(View(got), got.data()));
      out.Read(got.data());
      EXPECT_EQ(got, std::vector<float>(got.size(), static_cast<float>(terms)))
          << rows << " rows of " << terms << " " << ToString(type);
    }
  }
  munmap(memory, 2 * page);
}

/// A NaN or an infinity anywhere among the terms makes a sum of fixed point NaN.
TEST_F(ArithmeticGpu, FixedPointSumsOfNumbersThatAreNotFinite) {
  constexpr std::int64_t terms = 5;
  const float odd[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  const Accumulator accumulator = ParseAccumulator("int32");
  for (const float number : odd) {
    std::vector<float> x(terms * terms, 1.0F);  // row i has the number at place i
    for (std::int64_t i = 0; i < terms; ++i) x[i * terms + i] = number;
    const TensorView matrix = View(x.data(), DType::f32, std::array<std::int64_t, 2>{terms, terms});
    const testing::OnGpuView on_gpu(driver(), matrix);
    std::vector<float> sums(terms);
    const OnGpu out(driver(), sums.data(), 4 * sums.size());
    Sum(on_gpu.view(), 1, accumulator, out.View(View(sums), sums.data()));
    out.Read(sums.data());
    for (const float sum : sums) EXPECT_TRUE(std::isnan(sum)) << number << " gave " << sum;
    const std::vector<float> ones(terms * terms, 1.0F);
    const testing::OnGpuView right(
        driver(), View(ones.data(), DType::f32, std::array<std::int64_t, 2>{terms, terms}));
    std::vector<float> products(terms * terms);
    const testing::OnGpuView to(
        driver(), View(products.data(), DType::f32, std::array<std::int64_t, 2>{terms, terms}));
    Gemm(on_gpu.view(), right.view(), accumulator, to.view());
    to.Read();
    for (const float sum : products) EXPECT_TRUE(std::isnan(sum)) << number << " gave " << sum;
  }
}

TEST_F(ArithmeticGpu, SumsGiveTheCpusBits) {
  for (const char* name : {"e4m3", "e3m0", "e6m9", "fp32"}) {
    expect_sums<float>(driver(), ParseFormat(name));
    expect_sums<double>(driver(), ParseFormat(name));
  }
}

}  // namespace
}  // namespace cpd
