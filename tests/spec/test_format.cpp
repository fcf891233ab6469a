// SPDX-License-Identifier: Apache-2.0
//
// Tests the class Format. Figures such as the largest number are compared with the oracle's list of
// values. Tests also names and refused arguments.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "cpd/spec/format.h"
#include "cpd/spec/wide_format.h"
#include "tests/testing/formats.h"

namespace cpd {
namespace {

using reference::Exact;
using reference::Spec;

double magnitude_of(const Spec& spec, std::uint64_t code) {
  const Exact x = reference::grid_value(spec, code);
  return std::ldexp(static_cast<double>(x.significand.bits_from(0)), x.exponent);
}

std::vector<Format> many_formats() {
  std::vector<Format> formats = testing::ieee_formats();
  for (const auto& more : {testing::encoding_formats(), testing::named_formats()}) {
    formats.insert(formats.end(), more.begin(), more.end());
  }
  return formats;
}

TEST(Format, FiguresFollowFromTheGrid) {
  for (const Format& f : many_formats()) {
    SCOPED_TRACE(ToString(f));
    const Spec s = reference::spec_of(f);
    EXPECT_EQ(f.bits(), s.bits());
    EXPECT_EQ(f.max_code(), s.max_code());
    EXPECT_EQ(f.max(), magnitude_of(s, s.max_code()));
    EXPECT_EQ(f.has_negative_zero(), s.has_negative_zero());
    EXPECT_EQ(f.has_inf(), s.infinity_code().has_value());
    EXPECT_EQ(f.has_nan(), s.nan_code().has_value());
    if (f.has_inf()) {
      EXPECT_EQ(f.inf_code(), *s.infinity_code());
    }
    if (f.has_nan()) {
      EXPECT_EQ(f.nan_code(), *s.nan_code());
    }
    const std::uint64_t first_normal = s.encoding == Encoding::e8m0 ? 0 : std::uint64_t{1} << s.man;
    EXPECT_EQ(f.has_normals(), first_normal <= s.max_code());
    if (f.has_normals()) {
      EXPECT_EQ(f.min_normal(), magnitude_of(s, first_normal));
    }
    EXPECT_EQ(f.epsilon(), std::ldexp(1.0, -s.man));
    EXPECT_EQ(f.lowest(), s.is_signed ? -magnitude_of(s, s.max_code(true)) : magnitude_of(s, 0));
    if (s.bits() > 16) continue;
    std::set<double> values;
    for (std::uint64_t code = 0; code <= s.max_code(); ++code) {
      const double value = magnitude_of(s, code);
      EXPECT_EQ(f.magnitude(static_cast<std::uint32_t>(code)), value) << code;
      values.insert(value);
      if (s.is_signed) values.insert(-value);
    }
    values.insert(f.lowest());
    EXPECT_EQ(f.num_values(), values.size());
    const auto least_positive = values.upper_bound(0.0);
    EXPECT_EQ(f.min_subnormal(), least_positive == values.end() ? 0.0 : *least_positive);
  }
}

TEST(Format, KnownFigures) {
  const auto expect = [](const char* name, int bits, double max, double min_normal,
                         double min_subnormal, std::uint64_t values) {
    const Format f = ParseFormat(name);
    EXPECT_EQ(f.bits(), bits) << name;
    EXPECT_EQ(f.max(), max) << name;
    EXPECT_EQ(f.min_normal(), min_normal) << name;
    EXPECT_EQ(f.min_subnormal(), min_subnormal) << name;
    EXPECT_EQ(f.num_values(), values) << name;
  };
  expect("e4m3", 8, 240, 0x1p-6, 0x1p-9, 239);
  expect("e5m2", 8, 57344, 0x1p-14, 0x1p-16, 247);
  expect("e4m3fn", 8, 448, 0x1p-6, 0x1p-9, 253);
  expect("e4m3fnuz", 8, 240, 0x1p-7, 0x1p-10, 255);
  expect("e5m2fnuz", 8, 57344, 0x1p-15, 0x1p-17, 255);
  expect("e2m1", 4, 6, 1, 0.5, 15);
  expect("e2m3", 6, 7.5, 1, 0.125, 63);
  expect("e3m2", 6, 28, 0.25, 0.0625, 63);
  expect("e3m2ieee", 6, 14, 0.25, 0.0625, 55);
  expect("e8m0", 8, 0x1p127, 0x1p-127, 0x1p-127, 255);
  expect("binary8p4se", 8, 224, 0x1p-7, 0x1p-10, 253);
  expect("binary8p3se", 8, 49152, 0x1p-15, 0x1p-17, 253);
  expect("e3m0", 4, 8, 0.25, 0.25, 13);
  expect("fp16", 16, 65504, 0x1p-14, 0x1p-24, 63487);
  expect("bf16", 16, 0x1.fep127, 0x1p-126, 0x1p-133, 65279);
  expect("fp32", 32, 0x1.fffffep127, 0x1p-126, 0x1p-149, 4278190079u);
}

TEST(Format, NamesParseBack) {
  std::set<std::string> names;
  for (const Format& f : many_formats()) {
    const std::string name = ToString(f);
    names.insert(name);
    EXPECT_EQ(ParseFormat(name), f) << name;
  }
  EXPECT_NE(ToString(MakeFormat(3, 2)), "e3m2");
  EXPECT_EQ(ToString(MakeFormat(8, 23)), "fp32");
  EXPECT_EQ(ToString(MakeFormat(8, 10)), "tf32");
  EXPECT_EQ(ToString(MakeFormat(8, 7)), "bf16");
  EXPECT_EQ(ToString(MakeFormat(5, 10)), "fp16");
  for (const char* name : {"e4m3", "e5m2", "e4m3fn", "e4m3fnuz", "e5m2fnuz", "e2m1", "e2m3", "e3m2",
                           "e8m0", "binary8p4se", "e3m0", "e6m9"}) {
    EXPECT_EQ(ToString(ParseFormat(name)), name);
  }
}

// Two formats have the same name only if they are equal.
TEST(Format, NamesAreUnique) {
  const std::vector<Format> formats = many_formats();
  for (std::size_t i = 0; i < formats.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_EQ(formats[i] == formats[j], ToString(formats[i]) == ToString(formats[j]))
          << ToString(formats[i]) << " and " << ToString(formats[j]);
    }
  }
}

TEST(Format, P3109NamesOfEveryWidth) {
  for (int bits = 3; bits <= 8; ++bits) {
    for (int p = 1; p <= bits; ++p) {
      for (const std::string suffix : {"se", "sf", "ue", "uf"}) {
        const bool is_signed = suffix[0] == 's';
        const std::string name = "binary" + std::to_string(bits) + "p" + std::to_string(p) + suffix;
        const int exp = is_signed ? bits - p : bits - p + 1;
        if (exp < 1) {
          EXPECT_THROW(ParseFormat(name), Error) << name;
          continue;
        }
        const Format f = ParseFormat(name);
        EXPECT_EQ(f.exp, exp) << name;
        EXPECT_EQ(f.man, p - 1) << name;
        EXPECT_EQ(f.bias, 1 << (exp - 1)) << name;
        EXPECT_EQ(f.is_signed, is_signed) << name;
        EXPECT_EQ(f.bits(), bits) << name;
        EXPECT_EQ(f.has_inf(), suffix[1] == 'e') << name;
        EXPECT_TRUE(f.has_nan()) << name;
        EXPECT_EQ(ParseFormat(ToString(f)), f) << name;
      }
    }
  }
}

TEST(Format, P3109NamesWithoutPrecisionAreUnknown) {
  for (const char* name : {"binary8p0se", "binary8p0uf"}) {
    try {
      ParseFormat(name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("unknown format")) << error.what();
    }
  }
}

TEST(Format, RangeRuling) {
  int admitted = 0;
  int refused = 0;
  for (const Encoding encoding : {Encoding::ieee, Encoding::fn, Encoding::fnuz, Encoding::p3109,
                                  Encoding::p3109finite, Encoding::finite}) {
    for (int exp = 1; exp <= 8; ++exp) {
      for (int man = 0; man <= 23; ++man) {
        for (const int bias : {testing::default_bias(exp, encoding), 150 - man, 151 - man, -126,
                               -127, 126, 128, 0, -200, 300}) {
          for (const bool is_signed : {true, false}) {
            const Spec spec{exp, man, bias, encoding, is_signed, true};
            const auto make = [&] { return MakeFormat(exp, man, encoding, bias, is_signed); };
            SCOPED_TRACE("e" + std::to_string(exp) + "m" + std::to_string(man) + " bias " +
                         std::to_string(bias) + " encoding " + ToString(encoding) +
                         (is_signed ? "" : " unsigned"));
            if (testing::is_admissible(spec)) {
              EXPECT_NO_THROW(make());
              ++admitted;
            } else {
              EXPECT_THROW(make(), Error);
              ++refused;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(admitted, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(Format, RefusesBadArguments) {
  EXPECT_THROW(MakeFormat(0, 3), Error);
  EXPECT_THROW(MakeFormat(12, 3), Error);
  EXPECT_THROW(MakeFormat(9, 3, Encoding::fn), Error);
  EXPECT_THROW(MakeFormat(4, -1), Error);
  EXPECT_THROW(MakeFormat(4, 53), Error);
  EXPECT_THROW(MakeFormat(4, 24, Encoding::finite), Error);
  EXPECT_THROW(MakeFormat(4, 3, Encoding::fnuz, std::nullopt, false), Error);
  EXPECT_THROW(MakeFormat(8, 1, Encoding::fn), Error);
  EXPECT_THROW(MakeFormat(8, 23, Encoding::fnuz), Error);
  EXPECT_THROW(MakeFormat(8, 2, Encoding::finite), Error);
  EXPECT_THROW(MakeFormat(8, 1, Encoding::e8m0, 127, false), Error);
  EXPECT_THROW(MakeFormat(7, 0, Encoding::e8m0, 127, false), Error);
  EXPECT_THROW(MakeFormat(8, 0, Encoding::e8m0, 126, false), Error);
  EXPECT_THROW(MakeFormat(8, 0, Encoding::e8m0, 127, true), Error);
  for (const char* name : {"",
                           "e",
                           "m3",
                           "e4",
                           "e4m",
                           "e4m3x",
                           "e4m3fnu",
                           "e4m3 ",
                           " e4m3",
                           "e12m3",
                           "e9m3fn",
                           "e4m53",
                           "e0m3",
                           "e4m3:",
                           "e4m3:bias",
                           "e4m3:bias=",
                           "e4m3:bias=x",
                           "e4m3:bias=7x",
                           "e4m3:foo",
                           "E4M3?",
                           "binary8",
                           "binary8p",
                           "binary8p4",
                           "binary8p4xx",
                           "binary8p0se",
                           "binary8p8se",
                           "fp128",
                           "e4m3:bias=99999999999999999999",
                           "e44444444444444444m3",
                           "-e4m3",
                           "e-4m3"}) {
    EXPECT_THROW(ParseFormat(name), Error) << "'" << name << "'";
  }
}

TEST(Format, ErrorsSayWhatWasGivenAndWhatIsAllowed) {
  try {
    MakeFormat(9, 3, Encoding::fn);
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find('9'), std::string::npos) << text;
    EXPECT_NE(text.find('8'), std::string::npos) << text;
  }
}

TEST(Format, WideOnesAreForOperationsOfElements) {
  for (int exp = 1; exp <= kWidestExp; ++exp) {
    for (int man = 0; man <= kWidestMan; ++man) {
      if (exp <= 8 && man <= 23) continue;
      const Format format = MakeFormat(exp, man);
      EXPECT_TRUE(is_wide(format));
      EXPECT_EQ(ParseFormat(ToString(format)), format);
      EXPECT_NO_THROW(CheckOfElements(format));
      EXPECT_THROW(Check(format), Error);
      EXPECT_THROW(MakeFormat(exp, man, Encoding::fn), Error);
      if (exp == 1) continue;  // no normal numbers
      const auto significand = static_cast<double>((std::uint64_t{2} << man) - 1);
      EXPECT_EQ(max_of(format), std::ldexp(significand, (1 << exp) - 2 - format.bias - man));
    }
  }
}

TEST(Format, WideOnesEndAtBinary64s) {
  // The least value of a format is 2^(1 - bias - man). This value must not be below binary64's
  // least value, 2^-1074.
  EXPECT_NO_THROW(MakeFormat(11, 52, Encoding::ieee, 1 - 52 + 1074));
  EXPECT_THROW(MakeFormat(11, 52, Encoding::ieee, 1 - 52 + 1075), Error);
}

TEST(Format, WideFiguresAreThoseOfTheOthers) {
  for (const Format& f : many_formats()) {
    EXPECT_EQ(max_code_of(f), f.max_code());
    EXPECT_EQ(max_of(f), f.max());
    EXPECT_EQ(min_normal_of(f), f.min_normal());
    EXPECT_EQ(min_subnormal_of(f), f.min_subnormal());
    EXPECT_EQ(num_values_of(f), f.num_values());
    for (std::uint32_t code = 0; code <= f.max_code(); code += 1 + f.max_code() / 97) {
      EXPECT_EQ(magnitude_of(f, code), f.magnitude(code));
    }
  }
}

TEST(Format, OptionsOfNames) {
  const Format f = ParseFormat("e4m3fn:bias=11:nosub:unsigned");
  EXPECT_EQ(f, MakeFormat(4, 3, Encoding::fn, 11, false, false));
  EXPECT_EQ(ParseFormat("e3m2ieee"), MakeFormat(3, 2));
  EXPECT_EQ(ParseFormat("e4m3finite"), MakeFormat(4, 3, Encoding::finite));
  EXPECT_EQ(ParseFormat("e4m3p3109"), ParseFormat("binary8p4se"));
  EXPECT_EQ(ParseFormat("e4m3p3109finite"), ParseFormat("binary8p4sf"));
  EXPECT_EQ(ParseFormat("e5m3p3109finite:unsigned"), ParseFormat("binary8p4uf"));
  EXPECT_NE(ParseFormat("binary8p4sf"), ParseFormat("e4m3fnuz"));  // whose overflow is NaN
  EXPECT_NE(ParseFormat("binary8p4uf"), ParseFormat("e5m3fn:bias=16:unsigned"));
}

std::string format_error(const std::string& text) {
  try {
    ParseFormat(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Format, NamesOfOtherLibrariesAreTheSameFormats) {
  const std::pair<const char*, const char*> pairs[] = {
      {"float32", "fp32"},
      {"float", "fp32"},
      {"single", "fp32"},
      {"binary32", "fp32"},
      {"float16", "fp16"},
      {"half", "fp16"},
      {"binary16", "fp16"},
      {"bfloat16", "bf16"},
      {"float8_e3m4", "e3m4"},
      {"float8_e4m3", "e4m3"},
      {"float8_e4m3fn", "e4m3fn"},
      {"float8_e4m3fnuz", "e4m3fnuz"},
      {"float8_e5m2", "e5m2"},
      {"float8_e5m2fnuz", "e5m2fnuz"},
      {"float8_e8m0fnu", "e8m0"},
      {"e8m0fnu", "e8m0"},
      {"float6_e2m3fn", "e2m3"},
      {"float6_e3m2fn", "e3m2"},
      {"float4_e2m1fn", "e2m1"},
      {"float4_e2m1fn_x2", "e2m1"},
      {"e4m3b11fnuz", "e4m3fnuz:bias=11"},
      {"float8_e4m3b11fnuz", "e4m3fnuz:bias=11"},
      {"(4,3)", "e4m3"},
      {"( 5 , 2 )", "e5m2"},
      {"(3,2)", "e3m2ieee"},
      {"(8,23)", "fp32"},
      {"(3,0)", "e3m0"},
  };
  for (const auto& [theirs, ours] : pairs) {
    EXPECT_EQ(ToString(ParseFormat(theirs)), ours) << theirs;
    EXPECT_EQ(ParseFormat(theirs), ParseFormat(ours)) << theirs;
  }
  EXPECT_EQ(ParseFormat("float8_e4m3fn:nosub"), ParseFormat("e4m3fn:nosub"));
  EXPECT_EQ(ParseFormat("(4,3):bias=9"), ParseFormat("e4m3:bias=9"));
  // In `e2m1fn`, `fn` means the encoding. The dtype name float4_e2m1fn is another format, with only
  // finite values.
  EXPECT_EQ(ParseFormat("e2m1fn"), MakeFormat(2, 1, Encoding::fn));
}

TEST(Format, LetterCaseDoesNotMatter) {
  for (const char* name :
       {"E4M3", "E4M3FN", "e4M3fnUZ", "FP16", "BFloat16", "Float8_E4M3FN", "Half", "Binary8p4se",
        "BINARY8P3UE", "E8M0", "E4M3FN:BIAS=11:NoSub:Unsigned"}) {
    std::string lower(name);
    for (char& letter : lower) letter = static_cast<char>(std::tolower(letter));
    EXPECT_EQ(ParseFormat(name), ParseFormat(lower)) << name;
  }
}

TEST(Format, ErrorsOfNamesSuggestTheNearest) {
  const std::pair<const char*, const char*> meant[] = {
      {"e4m3fnn", "'e4m3fn'"},
      {"e4m3fnz", "'e4m3fnuz'"},
      {"e6m9fun", "'e6m9fn'"},
      {"e4m3_fn", "'e4m3fn'"},
      {"e4m3-fnuz", "'e4m3fnuz'"},
      {"fp33", "'fp32'"},
      {"bf61", "'bf16'"},
      {"bfolat16", "'bfloat16'"},
      {"floaf16", "'float16'"},
      {"float8-e4m3fn", "'e4m3fn'"},
      {"torch.float8_e5m2", "'e5m2'"},
      {"S1E5M2", "'e5m2'"},
      {"binary8p4", "'binary8p4se'"},
      {"FP8", "'e4m3fn' or 'e5m2'"},
      {"fp6", "'e2m3' or 'e3m2'"},
      {"float4", "'e2m1'"},
  };
  for (const auto& [given, own] : meant) {
    const std::string text = format_error(given);
    EXPECT_NE(text.find("unknown format '" + std::string(given) + "'; did you mean " + own + "?"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("Names are like e4m3, (4,3), e4m3fn"), std::string::npos) << text;
  }
  for (const char* given :
       {"", "e", "m3", "foo", "x8", "(4,3", "(4;3)", "(4,3,1)", "(4 3)", "e4m"}) {
    const std::string text = format_error(given);
    EXPECT_NE(text.find("unknown format '" + std::string(given) + "'"), std::string::npos) << text;
    EXPECT_EQ(text.find("did you mean ''"), std::string::npos) << text;
  }
  EXPECT_LT(format_error(std::string(100'000, 'e')).size(), 400U);
  EXPECT_LT(format_error("e4m3:" + std::string(100'000, 'x')).size(), 400U);
}

TEST(Format, IntegersAreGridsOfSteps) {
  for (int bits = 2; bits <= 25; ++bits) {
    const std::string name = "int" + std::to_string(bits);
    const Format format = ParseFormat(name);
    const Format full = ParseFormat(name + ":full");
    EXPECT_EQ(ToString(full), name + ":full");
    EXPECT_EQ(full.max(), format.max());
    EXPECT_EQ(full.lowest(), -format.max() - 1) << name;
    EXPECT_EQ(format.lowest(), -format.max()) << name;
    EXPECT_EQ(full, MakeFormat(1, bits - 2, Encoding::int_full));
    const Format magnitude = ParseFormat("sm" + std::to_string(bits));
    EXPECT_EQ(ToString(magnitude), "sm" + std::to_string(bits));
    EXPECT_EQ(magnitude.encoding, Encoding::finite);
    EXPECT_TRUE(Holds(full, format) && Holds(format, magnitude) && Holds(magnitude, format));
    EXPECT_FALSE(Holds(format, full) || Holds(magnitude, full)) << name;
    EXPECT_EQ(ToString(format), name);
    EXPECT_EQ(format.bits(), bits);
    const std::uint32_t most = format.max_code();
    EXPECT_EQ(most, (1U << (bits - 1)) - 1) << name;
    for (const std::uint32_t code : {0U, 1U, most / 2, most - 1, most}) {
      EXPECT_EQ(format.magnitude(code), static_cast<double>(code)) << name;
    }
  }
  EXPECT_EQ(ParseFormat("INT8"), ParseFormat("int8"));
}

TEST(Format, OtherTypesAreRefusedByTheirKind) {
  for (const char* name : {"int1", "int26", "uint4", "int32", "qint8", "quint8", "bool", "int"}) {
    EXPECT_NE(format_error(name).find("of integers there are int2"), std::string::npos) << name;
  }
  for (const char* name : {"float128", "longdouble", "complex128", "complex64"}) {
    EXPECT_NE(format_error(name).find("at most 11 exponent and 52 mantissa bits"),
              std::string::npos)
        << name;
  }
}

TEST(Format, OptionsAreKnownAndGivenOnce) {
  for (const char* name : {"e4m3:x", "e4m3:bias=", "e4m3:bias=3x", "e4m3:bias=3:bias=3", "e4m3:",
                           "e4m3:nosub:nosub", "e4m3:nosubs", "float8_e4m3b11fnuz:bias=7"}) {
    const std::string text = format_error(name);
    EXPECT_NE(text.find(":bias=B, :nosub and :unsigned, each once, got ':"), std::string::npos)
        << text;
  }
}

// Tests which formats hold every value of another format, for all pairs of formats of at most 5
// bits and some wider ones. With some of the biases, one range ends where the other begins.
TEST(Format, HoldsEveryValue) {
  struct Held {
    Format format;
    std::set<double> values;
  };
  std::vector<Held> all;
  const auto push = [&](const Format& f) {
    const Spec s = reference::spec_of(f);
    Held held{f, {}};
    for (std::uint64_t code = 0; code <= s.max_code(); ++code) {
      const double value = magnitude_of(s, code);
      held.values.insert(value);
      if (s.is_signed) held.values.insert(-value);
    }
    all.push_back(held);
  };
  for (const Encoding encoding : {Encoding::ieee, Encoding::fn, Encoding::fnuz, Encoding::p3109,
                                  Encoding::p3109finite, Encoding::finite}) {
    for (const auto& [exp, man] : {std::pair{1, 0},
                                   {1, 1},
                                   {1, 2},
                                   {1, 3},
                                   {2, 0},
                                   {2, 1},
                                   {2, 2},
                                   {3, 0},
                                   {3, 1},
                                   {4, 0}}) {
      for (const int bias : {-1, 0, 1, 2, 3, 4}) {
        for (const bool is_signed : {true, false}) {
          for (const bool subnormals : {true, false}) {
            if (!testing::is_admissible({exp, man, bias, encoding, is_signed, subnormals}))
              continue;
            push(MakeFormat(exp, man, encoding, bias, is_signed, subnormals));
          }
        }
      }
    }
  }
  for (const char* name : {"e8m0", "bf16", "fp16", "e4m3fn", "e8m3:nosub", "e5m2:bias=142"}) {
    push(ParseFormat(name));
  }
  std::size_t held = 0;
  int failures = 0;
  for (const Held& outer : all) {
    for (const Held& inner : all) {
      const bool expected = (!inner.format.has_inf() || outer.format.has_inf()) &&
                            std::includes(outer.values.begin(), outer.values.end(),
                                          inner.values.begin(), inner.values.end());
      held += expected ? 1 : 0;
      if (Holds(outer.format, inner.format) == expected) continue;
      ADD_FAILURE() << ToString(outer.format) << (expected ? " holds " : " does not hold ")
                    << ToString(inner.format);
      if (++failures > 8) FAIL() << "more than 8 failures; the rest is left out";
    }
    EXPECT_TRUE(Holds(kFp32, outer.format));
  }
  EXPECT_GT(held, all.size());
  // A storage type without subnormals cannot hold the subnormals of e5m2.
  EXPECT_FALSE(Holds(ParseFormat("e5m2:nosub"), ParseFormat("e5m2")));
  EXPECT_TRUE(Holds(ParseFormat("e5m2:nosub"), ParseFormat("e4m2:nosub")));
}

}  // namespace
}  // namespace cpd
