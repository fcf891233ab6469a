// SPDX-License-Identifier: Apache-2.0
//
// Tests that many sums, computed at once, equal the oracle's single sums. Tests also the
// intermediate values (signals) of small blocks, worked out by hand.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cpd/oracle/reference_gemm.h"
#include "cpd/oracle/trace.h"
#include "cpd/spec/error.h"

namespace cpd {
namespace {

struct Line {
  std::uint32_t code = 0;
  std::uint8_t flags = 0;
  std::uint16_t corners = 0;
  std::vector<std::uint64_t> signals;
};

Line run(const SumRule& rule, const std::vector<std::uint32_t>& a,
         const std::vector<std::uint32_t>& b = {}, std::uint32_t c = 0,
         const std::vector<std::uint32_t>& random = {}) {
  Line line;
  std::size_t width = 0;
  for (const Signal& signal : SignalsOf(rule)) width += static_cast<std::size_t>(signal.count);
  line.signals.resize(width, ~std::uint64_t{0});
  SumLines lines;
  lines.n = 1;
  lines.a = a.data();
  lines.b = b.data();
  lines.c = &c;
  const std::uint64_t c_units = c;
  lines.c_units = &c_units;
  lines.random = random.empty() ? nullptr : random.data();
  lines.codes = &line.code;
  lines.flags = &line.flags;
  lines.corners = &line.corners;
  lines.signals = line.signals.data();
  OracleSums(rule, lines);
  return line;
}

std::vector<std::uint64_t> signal(const SumRule& rule, const Line& line, const std::string& name) {
  std::size_t first = 0;
  for (const Signal& each : SignalsOf(rule)) {
    const auto count = static_cast<std::size_t>(each.count);
    if (each.name == name) {
      const auto begin = line.signals.begin() + static_cast<std::ptrdiff_t>(first);
      return {begin, begin + static_cast<std::ptrdiff_t>(count)};
    }
    first += count;
  }
  ADD_FAILURE() << "no signal " << name;
  return {};
}

SumRule dot_rule(const char* accumulator, const char* format, std::int64_t length) {
  const Accumulator made = ParseAccumulator(accumulator);
  const Format f = ParseFormat(format);
  return {made, f, f, made.format, length, false, soft::Tininess::after};
}

using Words = std::vector<std::uint64_t>;

TEST(Trace, ShowsEveryRounding) {
  // In e4m3, 16 + 1 + 1: each sum is a tie that goes to 16.
  const SumRule rule = dot_rule("e4m3 sequential", "e4m3", 2);
  const Line line = run(rule, {0x38, 0x38}, {0x38, 0x38}, 0x58);
  EXPECT_EQ(line.code, 0x58u);
  EXPECT_EQ(line.flags, soft::kInexact);
  EXPECT_EQ(line.corners, static_cast<std::uint16_t>(Corner::tie));
  EXPECT_EQ(signal(rule, line, "start"), (Words{0x58}));
  EXPECT_EQ(signal(rule, line, "product"), (Words{0x38, 0x38}));
  EXPECT_EQ(signal(rule, line, "sum"), (Words{0x58, 0x58}));
}

TEST(Trace, ShowsKahansOperations) {
  const SumRule rule = dot_rule("e4m3 kahan", "e4m3", 2);
  const Line line = run(rule, {0x38, 0x38}, {0x38, 0x38}, 0x58);
  EXPECT_EQ(line.code, 0x59u);  // 18
  EXPECT_EQ(signal(rule, line, "t"), (Words{0x58, 0x59}));
  EXPECT_EQ(signal(rule, line, "compensation"), (Words{0xB8, 0x00}));
}

TEST(Trace, ShowsTheAlignedTermsOfABlock) {
  // The block sums 1.125² + 2^-6 * 1 + 8 with operands in e4m3fn, an addend c = 8 and four fraction
  // bits. The largest exponent is 3, so terms are cut to multiples of 2^-1.
  SumRule rule =
      dot_rule("fp32 block_fma a=e4m3fn b=e4m3fn block=2 fraction_bits=4 min_exponent=-20 sum=fp32",
               "e4m3fn", 2);
  const Line line = run(rule, {0x39, 0x08}, {0x39, 0x38}, 0x41000000);
  EXPECT_EQ(signal(rule, line, "special"), (Words{0}));
  EXPECT_EQ(signal(rule, line, "p_exp"), (Words{0, 0xFFA}));
  EXPECT_EQ(signal(rule, line, "p_sig"), (Words{81, 64}));
  EXPECT_EQ(signal(rule, line, "p_shift"), (Words{3, 9}));
  EXPECT_EQ(signal(rule, line, "p_cut"), (Words{81 % 32, 64}));
  EXPECT_EQ(signal(rule, line, "c_exp"), (Words{3}));
  EXPECT_EQ(signal(rule, line, "c_sig"), (Words{1u << 23}));
  EXPECT_EQ(signal(rule, line, "c_cut"), (Words{0}));
  EXPECT_EQ(signal(rule, line, "max_exp"), (Words{3}));
  EXPECT_EQ(signal(rule, line, "sum"), (Words{18}));
  EXPECT_EQ(signal(rule, line, "n_exp"), (Words{3}));
  EXPECT_EQ(line.code, 0x41100000u);  // 9
  EXPECT_EQ(line.flags, soft::kInexact);
}

TEST(Trace, ShowsNothingOfASpecialBlock) {
  SumRule rule = dot_rule("v100", "fp16", 4);
  const Line line = run(rule, {0x7C00, 0, 0, 0}, {0, 0, 0, 0}, 0x3F800000);
  EXPECT_EQ(line.code, 0x7FC00000u);
  EXPECT_EQ(line.flags, soft::kInvalid);
  EXPECT_EQ(signal(rule, line, "special"), (Words{1}));
  EXPECT_EQ(signal(rule, line, "sum"), (Words{0}));
  EXPECT_EQ(run(rule, {0x7E00, 0, 0, 0}, {0, 0, 0, 0}, 0).flags, 0);
}

TEST(Trace, TakesRandomIntegersInProgramOrder) {
  const SumRule rule = dot_rule("e4m3 sequential rounding=stochastic random_bits=1", "e4m3", 2);
  EXPECT_EQ(DrawsOf(rule), 5);
  EXPECT_EQ(run(rule, {0x38, 0x38}, {0x38, 0x38}, 0x58, {0, 0, 1, 0, 0}).code, 0x59u);
  EXPECT_EQ(run(rule, {0x38, 0x38}, {0x38, 0x38}, 0x58, {0, 1, 0, 1, 0}).code, 0x58u);
  EXPECT_THROW(run(rule, {0x38, 0x38}, {0x38, 0x38}, 0x58, {0, 0, 2, 0, 0}), Error);
  EXPECT_THROW(run(rule, {0x38, 0x38}, {0x38, 0x38}, 0x58), Error);
}

/// Computes n sums (lines) one at a time and all at once. Expects the same codes, flags, corner
/// cases and intermediate values (signals).
void expect_lines(const SumRule& rule, const std::vector<std::uint32_t>& a,
                  const std::vector<std::uint32_t>& b, const std::vector<std::uint32_t>& c,
                  const std::vector<std::uint32_t>& random) {
  const std::size_t n = c.size();
  const auto part = [&](const std::vector<std::uint32_t>& all, std::size_t i) {
    const auto size = static_cast<std::ptrdiff_t>(all.size() / n);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(i) * size;
    return std::vector<std::uint32_t>(begin, begin + size);
  };
  std::vector<std::uint32_t> codes(n);
  std::vector<std::uint8_t> flags(n);
  std::vector<std::uint16_t> corners(n);
  const std::size_t width = run(rule, part(a, 0), part(b, 0), c[0], part(random, 0)).signals.size();
  std::vector<std::uint64_t> signals(n * width);
  SumLines lines;
  lines.n = static_cast<std::int64_t>(n);
  lines.a = a.data();
  lines.b = b.data();
  lines.c = c.data();
  lines.random = random.empty() ? nullptr : random.data();
  lines.codes = codes.data();
  lines.flags = flags.data();
  lines.corners = corners.data();
  lines.signals = signals.data();
  OracleSums(rule, lines);
  for (std::size_t i = 0; i < n; ++i) {
    const Line line = run(rule, part(a, i), part(b, i), c[i], part(random, i));
    EXPECT_EQ(codes[i], line.code) << i;
    EXPECT_EQ(flags[i], line.flags) << i;
    EXPECT_EQ(corners[i], line.corners) << i;
    const auto begin = signals.begin() + static_cast<std::ptrdiff_t>(i * width);
    EXPECT_EQ(Words(begin, begin + static_cast<std::ptrdiff_t>(width)), line.signals) << i;
  }
}

TEST(Trace, LinesAreApart) {
  const std::vector<std::uint32_t> a{0x38, 0x38, 0x40, 0x01, 0x58, 0xB8};
  const std::vector<std::uint32_t> b{0x38, 0x39, 0x38, 0x38, 0x30, 0x38};
  const std::vector<std::uint32_t> c{0x58, 0x38, 0x00};
  expect_lines(dot_rule("e4m3 sequential", "e4m3", 2), a, b, c, {});
  // Computes 16 + 1 + 1. Each sum is a tie, which is rounded up if the random integer is 1.
  const std::vector<std::uint32_t> ones(6, 0x38);
  expect_lines(dot_rule("e4m3 sequential rounding=stochastic random_bits=1", "e4m3", 2), ones, ones,
               {0x58, 0x58, 0x58}, {0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1});
}

TEST(Trace, OperandsAreCodesOfTheirFormats) {
  const SumRule rule = dot_rule("e4m3 sequential", "e4m3", 2);
  EXPECT_THROW(run(rule, {0x100, 0}, {0, 0}, 0), Error);
  EXPECT_THROW(run(rule, {0, 0}, {0, 0x100}, 0), Error);
  EXPECT_THROW(run(rule, {0, 0}, {0, 0}, 0x100), Error);
  for (Format SumRule::* operand : {&SumRule::a, &SumRule::b}) {
    SumRule unit = dot_rule("v100", "fp16", 4);
    unit.*operand = ParseFormat("bf16");
    EXPECT_THROW(SignalsOf(unit), Error) << "the unit's operands are fp16";
  }
}

TEST(Trace, ASignallingOperandIsInvalid) {
  const SumRule rule = dot_rule("e5m2 sequential", "e5m2", 2);
  constexpr std::uint32_t kSignals = 0x7D, kQuiet = 0x7E, kOne = 0x3C;
  EXPECT_EQ(run(rule, {kSignals, kOne}, {kOne, kOne}, kOne).flags, soft::kInvalid);
  EXPECT_EQ(run(rule, {kOne, kOne}, {kOne, kSignals}, kOne).flags, soft::kInvalid);
  EXPECT_EQ(run(rule, {kOne, kOne}, {kOne, kOne}, kSignals).flags, soft::kInvalid);
  EXPECT_EQ(run(rule, {kQuiet, kOne}, {kOne, kQuiet}, kQuiet).flags, 0);
}

TEST(Trace, DrawsOfUnitsThatPromote) {
  SumRule rule =
      dot_rule("fp16 block_fma a=fp16 b=fp16 block=4 promote=8 rounding=stochastic random_bits=4",
               "fp16", 20);
  EXPECT_EQ(DrawsOf(rule), 1 + 3) << "c, and sums of 8, 8 and 4 products";
  rule.length = 16;
  EXPECT_EQ(DrawsOf(rule), 1 + 2);
}

TEST(Trace, SumsTerms) {
  SumRule rule = dot_rule("e4m3 pairwise", "e4m3", 3);
  rule.is_sum = true;
  const Line line = run(rule, {0x58, 0x38, 0x38});
  EXPECT_EQ(line.code, 0x58u);
  EXPECT_EQ(signal(rule, line, "tree"), (Words{0x58, 0x58}));
}

TEST(Trace, ShowsTermsAndSumsOfAnInteger) {
  // Computes 7.5 + 100 * 100 - 3 * 1 in fixed point: 14 bits, with the last place 1/2. The first
  // product exceeds 14 bits and wraps.
  SumRule rule = dot_rule("fp32 fixed width=14 fraction=1", "int8", 2);
  const Line line = run(rule, {100, 0xFD}, {100, 1}, 15);
  EXPECT_EQ(signal(rule, line, "term"), (Words{15, 20000 % 16384, 16384 - 6}));
  EXPECT_EQ(signal(rule, line, "sum"), (Words{15, 20015 % 16384, 20009 % 16384}));
  EXPECT_EQ(line.flags, soft::kInexact | soft::kOverflow);
  EXPECT_TRUE(HasIntegerResult(rule));
  rule.accumulator.format = ParseFormat("bf16");
  EXPECT_FALSE(HasIntegerResult(rule));
  EXPECT_EQ(run(rule, {100, 0xFD}, {100, 1}, 15).code, 0x44E3u);  // 3625 / 2, rounded
  EXPECT_EQ(DrawsOf(rule), 0);
}

TEST(Trace, RefusesWhatHasNoLines) {
  EXPECT_THROW(SignalsOf(dot_rule("e4m3 sequential", "e4m3", 0)), Error);
  SumRule rule = dot_rule("cdna3-fp16", "fp16", 8);
  EXPECT_TRUE(SignalsOf(rule).empty());
  rule.accumulator.rounding.mode = Rounding::stochastic;
  EXPECT_THROW(SignalsOf(rule), Error);
  EXPECT_THROW(SignalsOf(dot_rule("fp32 fixed width=65", "int8", 4)), Error);
  rule = dot_rule("v100", "fp16", 4);
  rule.is_sum = true;
  EXPECT_THROW(SignalsOf(rule), Error);
}

}  // namespace
}  // namespace cpd
