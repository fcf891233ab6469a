// SPDX-License-Identifier: Apache-2.0
//
// Tests that code, flags and corner cases computed by shifts equal those computed by the
// definitions (reference.h, flagged.h), in every mode. For narrow formats, the inputs are all
// numbers on a fine grid. For wide formats, the inputs are random numbers and numbers next to a
// value of the format.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "cpd/oracle/flagged.h"
#include "cpd/oracle/outcome.h"
#include "cpd/oracle/reference.h"
#include "tests/testing/formats.h"
#include "tests/testing/sanitized.h"

namespace cpd {
namespace {

using reference::Digits;
using reference::Exact;
using reference::Natural;
using reference::Number;
using reference::Options;
using reference::Outcome;
using reference::ShortNatural;
using reference::Spec;
using soft::Tininess;

std::vector<Options> every_option() {
  std::vector<Options> all;
  for (const Rounding mode : testing::kDeterministicModes) {
    for (const Overflow overflow : testing::kPolicies) {
      Options o;
      o.rounding = mode;
      o.overflow = overflow;
      all.push_back(o);
    }
  }
  return all;
}

/// Rounds the number x, whose significand is `significand`, by shifts of integers of one type.
/// Expects the code, the flags and the corner cases (such as a tie) that the definitions give.
template <class Integer>
void check_on(const Spec& spec, const Exact& x, Digits significand, const Options& o,
              Tininess tininess) {
  const Number<Integer> number{x.kind, x.negative, Integer(significand), x.exponent};
  const auto made = reference::outcome_by_shifts(spec, number, o, tininess);
  ASSERT_TRUE(made.has_value());
  const Exact result = reference::round_exact(spec, x, o);
  const auto flags = reference::flags_of(spec, x, result, o, tininess);
  ASSERT_EQ(made->code, reference::code_of(spec, result).value_or(kNoCode));
  ASSERT_EQ(made->flags, flags);
  ASSERT_EQ(made->corners, reference::corners_out(spec, x, result, flags));
}

void check(const Spec& spec, Digits significand, int exponent) {
  static const std::vector<Options> options = every_option();
  for (const bool negative : {false, true}) {
    const Exact x = reference::exact_finite(negative, significand, exponent);
    for (const Options& o : options) {
      for (const Tininess tininess : {Tininess::after, Tininess::before}) {
        SCOPED_TRACE(::testing::Message()
                     << (negative ? "-" : "") << static_cast<std::uint64_t>(significand) << " * 2^"
                     << exponent << ", mode " << static_cast<int>(o.rounding));
        check_on<Natural>(spec, x, significand, o, tininess);
        check_on<ShortNatural<Digits>>(spec, x, significand, o, tininess);
        if (significand >> 64 == 0) {
          check_on<ShortNatural<std::uint64_t>>(spec, x, significand, o, tininess);
        }
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(Outcome, IsThatOfTheDefinitionsOnAFineGrid) {
  for (const char* name : {"e2m1", "e3m2ieee", "e2m2fn", "e3m2fnuz", "e3m0", "e2m0ieee", "e1m2",
                           "e4m1", "binary6p3se", "binary6p3sf", "e3m2:bias=5"}) {
    SCOPED_TRACE(name);
    const Spec spec = reference::spec_of(ParseFormat(name));
    constexpr int more = 4;  // digits below a subnormal's step, and below those one
    const int least = spec.emin() - spec.man - more;
    const Exact top = reference::grid_value(spec, spec.max_code());
    const int bits = reference::top_exponent(top) - least + 2;
    for (std::uint64_t x = 1; x < std::uint64_t{1} << bits; ++x) {
      // Skips a number x that has more than four bits beyond the format's precision.
      const int length = std::bit_width(x);
      const int unused = length - spec.man - 1 - more;
      if (unused > 0 && (x & ((std::uint64_t{1} << unused) - 1)) != 0) continue;
      check(spec, x, least);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Outcome, IsThatOfTheDefinitionsOfRandomNumbers) {
  std::mt19937_64 generator(8);
  for (const char* name : {"bf16", "fp16", "fp32", "sm8", "tf32", "e4m3fn", "e5m2", "e4m3fnuz",
                           "e8m0ieee", "binary8p3se", "binary8p4sf", "e6m9:bias=40", "e5m2fnuz"}) {
    SCOPED_TRACE(name);
    const Spec spec = reference::spec_of(ParseFormat(name));
    for (int i = 0; i < (testing::kSanitized ? 60 : 400); ++i) {
      const std::uint64_t code = generator() % (spec.max_code() + 1);
      const Exact near = reference::grid_value(spec, code);
      const Digits whole = near.significand.bits_from(0);
      const int digits = static_cast<int>(generator() % 60) + 2;
      const Digits half = Digits{1} << (digits - 1);
      for (const Digits part : {Digits{0}, Digits{1}, half - 1, half, half + 1, 2 * half - 1}) {
        const Digits x = (whole << digits) + part;
        if (x != 0) check(spec, x, near.exponent - digits);
      }
      const Digits any = Digits{generator() >> (generator() % 63)} << (generator() % 50);
      if (any != 0) {
        check(spec, any, spec.emin() - static_cast<int>(generator() % 90) + 20);
        check(spec, any, near.exponent - 20);
      }
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Outcome, IsOfPlainFormatsAlone) {
  const auto one = reference::exact_finite(false, 1, 0);
  for (const char* name : {"e8m0", "int8", "int8:full", "e4m3fn:unsigned", "e4m3:nosub"}) {
    const Spec spec = reference::spec_of(ParseFormat(name));
    EXPECT_EQ(reference::outcome_by_shifts(spec, one, {}, Tininess::after), std::nullopt) << name;
  }
  Options o;
  o.rounding = Rounding::stochastic;
  EXPECT_EQ(reference::outcome_by_shifts(Spec{}, one, o, Tininess::after), std::nullopt);
}

}  // namespace
}  // namespace cpd
