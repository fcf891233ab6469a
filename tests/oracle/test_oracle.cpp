// SPDX-License-Identifier: Apache-2.0
//
// Tests the oracle on many operands at once. Values and flags of all pairs in narrow formats are
// compared with soft_float.h. Tests also corner cases and refused arguments.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "cpd/numeric/round/soft_float.h"
#include "cpd/oracle/flagged.h"
#include "cpd/oracle/oracle.h"
#include "cpd/oracle/reference.h"
#include "cpd/oracle/reference_quotients.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

using soft::Operation;
using soft::Tininess;

struct Result {
  std::vector<std::uint32_t> codes;
  std::vector<std::uint8_t> flags;
  std::vector<std::uint16_t> corners;
};

Result run(const ElementRule& rule, const std::vector<std::vector<std::uint32_t>>& operands,
           const std::vector<std::uint32_t>& random = {}) {
  const std::size_t n = operands[0].size();
  Result made{std::vector<std::uint32_t>(n), std::vector<std::uint8_t>(n),
              std::vector<std::uint16_t>(n)};
  ElementLines lines;
  lines.n = static_cast<std::int64_t>(n);
  for (std::size_t k = 0; k < operands.size(); ++k) lines.operands[k] = operands[k].data();
  lines.random = random.empty() ? nullptr : random.data();
  lines.codes = made.codes.data();
  lines.flags = made.flags.data();
  lines.corners = made.corners.data();
  OracleElements(rule, lines);
  return made;
}

ElementRule rule_of(Operation operation, const char* format, Rounding mode = {},
                    Tininess tininess = Tininess::after) {
  const Format f = ParseFormat(format);
  ElementRule rule{operation, {f, f, f}, f, {}, tininess};
  rule.rounding.mode = mode;
  return rule;
}

bool has(const Result& result, std::size_t i, Corner corner) {
  return (result.corners[i] & static_cast<std::uint16_t>(corner)) != 0;
}

TEST(Oracle, GivesSoftFloatsValuesAndFlags) {
  for (const char* name : {"e3m1ieee", "e2m2", "e3m1fn", "e3m1:nosub", "e3m1:unsigned", "e4m0"}) {
    for (const Operation operation : {Operation::add, Operation::mul, Operation::div}) {
      for (const Rounding mode : {Rounding::nearest_even, Rounding::down, Rounding::to_odd}) {
        for (const Tininess tininess : {Tininess::after, Tininess::before}) {
          const ElementRule rule = rule_of(operation, name, mode, tininess);
          const auto spec = reference::spec_of(rule.result);
          const auto size = std::uint32_t{1} << rule.result.bits();
          std::vector<std::vector<std::uint32_t>> operands(2);
          for (std::uint32_t i = 0; i < size * size; ++i) {
            operands[0].push_back(i / size);
            operands[1].push_back(i % size);
          }
          const Result made = run(rule, operands);
          const soft::Target target = soft::target(rule.result, rule.rounding, tininess);
          for (std::size_t i = 0; i < operands[0].size(); ++i) {
            const double x = reference::decode(spec, operands[0][i]);
            const double y = reference::decode(spec, operands[1][i]);
            const soft::Rounded expected = soft::compute(operation, x, y, 0.0, target, 0);
            const bool signals =
                reference::is_signalling(spec, operands[0][i]) ||
                (operands_of(operation) > 1 && reference::is_signalling(spec, operands[1][i]));
            const int flags = expected.flags | (signals ? soft::kInvalid : 0);
            ASSERT_EQ(made.flags[i], flags) << name << " " << x << " " << y;
            if (made.codes[i] == kNoCode) continue;
            const float value = reference::decode(spec, made.codes[i]);
            ASSERT_EQ(std::bit_cast<std::uint32_t>(value),
                      std::bit_cast<std::uint32_t>(static_cast<float>(expected.value)))
                << name << " " << x << " " << y;
          }
        }
      }
    }
  }
}

/// The result of an operation on one set of operands, computed from the definitions with integers
/// of any length.
struct ByDefinition {
  std::uint32_t code;
  std::uint8_t flags;
  std::uint16_t corners;  ///< of the exact result and its rounding
};

