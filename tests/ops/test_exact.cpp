// SPDX-License-Identifier: Apache-2.0
//
// Tests Div, Sqrt, Flags and wide formats on tensors. For all types, layouts, numbers of threads
// and backends, the values and exceptions must equal those that the engine (soft_float.h) computes
// for single numbers. Tests also that the engine's values equal the kernels'.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "cpd/numeric/round/soft_float.h"
#include "cpd/ops/arithmetic.h"
#include "cpd/ops/cast.h"
#include "cpd/ops/exact.h"
#include "cpd/spec/error.h"
#include "tests/testing/backends.h"
#include "tests/testing/bits.h"
#include "tests/testing/formats.h"
#include "tests/testing/patterns.h"
#include "tests/testing/refusal.h"
#include "tests/testing/run.h"

namespace cpd {
namespace {

using soft::Operation;
using testing::view_of;

constexpr std::array kAll = {Operation::cast, Operation::add, Operation::mul,
                             Operation::fma,  Operation::div, Operation::sqrt};

/// Returns operands for which many quotients, roots and products are ties or lie next to one.
template <class T>
std::array<std::vector<T>, 3> operands(const Format& format, std::size_t n, std::uint64_t seed) {
  const std::vector<float> pool =
      testing::boundary_patterns(reference::spec_of(format), 20, 60, seed);
  std::mt19937_64 generator(seed);
  std::array<std::vector<T>, 3> made;
  for (auto& x : made) {
    for (std::size_t i = 0; i < n; ++i) x.push_back(pool[generator() % pool.size()]);
  }
  auto& [x, y, z] = made;
  for (std::size_t i = 0; i + 1 < n; i += 4) {
    x[i] = static_cast<T>(z[i] * y[i]);
    x[i + 1] = static_cast<T>(z[i + 1] * z[i + 1]);
  }
  return made;
}

Operands views(Operation op, const std::array<TensorView, 3>& x) {
  const int count = soft::operands_of(op);
  return {x[0], count > 1 ? &x[1] : nullptr, count > 2 ? &x[2] : nullptr};
}

void run(Operation op, const Operands& in, const Format& format, const RoundingOptions& o,
         const TensorView& out, const TensorView* random) {
  switch (op) {
    case Operation::cast:
      return Cast(in.x, format, o, out, testing::kKey, random);
    case Operation::add:
      return Add(in.x, *in.y, format, o, out, testing::kKey, random);
    case Operation::mul:
      return Mul(in.x, *in.y, format, o, out, testing::kKey, random);
    case Operation::fma:
      return Fma(in.x, *in.y, *in.z, format, o, out, testing::kKey, random);
    case Operation::div:
      return Div(in.x, *in.y, format, o, out, testing::kKey, random);
    case Operation::sqrt:
      return Sqrt(in.x, format, o, out, testing::kKey, random);
  }
}

/// Returns whether x is a signaling NaN: its first fraction bit is 0.
template <class T>
bool is_signalling(T x) {
  constexpr int man = std::numeric_limits<T>::digits - 1;
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return x != x && (std::bit_cast<Bits>(x) >> (man - 1)) % 2 == 0;
}

/// Returns kInvalid if an operand of element i is a signaling NaN, else 0.
template <class X>
std::uint8_t flags_of_operands(Operation op, const X& x, std::size_t i) {
  for (int k = 0; k < soft::operands_of(op); ++k) {
    if (is_signalling(x[static_cast<std::size_t>(k)][i])) return soft::kInvalid;
  }
  return 0;
}

template <class T>
void expect_engine(const std::array<std::vector<T>, 3>& x, const Format& format,
                   const RoundingOptions& o, const std::string& backend,
                   soft::Tininess tininess = soft::Tininess::before) {
  const std::size_t n = x[0].size();
  const std::array<TensorView, 3> in = {view_of(x[0]), view_of(x[1]), view_of(x[2])};
  std::vector<std::uint32_t> random(n);
  if (o.mode == Rounding::stochastic) random = testing::run_random_integers(o, n, 0, testing::kKey);
  const soft::Target target = soft::target(format, o, tininess);
  for (const Operation op : kAll) {
    std::vector<T> wanted, values(n);
    std::vector<std::uint8_t> raised, flags(n);
    for (std::size_t i = 0; i < n; ++i) {
      const soft::Rounded y = soft::compute(op, x[0][i], x[1][i], x[2][i], target, random[i]);
      wanted.push_back(static_cast<T>(y.value));
      raised.push_back(y.flags | flags_of_operands(op, x, i));
    }
    run(op, views(op, in), format, o, view_of(values), nullptr);
    Flags(op, views(op, in), format, o, tininess, view_of(flags), testing::kKey);
    const std::string about = backend + ", " + ToString(op) + ", " + testing::describe(format, o);
    EXPECT_TRUE(testing::bits_equal(std::span<const T>(wanted), std::span<const T>(values),
                                    [&](std::size_t i) { return " " + testing::hex(x[0][i]); }))
        << about;
    EXPECT_EQ(raised, flags) << about;
  }
}

template <class T>
void expect_engine(const Format& format, const RoundingOptions& o, std::size_t n,
                   std::uint64_t seed, const std::string& backend,
                   soft::Tininess tininess = soft::Tininess::before) {
  expect_engine<T>(operands<T>(format, n, seed), format, o, backend, tininess);
}

/// Kernels compute a group of elements in binary32 if binary32 is exact enough for all of them, and
/// otherwise in binary64.
TEST(Exact, ValuesOfGroupsWithFewSpecialElements) {
  constexpr std::size_t kMany = 2048 + 4 * 16 + 11;  // groups of the widest lanes; flags by limits
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    std::uint64_t seed = 11;
    for (const Format& format : testing::named_formats()) {
      const reference::Spec spec = reference::spec_of(format);
      for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
        RoundingOptions o = testing::options_of(mode, testing::kPolicies[seed % 2]);
        o.random_bits = 8;
        std::array<std::vector<float>, 3> x;
        for (auto& operand : x) operand = testing::moderate_values(spec, kMany, ++seed);
        for (std::size_t i = 0; i + 4 < kMany; i += 3) x[0][i] = x[2][i] * x[1][i];
        expect_engine<float>(x, format, o, backend);
        if (spec.man < 12) {  // products that are binary32 numbers
          for (auto& operand : x) operand = testing::oracle_cast(operand, format, {});
          expect_engine<float>(x, format, o, backend);
        }
        const std::vector<float> specials = testing::special_values();
        x[seed % 3][seed * 37 % kMany] = specials[seed % specials.size()];
        x[1][100 + seed % 7] = 0;
        expect_engine<float>(x, format, o, backend);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(Exact, ValuesAreTheKernelsOnEveryBackend) {
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    std::uint64_t seed = 3;
    for (const Format& format : testing::encoding_formats()) {
      for (const std::size_t way : {seed % 6, (seed + 3) % 6}) {
        const Overflow policy = testing::kPolicies[way % 2];
        const RoundingOptions o = testing::options_of(testing::kDeterministicModes[way], policy);
        expect_engine<float>(format, o, 48, seed, backend);
      }
      ++seed;
      RoundingOptions o = testing::options_of(Rounding::stochastic);
      o.variant = testing::kVariants[seed % 3];
      o.random_bits = 1 + static_cast<int>(seed / 3 % 24);
      expect_engine<float>(format, o, 48, ++seed, backend);
      expect_engine<double>(format, o, 48, ++seed, backend);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

/// If a call has many elements, the library finds most floating-point exceptions by comparisons
/// with limits.
TEST(Exact, FlagsOfManyElementsOnEveryBackend) {
  constexpr std::size_t kMany = 2048 + 13;
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    std::uint64_t seed = 40;
    for (const Format& format : testing::encoding_formats()) {
      if (++seed % 2 == 0) continue;
      const auto tininess = seed % 4 == 1 ? soft::Tininess::before : soft::Tininess::after;
      RoundingOptions o = testing::options_of(testing::kDeterministicModes[seed / 2 % 6],
                                              testing::kPolicies[seed / 6 % 2]);
      if (seed % 3 != 0) {
        o = testing::options_of(Rounding::stochastic);
        o.variant = testing::kVariants[seed / 2 % 3];
        o.random_bits = 1 + static_cast<int>(seed / 6 % 24);
      }
      if (seed % 3 == 1) {
        expect_engine<double>(format, o, kMany, seed, backend, tininess);
      } else {
        expect_engine<float>(format, o, kMany, seed, backend, tininess);
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

/// Tests every bfloat16 pattern. Some magnitudes equal, or lie close to, the limits by which the
/// library finds a format's exceptions.
TEST(Exact, FlagsOfEveryShortNumber) {
  std::vector<float> x;
  for (std::uint32_t high = 0; high < 1U << 16; ++high)
    x.push_back(std::bit_cast<float>(high << 16));
  std::vector<std::uint8_t> flags(x.size());
  for (const char* name :
       {"e4m3", "e4m3fn", "e5m2", "e2m1", "e3m0", "e4m3:nosub", "e8m7", "int8"}) {
    const Format format = ParseFormat(name);
    for (std::size_t way = 0; way < 4 * testing::kDeterministicModes.size(); ++way) {
      const RoundingOptions o =
          testing::options_of(testing::kDeterministicModes[way / 4], testing::kPolicies[way % 2]);
      const auto tininess = way / 2 % 2 == 0 ? soft::Tininess::before : soft::Tininess::after;
      Flags(Operation::cast, {view_of(x)}, format, o, tininess, view_of(flags), testing::kKey);
      const soft::Target target = soft::target(format, o, tininess);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const int wanted = soft::compute(Operation::cast, x[i], 0, 0, target).flags |
                           (is_signalling(x[i]) ? soft::kInvalid : 0);
        ASSERT_EQ(wanted, flags[i]) << testing::describe(format, o) << " " << testing::hex(x[i]);
      }
    }
  }
}

TEST(Exact, ResultsMayReplaceOperands) {
  constexpr std::size_t kMany = 3000;
  const Format e4m3 = ParseFormat("e4m3");
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    auto [x, y, z] = operands<float>(e4m3, kMany, 17);
    std::vector<float> apart(kMany);
    const TensorView second = view_of(y);
    Add(view_of(x), second, e4m3, {}, view_of(apart));
    Add(view_of(x), second, e4m3, {}, view_of(x));
    EXPECT_TRUE(testing::bits_equal(std::span<const float>(apart), std::span<const float>(x)))
        << backend;
  }
}

/// Tests sums and products that overflow or underflow in binary64, and terms of very different
/// sizes.
TEST(Exact, ExtremesOfBinary64OnEveryBackend) {
  std::vector<double> extremes;
  for (const double size : {0.0, 0x1p-1074, 0x1p-800, 0x1.8p-500, 0x1p-149, 1.5, 0x1p120, 0x1p700,
                            0x1p870, 0x1p1001, 0x1.fffffffffffffp1023}) {
    extremes.insert(extremes.end(), {size, -size});
  }
  std::array<std::vector<double>, 3> x;
  for (const double a : extremes) {
    for (const double b : extremes) {
      for (const double c : extremes) {
        x[0].push_back(a);
        x[1].push_back(b);
        x[2].push_back(c);
      }
    }
  }
  for (const std::string& backend : testing::backends()) {
    const testing::WithBackend forced(backend);
    for (const char* name : {"e4m3", "fp32"}) {
      for (const Rounding mode : testing::kDeterministicModes) {
        expect_engine<double>(x, ParseFormat(name), testing::options_of(mode), backend);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(Exact, WideFormats) {
  std::uint64_t seed = 90;
  for (const char* name : {"fp64", "e9m30", "e11m0", "e8m24:nosub", "e9m30:unsigned"}) {
    const Format format = ParseFormat(name);
    for (const Rounding mode : testing::kDeterministicModes) {
      expect_engine<double>(format, testing::options_of(mode), 400, ++seed, "any");
    }
    expect_engine<double>(format, testing::options_of(Rounding::stochastic), 400, ++seed, "any");
  }
}

TEST(Exact, ManyElementsAndThreadsGiveTheSame) {
  const std::size_t n = 200001;
  const auto x = operands<float>(kFp32, n, 5);
  RoundingOptions o = testing::options_of(Rounding::stochastic);
  const Format e4m3 = ParseFormat("e4m3");
  const auto random = testing::run_random_integers(o, n, 0, testing::kKey);
  const TensorView given = view_of(random);
  for (const Operation op : {Operation::div, Operation::sqrt}) {
    const std::array<TensorView, 3> in = {view_of(x[0]), view_of(x[1]), view_of(x[2])};
    std::vector<float> drawn(n), taken(n);
    std::vector<std::uint8_t> flags(n), again(n);
    run(op, views(op, in), e4m3, o, view_of(drawn), nullptr);
    run(op, views(op, in), e4m3, o, view_of(taken), &given);
    Flags(op, views(op, in), e4m3, o, soft::Tininess::after, view_of(flags), testing::kKey);
    Flags(op, views(op, in), e4m3, o, soft::Tininess::after, view_of(again), {}, &given);
    EXPECT_TRUE(testing::bits_equal(std::span<const float>(drawn), std::span<const float>(taken)));
    EXPECT_EQ(flags, again);
    const soft::Target target = soft::target(e4m3, o);
    for (std::size_t i = 0; i < n; i += 997) {
      const soft::Rounded y = soft::compute(op, x[0][i], x[1][i], 0, target, random[i]);
      EXPECT_TRUE(testing::same_bits(drawn[i], static_cast<float>(y.value)));
      EXPECT_EQ(flags[i], y.flags | flags_of_operands(op, x, i));
    }
  }
}

TEST(Exact, StridesAndNarrowTypes) {
  const std::vector<float> x = {1, 2, 3, 4, 5, 6};
  TensorView columns = View(x.data(), DType::f32, std::array<std::int64_t, 2>{2, 3});
  std::swap(columns.shape[0], columns.shape[1]);
  std::swap(columns.stride[0], columns.stride[1]);
  const std::vector<float> two(1, 2.0F);
  TensorView divisor = columns;
  divisor.data = const_cast<float*>(two.data());
  divisor.stride = {};
  std::vector<std::uint16_t> out(6);
  const TensorView y = View(out.data(), DType::bf16, std::array<std::int64_t, 2>{3, 2});
  Div(columns, divisor, MakeFormat(8, 7), {}, y);
  const std::vector<std::uint16_t> halves = {0x3F00, 0x4000, 0x3F80, 0x4020, 0x3FC0, 0x4040};
  EXPECT_EQ(out, halves);
  std::vector<std::uint8_t> flags(12, 7);  // every other byte
  TensorView sparse = View(flags.data(), DType::u8, std::array<std::int64_t, 2>{3, 2});
  sparse.stride[0] = 4;
  sparse.stride[1] = 2;
  Flags(Operation::sqrt, {columns}, ParseFormat("e4m3"), {}, soft::Tininess::after, sparse);
  const std::vector<std::uint8_t> raised = {0, 7, 0, 7, 1, 7, 1, 7, 1, 7, 1, 7};
  EXPECT_EQ(flags, raised);
}

TEST(Exact, RefusesWhatDoesNotFit) {
  const std::vector<float> x(4, 1.0F);
  std::vector<std::uint8_t> flags(4, 7);
  std::vector<float> y(4, 7.0F);
  const TensorView in = view_of(x);
  const Format e4m3 = ParseFormat("e4m3"), wide = ParseFormat("e9m30");
  const auto flags_into = [&](Operation op, const Operands& of, const TensorView& out) {
    Flags(op, of, e4m3, {}, soft::Tininess::after, out);
  };
  EXPECT_THROW(flags_into(Operation::mul, {in}, view_of(flags)), Error);
  EXPECT_THROW(flags_into(Operation::sqrt, {in, &in}, view_of(flags)), Error);
  EXPECT_REFUSAL("flags must be uint8, got fp32", flags_into(Operation::sqrt, {in}, view_of(y)));
  TensorView on_gpu = in, flags_on_gpu = view_of(flags);
  on_gpu.device = flags_on_gpu.device = Device::cuda;
  EXPECT_REFUSAL("flags are for tensors on the CPU, got one on cuda:0: copy it to the CPU",
                 flags_into(Operation::sqrt, {on_gpu}, flags_on_gpu));
  EXPECT_THROW(flags_into(Operation::sqrt, {in}, View(flags.data(), DType::u8, 3)), Error);
  EXPECT_THROW(Div(in, in, wide, {}, view_of(y)), Error);
  EXPECT_THROW(Sqrt(in, wide, {}, view_of(y)), Error);
  EXPECT_EQ(flags, std::vector<std::uint8_t>(4, 7));
  EXPECT_EQ(y, std::vector<float>(4, 7.0F));
}

}  // namespace
}  // namespace cpd
