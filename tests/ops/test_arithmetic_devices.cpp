// SPDX-License-Identifier: Apache-2.0
//
// Tests that every device gives the scalar kernels' bits for add, mul, fma, div, sqrt and sum, in
// every rounding mode, scheme, type and stride.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
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
#include "cpd/spec/error.h"
#include "tests/testing/bits.h"
#include "tests/testing/devices.h"
#include "tests/testing/formats.h"
#include "tests/testing/patterns.h"

namespace cpd {
namespace {

using testing::OnGpu;

constexpr std::array kOperations = {Operation::add, Operation::mul, Operation::fma, Operation::div,
                                    Operation::sqrt};
using OperandViews = std::array<TensorView, 3>;  // x, y, z

void Operate(Operation operation, const OperandViews& in, const Format& format,
             const RoundingOptions& o, const TensorView& out, const TensorView* random = nullptr) {
  switch (operation) {
    case Operation::add:
      return Add(in[0], in[1], format, o, out, testing::kKey, random);
    case Operation::mul:
      return Mul(in[0], in[1], format, o, out, testing::kKey, random);
    case Operation::fma:
      return Fma(in[0], in[1], in[2], format, o, out, testing::kKey, random);
    case Operation::div:
      return Div(in[0], in[1], format, o, out, testing::kKey, random);
    default:
      return Sqrt(in[0], format, o, out, testing::kKey, random);
  }
}

class ArithmeticDevices : public testing::SameOnDevices {
 protected:
  /// Expects that run(operands, random, out) gives the scalar kernels' bits. `out` is a view of
  /// `values`, and the whole of `values` is compared. `random` holds the caller's random integers,
  /// or is null.
  template <class T, class Run>
  void ExpectSame(const OperandViews& in, const std::vector<T>& values, TensorView out, Run run,
                  const std::string& about, const TensorView* random = nullptr) const {
    SameOnDevices::ExpectSame(
        [&](testing::Copies there) {
          std::vector<T> y = values;
          out.data = y.data();
          const TensorView result = there(out);
          run({there(in[0]), there(in[1]), there(in[2])}, there(random), result);
          there.Read(out);
          return y;
        },
        about);
  }
  /// Expects that every operation on the device gives the scalar kernels' bits. Skips div and sqrt
  /// for binary64 operands.
  template <class T>
  void ExpectOperations(const OperandViews& in, const Format& format, const RoundingOptions& o,
                        const std::vector<T>& values, const TensorView& out,
                        const std::string& about = "") const {
    for (const Operation operation : kOperations) {
      const bool is_wide =
          std::ranges::any_of(in, [](const TensorView& x) { return x.dtype == DType::f64; });
      if (is_wide && (operation == Operation::div || operation == Operation::sqrt)) continue;
      ExpectSame(
          in, values, out,
          [&](const OperandViews& x, const TensorView*, const TensorView& y) {
            Operate(operation, x, format, o, y);
          },
          about + ", operation " + std::to_string(static_cast<int>(operation)) + ", " +
              testing::describe(format, o));
    }
  }
  /// Expects that the device sums x over a dimension with the scalar kernels' bits.
  template <class T>
  void ExpectSum(const TensorView& x, int dim, const Accumulator& accumulator,
                 const std::vector<T>& values, const TensorView& out,
                 const TensorView* random = nullptr) const {
    ExpectSame(
        {x, {}, {}}, values, out,
        [&](const OperandViews& in, const TensorView* given, const TensorView& y) {
          Sum(in[0], dim, accumulator, y, testing::kKey, given);
        },
        ToString(accumulator) + " over dimension " + std::to_string(dim) + " of " +
            std::to_string(x.shape[static_cast<std::size_t>(dim)]),
        random);
  }
};

/// Returns values within the format's range, values far outside it, and (for double) random bit
/// patterns.
template <class T>
std::vector<T> inputs(const Format& format, std::size_t n, std::uint64_t seed) {
  const reference::Spec spec = reference::spec_of(format);
  const auto moderate = testing::moderate_values(spec, n, seed);
  const auto wild = testing::mixed_values(spec, n, seed + 1);
  std::mt19937_64 bits(seed);
  std::vector<T> values(moderate.begin(), moderate.end());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % 3 == 0) values[i] = static_cast<T>(wild[i]);
    if (sizeof(T) != 8) continue;
    if (i % 7 == 0) values[i] = static_cast<T>(std::bit_cast<double>(bits()));
    if (i % 5 == 1) values[i] *= 1 + std::ldexp(static_cast<T>(bits() % 1024), -52);
  }
  return values;
}

