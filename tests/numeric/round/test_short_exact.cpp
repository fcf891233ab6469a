// SPDX-License-Identifier: Apache-2.0
//
// Tests results that are rounded to odd in binary32 and then rounded into a format. The first
// rounding marks a result as doubtful if the final result may be wrong. All other final results
// must be the oracle's rounding of the exact result.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "cpd/numeric/round/short_exact.h"
#include "cpd/oracle/reference.h"
#include "cpd/oracle/reference_quotients.h"
#include "tests/testing/bits.h"
#include "tests/testing/formats.h"
#include "tests/testing/patterns.h"
#include "tests/testing/run.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using reference::Exact;
using reference::Spec;
using soft::Operation;
using Operands = std::array<float, 3>;

/// Chooses operands whose exact result is, or is next to, a value or a tie of a format. One in
/// eight cases has arbitrary operands.
class Cases {
 public:
  Cases(const Format& format, std::uint64_t seed)
      : spec_(reference::spec_of(format)),
        pool_(testing::boundary_patterns(spec_, 40, 60, seed)),
        generator_(seed) {}

  Operands Next(Operation op) {
    if (generator_() % 8 == 0) return {Any(), Any(), Any()};
    const double wanted = Target();
    const float x = Factor();
    const float y = Factor();
    const double product = double{x} * y;
    switch (op) {
      case Operation::add:
        return {Beside(wanted - x), x, 0};
      case Operation::mul:
        return {Beside(wanted / x), x, 0};
      case Operation::div:
        return {Beside(wanted * x), x, 0};
      case Operation::sqrt:
        return {Beside(wanted * wanted), 0, 0};
      default:
        return {x, y, Beside(wanted - product)};
    }
  }

 private:
  float Any() { return pool_[generator_() % pool_.size()]; }
  /// Returns a value of the format, or the middle between two values, with either sign.
  double Target() {
    const std::uint64_t code = generator_() % (spec_.max_code() + 1);
    const auto value = [&](std::uint64_t c) {
      const Exact x = reference::grid_value(spec_, c);
      return std::ldexp(static_cast<double>(x.significand.bits_from(0)), x.exponent);
    };
    const double found = generator_() % 4 == 0 ? value(code) : (value(code) + value(code + 1)) / 2;
    return generator_() % 2 == 0 ? found : -found;
  }
  /// Returns a number near 1 with either sign. The number has up to 24 or up to 5 significant bits.
  float Factor() {
    const std::uint64_t kept = generator_() % 2 == 0 ? 0xFFFFFF : 0xF80000;
    const auto significand = static_cast<double>(((generator_() & 0x7FFFFF) | 0x800000) & kept);
    const double size = std::ldexp(significand, -28 + static_cast<int>(generator_() % 10));
    return static_cast<float>(generator_() % 2 == 0 ? size : -size);
  }
  /// Returns the binary32 number nearest to x or, in half of the calls, one of its two neighbors.
  float Beside(double x) {
    const auto near = static_cast<float>(x);
    const std::uint64_t way = generator_() % 4;
    return way < 2 ? near : std::nextafter(near, way == 2 ? 1e38F : -1e38F);
  }

  Spec spec_;
  std::vector<float> pool_;
  std::mt19937_64 generator_;
};

/// The number of results that the computation marks as possibly wrong (`doubtful`), of the other
/// results (`certain`), and of the certain results that are wrong.
struct Seen {
  int certain = 0, doubtful = 0, wrong = 0;
};

template <Operation op, Rounding mode, bool kSmall>
void compare(const Format& format, const RoundingOptions& options, const RoundPlan& plan,
             const Operands& in, std::uint32_t random, Seen& seen) {
  Doubt<float> doubt;
  const float odd = operation_to_odd<op, kSmall>(in[0], in[1], in[2], doubt);
  if (doubt.any()) {
    ++seen.doubtful;
    return;
  }
  ++seen.certain;
  const float got = round<Rule<mode>>(odd, random, plan);
  const Exact exact = reference::result_of(op, reference::exact(in[0]), reference::exact(in[1]),
                                           reference::exact(in[2]));
  const float wanted =
      reference::round(reference::spec_of(format), exact, testing::oracle_options(options, random));
  if (testing::bits_of(got) == testing::bits_of(wanted)) return;
  ++seen.wrong;
  ADD_FAILURE() << ToString(op) << " " << testing::describe(format, options) << ": "
                << testing::hex(in[0]) << ", " << testing::hex(in[1]) << ", " << testing::hex(in[2])
                << " gives " << got << ", not " << wanted;
}

template <Rounding mode>
void compare_all(const Format& format, const RoundingOptions& options, int cases,
                 std::array<Seen, 6>& seen) {
  const RoundPlan plan = make_plan(format, options);
  if (!rounds_from_odd(plan)) return;
  Cases from(format, static_cast<std::uint64_t>(format.bits() * 31 + format.exp));
  std::mt19937_64 generator(7);
  const auto with = [&]<Operation op>() {
    for (int i = 0; i < cases; ++i) {
      const Operands in = from.Next(op);
      const auto random =
          static_cast<std::uint32_t>(generator()) & ((std::uint32_t{1} << options.random_bits) - 1);
      Seen& of = seen[static_cast<std::size_t>(op)];
      sees_small(plan) ? compare<op, mode, true>(format, options, plan, in, random, of)
                       : compare<op, mode, false>(format, options, plan, in, random, of);
      if (of.wrong > 3) return;
    }
  };
  with.template operator()<Operation::add>();
  with.template operator()<Operation::mul>();
  with.template operator()<Operation::fma>();
  with.template operator()<Operation::div>();
  with.template operator()<Operation::sqrt>();
}

