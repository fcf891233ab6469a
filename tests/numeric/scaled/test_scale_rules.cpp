// SPDX-License-Identifier: Apache-2.0
//
// Tests the scale of a block, which depends on its largest magnitude A. Each arithmetic and rule is
// tested where its result changes. The arithmetic `exact` is compared with long double, and the
// others with binary32 operations in the order of the original libraries.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cpd/numeric/scaled/scaled_choice.h"
#include "cpd/numeric/scaled/scaled_elements.h"
#include "cpd/numeric/scaled/short_scale.h"
#include "tests/testing/bits.h"

namespace cpd {
namespace {

using testing::from_bits;
using testing::kInf;
using testing::kNan;
using testing::same_bits;

static_assert(std::numeric_limits<long double>::digits >= 64);

constexpr float kMost = 0x1.FFFFFEp127F;
const std::vector<std::string> kFloats = {"e4m3fn", "e5m2", "e3m2", "e2m3", "e2m1"};
const std::vector<std::string> kElements = {"e4m3fn", "e5m2", "e3m2", "e2m3",
                                            "e2m1",   "int8", "int4", "e1m6int:bias=1"};

ScaledPlan PlanOf(const std::string& text, bool bf16 = false) {
  const Scaled scaled = ParseScaled(text);
  Check(scaled);
  return make_scaled_plan(scaled, {.overflow = Overflow::saturate}, bf16);
}

BlockScale<double> Made(float a, const ScaledPlan& plan, OuterScale<double> outer = {1, 1},
                        double share = 1) {
  return block_scale<double>(a, outer, share, plan);
}

/// Returns magnitudes at which a rule's result may change, each with its two neighbors. These are
/// powers of two, multiples of the element's largest number M, and numbers that carry when rounded.
/// Binary32's least and largest numbers and random magnitudes are returned too.
std::vector<float> Magnitudes(const Format& element) {
  std::vector<float> all = {0, from_bits(1), from_bits(2), from_bits(3), 0x1p-126F, kMost};
  const double top = std::ldexp(1.0, element.emax());
  const auto around = [&](double x) {
    const auto near = static_cast<float>(x);
    for (const float a : {std::nextafter(near, 0.0F), near, std::nextafter(near, kInf)}) {
      if (a > 0 && a <= kMost) all.push_back(a);
    }
  };
  for (const int k : {-149, -140, -128, -127, -126, -125, -119, -20, -1, 0, 1, 8, 15, 100, 127}) {
    for (const double turn : {1.0, element.max() / top, 2 - std::ldexp(1.0, -element.man - 1),
                              element.max() / top * 1.0625, 4.0 / 3}) {
      around(std::ldexp(turn, k));
    }
  }
  std::mt19937 bits(7);
  for (int i = 0; i < 300; ++i) all.push_back(from_bits(bits() % 0x7F800000U));
  return all;
}

// ---- exact: comparisons in extended precision ---------------------------------------------------

using Wide = long double;

int FloorLog2(Wide x) { return std::ilogb(x); }
int CeilLog2(Wide x) { return std::ilogb(x) + (std::ldexp(Wide{1}, std::ilogb(x)) < x ? 1 : 0); }
/// Returns the least exponent e for which bound * 2^e >= x.
int LeastPower(Wide x, Wide bound) {
  int e = std::ilogb(x) - std::ilogb(bound) - 2;
  while (std::ldexp(bound, e) < x) ++e;
  return e;
}

int ExponentOf(ScaleRule rule, Wide a, const Format& element) {
  if (rule == ScaleRule::floor) return FloorLog2(a) - element.emax();
  if (rule == ScaleRule::ceil) return CeilLog2(a) - element.emax();
  if (rule == ScaleRule::even) {
    const int e = FloorLog2(a);
    const Wide units = std::floor(std::ldexp(a, element.man - e) + Wide{0.5});
    return FloorLog2(std::ldexp(units, e - element.man)) - element.emax();
  }
  return LeastPower(a, element.max());
}

/// Returns a / bound rounded into the format `scale`: up if `up` is true, else to nearest-even.
/// Saturates. Comparisons are exact: `bound` times a number of the format is exact in long double.
double Quotient(Wide a, Wide bound, const Format& scale, bool up) {
  std::uint32_t low = 0, high = scale.max_code();
  if (scale.max() * bound < a) return scale.max();
  while (low < high) {  // the least code that reaches a / bound
    const std::uint32_t middle = low + (high - low) / 2;
    if (scale.magnitude(middle) * bound >= a) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (up || low == 0) return scale.magnitude(low);
  const Wide tie = (static_cast<Wide>(scale.magnitude(low - 1)) + scale.magnitude(low)) / 2 * bound;
  const bool goes_up = a > tie || (a == tie && low % 2 == 0);
  return scale.magnitude(goes_up ? low : low - 1);
}

/// Returns the scale that the rule of `s` defines for a block whose largest magnitude is a.
double ExactScale(const Scaled& s, Wide a) {
  const Format& scale = s.scale;
  if (a == 0) return scale.has_zero() ? 0 : scale.magnitude(0);
  a = std::ldexp(a, s.margin);
  if (s.rule != ScaleRule::max && s.rule != ScaleRule::up) {
    const double least = scale.has_zero() ? scale.min_subnormal() : scale.magnitude(0);
    const double power = std::ldexp(1.0, ExponentOf(s.rule, a, s.element));
    return std::clamp(power, least, std::ldexp(1.0, scale.emax()));
  }
  return Quotient(a, s.element.max(), scale, s.rule == ScaleRule::up);
}

TEST(ScaleRules, Exact) {
  for (const std::string& element : kElements) {
    const std::vector<float> all = Magnitudes(ParseFormat(element));
    for (const char* scale : {"e8m0", "fp32", "bf16", "e4m3fn", "e5m2"}) {
      for (const char* rule : {"floor", "ceil", "rceil", "even", "max", "max_pow2", "up"}) {
        for (const char* margin : {"0", "-3", "2"}) {
          const std::string text =
              element + " 32 scale=" + scale + " rule=" + rule + " margin=" + margin;
          const Scaled scaled = ParseScaled(text);
          const ScaledPlan plan = PlanOf(text);
          for (const float a : all) {
            const BlockScale<double> got = Made(a, plan);
            const double expected = ExactScale(scaled, a);
            ASSERT_EQ(got.scale, expected) << text << ", A " << testing::hex(a);
            const double factor = expected == 0 ? 0 : static_cast<float>(1 / expected);
            ASSERT_EQ(got.factor, factor) << text << ", A " << testing::hex(a);
          }
        }
      }
    }
  }
}

/// Tests in every binade all magnitudes with 7 fraction bits, and magnitudes next to the fractions
/// at which the rules change.
TEST(ScaleRules, PowersFromBitsAreTheRules) {
  int rules = 0;
  for (const std::string& element : kFloats) {
    const Format format = ParseFormat(element);
    const std::uint32_t most = testing::bits_of(static_cast<float>(format.max())) & 0x7FFFFF;
    const std::uint32_t carry = 0x800000 - (1U << (22 - format.man));
    for (const char* arithmetic : {"exact", "te", "torchao"}) {
      for (const char* rule : {"floor", "ceil", "rceil", "even", "max_pow2"}) {
        const bool exact = std::string(arithmetic) == "exact";
        if (!exact && std::string(rule) == "max_pow2") continue;
        const std::string text =
            element + " 32 scale=e8m0 arithmetic=" + arithmetic + " rule=" + rule;
        const ScaledPlan plan = PlanOf(text);
        const PowerRule power = power_rule_of(plan);
        ASSERT_TRUE(power.fits) << text;
        ++rules;
        std::uint32_t taken = 0;
        const auto expect = [&](std::uint32_t bits) {
          BlockScale<float> got{};
          if (!power_scale_of_bits(bits, power, &got)) return;
          ++taken;
          const BlockScale<double> expected = Made(from_bits(bits), plan);
          ASSERT_EQ(got.scale, expected.scale) << text << ", A " << bits;
          ASSERT_EQ(got.factor, expected.factor) << text << ", A " << bits;
        };
        for (std::uint32_t head = 0; head < 1U << 15; ++head) expect(head << 16);
        for (std::uint32_t binade = 0; binade < 256; ++binade) {
          for (const std::uint32_t turn : {0U, most, carry}) {
            for (std::int32_t off = -16; off <= 16; ++off) {
              const auto bits = static_cast<std::int64_t>((binade << 23) + turn) + off;
              if (bits >= 0 && bits < 0x80000000) expect(static_cast<std::uint32_t>(bits));
            }
          }
        }
        ASSERT_GT(taken, 1U << 14) << text;
      }
    }
  }
  EXPECT_EQ(rules, 65);
  // For the following formats, the library computes the scale by the full rules, and not by the
  // fast rule for powers of two.
  for (const char* text : {"e4m3fn 32 scale=fp32", "nvfp4", "mxfp8 arithmetic=microxcaling",
                           "mxfp8 margin=1", "mxfp8 rule=max", "mxfp8 rule=up"}) {
    EXPECT_FALSE(power_rule_of(PlanOf(text)).fits) << text;
  }
  for (const float a : {0.0F, from_bits(1), 0x1p-101F, 0x1p101F, kMost, kInf, kNan}) {
    BlockScale<float> unset{3, 5};
    EXPECT_FALSE(power_scale_of_bits(testing::bits_of(a), power_rule_of(PlanOf("mxfp8")), &unset));
    EXPECT_EQ(unset.scale, 3);
  }
}

/// With an outer scale, the block's scale is computed from the quotient A / outer, where A is the
/// block's largest magnitude. The outer scales are powers of two here.
TEST(ScaleRules, ExactBelowAnOuterScale) {
  for (const char* scale : {"e8m0", "bf16", "e4m3fn"}) {
    for (const char* rule : {"floor", "ceil", "rceil", "even", "max", "max_pow2", "up"}) {
      const std::string text = std::string("e2m1 16 scale=") + scale + " rule=" + rule;
      const ScaledPlan plan = PlanOf(text + " tensor_scale=bf16");
      for (const float a : Magnitudes(ParseFormat("e2m1"))) {
        for (const int shift : {-9, 0, 5}) {
          const double expected =
              ExactScale(ParseScaled(text), std::ldexp(static_cast<Wide>(a), -shift));
          ASSERT_EQ(Made(a, plan, {std::ldexp(1.0, shift), 1}).scale, expected)
              << text << ", A " << testing::hex(a) << " below 2^" << shift;
        }
      }
      EXPECT_EQ(Made(3, plan, {0, 1}).scale,
                plan.of_powers || (plan.rule != ScaleRule::max && plan.rule != ScaleRule::up)
                    ? std::ldexp(1.0, ParseFormat(scale).emax())
                    : ParseFormat(scale).max());
      EXPECT_EQ(Made(0, plan, {0, 1}).scale, ExactScale(ParseScaled(text), 0));
    }
  }
}

TEST(ScaleRules, TheOtherCandidate) {
  const ScaledPlan plan = PlanOf("e2m1 16 scale=e4m3fn choose=mae");
  for (const float a : Magnitudes(ParseFormat("e2m1"))) {
    const Wide more = static_cast<Wide>(a) * 3 / 2;
    ASSERT_EQ(Made(a, plan, {1, 1}, kOtherShare).scale,
              ExactScale(ParseScaled("e2m1 16 scale=e4m3fn"), more))
        << testing::hex(a);
  }
}

TEST(ScaleRules, NonFinite) {
  for (const char* scale : {"e8m0", "fp32", "e4m3fn"}) {
    const std::string text = std::string("e4m3fn 32 scale=") + scale;
    const ScaledPlan poisoned = PlanOf(text);
    EXPECT_TRUE(std::isnan(Made(kInf, poisoned).scale)) << text;
    EXPECT_TRUE(std::isnan(Made(kNan, poisoned).scale)) << text;
    EXPECT_TRUE(std::isnan(Made(1, poisoned, {kNan, 1}).scale)) << text;
    const ScaledPlan kept = PlanOf(text + " non_finite=element");
    EXPECT_EQ(Made(kInf, kept).scale, ParseFormat(scale).max()) << text;
  }
}

// ---- the originals: binary32, one operation after the other -------------------------------------

struct Steps {
  float scale, factor;
};

bool SameNumber(double got, float expected) {
  return (std::isnan(got) && std::isnan(expected)) ||
         (got == expected && std::signbit(got) == std::signbit(expected));
}

/// Compares the scale of every magnitude, Inf and NaN with `expected`, a computation by single
/// binary32 operations.
template <class Expected>
void ExpectSteps(const std::string& text, const Expected& expected, bool bf16 = false,
                 OuterScale<double> outer = {1, 1}, double share = 1) {
  const ScaledPlan plan = PlanOf(text, bf16);
  std::vector<float> all = Magnitudes(ParseScaled(text).element);
  all.push_back(kInf);
  if (plan.makes_nan) all.push_back(kNan);  // else no A is NaN
  const OuterScale<float> narrow{static_cast<float>(outer.scale), static_cast<float>(outer.encode)};
  for (const float a : all) {
    const BlockScale<double> got = Made(a, plan, outer, share);
    const Steps steps = expected(a);
    if (steps_in_binary32(plan)) {
      const BlockScale<float> short_one = block_scale<float>(a, narrow, share, plan);
      ASSERT_EQ(short_one.scale, got.scale) << text << ", A " << testing::hex(a);
      ASSERT_EQ(short_one.factor, got.factor) << text << ", A " << testing::hex(a);
    }
    ASSERT_TRUE(SameNumber(got.scale, steps.scale))
        << text << ", A " << testing::hex(a) << ": expected " << steps.scale << ", got "
        << got.scale;
    ASSERT_TRUE(SameNumber(got.factor, steps.factor))
        << text << ", A " << testing::hex(a) << ": expected factor " << steps.factor << ", got "
        << got.factor;
  }
}

float Max(const std::string& element) { return static_cast<float>(ParseFormat(element).max()); }
float PowerBelow(float x) { return std::ldexp(1.0F, std::ilogb(x)); }
Steps Inverted(float multiplier) { return {1 / multiplier, multiplier}; }

TEST(ScaleRules, TransformerEngineInBinary32) {
  for (const std::string& element : kElements) {
    for (const char* block : {"tensor", "row", "1x128"}) {
      for (const bool bf16 : {false, true}) {
        for (const bool power : {false, true}) {
          for (const int margin : {0, 3}) {
            const bool narrow = bf16 && std::string(block) != "tensor";
            const float most = narrow ? 0x1.FEp127F : kMost;
            ExpectSteps(
                element + " " + block + " scale=fp32 arithmetic=te margin=" +
                    std::to_string(margin) + (power ? " rule=max_pow2" : ""),
                [&](float a) -> Steps {
                  if (a == 0 || !std::isfinite(a)) return {1, 1};
                  float s = Max(element) / a;
                  if (std::isinf(s)) s = most;
                  if (power) s = PowerBelow(s);
                  return Inverted(s / std::ldexp(1.0F, margin));
                },
                bf16);
          }
        }
      }
    }
  }
}

/// The scale is A * (1 / M), where A is the block's largest magnitude and M the element format's
/// largest number. Both operations are rounded to binary32. The result is rounded up to a power of
/// two, as the PTX instruction cvt.rp.ue8m0 does.
TEST(ScaleRules, RoundedUpIntoE8m0) {
  for (const std::string& element : kFloats) {
    for (const char* arithmetic : {"te", "torchao"}) {
      const bool te = std::string(arithmetic) == "te";
      ExpectSteps(element + " 32 rule=rceil arithmetic=" + arithmetic, [&](float a) -> Steps {
        if (std::isnan(a) || (std::isinf(a) && !te)) return {kNan, kNan};
        const float d = a * (1 / Max(element));
        int e = 127;
        if (!std::isinf(d)) e = d == 0 ? -127 : CeilLog2(d);
        e = std::clamp(e, -127, 127);
        return {std::ldexp(1.0F, e), std::ldexp(1.0F, -e)};
      });
    }
  }
}

TEST(ScaleRules, TorchaoInE8m0) {
  for (const std::string& element : kFloats) {
    const Format format = ParseFormat(element);
    for (const ScaleRule rule : {ScaleRule::floor, ScaleRule::ceil, ScaleRule::even}) {
      ExpectSteps(element + " 32 arithmetic=torchao rule=" + ToString(rule), [&](float a) -> Steps {
        if (std::isnan(a)) return {kNan, kNan};
        std::uint32_t word = testing::bits_of(a);
        if (rule == ScaleRule::even) word += 1U << (22 - format.man);
        int field = static_cast<int>(word >> 23);
        if (field == 255) return {kNan, kNan};
        if (rule == ScaleRule::ceil && (word & 0x7FFFFFU) != 0) ++field;
        const int e = std::clamp(field - 127 - format.emax(), -127, 127);
        return {std::ldexp(1.0F, e), std::ldexp(1.0F, -e)};
      });
    }
  }
}

/// Returns the floor of the logarithm to base 2 after rounding it to binary32.
int RoundedLog2(float x) {
  return static_cast<int>(std::floor(static_cast<float>(std::log2(static_cast<Wide>(x)))));
}

TEST(ScaleRules, TorchaoInBinary32) {
  for (const std::string& element : kElements) {
    for (const bool power : {false, true}) {
      ExpectSteps(element + " row scale=fp32 arithmetic=torchao" + (power ? " rule=max_pow2" : ""),
                  [&](float a) {
                    const double clamped = a < 1e-12 ? 1e-12 : a;
                    auto s = static_cast<float>(Max(element) / clamped);
                    if (power && s > 0 && std::isfinite(s)) s = std::ldexp(1.0F, RoundedLog2(s));
                    return Inverted(s);
                  });
    }
  }
}

/// Returns a binary32 value rounded to nearest-even into a format of 8 bits, with saturation.
float Into(const Format& format, float x) {
  if (std::isnan(x)) return kNan;
  double best = 0;
  for (std::uint32_t c = 0; c <= format.max_code(); ++c) {
    const double v = format.magnitude(c);
    const double nearer = std::abs(v - x) - std::abs(best - x);
    if (nearer < 0 || (nearer == 0 && c % 2 == 0)) best = v;
  }
  return std::isinf(x) ? static_cast<float>(format.max()) : static_cast<float>(best);
}

TEST(ScaleRules, NvidiasFourBits) {
  const Format e4m3 = ParseFormat("e4m3fn");
  const float sixth = 1 / 6.0F;
  for (const float largest : {1.0F, 2688.0F, 0x1.4510bep+1F, 1e-30F, 3e38F}) {
    float encode = 6 * 448 / largest;
    if (std::isinf(encode)) encode = kMost;
    const float stored = 1 / encode;
    const auto below = [&](float scale) -> Steps {
      const float factor = 1 / (scale * stored);
      return {scale, factor > kMost ? kMost : factor};
    };
    ExpectSteps("nvfp4",
                [&](float a) {
                  const float product = a * (encode * sixth);
                  return below(Into(e4m3, product > 448 ? 448 : product));
                },
                false, {stored, encode});
    for (const double share : {1.0, kOtherShare}) {
      ExpectSteps(
          "nvfp4 choose=mse",
          [&](float a) {
            const float product = a / 6 * encode * static_cast<float>(share);
            return below(Into(e4m3, product > 448 ? 448 : product));
          },
          false, {stored, encode}, share);
    }
    const float outer = largest / 2688;
    ExpectSteps("nvfp4 arithmetic=torchao",
                [&](float a) {
                  const float ratio = a / 6 / outer;
                  const float scale = Into(e4m3, ratio < 0x1p-6F ? 0x1p-6F : ratio);
                  return Steps{scale, 1 / outer / scale};
                },
                false, {outer, 1});
  }
  ExpectSteps("e2m1 16 scale=e4m3fn arithmetic=torchao", [&](float a) {
    const float ratio = a / 6;
    const float scale = Into(e4m3, ratio < 0x1p-6F ? 0x1p-6F : ratio);
    return Steps{scale, 1 / scale};
  });
}

TEST(ScaleRules, Deepgemm) {
  std::vector<std::string> elements = kFloats;
  elements.emplace_back("bf16");  // whose largest value makes scales below binary32's least normal
  for (const std::string& element : elements) {
    ExpectSteps(element + " 128 scale=fp32 arithmetic=deepgemm", [&](float a) -> Steps {
      const float scale = (a < 1e-4F ? 1e-4F : a) / Max(element);
      return {scale, 1 / scale};
    });
    for (const char* how : {"scale=fp32 rule=rceil", "scale=fp32 rule=up",
                            "scale=fp32 rule=max_pow2", "scale=e8m0 rule=rceil"}) {
      ExpectSteps(element + " 128 arithmetic=deepgemm " + how, [&](float a) -> Steps {
        const float scale = (a < 1e-4F ? 1e-4F : a) / Max(element);
        if (std::isnan(scale)) return {kNan, kNan};
        const int e = std::isinf(scale) ? 127 : std::clamp(CeilLog2(scale), -126, 127);
        return {std::ldexp(1.0F, e), std::ldexp(1.0F, -e)};
      });
    }
  }
}

TEST(ScaleRules, Microxcaling) {
  for (const std::string& element : kFloats) {
    ExpectSteps(element + " 32 arithmetic=microxcaling", [&](float a) -> Steps {
      if (!std::isfinite(a)) return {kNan, kNan};
      const int e = (a == 0 ? -126 : RoundedLog2(a)) - ParseFormat(element).emax();
      if (e > 127) return {kNan, kNan};
      return {std::ldexp(1.0F, std::max(e, -127)), std::ldexp(1.0F, -std::max(e, -127))};
    });
  }
}

// ---- the second level ---------------------------------------------------------------------------

TEST(ScaleRules, SecondLevel) {
  const Format element = ParseFormat("e2m1");
  for (const char* outer : {"fp32", "bf16", "e8m0", "e5m2"}) {
    for (const int largest : {448, 256}) {
      const std::string text = std::string("e2m1 16 scale=e4m3fn tensor_scale=") + outer +
                               " scale_max=" + std::to_string(largest);
      const ScaledPlan plan = PlanOf(text);
      for (const float a : Magnitudes(element)) {
        ASSERT_EQ(outer_scale<double>(a, plan).scale,
                  Quotient(a, 6 * largest, ParseFormat(outer), false))
            << text << ", A " << testing::hex(a);
      }
      EXPECT_TRUE(std::isnan(outer_scale<double>(kInf, plan).scale)) << text;
      EXPECT_TRUE(std::isnan(outer_scale<double>(kNan, plan).scale)) << text;
    }
  }
  const ScaledPlan te = PlanOf("nvfp4");
  const ScaledPlan torchao = PlanOf("nvfp4 arithmetic=torchao");
  for (const float a : Magnitudes(element)) {
    float encode = 2688 / a;
    if (std::isinf(encode)) encode = kMost;
    if (encode == 0 || a == 0) encode = 1;
    const OuterScale<double> got = outer_scale<double>(a, te);
    ASSERT_EQ(got.encode, encode) << testing::hex(a);
    ASSERT_EQ(got.scale, 1 / encode) << testing::hex(a);
    ASSERT_EQ(outer_scale<double>(a, torchao).scale, a / 2688) << testing::hex(a);
  }
}

// ---- elements -----------------------------------------------------------------------------------

/// The quotient x / y is cut to 53 bits, and its last bit is set if the quotient is inexact.
TEST(ScaledElements, QuotientsAreRoundedToOdd) {
  std::mt19937_64 bits(3);
  for (int i = 0; i < 100000; ++i) {
    const auto x = static_cast<float>(static_cast<std::int64_t>(bits()));
    const double y = 1 + std::ldexp(static_cast<double>(bits() >> 34), -30);
    const double q = divide_to_odd<double>(x, y);
    if (std::fma(q, y, -static_cast<double>(x)) == 0) continue;  // exact
    ASSERT_EQ(std::bit_cast<std::uint64_t>(q) & 1, 1U) << x << " / " << y;
    // The exact quotient x / y must lie between the neighbors of the computed quotient q. So the
    // lower neighbor times y is below x, and the upper neighbor times y is above x.
    const double below = std::fma(std::nextafter(q, -HUGE_VAL), y, -static_cast<double>(x));
    const double above = std::fma(std::nextafter(q, HUGE_VAL), y, -static_cast<double>(x));
    ASSERT_TRUE(below < 0 && above > 0) << x << " / " << y;
  }
}

TEST(ScaledElements, RoutesGiveTheSame) {
  const ScaledPlan plan = PlanOf("e2m3 32 scale=fp32");
  ASSERT_EQ(route_of(plan), ElementRoute::divide);
  std::mt19937 bits(5);
  for (int i = 0; i < 100000; ++i) {
    const float x = std::ldexp(static_cast<float>(static_cast<std::int32_t>(bits())), -28);
    const float scale = 1 + std::ldexp(static_cast<float>(bits() >> 9), -23);
    const float narrow = scaled_down<ElementRoute::divide, float>(x, {scale, scale, 1}, plan);
    const double wide = scaled_down<ElementRoute::wide, double>(x, {1, scale, 1}, plan);
    const float rounded = round<Rounding::nearest_even>(narrow, 0U, plan.element);
    const double expected = round<Rounding::nearest_even>(wide, std::uint64_t{0}, plan.element);
    ASSERT_EQ(rounded, expected) << testing::hex(x) << " / " << testing::hex(scale);
    ASSERT_TRUE(same_bits(scaled_value(rounded, ElementScale<float>{scale, scale, 1}),
                          static_cast<float>(expected * scale)));
  }
}

TEST(ScaledElements, BelowAScaleOfZero) {
  const ScaledPlan plan = PlanOf("e2m1 16 scale=e4m3fn tensor_scale=fp32");
  for (const float x : {1.0F, -2.0F, 0.0F, -0.0F, kInf, -kInf}) {
    const double got = scaled_down<ElementRoute::wide, double>(x, {0, 0, 1}, plan);
    EXPECT_TRUE(same_bits(got, std::copysign(0.0, static_cast<double>(x)))) << x;
  }
  EXPECT_TRUE(std::isnan(scaled_down<ElementRoute::wide, double>(kNan, {0, 0, 1}, plan)));
  EXPECT_TRUE(
      same_bits(scaled_value(double{kNan}, ElementScale<double>{1, 1, 1}), from_bits(0x7FC00000U)));
}

TEST(ScaledElements, Routes) {
  const auto route = [](const std::string& text) { return route_of(PlanOf(text)); };
  EXPECT_EQ(route("mxfp8"), ElementRoute::multiply);
  EXPECT_EQ(route("mxint8"), ElementRoute::multiply);
  EXPECT_EQ(route("nvfp4"), ElementRoute::multiply);
  EXPECT_EQ(route("fp8-block"), ElementRoute::multiply);
  EXPECT_EQ(route("fp8-row"), ElementRoute::divide);
  EXPECT_EQ(route("int8 row"), ElementRoute::divide);
  EXPECT_EQ(route("nvfp4 arithmetic=exact"), ElementRoute::wide);
}

// ---- the errors of candidates -------------------------------------------------------------------

TEST(ScaleChoices, RowsAreAddedByHalves) {
  const ScaledPlan exact = PlanOf("e2m1 16 scale=e4m3fn choose=mae");
  for (std::int64_t rows = 1; rows <= 17; ++rows) {
    std::vector<double> errors(static_cast<std::size_t>(rows));
    double sum = 0;
    for (std::int64_t i = 0; i < rows; ++i) sum += errors[i] = static_cast<double>(i * i + 1);
    EXPECT_EQ(sum_of_rows(exact, rows, errors.data()), sum) << rows;
  }
  std::vector<double> errors = {1, 0x1p-24, 0x1p-24, 0x1p-24, 0x1p-24};
  const ScaledPlan te = PlanOf("nvfp4 choose=mae");
  // The binary32 sum of the rows' errors is the tree ((row 0 + row 4) + row 2) + (row 1 + row 3).
  // Its left part rounds to 1. Its right part, 2^-23, is not lost when it is added to 1.
  EXPECT_EQ(sum_of_rows(te, 5, errors.data()), 1 + 0x1p-23);
}

double sum_of_errors(const ScaledPlan& plan, bool squares, const std::vector<float>& q,
                     const std::vector<float>& x, DividedBy at) {
  SumOfErrors sum(plan, squares, at);
  for (std::size_t i = 0; i < q.size(); ++i) sum.add(q[i], x[i]);
  return sum.value();
}

TEST(ScaleChoices, Errors) {
  const std::vector<float> x = {6, -5, 1.1F};
  const std::vector<float> q = {6, -4, 1};
  const ScaledPlan exact = PlanOf("e2m1 16 scale=e4m3fn choose=mae");
  const double third = static_cast<double>(1.1F) - 1;
  EXPECT_EQ(sum_of_errors(exact, false, q, x, {}), 1 + third);
  EXPECT_EQ(sum_of_errors(exact, true, q, x, {}), 1 + third * third);
  const ScaledPlan te = PlanOf("nvfp4 choose=mse");
  const float e = 2.0F * 3.5F * 7.0F / 2688.0F;
  EXPECT_EQ(sum_of_errors(te, false, {2, 2}, {0, 0}, {3.5F, 1, 7}), e + e);
  EXPECT_EQ(sum_of_errors(te, true, {2}, {0}, {3.5F, 0.5F, 0}), 3.5 * 3.5);
}

}  // namespace
}  // namespace cpd