std::vector<RoundingOptions> all_options() {
  std::vector<RoundingOptions> all;
  for (const Rounding mode : testing::kDeterministicModes) {
    all.emplace_back();
    all.back().mode = mode;
    if (mode == Rounding::up) all.back().overflow = Overflow::saturate;
  }
  for (const int random_bits : {5, 8, 13, 24}) {
    all.emplace_back();
    all.back().mode = Rounding::stochastic;
    all.back().random_bits = random_bits;
    all.back().variant = random_bits == 13 ? Variant::B : Variant::A;
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Backends, ArithmeticDevices, ::testing::ValuesIn(testing::Backends()),
                         testing::NameOf);

template <class T>
constexpr DType kTypeOf = sizeof(T) == 8 ? DType::f64 : DType::f32;

/// Sums rows of neighboring terms. The number of rows lies below, near or above the number that a
/// thread block takes. The number of terms lies below, near or above the number that a memory line
/// holds.
TEST_P(ArithmeticDevices, SumsOfRows) {
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
      for (const char* text :
           {"fp32 sequential", "e4m3 sequential", "bf16 kahan", "e4m3 kahan", "e4m3 pairwise",
            "fp32 chunked inner=e5m6 chunk=8", "e4m3 sequential rounding=stochastic",
            "e3m2 sequential rounding=toward_zero"}) {
        const std::vector<float> sums(static_cast<std::size_t>(rows));
        ExpectSum(x, 1, ParseAccumulator(text), sums, View(sums));
      }
    }
  }
}

TEST_P(ArithmeticDevices, Operations) {
  constexpr std::int64_t n = 6979;
  const auto expect = [&]<class T>(const Format& format, T) {
    const std::vector<T> operands[] = {inputs<T>(format, n, 1), inputs<T>(format, n, 3),
                                       inputs<T>(format, n, 5)};
    OperandViews in;
    for (std::size_t i = 0; i < 3; ++i) in[i] = View(operands[i].data(), kTypeOf<T>, n);
    for (const RoundingOptions& o : testing::few_on_cpu(all_options(), 3)) {
      ExpectOperations(in, format, o, std::vector<T>(n), in[0]);
    }
  };
  for (const char* name : {"e4m3", "e5m2", "e3m0", "e4m3fn", "e5m2fnuz", "e8m0", "bf16", "fp32"}) {
    expect(ParseFormat(name), 0.0F);
    expect(ParseFormat(name), 0.0);
  }
}

/// Tests contiguous tensors of one 16-bit type, which kernels read four values at a time.
TEST_P(ArithmeticDevices, ContiguousHalves) {
  constexpr std::int64_t n = 5003;
  std::array<std::vector<std::uint16_t>, 3> operands;
  std::mt19937_64 bits(7);
  for (auto& x : operands) {
    for (std::int64_t i = 0; i < n; ++i) x.push_back(static_cast<std::uint16_t>(bits()));
  }
  for (const DType type : {DType::bf16, DType::f16}) {
    OperandViews in;
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = View(operands[i].data(), type, n);
    for (const char* format : {"e4m3", "e3m2", type == DType::bf16 ? "bf16" : "fp16"}) {
      for (const RoundingOptions& o : testing::few_on_cpu(all_options(), 3)) {
        testing::queued_kernels();
        ExpectOperations(in, ParseFormat(format), o, operands[0], in[0], ToString(type));
        if (std::string(format) != "e4m3") continue;
        if (const auto kernels = testing::queued_kernels()) {
          EXPECT_EQ(*kernels, std::vector<std::string>(5, "operate_all_packs"));
        }
      }
    }
  }
}

