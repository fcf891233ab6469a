// SPDX-License-Identifier: Apache-2.0
//
// Add, Mul, Fma and Sum of a GPU's tensors, on the CPU: their checks, their calls of the library
// and the kernels' bodies, thread after thread, against the CPU's operations.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "cpd/backend/cuda.h"
#include "cpd/backend/cuda_faults.h"
#include "cpd/backend/device_memory.h"
#include "cpd/ops/arithmetic.h"
#include "cpd/ops/gemm.h"
#include "cpd/ops/reduce.h"
#include "cpd/spec/error.h"
#include "cpd/spec/presets.h"
#include "kernels/cuda/arithmetic_tile.h"
#include "kernels/cuda/fold_tile.h"
#include "tests/testing/bits.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

/// Threads of a launch; more of them than some sizes need, fewer than others.
constexpr std::int64_t kHostThreads = 48;

template <class Run>
void for_threads(Run run) {
  for (std::int64_t thread = 0; thread < kHostThreads; ++thread) run(thread);
}

int arithmetic_on_host(const cuda::Launch& /*launch*/, const ArithmeticCall& call) {
  if (cuda::takes_packs(call)) {
    with_short_rule(call.plan, [&]<class R>() {
      cuda::with_pack_type(call.x.dtype, [&]<DType type>() {
        for_threads([&](std::int64_t t) { cuda::operate_packs<R, type>(call, t, kHostThreads); });
      });
    });
    return 0;
  }
  const bool any = call.x.dtype == DType::f64 || call.y.dtype == DType::f64 ||
                   (call.op == Operation::fma && call.z.dtype == DType::f64);
  with_mode(call.plan.mode, [&]<Rounding mode>() {
    for_threads([&](std::int64_t thread) {
      any ? cuda::operate<mode, true>(call, thread, kHostThreads)
          : cuda::operate<mode, false>(call, thread, kHostThreads);
    });
  });
  return 0;
}

int sum_on_host(const cuda::Launch& /*launch*/, const SumCall& call) {
  if (call.random.random != nullptr) {
    for_threads([&](std::int64_t thread) {
      cuda::sum_elements<Rounding::stochastic, float, true>(call, thread, kHostThreads);
    });
    return 0;
  }
  with_mode(call.plan.terms.round.mode, [&]<Rounding mode>() {
    for_threads([&](std::int64_t thread) {
      call.x.dtype == DType::f64 ? cuda::sum_elements<mode, double>(call, thread, kHostThreads)
                                 : cuda::sum_elements<mode, float>(call, thread, kHostThreads);
    });
  });
  return 0;
}

int first_above_on_host(const cuda::Launch& /*launch*/, const FirstAboveCall& call) {
  const auto& [n, integers, limit, first] = call;
  const auto* values = static_cast<const std::uint32_t*>(integers.data);
  const auto* found =
      std::find_if(values, values + n, [&call](std::uint32_t r) { return r >= call.limit; });
  if (found != values + n) *first = static_cast<unsigned long long>(found - values);
  return 0;
}

int allocate_on_host(const cuda::Launch& /*launch*/, cuda::MemoryKind /*kind*/, std::int64_t bytes,
                     void** memory) {
  *memory = std::malloc(static_cast<std::size_t>(bytes));
  return 0;
}

const cuda::Api* host_library() {
  static const cuda::Api table = [] {
    cuda::Api api{};
    api.describe = [](int) { return "none"; };
    api.arithmetic = arithmetic_on_host;
    api.sum = sum_on_host;
    api.first_above = first_above_on_host;
    api.allocate = allocate_on_host;
    api.wait = [](const cuda::Launch&) { return 0; };
    api.release_unused = [](int) { return 0; };
    return api;
  }();
  return &table;
}

class ArithmeticTile : public ::testing::Test {
 protected:
  void SetUp() override {
    cuda::SetLibrary(host_library());
    cuda::CheckAtOnce(true);
  }
  void TearDown() override { cuda::SetLibrary(nullptr); }
};

/// The same memory as a GPU's.
TensorView on_gpu(TensorView view) {
  view.device = Device::cuda;
  return view;
}

constexpr std::array kOperations = {Operation::add, Operation::mul, Operation::fma};

using Views = std::array<TensorView, 3>;  // x, y, z

