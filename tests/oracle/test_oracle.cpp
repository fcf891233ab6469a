// SPDX-License-Identifier: Apache-2.0
//
// The oracle in bulk: values and flags of narrow formats, every pair, against soft_float.h's; what
// is a corner; what is refused.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "cpd/numeric/round/soft_float.h"
#include "cpd/oracle/oracle.h"
#include "cpd/oracle/reference.h"
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

TEST(Oracle, KnowsCorners) {
  // e4m3fn: 1 + 2^-4 (a tie), 1.875 + 2^-4 (carries), 1 - 1, -0 + -0, 448 + 448, 2^-9 / 2
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
