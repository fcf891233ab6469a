// SPDX-License-Identifier: Apache-2.0
//
// Tests that the integer engine gives the results and exceptions of the hardware in binary32 and
// binary64, and the oracle's results in every other format.
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <limits>
#include <random>

#include "cpd/numeric/round/soft_float.h"
#include "tests/testing/bits.h"
#include "tests/testing/formats.h"
#include "tests/testing/patterns.h"

namespace cpd {
namespace {

using soft::Operation;
using soft::Rounded;
using soft::Tininess;

constexpr Format kFp64{.exp = 11, .man = 52, .bias = 1023};
constexpr std::array kAll = {Operation::cast, Operation::add, Operation::mul,
                             Operation::fma,  Operation::div, Operation::sqrt};
constexpr std::array kNames = {"cast", "add", "mul", "fma", "div", "sqrt"};

std::string name_of(Operation op) { return kNames.at(static_cast<std::size_t>(op)); }

// ---- the hardware -------------------------------------------------------------------------------

struct Mode {
  Rounding rounding;
  int number;
};
constexpr std::array<Mode, 4> kHostModes = {{{Rounding::nearest_even, FE_TONEAREST},
                                             {Rounding::toward_zero, FE_TOWARDZERO},
                                             {Rounding::up, FE_UPWARD},
                                             {Rounding::down, FE_DOWNWARD}}};

template <class T>
[[gnu::noinline]] T operate(Operation op, T x, T y, T z) {
  const volatile T a = x, b = y, c = z;
  switch (op) {
    case Operation::add:
      return a + b;
    case Operation::mul:
      return a * b;
    case Operation::fma:
      return std::fma(a, b, c);
    case Operation::div:
      return a / b;
    case Operation::sqrt:
      return std::sqrt(a);
    case Operation::cast:
      break;
  }
  return a;
}

std::uint8_t signalled() {
  const int raised = std::fetestexcept(FE_ALL_EXCEPT);
  const auto flag = [&](int theirs, std::uint8_t ours) {
    return (raised & theirs) != 0 ? ours : 0;
  };
  return static_cast<std::uint8_t>(
      flag(FE_INEXACT, soft::kInexact) | flag(FE_UNDERFLOW, soft::kUnderflow) |
      flag(FE_OVERFLOW, soft::kOverflow) | flag(FE_DIVBYZERO, soft::kDivideByZero) |
      flag(FE_INVALID, soft::kInvalid));
}

template <class T>
Rounded by_hardware(Operation op, T x, T y, T z, int mode) {
  std::fesetround(mode);
  std::feclearexcept(FE_ALL_EXCEPT);
  const T made = operate(op, x, y, z);
  const std::uint8_t flags = signalled();
  std::fesetround(FE_TONEAREST);
  const bool is_nan = made != made;
  return {is_nan ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(made), flags};
}

// Returns zeros, infinities, a quiet NaN, the ends of the range, and numbers with exponents near
// each other, all with both signs.
template <class T>
std::vector<T> some_values(std::mt19937_64& generator, int n) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> values = {T(0),
                           Limits::infinity(),
                           Limits::quiet_NaN(),
                           Limits::min(),
                           Limits::max(),
                           Limits::denorm_min(),
                           T(1),
                           T(2),
                           T(3),
                           T(1) / 3,
                           std::nextafter(Limits::min(), T(0)),
                           std::nextafter(T(1), T(2)),
                           std::nextafter(T(1), T(0)),
                           3 * Limits::denorm_min()};
  const int span = Limits::max_exponent + Limits::digits;
  for (int i = 0; i < n; ++i) {
    const int reach = i % 3 == 0 ? span : i % 3 == 1 ? 4 : Limits::digits;
    const int base = i % 2 == 0 ? 0 : i % 4 == 1 ? Limits::min_exponent : Limits::max_exponent - 4;
    const int power =
        base + static_cast<int>(generator() % (2 * static_cast<unsigned>(reach))) - reach;
    const auto kept = static_cast<int>(1 + generator() % Limits::digits);
    const T odd = std::ldexp(static_cast<T>(generator() >> (64 - kept) | 1), -kept);
    values.push_back(std::ldexp(odd, power));
  }
  for (std::size_t i = 0, size = values.size(); i < size; ++i) values.push_back(-values[i]);
  return values;
}

/// The CPU detects tininess before or after rounding. IEEE 754-2019, section 7.5, allows either.
#ifdef __aarch64__
constexpr Tininess kTininessHere = Tininess::before;
#else
constexpr Tininess kTininessHere = Tininess::after;
#endif

template <class T>
void expect_hardware(const Format& format, int n) {
  std::mt19937_64 generator(7);
  const std::vector<T> values = some_values<T>(generator, 300);
  const auto any = [&] { return values[generator() % values.size()]; };
  for (const Mode& mode : kHostModes) {
    const soft::Target target =
        soft::target(format, testing::options_of(mode.rounding), kTininessHere);
    for (const Operation op : kAll) {
      if (op == Operation::cast) continue;
      for (int i = 0; i < n; ++i) {
        T x = any(), y = any(), z = any();
        if (op == Operation::fma && i % 3 == 0) z = -(x * y);
        if (op == Operation::fma && i % 3 == 1) z = std::nextafter(-(x * y), z);
        if (op == Operation::add && i % 5 == 0) y = std::nextafter(-x, y);
        if (z != z) z = std::numeric_limits<T>::quiet_NaN();
        const Rounded wanted = by_hardware(op, x, y, z, mode.number);
        const Rounded got = soft::compute(op, x, y, z, target);
        // IEEE 754 leaves open whether fma(0, Inf, NaN) is invalid.
        const bool open = op == Operation::fma && z != z;
        ASSERT_EQ(testing::hex(got.value), testing::hex(wanted.value))
            << name_of(op) << ' ' << x << ' ' << y << ' ' << z << " mode " << mode.number;
        if (!open) {
          ASSERT_EQ(int{got.flags}, int{wanted.flags})
              << name_of(op) << ' ' << x << ' ' << y << ' ' << z << " mode " << mode.number;
        }
      }
    }
  }
}

TEST(SoftFloat, IsTheHardwaresBinary64) { expect_hardware<double>(kFp64, 20000); }
TEST(SoftFloat, IsTheHardwaresBinary32) { expect_hardware<float>(kFp32, 20000); }

// ---- the oracle
// -----------------------------------------------------------------------------------

reference::Exact exact_result(Operation op, float x, float y, float z,
                              const reference::Options& o) {
  const auto a = reference::exact(x), b = reference::exact(y), c = reference::exact(z);
  if (op == Operation::cast) return a;
  if (op == Operation::add) return reference::add_for(o, a, b);
  if (op == Operation::mul) return reference::multiply(a, b);
  return reference::add_for(o, reference::multiply(a, b), c);
}

// The operations that the oracle supports. Quotients and roots are tested below, and in
// test_flags.py by rational numbers.
constexpr std::array kExact = {Operation::cast, Operation::add, Operation::mul, Operation::fma};

void expect_oracle(const Format& format, const RoundingOptions& o, int n, std::uint64_t seed) {
  const reference::Spec spec = reference::spec_of(format);
  const soft::Target target = soft::target(format, o);
  std::mt19937_64 generator(seed);
  const std::vector<float> pool = testing::boundary_patterns(spec, 12, 40, seed);
  const auto any = [&] { return pool[generator() % pool.size()]; };
  for (const Operation op : kExact) {
    for (int i = 0; i < n; ++i) {
      float x = any(), y = any(), z = any();
      if (i % 4 == 0) y = op == Operation::add ? z - x : z / x;
      if (i % 4 == 1) z = -x * y;
      const auto random = static_cast<std::uint32_t>(generator()) & ((1U << o.random_bits) - 1);
      const reference::Options options = testing::oracle_options(o, random);
      const float wanted = reference::round(spec, exact_result(op, x, y, z, options), options);
      const Rounded got = soft::compute(op, x, y, z, target, random);
      ASSERT_EQ(testing::bits_of(static_cast<float>(got.value)), testing::bits_of(wanted))
          << name_of(op) << ' ' << testing::hex(x) << ' ' << testing::hex(y) << ' '
          << testing::hex(z) << ' ' << testing::describe(format, o);
      const bool exact = (got.flags & soft::kInexact) == 0;
      ASSERT_TRUE(exact || (got.flags & soft::kInvalid) == 0);
      ASSERT_TRUE(exact ? (got.flags & (soft::kUnderflow | soft::kOverflow)) == 0 : true);
    }
  }
}

TEST(SoftFloat, RoundsAsTheOracle) {
  std::vector<Format> formats = testing::encoding_formats();
  for (const Format& format : testing::ieee_formats()) formats.push_back(format);
  std::uint64_t seed = 1;
  for (const Format& format : formats) {
    for (const Rounding mode : testing::kDeterministicModes) {
      const Overflow policy = testing::kPolicies[seed % 2];
      expect_oracle(format, testing::options_of(mode, policy), 12, ++seed);
      if (HasFatalFailure()) return;
    }
    RoundingOptions o = testing::options_of(Rounding::stochastic);
    o.variant = testing::kVariants[seed % 3];
    o.random_bits = 1 + static_cast<int>(seed / 3 % 24);
    expect_oracle(format, o, 24, ++seed);
    if (HasFatalFailure()) return;
  }
}

// ---- quotients and roots
// --------------------------------------------------------------------------

// If a product or a square is exact, dividing it or taking its root gives the exact factor, without
// a remainder.
TEST(SoftFloat, UndoesProductsAndSquares) {
  std::mt19937_64 generator(11);
  for (int i = 0; i < 100000; ++i) {
    const double x = static_cast<double>(generator() >> (11 + generator() % 52));
    const double y = static_cast<double>((generator() >> (11 + generator() % 52)) | 1);
    if (x == 0) continue;
    const double product = static_cast<double>(static_cast<float>(x)) * static_cast<float>(y);
    const soft::Number back = soft::div(soft::number(product), soft::number(static_cast<float>(y)));
    ASSERT_FALSE(back.sticky);
    ASSERT_EQ(soft::round(back, soft::target(kFp64)).value, static_cast<float>(x));
    const double square = static_cast<double>(static_cast<float>(x)) * static_cast<float>(x);
    const soft::Number root = soft::sqrt(soft::number(square));
    ASSERT_FALSE(root.sticky);
    ASSERT_EQ(soft::round(root, soft::target(kFp64)).value, static_cast<float>(x));
  }
}

// ---- exceptions
// -------------------------------------------------------------------------------------

std::uint8_t flags_of(Operation op, double x, double y, double z, const Format& format,
                      const RoundingOptions& o = {}, Tininess tininess = Tininess::after) {
  return soft::compute(op, x, y, z, soft::target(format, o, tininess)).flags;
}

/// One random bit rounds 2^-151 first to a multiple of 2^-150, half of fp32's least number. 2^-151
/// is a tie between 0 and 2^-150, and an addend as small as 2^-400 must decide the tie.
TEST(SoftFloat, TiesBelowTheRandomBitsSeeEveryTerm) {
  RoundingOptions o;
  o.mode = Rounding::stochastic;
  o.variant = Variant::C;
  o.random_bits = 1;
  const soft::Target to = soft::target(kFp32, o);
  const auto sum = [&](double b) { return compute(Operation::add, 0x1p-151, b, 0, to, 1).value; };
  EXPECT_EQ(sum(0x1p-400), 0x1p-149);
  EXPECT_EQ(sum(0), 0);  // to even
  EXPECT_EQ(sum(-0x1p-400), 0);
}

/// Returns the square of a number of 96 bits as six 32-bit words, the most significant first.
std::array<std::uint64_t, 6> square_of(soft::Wide root) {
  std::array<std::uint64_t, 6> square{};
  for (std::size_t i = 0; i < 3; ++i) {
    std::uint64_t carry = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      const auto a = static_cast<std::uint32_t>(root >> (32 * i));
      const auto b = static_cast<std::uint32_t>(root >> (32 * j));
      carry += square[i + j] + std::uint64_t{a} * b;
      square[i + j] = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
    square[i + 3] = carry;
  }
  std::ranges::reverse(square);  // so that they compare as numbers do
  return square;
}

/// The integer root of radicand * 2^128 must be the greatest integer whose square is at most that
/// number.
TEST(SoftFloat, RootsAreCutAt96Bits) {
  std::mt19937_64 generator(4);
  for (int i = 0; i < 100000; ++i) {
    const double x = std::ldexp(static_cast<double>(generator() >> 11 | 1), i % 2);
    const soft::Number root = soft::sqrt(soft::number(x));
    const int shift = 2 * (root.exponent + 32) + 128;  // x = radicand * 2^shift
    const auto radicand = static_cast<std::uint64_t>(std::ldexp(x, -shift));
    const std::array<std::uint64_t, 6> wanted{radicand >> 32, radicand & 0xFFFFFFFF, 0, 0, 0, 0};
    const soft::Wide digits = root.significand >> 32;
    ASSERT_EQ(digits << 32 == root.significand, true) << x;
    ASSERT_LE(square_of(digits), wanted) << x;
    ASSERT_GT(square_of(digits + 1), wanted) << x;
    ASSERT_EQ(root.sticky, square_of(digits) != wanted) << x;
  }
}

TEST(SoftFloat, RaisesWhatTheContractSays) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const Format e4m3 = ParseFormat("e4m3"), fn = ParseFormat("e4m3fn"), e2m1 = ParseFormat("e2m1");
  const Format natural = ParseFormat("e4m3fn:unsigned"), scale = ParseFormat("e8m0");
  const RoundingOptions saturating =
      testing::options_of(Rounding::nearest_even, Overflow::saturate);
  constexpr int kTiny = soft::kInexact | soft::kUnderflow;
  constexpr int kHuge = soft::kInexact | soft::kOverflow;
  const auto cast = [&](double x, const Format& f, const RoundingOptions& o = {},
                        Tininess t = Tininess::after) {
    return int{flags_of(Operation::cast, x, 0, 0, f, o, t)};
  };
  EXPECT_EQ(cast(1, e4m3), 0);
  EXPECT_EQ(cast(1.01, e4m3), soft::kInexact);
  EXPECT_EQ(cast(248, e4m3), kHuge);  // rounds to 256
  EXPECT_EQ(cast(247.9, e4m3), soft::kInexact);
  EXPECT_EQ(cast(1e9, e4m3, testing::options_of(Rounding::toward_zero)), kHuge);
  EXPECT_EQ(cast(1e9, e4m3, saturating), kHuge);
  EXPECT_EQ(cast(1e9, e2m1), kHuge);
  EXPECT_EQ(cast(kInf, e4m3), 0);
  EXPECT_EQ(cast(kInf, fn), kHuge);
  EXPECT_EQ(cast(kInf, e2m1), kHuge);
  EXPECT_EQ(cast(kNan, e4m3), 0);
  EXPECT_EQ(cast(kNan, e2m1), soft::kInvalid);
  EXPECT_EQ(cast(0x1p-9, e4m3), 0);  // the least subnormal, exact
  EXPECT_EQ(cast(0x1p-20, e4m3), kTiny);
  EXPECT_EQ(cast(0x1.FFp-7, e4m3), soft::kInexact);  // rounds up to 2^-6 with any exponent
  EXPECT_EQ(cast(0x1.FFp-7, e4m3, {}, Tininess::before), kTiny);
  EXPECT_EQ(cast(0x1.EFp-7, e4m3), kTiny);  // to 2^-6 on the grid, to 1.EE…p-7 with any exponent
  EXPECT_EQ(cast(-1, natural), soft::kInvalid);
  EXPECT_EQ(cast(-1, natural, saturating), soft::kInexact);
  EXPECT_EQ(cast(-0x1p-30, natural), kTiny);
  EXPECT_EQ(cast(0, scale), soft::kInexact);
  EXPECT_EQ(cast(0x1p-128, scale), kTiny);
  EXPECT_EQ(cast(0x1p-127, scale), 0);
  const auto of = [&](Operation op, double x, double y, double z, const Format& f) {
    return int{flags_of(op, x, y, z, f)};
  };
  EXPECT_EQ(of(Operation::div, 1, 0, 0, e4m3), soft::kDivideByZero);
  EXPECT_EQ(of(Operation::div, 1, 0, 0, e2m1), soft::kDivideByZero);
  EXPECT_EQ(of(Operation::div, 0, 0, 0, e4m3), soft::kInvalid);
  EXPECT_EQ(of(Operation::div, kInf, kInf, 0, e4m3), soft::kInvalid);
  EXPECT_EQ(of(Operation::div, kInf, 0, 0, e4m3), 0);
  EXPECT_EQ(of(Operation::sqrt, -1, 0, 0, e4m3), soft::kInvalid);
  EXPECT_EQ(of(Operation::sqrt, -0.0, 0, 0, e4m3), 0);
  EXPECT_EQ(of(Operation::add, kInf, -kInf, 0, e4m3), soft::kInvalid);
  EXPECT_EQ(of(Operation::mul, 0, kInf, 0, e4m3), soft::kInvalid);
  EXPECT_EQ(of(Operation::fma, 0, kInf, kNan, e4m3), 0);
  EXPECT_EQ(of(Operation::fma, 0, kInf, 1, e4m3), soft::kInvalid);
}

}  // namespace
}  // namespace cpd