void run(Operation op, const Views& in, const Format& format, const RoundingOptions& options,
         const TensorView& out, const TensorView* random = nullptr) {
  switch (op) {
    case Operation::add:
      return Add(in[0], in[1], format, options, out, random);
    case Operation::mul:
      return Mul(in[0], in[1], format, options, out, random);
    default:
      return Fma(in[0], in[1], in[2], format, options, out, random);
  }
}

std::vector<RoundingOptions> all_options() {
  std::vector<RoundingOptions> all;
  for (const Rounding mode : testing::kDeterministicModes) {
    all.emplace_back();
    all.back().mode = mode;
    if (mode == Rounding::up) all.back().overflow = Overflow::saturate;
  }
  for (const int random_bits : {5, 13, 24}) {
    RoundingOptions options;
    options.mode = Rounding::stochastic;
    options.random_bits = random_bits;
    options.variant = random_bits == 13 ? Variant::B : Variant::A;
    options.seed = 0x123456789ABCDEF0U;
    options.stream = 0xFEDCBA9876543210U;
    all.push_back(options);
  }
  return all;
}

std::vector<float> floats(const Format& format, std::size_t n, std::uint64_t seed) {
  const reference::Spec spec = reference::spec_of(format);
  std::vector<float> values = testing::moderate_values(spec, n, seed);
  const std::vector<float> wild = testing::mixed_values(spec, n / 2, seed + 1);
  std::copy(wild.begin(), wild.end(), values.begin());
  std::shuffle(values.begin(), values.end(), std::mt19937_64(seed));
  return values;
}
/// With bits that binary32 has not, and sizes far beyond it.
std::vector<double> doubles(const Format& format, std::size_t n, std::uint64_t seed) {
  const std::vector<float> values = floats(format, n, seed);
  std::vector<double> wide(values.begin(), values.end());
  std::mt19937_64 bits(seed);
  for (std::size_t i = 0; i < n; ++i) {
    if (i % 3 == 0) wide[i] *= 1.0 + std::ldexp(static_cast<double>(bits() % 1024), -52);
    if (i % 16 == 5) wide[i] = std::bit_cast<double>(bits());
  }
  return wide;
}

template <class T>
void expect_same(Operation op, const Views& in, const Format& format,
                 const RoundingOptions& options, std::vector<T> expected, TensorView out,
                 const TensorView* random = nullptr) {
  std::vector<T> got = expected;
  out.data = expected.data();
  run(op, in, format, options, out, random);
  out.data = got.data();
  TensorView integers;
  if (random != nullptr) integers = on_gpu(*random);
  run(op, {on_gpu(in[0]), on_gpu(in[1]), on_gpu(in[2])}, format, options, on_gpu(out),
      random != nullptr ? &integers : nullptr);
  EXPECT_TRUE(testing::bits_equal(std::span<const T>(expected), std::span<const T>(got)))
      << "operation " << static_cast<int>(op) << ", " << testing::describe(format, options);
}

TEST_F(ArithmeticTile, OperationsGiveTheCpusBits) {
  constexpr std::int64_t n = 3001;
  for (const char* name : {"e4m3", "e5m2", "e3m0", "e4m3fn", "e5m2fnuz", "e8m0", "bf16", "fp32"}) {
    const Format format = ParseFormat(name);
    const std::vector<float> x = floats(format, n, 1);
    const std::vector<float> y = floats(format, n, 3);
    const std::vector<float> z = floats(format, n, 5);
    const Views in = {testing::view_of(x), testing::view_of(y), testing::view_of(z)};
    for (const RoundingOptions& options : all_options()) {
      for (const Operation op : kOperations) {
        expect_same(op, in, format, options, std::vector<float>(n), testing::view_of(x));
      }
    }
  }
}