/// Tests products near bf16's ties. When such a product is rounded to binary32, the rounding error
/// is below binary32's least number.
TEST_P(ArithmeticDevices, ErrorsOfSmallProductsAreSeen) {
  constexpr std::int64_t n = 4096;
  constexpr double kTie = (1 + 0x1p-8) * 0x1p-120;
  std::vector<float> x(n);
  std::vector<float> y(n);
  std::int64_t unseen = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>((1 + 0x1p-23 * static_cast<double>(37 * i)) * 0x1p-60);
    y[i] = static_cast<float>(kTie / x[i]);
    const double error = static_cast<double>(x[i]) * y[i] - kTie;
    unseen += error != 0 && std::fabs(error) < 0x1p-150 ? 1 : 0;
  }
  ASSERT_GT(unseen, 10);
  const OperandViews in = {View(x), View(y), View(x)};
  for (const RoundingOptions& o : all_options()) {
    ExpectOperations(in, ParseFormat("bf16"), o, std::vector<float>(n), View(x));
  }
}

/// Tests transposed, reversed and broadcast operands of three types. The results have each type,
/// and are contiguous or strided.
TEST_P(ArithmeticDevices, OperandsOfAnyTypeAndStride) {
  constexpr std::int64_t n = 2 * 3 * 50;
  const Format format = ParseFormat("e4m3");
  const std::vector<double> x = inputs<double>(format, 2 * n, 1);
  const std::vector<float> y = inputs<float>(format, n, 3);
  std::vector<std::uint16_t> z(50);
  for (std::size_t i = 0; i < z.size(); ++i) z[i] = static_cast<std::uint16_t>(1311 * i);
  const std::array<std::int64_t, 3> shape{3, 2, 50};
  TensorView from_x = View(x.data(), DType::f64, shape);
  from_x.stride = {2, 300, 6};
  TensorView from_y = View(y.data() + n - 1, DType::f32, shape);
  from_y.stride = {-100, -50, -1};
  for (const DType type : {DType::bf16, DType::f16}) {
    TensorView from_z = View(z.data(), type, shape);
    from_z.stride = {0, 0, 1};
    for (const RoundingOptions& o : testing::few_on_cpu(all_options(), 2)) {
      for (const OperandViews& in :
           {OperandViews{from_x, from_y, from_z}, OperandViews{from_z, from_y, from_z}}) {
        const std::vector<double> wide(n);
        ExpectOperations(in, format, o, wide, View(wide.data(), DType::f64, shape));
        const std::vector<float> spread(2 * n, -1.0F);
        TensorView out = View(spread.data(), DType::f32, shape);
        out.stride = {200, 100, 2};
        ExpectOperations(in, format, o, spread, out);
        const std::vector<std::uint16_t> half(n);
        ExpectOperations(in, format, o, half, View(half.data(), type, shape));
      }
    }
  }
}

TEST_P(ArithmeticDevices, GivenIntegers) {
  constexpr std::int64_t n = 700;
  const Format format = ParseFormat("e4m3");
  const std::vector<float> x = inputs<float>(format, n, 1);
  const OperandViews in = {View(x), View(x), View(x)};
  RoundingOptions o;
  o.mode = Rounding::stochastic;
  o.random_bits = 8;
  std::vector<std::uint32_t> random(n);
  for (std::size_t i = 0; i < random.size(); ++i)
    random[i] = static_cast<std::uint32_t>(i * 37) % 256;
  const TensorView integers = View(random.data(), DType::u32, n);
  for (const Operation operation : kOperations) {
    ExpectSame(
        in, std::vector<float>(n), View(x),
        [&](const OperandViews& operands, const TensorView* given, const TensorView& out) {
          Operate(operation, operands, format, o, out, given);
        },
        std::to_string(static_cast<int>(operation)), &integers);
  }
  const TensorView matrix = View(x.data(), DType::f32, std::array<std::int64_t, 2>{7, 100});
  const TensorView table = View(random.data(), DType::u32, std::array<std::int64_t, 2>{100, 7});
  ExpectSum(matrix, 0, {.format = format, .rounding = o}, std::vector<float>(100),
            View(x.data(), DType::f32, 100), &table);
  random[600] = 256;
  testing::Copies there = There();
  const TensorView operand = there(View(x));
  EXPECT_THROW(Add(operand, operand, format, o, operand, {}, there(&integers)), Error);
}