void expect_most_certain(const std::array<Seen, 6>& seen) {
  for (const Operation op :
       {Operation::add, Operation::mul, Operation::fma, Operation::div, Operation::sqrt}) {
    const Seen& of = seen[static_cast<std::size_t>(op)];
    EXPECT_GT(of.certain, testing::kSanitized ? 1000 : 5000)
        << ToString(op) << ", " << of.doubtful << " doubtful";
    EXPECT_GT(of.doubtful, 0) << ToString(op);
  }
}

TEST(ShortExact, NearestInEveryFormat) {
  std::array<Seen, 6> seen;
  for (const auto& formats :
       {testing::ieee_formats(), testing::named_formats(), testing::encoding_formats()}) {
    for (const Format& format : formats) {
      const Overflow overflow = testing::kPolicies[static_cast<std::size_t>(format.bits()) % 2];
      compare_all<Rounding::nearest_even>(
          format, testing::options_of(Rounding::nearest_even, overflow), 200, seen);
      if (HasFailure()) return;
    }
  }
  expect_most_certain(seen);
}

TEST(ShortExact, StochasticWithAsManyBitsAsFit) {
  std::array<Seen, 6> seen;
  for (const auto& formats : {testing::ieee_formats(), testing::named_formats()}) {
    for (const Format& format : formats) {
      for (const int bits : {1, 3, 8, 13, 22 - format.man}) {
        if (bits < 1 || bits > 24) continue;
        RoundingOptions options = testing::options_of(Rounding::stochastic);
        options.random_bits = bits;
        compare_all<Rounding::stochastic>(format, options, 100, seen);
        if (HasFailure()) return;
      }
    }
  }
  expect_most_certain(seen);
}

/// Tests which results the computation marks as doubtful (possibly wrong), and which it does not.
TEST(ShortExact, Doubts) {
  const auto doubts = []<Operation op>(float x, float y, float z) {
    Doubt<float> doubt;
    static_cast<void>(operation_to_odd<op, false>(x, y, z, doubt));
    return doubt.any();
  };
  const float inf = HUGE_VALF;
  const float tie = 1.0625F;
  EXPECT_FALSE(doubts.operator()<Operation::mul>(3, 0, 0));
  EXPECT_FALSE(doubts.operator()<Operation::fma>(3, 0, tie));
  EXPECT_FALSE(doubts.operator()<Operation::sqrt>(-1, 0, 0)) << "NaN is exact";
  EXPECT_TRUE(doubts.operator()<Operation::mul>(0x1p100F, 0x1p100F, 0)) << "not infinite";
  EXPECT_TRUE(doubts.operator()<Operation::add>(0x1.8p127F, 0x1.8p127F, 0));
  EXPECT_TRUE(doubts.operator()<Operation::add>(inf, 1, 0));
  EXPECT_TRUE(doubts.operator()<Operation::div>(1, 0, 0));
  EXPECT_TRUE(doubts.operator()<Operation::div>(0x1p-103F, 3, 0));
  EXPECT_FALSE(doubts.operator()<Operation::div>(0x1p-101F, 3, 0));
  EXPECT_TRUE(doubts.operator()<Operation::fma>(0x1p-100F, 0x1p-100F, tie)) << "beside a tie";
  EXPECT_TRUE(doubts.operator()<Operation::fma>(0x1.000002p0F, 0x1.000002p0F, tie))
      << "no binary32 number";
}

TEST(ShortExact, PlansThatRoundFromOdd) {
  const auto plan = [](const char* format, Rounding mode, int bits = 8) {
    RoundingOptions options = testing::options_of(mode);
    options.random_bits = bits;
    return make_plan(ParseFormat(format), options);
  };
  for (const char* format : {"e4m3", "e5m2", "e3m0", "bf16", "fp16", "tf32", "e8m21"}) {
    EXPECT_TRUE(rounds_from_odd(plan(format, Rounding::nearest_even))) << format;
  }
  EXPECT_FALSE(rounds_from_odd(plan("e8m22", Rounding::nearest_even)));
  EXPECT_FALSE(rounds_from_odd(plan("fp32", Rounding::nearest_even)));
  EXPECT_FALSE(rounds_from_odd(plan("e4m3", Rounding::up)));
  EXPECT_TRUE(rounds_from_odd(plan("e4m3", Rounding::stochastic, 19)));
  EXPECT_FALSE(rounds_from_odd(plan("e4m3", Rounding::stochastic, 20)));
  EXPECT_FALSE(sees_small(plan("fp16", Rounding::nearest_even)));
  EXPECT_TRUE(sees_small(plan("bf16", Rounding::nearest_even)));
}

}  // namespace
}  // namespace cpd