TEST_F(ArithmeticTile, OperandsOfAnyTypeAndStride) {
  constexpr std::int64_t n = 2 * 3 * 50;
  const Format format = ParseFormat("e4m3");
  const std::vector<double> x = doubles(format, 2 * n, 1);
  const std::vector<float> y = floats(format, n, 3);
  std::vector<std::uint16_t> z(50);
  for (std::size_t i = 0; i < z.size(); ++i) z[i] = static_cast<std::uint16_t>(1311 * i);
  const std::array<std::int64_t, 3> shape{3, 2, 50};
  TensorView from_x = View(x.data(), DType::f64, shape);
  from_x.stride = {2, 300, 6};
  TensorView from_y = View(y.data() + n - 1, DType::f32, shape);
  from_y.stride = {-100, -50, -1};
  for (const DType type : {DType::bf16, DType::f16}) {
    TensorView from_z = View(z.data(), type, shape);
    from_z.stride = {0, 0, 1};  // broadcast
    const Views mixed = {from_x, from_y, from_z};
    const Views narrow = {from_z, from_y, from_z};
    for (const RoundingOptions& options : all_options()) {
      for (const Operation op : kOperations) {
        for (const Views& in : {mixed, narrow}) {
          const std::vector<double> wide(n);
          expect_same(op, in, format, options, wide, View(wide.data(), DType::f64, shape));
          const std::vector<float> spread(2 * n, -1.0F);
          TensorView out = View(spread.data(), DType::f32, shape);
          out.stride = {200, 100, 2};
          expect_same(op, in, format, options, spread, out);
          const std::vector<std::uint16_t> half(n);
          expect_same(op, in, format, options, half, View(half.data(), type, shape));
        }
      }
    }
  }
}

/// Products near bf16's ties whose errors in binary32 are below its least number.
TEST_F(ArithmeticTile, ErrorsOfSmallProductsAreSeen) {
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
  const Views in = {testing::view_of(x), testing::view_of(y), testing::view_of(x)};
  for (const RoundingOptions& options : all_options()) {
    expect_same(Operation::mul, in, ParseFormat("bf16"), options, std::vector<float>(n),
                testing::view_of(x));
  }
}

TEST_F(ArithmeticTile, ContiguousHalves) {
  constexpr std::int64_t n = 5003;
  std::array<std::vector<std::uint16_t>, 3> operands;
  std::mt19937_64 bits(7);
  for (auto& x : operands) {
    for (std::int64_t i = 0; i < n; ++i) x.push_back(static_cast<std::uint16_t>(bits()));
  }
  for (const DType type : {DType::bf16, DType::f16}) {
    Views in;
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = View(operands[i].data(), type, n);
    for (const char* format : {"e4m3", "e3m2", type == DType::bf16 ? "bf16" : "fp16"}) {
      for (const RoundingOptions& options : all_options()) {
        for (const Operation op : kOperations) {
          expect_same(op, in, ParseFormat(format), options, std::vector<std::uint16_t>(n), in[0]);
        }
      }
    }
  }
}

TEST_F(ArithmeticTile, GivenIntegers) {
  constexpr std::int64_t n = 700;
  const Format format = ParseFormat("e4m3");
  const std::vector<float> x = floats(format, n, 1);
  RoundingOptions options;
  options.mode = Rounding::stochastic;
  options.random_bits = 8;
  std::vector<std::uint32_t> random(n);
  for (std::size_t i = 0; i < random.size(); ++i)
    random[i] = static_cast<std::uint32_t>(i * 37) % 256;
  const TensorView integers = testing::view_of(random);
  const TensorView view = testing::view_of(x);
  for (const Operation op : kOperations) {
    expect_same(op, {view, view, view}, format, options, std::vector<float>(n), view, &integers);
  }
  random[600] = 256;
  const TensorView on_device = on_gpu(integers);
  const std::vector<float> out(n);
  EXPECT_THROW(
      Add(on_gpu(view), on_gpu(view), format, options, on_gpu(testing::view_of(out)), &on_device),
      Error);
}

TEST_F(ArithmeticTile, SeedAndStreamMayLieInDeviceMemory) {
  constexpr std::int64_t n = 900;
  const Format format = ParseFormat("e4m3");
  const std::vector<float> x = floats(format, n, 1);
  const std::uint64_t seed = 77;
  const std::uint64_t stream = 0xFFFF'FFFF'0000'0001;
  RoundingOptions given;
  given.mode = Rounding::stochastic;
  RoundingOptions device = given;
  given.seed = seed;
  given.stream = stream;
  device.device_seed = &seed;
  device.device_stream = &stream;
  const TensorView view = testing::view_of(x);
  const std::vector<float> expected(n);
  const std::vector<float> got(n);
  Mul(view, view, format, given, testing::view_of(expected));
  Mul(on_gpu(view), on_gpu(view), format, device, on_gpu(testing::view_of(got)));
  EXPECT_TRUE(testing::bits_equal(std::span<const float>(expected), std::span<const float>(got)));

  const std::array<std::int64_t, 2> shape{9, 100};
  const TensorView matrix = View(x.data(), DType::f32, shape);
  const std::vector<float> sums(100);
  const std::vector<float> sums_got(100);
  Sum(matrix, 0, {.format = format, .rounding = given}, testing::view_of(sums));
  Sum(on_gpu(matrix), 0, {.format = format, .rounding = device},
      on_gpu(testing::view_of(sums_got)));
  EXPECT_TRUE(testing::bits_equal(std::span<const float>(sums), std::span<const float>(sums_got)));
  EXPECT_THROW(Sum(matrix, 0, {.format = format, .rounding = device}, testing::view_of(sums)),
               Error);
}