TEST_P(ArithmeticDevices, SeedAndStreamMayLieThere) {
  if (on_host()) GTEST_SKIP() << "the CPU takes numbers";
  constexpr std::int64_t n = 900;
  const Format format = ParseFormat("e4m3");
  const std::vector<float> x = inputs<float>(format, n, 1);
  const std::uint64_t numbers[] = {77, 0xFFFF'FFFF'0000'0001};
  const OnGpu numbers_gpu(driver(), numbers, sizeof(numbers));
  const RoundingOptions options{.mode = Rounding::stochastic};
  const auto key_on = [&](const TensorView& out) {
    if (out.on_host()) return RandomKey{numbers[0], numbers[1]};
    RandomKey key;
    key.device_seed = static_cast<const std::uint64_t*>(
        numbers_gpu.View(View(numbers, DType::i64, 2), numbers).data);
    key.device_stream = key.device_seed + 1;
    return key;
  };
  ExpectSame(
      {View(x), View(x), View(x)}, std::vector<float>(n), View(x),
      [&](const OperandViews& in, const TensorView*, const TensorView& out) {
        Mul(in[0], in[1], format, options, out, key_on(out));
      },
      "mul");
  const TensorView matrix = View(x.data(), DType::f32, std::array<std::int64_t, 2>{9, 100});
  ExpectSame(
      {matrix, {}, {}}, std::vector<float>(100), View(x.data(), DType::f32, 100),
      [&](const OperandViews& in, const TensorView*, const TensorView& out) {
        Sum(in[0], 0, {.format = format, .rounding = options}, out, key_on(out));
      },
      "sum");
}

/// Tests operands with the type of x but another memory layout, and binary64 operands next to
/// binary32 operands.
TEST_P(ArithmeticDevices, OperandsOfOtherLayoutsAndTypes) {
  constexpr std::int64_t n = 1000;
  const Format format = ParseFormat("e4m3");
  const std::vector<float> x = inputs<float>(format, n, 1);
  const std::vector<float> y = inputs<float>(format, 3 * n, 3);
  std::vector<double> wide = inputs<double>(format, n, 5);
  for (std::size_t i = 0; i < wide.size(); i += 5) {
    wide[i] = std::bit_cast<double>(0x7FE1 * i);  // products below binary64
    wide[i + 1] = (1 + 0x1p-4) / x[i + 1];        // products next to a tie
  }
  const TensorView plain = View(x);
  TensorView apart = View(y.data(), DType::f32, n);
  apart.stride[0] = 3;
  TensorView reversed = View(y.data() + n - 1, DType::f32, n);
  reversed.stride[0] = -1;
  TensorView one = View(y.data() + 7, DType::f32, n);
  one.stride[0] = 0;
  const TensorView doubles = View(wide.data(), DType::f64, n);
  for (const RoundingOptions& o : all_options()) {
    const auto expect = [&](const OperandViews& in, const char* about) {
      ExpectOperations(in, format, o, std::vector<float>(n), plain, about);
    };
    expect({plain, apart, plain}, "y apart");
    expect({plain, reversed, plain}, "y reversed");
    expect({plain, one, plain}, "one y");
    expect({apart, plain, plain}, "x apart");
    expect({plain, plain, apart}, "z apart");
    expect({plain, plain, doubles}, "z of binary64");
    expect({plain, doubles, plain}, "y of binary64");
  }
}

/// The last row ends where the readable memory ends. A read behind it would end the process.
TEST_P(ArithmeticDevices, SumsOfRowsAtTheEndOfMemory) {
  if (!on_host() && !testing::kCudaOnCpu) GTEST_SKIP() << "a GPU's memory cannot be protected";
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
      if (!on_host()) x.device = kind();
      const std::vector<float> got(static_cast<std::size_t>(rows));
      testing::Copies there = There();
      Sum(x, 1, ParseAccumulator("fp32 sequential"), there(View(got)), testing::kKey);
      there.Read(View(got));
      EXPECT_EQ(got, std::vector<float>(got.size(), static_cast<float>(terms)))
          << rows << " rows of " << terms << " " << ToString(type);
    }
  }
  munmap(memory, 2 * page);
}