ByDefinition by_definition(const ElementRule& rule, const std::vector<std::uint32_t>& codes,
                           std::uint32_t random) {
  using reference::Exact;
  const auto spec = reference::spec_of(rule.result);
  std::vector<Exact> x(3);
  bool any_nan = false;
  bool signals = false;
  for (std::size_t k = 0; k < codes.size(); ++k) {
    const auto operand = reference::spec_of(rule.operands[k]);
    x[k] = reference::value_of(operand, codes[k]);
    any_nan = any_nan || x[k].is_nan();
    signals = signals || reference::is_signalling(operand, codes[k]);
  }
  const reference::Options o{rule.rounding.mode, rule.rounding.overflow, rule.rounding.variant,
                             rule.rounding.random_bits, random};
  const Exact first = rule.operation == Operation::fma ? multiply(x[0], x[1]) : x[0];
  const Exact& second = rule.operation == Operation::fma ? x[2] : x[1];
  const bool is_sum = rule.operation == Operation::add || rule.operation == Operation::fma;
  const Exact exact = is_sum ? reference::add_for(o, first, second)
                             : reference::result_of(rule.operation, x[0], x[1], x[2]);
  const bool by_zero = rule.operation == Operation::div && exact.is_infinite() && x[1].is_zero() &&
                       !x[0].is_infinite();
  int raised = by_zero ? soft::kDivideByZero : 0;
  if (exact.is_nan()) raised = any_nan && !signals ? 0 : soft::kInvalid;
  const Exact result = reference::round_exact(spec, exact, o);
  const bool is_finite = result.kind == Exact::Kind::finite;
  std::uint16_t corners = is_finite ? reference::rounding_corners(spec, exact, result) : 0;
  if (is_sum && reference::cancels(first, second, exact)) {
    corners |= reference::bit(Corner::cancellation);
  }
  return {
      reference::code_of(spec, result).value_or(kNoCode),
      reference::flags_of(spec, exact, result, o, rule.tininess, static_cast<std::uint8_t>(raised)),
      corners};
}

TEST(Oracle, LinesDoNotDependOnTheIntegers) {
  constexpr auto of_rounding =
      static_cast<std::uint16_t>(static_cast<int>(Corner::tie) | static_cast<int>(Corner::carry) |
                                 static_cast<int>(Corner::cancellation));
  std::mt19937 generator(6);
  const std::vector<const char*> names{"fp32", "bf16",       "fp16", "e8m0",
                                       "int8", "e5m2:nosub", "sm25", "e4m3fn:unsigned"};
  for (const char* name : names) {
    for (const char* to : {name, "int25", "e4m3fn"}) {
      for (const Operation operation : {Operation::cast, Operation::add, Operation::mul,
                                        Operation::fma, Operation::div, Operation::sqrt}) {
        for (const Rounding mode :
             {Rounding::nearest_even, Rounding::down, Rounding::to_odd, Rounding::stochastic}) {
          ElementRule rule = rule_of(operation, name, mode);
          rule.result = ParseFormat(to);
          const bool is_random = mode == Rounding::stochastic;
          std::vector<std::vector<std::uint32_t>> operands(
              static_cast<std::size_t>(operands_of(operation)));
          std::vector<std::uint32_t> random;
          for (int i = 0; i < 300; ++i) {
            for (auto& codes : operands) {
              codes.push_back(static_cast<std::uint32_t>(
                  generator() & ((std::uint64_t{1} << rule.operands[0].bits()) - 1)));
            }
            if (i % 3 == 0) operands.back().back() = operands[0].back();
            if (is_random) random.push_back(generator() >> 8);
          }
          const Result made = run(rule, operands, random);
          for (std::size_t i = 0; i < operands[0].size(); ++i) {
            std::vector<std::uint32_t> codes;
            for (const auto& each : operands) codes.push_back(each[i]);
            const ByDefinition expected = by_definition(rule, codes, is_random ? random[i] : 0);
            ASSERT_EQ(made.codes[i], expected.code) << name << " " << to << " " << i;
            ASSERT_EQ(made.flags[i], expected.flags) << name << " " << to << " " << i;
            ASSERT_EQ(made.corners[i] & of_rounding, expected.corners) << name << " " << to;
          }
        }
      }
    }
  }
}