std::vector<Accumulator> accumulators(const Format& format, const RoundingOptions& rounding) {
  std::vector<Accumulator> all;
  for (const Scheme scheme : {Scheme::sequential, Scheme::kahan, Scheme::pairwise}) {
    all.push_back({.format = format, .scheme = scheme, .rounding = rounding});
  }
  for (const std::int64_t chunk : {1, 3, 64}) {
    all.push_back({.format = format, .scheme = Scheme::chunked, .rounding = rounding});
    all.back().chunk = chunk;
    if (chunk == 3) all.back().inner = ParseFormat("e5m2");
  }
  return all;
}

template <class T>
void expect_same_sum(const TensorView& x, int dim, const Accumulator& accumulator,
                     std::vector<T> expected, TensorView out) {
  std::vector<T> got = expected;
  out.data = expected.data();
  Sum(x, dim, accumulator, out);
  out.data = got.data();
  Sum(on_gpu(x), dim, accumulator, on_gpu(out));
  EXPECT_TRUE(testing::bits_equal(std::span<const T>(expected), std::span<const T>(got)))
      << ToString(accumulator) << " over dimension " << dim << " of " << x.shape[dim];
}

TEST_F(ArithmeticTile, SumsGiveTheCpusBits) {
  for (const char* name : {"e4m3", "e3m0", "e4m3fn", "e6m9", "fp32"}) {
    const Format format = ParseFormat(name);
    for (const std::int64_t terms : {0, 1, 2, 3, 7, 65}) {
      const std::array<std::int64_t, 3> shape{4, terms, 17};
      const auto size = static_cast<std::size_t>(4 * terms * 17);
      const std::vector<float> x = floats(format, size, 7);
      const std::vector<double> wide = doubles(format, size, 9);
      const std::array<std::int64_t, 2> out{4, 17};
      for (const RoundingOptions& options : all_options()) {
        for (const Accumulator& accumulator : accumulators(format, options)) {
          std::vector<float> sums(4 * 17, -1.0F);
          expect_same_sum(View(x.data(), DType::f32, shape), 1, accumulator, sums,
                          View(sums.data(), DType::f32, out));
          std::vector<double> wide_sums(4 * 17, -1.0);
          expect_same_sum(View(wide.data(), DType::f64, shape), 1, accumulator, wide_sums,
                          View(wide_sums.data(), DType::f64, out));
        }
      }
    }
  }
}

TEST_F(ArithmeticTile, SumsOverAnyDimensionTypeAndStride) {
  const Format format = ParseFormat("e4m3");
  std::vector<std::uint16_t> halves(6 * 10 * 14);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(8191 * i);
  for (const DType type : {DType::bf16, DType::f16}) {
    TensorView x = View(halves.data(), type, std::array<std::int64_t, 3>{7, 10, 3});
    x.stride = {1, -14, 280};
    x.data = halves.data() + 9 * 14;
    for (int dim = 0; dim < 3; ++dim) {
      std::vector<std::int64_t> shape{7, 10, 3};
      shape.erase(shape.begin() + dim);
      const TensorView out = View(nullptr, type, shape);
      const std::vector<std::uint16_t> sums(static_cast<std::size_t>(shape[0] * shape[1]));
      for (const Accumulator& accumulator : accumulators(format, {})) {
        expect_same_sum(x, dim, accumulator, sums, out);
      }
    }
  }
}