/// If any term is NaN or an infinity, a fixed-point sum is NaN.
TEST_P(ArithmeticDevices, FixedPointSumsOfNumbersThatAreNotFinite) {
  constexpr std::int64_t terms = 5;
  const float odd[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  const Accumulator accumulator = ParseAccumulator("int32");
  for (const float number : odd) {
    std::vector<float> x(terms * terms, 1.0F);  // row i has the number at place i
    for (std::int64_t i = 0; i < terms; ++i) x[i * terms + i] = number;
    const TensorView matrix = View(x.data(), DType::f32, std::array<std::int64_t, 2>{terms, terms});
    testing::Copies there = There();
    const std::vector<float> sums(terms);
    Sum(there(matrix), 1, accumulator, there(View(sums)), testing::kKey);
    there.Read(View(sums));
    for (const float sum : sums) EXPECT_TRUE(std::isnan(sum)) << number << " gave " << sum;
    const std::vector<float> ones(terms * terms, 1.0F);
    const std::vector<float> products(terms * terms);
    TensorView right = matrix;
    right.data = const_cast<float*>(ones.data());
    TensorView to = matrix;
    to.data = const_cast<float*>(products.data());
    Gemm(there(matrix), there(right), accumulator, there(to), nullptr, testing::kKey);
    there.Read(to);
    for (const float sum : products) EXPECT_TRUE(std::isnan(sum)) << number << " gave " << sum;
  }
}

/// Tests sums over the first, a middle and the last dimension, with any number of terms from zero
/// up.
TEST_P(ArithmeticDevices, Sums) {
  std::size_t turn = 0;
  const auto expect = [&]<class T>(const Format& format, std::array<std::int64_t, 3> shape, T) {
    const auto size = static_cast<std::size_t>(shape[0] * shape[1] * shape[2]);
    const std::vector<T> values = inputs<T>(format, size, 7);
    const TensorView x = View(values.data(), kTypeOf<T>, shape);
    const std::array<std::int64_t, 2> rest{shape[0], shape[2]};
    const std::vector<T> sums(static_cast<std::size_t>(rest[0] * rest[1]), T{-1});
    for (const RoundingOptions& o : all_options()) {
      for (const Accumulator& accumulator : testing::accumulators(format, o)) {
        if (!testing::is_chosen_on_cpu(++turn, 4)) continue;
        ExpectSum(x, 1, accumulator, sums, View(sums.data(), kTypeOf<T>, rest));
      }
    }
  };
  for (const char* name : {"e4m3", "e3m0", "e4m3fn", "e6m9", "fp32"}) {
    for (const std::int64_t terms : {0, 1, 2, 3, 7, 65}) {
      expect(ParseFormat(name), {4, terms, 17}, 0.0F);
      expect(ParseFormat(name), {4, terms, 17}, 0.0);
    }
    expect(ParseFormat(name), {1, 7, 997}, 0.0F);
    expect(ParseFormat(name), {1, 7, 997}, 0.0);
    expect(ParseFormat(name), {7, 997, 1}, 0.0F);
    expect(ParseFormat(name), {7, 997, 1}, 0.0);
  }
}

TEST_P(ArithmeticDevices, SumsOverAnyDimensionTypeAndStride) {
  std::vector<std::uint16_t> halves(6 * 10 * 14);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(8191 * i);
  for (const DType type : {DType::bf16, DType::f16}) {
    TensorView x = View(halves.data() + 9 * 14, type, std::array<std::int64_t, 3>{7, 10, 3});
    x.stride = {1, -14, 280};
    for (int dim = 0; dim < 3; ++dim) {
      std::vector<std::int64_t> shape{7, 10, 3};
      shape.erase(shape.begin() + dim);
      const std::vector<std::uint16_t> sums(static_cast<std::size_t>(shape[0] * shape[1]));
      for (const Accumulator& accumulator : testing::accumulators(ParseFormat("e4m3"), {})) {
        ExpectSum(x, dim, accumulator, sums, View(sums.data(), type, shape));
      }
    }
  }
}

}  // namespace
}  // namespace cpd