TEST(Oracle, ManyLinesOfFewAreThoseOfEachAlone) {
  for (const Rounding mode : {Rounding::nearest_even, Rounding::stochastic}) {
    // The operands and the random integer of a line have 16 bits together (8 + 8, or 8 + 4 + 4).
    // 70,000 lines are more than the 2^16 possible inputs, so the oracle makes a table of results.
    ElementRule rule = rule_of(Operation::mul, "e4m3fn", mode);
    const bool is_random = mode == Rounding::stochastic;
    if (is_random) {
      rule.operands[1] = ParseFormat("e2m1");
      rule.rounding.random_bits = 4;
    }
    std::vector<std::vector<std::uint32_t>> operands(2);
    std::vector<std::uint32_t> random;
    for (std::uint32_t i = 0; i < 70'000; ++i) {
      operands[0].push_back(i >> 8 & 255);
      operands[1].push_back(is_random ? i & 15 : i & 255);
      if (is_random) random.push_back(i >> 4 & 15);
    }
    const Result made = run(rule, operands, random);
    for (std::size_t begin = 0; begin < operands[0].size(); begin += 7'000) {
      const auto part = [&](const auto& all) {
        if (all.empty()) return all;
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
        return std::remove_cvref_t<decltype(all)>(first, first + 7'000);
      };
      const Result alone = run(rule, {part(operands[0]), part(operands[1])}, part(random));
      EXPECT_EQ(alone.codes, part(made.codes));
      EXPECT_EQ(alone.flags, part(made.flags));
      EXPECT_EQ(alone.corners, part(made.corners));
    }
  }
}

TEST(Oracle, KnowsCorners) {
  // The sums in e4m3fn are 1 + 2^-4 (a tie), 1.875 + 2^-4 (carries), 1 - 1, -0 + -0, 448 + 448, and
  // NaN + 2^-9.
  const Result sums =
      run(rule_of(Operation::add, "e4m3fn"),
          {{0x38, 0x3F, 0x38, 0x80, 0x7E, 0x7F}, {0x18, 0x18, 0xB8, 0x80, 0x7E, 0x01}});
  EXPECT_TRUE(has(sums, 0, Corner::tie));
  EXPECT_FALSE(has(sums, 0, Corner::carry));
  EXPECT_TRUE(has(sums, 1, Corner::carry));
  EXPECT_TRUE(has(sums, 2, Corner::cancellation));
  EXPECT_TRUE(has(sums, 2, Corner::positive_zero));
  EXPECT_TRUE(has(sums, 3, Corner::negative_zero));
  EXPECT_TRUE(has(sums, 4, Corner::nan_out));
  EXPECT_EQ(sums.flags[4], soft::kInexact | soft::kOverflow);
  EXPECT_TRUE(has(sums, 5, Corner::nan_in));
  EXPECT_TRUE(has(sums, 5, Corner::subnormal_in));
  EXPECT_EQ(sums.flags[5], 0);
}

TEST(Oracle, DividesAndTakesRoots) {
  const Result quotients =
      run(rule_of(Operation::div, "fp32"), {{0x3F800000, 0x3F800000, 0x00000001, 0, 0x40400000},
                                            {0x40400000, 0, 0x7F7FFFFF, 0x80000000, 0x40400000}});
  EXPECT_EQ(quotients.codes,
            (std::vector<std::uint32_t>{0x3EAAAAAB, 0x7F800000, 0, 0x7FC00000, 0x3F800000}));
  EXPECT_EQ(quotients.flags, (std::vector<std::uint8_t>{1, 8, 3, 16, 0}));
  const Result roots = run(rule_of(Operation::sqrt, "fp32"),
                           {{0x40000000, 0x40800000, 0x00000001, 0x80000000, 0xBF800000}});
  EXPECT_EQ(roots.codes, (std::vector<std::uint32_t>{0x3FB504F3, 0x40000000, 0x1A3504F3, 0x80000000,
                                                     0x7FC00000}));
  EXPECT_EQ(roots.flags, (std::vector<std::uint8_t>{1, 0, 1, 0, 16}));
}

TEST(Oracle, TakesRandomIntegers) {
  ElementRule rule = rule_of(Operation::cast, "e4m3fn", Rounding::stochastic);
  rule.operands[0] = ParseFormat("fp32");
  rule.rounding.random_bits = 2;
  const std::vector<std::uint32_t> x(4, 0x3F8C0000);  // 1 + 3/4 of a step
  EXPECT_EQ(run(rule, {x}, {0, 1, 2, 3}).codes,
            (std::vector<std::uint32_t>{0x38, 0x39, 0x39, 0x39}));
  EXPECT_THROW(run(rule, {x}), Error);
  EXPECT_THROW(run(rule, {x}, {0, 1, 2, 4}), Error);
}

TEST(Oracle, TiesBelowPowersOfTwoKeepTheParityOfCodes) {
  // In e4m0, the least normal number 2^-6 has code 1. With an unbounded exponent range, 0.75 * 2^-6
  // is a tie between 2^-7 and 2^-6. Because 2^-6 has an odd code, the tie goes to 2^-7. The result
  // therefore counts as tiny and underflows.
  ElementRule rule = rule_of(Operation::cast, "e4m0");
  rule.operands[0] = ParseFormat("fp32");
  const Result made = run(rule, {{0x3C400000, 0x3C400001}});
  EXPECT_EQ(made.codes, (std::vector<std::uint32_t>{1, 1}));
  EXPECT_EQ(made.flags,
            (std::vector<std::uint8_t>{soft::kInexact | soft::kUnderflow, soft::kInexact}));
}

TEST(Oracle, NegativeNumbersDoNotOverflowUnsignedFormats) {
  ElementRule rule = rule_of(Operation::cast, "e4m3fn:unsigned");
  rule.operands[0] = ParseFormat("fp32");
  rule.rounding.overflow = Overflow::saturate;
  const Result made = run(rule, {{0xCE000000, 0x4E000000}});  // -2^29 and 2^29
  EXPECT_EQ(made.flags[0], soft::kInexact);
  EXPECT_EQ(made.flags[1], soft::kInexact | soft::kOverflow);
}

TEST(Oracle, RefusesCodesThatAreNone) {
  EXPECT_THROW(run(rule_of(Operation::mul, "e2m1"), {{0}, {16}}), Error);
  EXPECT_NO_THROW(run(rule_of(Operation::mul, "e2m1"), {{0}, {15}}));
}

TEST(Oracle, SaysWhereNanHasNoCode) {
  ElementRule rule = rule_of(Operation::cast, "e2m1");
  rule.operands[0] = ParseFormat("e4m3fn");
  const Result made = run(rule, {{0x7F, 0x38}});
  EXPECT_EQ(made.codes, (std::vector<std::uint32_t>{kNoCode, 2}));
  EXPECT_EQ(made.flags, (std::vector<std::uint8_t>{soft::kInvalid, 0}));
}

}  // namespace
}  // namespace cpd