TEST_F(ArithmeticTile, SumsTakeGivenIntegers) {
  const std::vector<float> x = {0.3F, 0.7F, 1.1F, 0.9F, 0.2F, 0.4F};
  const std::vector<std::uint32_t> random = {1, 7, 3, 6, 0, 5};
  const TensorView matrix = View(x.data(), DType::f32, std::array<std::int64_t, 2>{2, 3});
  const TensorView integers = View(random.data(), DType::u32, std::array<std::int64_t, 2>{3, 2});
  const TensorView on_device = on_gpu(integers);
  Accumulator accumulator{.format = ParseFormat("e4m3")};
  accumulator.rounding.mode = Rounding::stochastic;
  accumulator.rounding.random_bits = 3;
  std::vector<float> expected(3);
  std::vector<float> got(3);
  Sum(matrix, 0, accumulator, testing::view_of(expected), &integers);
  Sum(on_gpu(matrix), 0, accumulator, on_gpu(testing::view_of(got)), &on_device);
  EXPECT_TRUE(testing::bits_equal(std::span<const float>(expected), std::span<const float>(got)));
}

/// What a kernel's call returns, of cudaError_t, and its text.
int g_status = 0;

TEST_F(ArithmeticTile, StatusesAreErrors) {
  static const cuda::Api failing = [] {
    cuda::Api api = *host_library();
    api.arithmetic = [](const cuda::Launch&, const ArithmeticCall&) { return g_status; };
    api.describe = [](int status) { return status == 2 ? "out of memory" : "another"; };
    return api;
  }();
  cuda::SetLibrary(&failing);
  const std::vector<float> x(6, 1.0F);
  const TensorView view = on_gpu(testing::view_of(x));
  const auto error_of = [&](int status) -> std::string {
    g_status = status;
    try {
      Add(view, view, kFp32, {}, view);
    } catch (const cuda::NoDeviceMemory& error) {
      return std::string("memory: ") + error.what();
    } catch (const MachineError& error) {
      return std::string("machine: ") + error.what();
    }
    return "none";
  };
  EXPECT_EQ(error_of(0), "none");
  EXPECT_EQ(error_of(1), "machine: CUDA: another");  // cudaErrorInvalidValue
  EXPECT_EQ(error_of(2), "memory: CUDA out of memory");
  for (const int status : {3, 700, 999}) {
    EXPECT_EQ(error_of(status), "machine: CUDA: another") << status;
  }
}

/// cuBLAS's own words, whatever status comes with them.
TEST_F(ArithmeticTile, ErrorsOfCublasAreErrors) {
  static const cuda::Api failing = [] {
    cuda::Api api = *host_library();
    api.blas = [](const cuda::Launch&, const BlasCall& call) {
      *call.error = "no product today";
      return 0;
    };
    return api;
  }();
  cuda::SetLibrary(&failing);
  const std::vector<float> x(4, 1.0F);
  const TensorView matrix = on_gpu(View(x.data(), DType::f32, std::array<std::int64_t, 2>{2, 2}));
  std::vector<float> y(4);
  const TensorView out = on_gpu(View(y.data(), DType::f32, std::array<std::int64_t, 2>{2, 2}));
  try {
    GemmByBlas(matrix, matrix, {}, out);
    ADD_FAILURE() << "no error";
  } catch (const MachineError& error) {
    EXPECT_STREQ(error.what(), "cuBLAS: no product today");
  }
}

TEST_F(ArithmeticTile, RefusesWhatTheCpuOnlyTakes) {
  const std::vector<float> x(6);
  const std::vector<float> y(3);
  const TensorView matrix = View(x.data(), DType::f32, std::array<std::int64_t, 2>{2, 3});
  const TensorView sums = testing::view_of(y);
  EXPECT_THROW(Sum(on_gpu(matrix), 0, {}, sums), Error);
  EXPECT_THROW(Sum(matrix, 0, {}, on_gpu(sums)), Error);
  EXPECT_THROW(Add(on_gpu(sums), sums, kFp32, {}, on_gpu(sums)), Error);
  EXPECT_THROW(Add(on_gpu(sums), on_gpu(sums), kFp32, {}, sums), Error);
  EXPECT_THROW(Fma(on_gpu(sums), on_gpu(sums), sums, kFp32, {}, on_gpu(sums)), Error);
  EXPECT_THROW(Sum(on_gpu(matrix), 0, Preset("h100-fp16"), on_gpu(sums)), Error);
  const TensorView none = on_gpu(View(nullptr, DType::f32, 0));
  cuda::SetLibrary(nullptr);  // what is empty needs no GPU
  EXPECT_NO_THROW(Add(none, none, kFp32, {}, none));
  EXPECT_NO_THROW(
      Sum(on_gpu(View(nullptr, DType::f32, std::array<std::int64_t, 2>{0, 3})), 1, {}, none));
}

}  // namespace
}  // namespace cpd
