// SPDX-License-Identifier: Apache-2.0
//
// Tests the texts of every grammar with numbers of any length, codecs within codecs, and that error
// messages shorten long words.
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "cpd/compress/codecs.h"
#include "cpd/compress/qsgd.h"
#include "cpd/compress/stream.h"
#include "cpd/compress/terngrad.h"
#include "cpd/ops/reduce.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/cast_spec.h"
#include "cpd/spec/error.h"
#include "cpd/spec/hadamard.h"
#include "cpd/spec/scaled.h"
#include "tests/testing/refusal.h"

namespace cpd {
namespace {

constexpr std::size_t kLongestError = 4096;

/// Returns the text of the parser's error for `text`; empty if the parser accepts it.
template <class Parse>
std::string refusal(const Parse& parse, const std::string& text) {
  try {
    (void)parse(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

template <class Parse>
void expect_readable(const Parse& parse, const std::string& text) {
  const std::string message = refusal(parse, text);
  EXPECT_LE(message.size(), kLongestError) << text.substr(0, 80);
  EXPECT_FALSE(message.ends_with(std::string(100, '9'))) << text.substr(0, 80);
}

/// Replaces the '#' of each text by digits of several lengths, and expects that long numbers are
/// refused with a readable error.
template <class Parse>
void expect_digits(const Parse& parse, std::initializer_list<std::string_view> texts) {
  for (const std::size_t length : {10, 11, 20, 40, 400, 5000}) {
    for (const std::string_view given : texts) {
      std::string text(given);
      for (std::size_t at = 0; (at = text.find('#', at)) != std::string::npos; at += length) {
        text.replace(at, 1, std::string(length, '9'));
      }
      // A block may have more than 2^32 values, so a text with up to 11 digits may be valid.
      EXPECT_TRUE(length < 20 || !refusal(parse, text).empty()) << given;
      expect_readable(parse, text);
    }
  }
}

TEST(Texts, Digits) {
  expect_digits(ParseFormat, {"e4m#", "e#m3", "e#m#", "e-#m3", "e4m-#", "e4m3:bias=#",
                              "e9m3:bias=-#", "int#", "(4,#)", "(#,3)", "binary#p4se",
                              "binary8p#se", "binary#p-#ue", "e4m#fnuz", "fp#"});
  expect_digits(ParseCastSpec, {"e4m# rounding=up", "e4m3 random_bits=#"});
  expect_digits(ParseScaled, {"bfp#", "int# row", "e4m3fn #", "e4m3fn #x128", "mxfp8 margin=#",
                              "mxfp8 margin=-#", "mxfp8 scale=e#m3", "mxfp4 transform=hadamard#"});
  expect_digits(ParseAccumulator,
                {"e6m# kahan", "int#", "fixed<#,0>", "fixed<40,#>", "fixed<40,-#>",
                 "e6m9 chunked chunk=#", "e6m9 chunked inner=e5m#", "h100-fp8 block=#",
                 "h100-fp8 promote=#", "h100-fp8 a=e4m#", "e6m9 kahan random_bits=#"});
  expect_digits(ParseHadamard, {"hadamard#", "hadamard16:signs=0x#"});
  expect_digits([](const std::string& text) { return MakeCodec(text); },
                {"e4m#", "qsgd bits=#", "qsgd bits=4 bucket=#", "qsgd s=#", "qsgd whole=#",
                 "qsgd axis=#", "qsgd axis=-#", "terngrad clip=#", "one_bit bucket=#", "top_k #",
                 "int4 bucket=#", "quantized e4m# row", "feedback e4m#", "uniform bits=#",
                 "uniform bits=entropy c=#", "sparse e4m#", "int8_rows row=#"});
  expect_digits([](const std::string& text) { return ParseAccumulator(text + " inner=e4m3"); },
                {"e4m# chunked", "int#", "e#m# kahan"});
}

TEST(Texts, NumbersHaveLimits) {
  EXPECT_NO_THROW(MakeCodec("terngrad clip=2.5"));
  for (const char* text : {"terngrad clip=1e30", "terngrad clip=-1", "terngrad clip=2 clip=2"}) {
    EXPECT_THROW(MakeCodec(text), Error) << text;
  }
}

TEST(Texts, OptionsOfCodecsHaveLimits) {
  EXPECT_REFUSAL("qsgd: s must be 1…32767, got 40000", Qsgd({.steps = 40000}));
  EXPECT_REFUSAL("qsgd: bucket must be 1…65536 values, or 'tensor', got 70000",
                 Qsgd({.bucket = 70000}));
  EXPECT_REFUSAL("terngrad: bucket must be 1…65536 values, or 'tensor', got -1",
                 TernGrad({.bucket = -1}));
  EXPECT_REFUSAL("terngrad: clip must be a number from 1e-06 to 1e+06, or none, got 1e+09",
                 TernGrad({.clip = 1e9}));
  EXPECT_REFUSAL("top_k's fraction must be a number from 0 to 1, got '1.5'",
                 MakeCodec("top_k 1.5"));
  EXPECT_REFUSAL("integer sums are of 1…65536 ranks, got 0", IntegerSums(0));
  EXPECT_REFUSAL("codec 'qsgd' has a rounding of its own: give random_bits alone",
                 MakeCodec("qsgd", {.mode = Rounding::up}));
}

TEST(Texts, WhatCodecsCannotTake) {
  const float three = 3;
  std::uint8_t bytes[64];
  EXPECT_REFUSAL("tensor 7: a sum is beyond 2, the number of ranks",
                 IntegerSums(2).Encode({.layer = 7, .n = 1}, nullptr, &three, bytes));
  EXPECT_REFUSAL("this codec keeps nothing from call to call, got 1 values",
                 MakeCodec("qsgd bucket=tensor")->MakeState(4)->Restore({&three, 1}));
}

TEST(Texts, NearNamesEnd) {
  EXPECT_TRUE(refusal(ParseFormat, "e4m99999999999")
                  .starts_with("man must be 0…23, got 1000000000 or more"));
  EXPECT_NE(refusal(ParseFormat, "float8_e4m3fnn").find("did you mean 'float8_e4m3fn'?"),
            std::string::npos);
}

/// Decodes whole streams that have a valid checksum and an invalid codec name.
TEST(Texts, NamesInStreams) {
  const std::vector<std::uint8_t> valid = EncodeStream(MakeCodec("fp32"), nullptr, {}, {});
  for (const std::string& name :
       {std::string("e4m99999999999"), "e4m" + std::string(1000, '9'), std::string(1024, 'x')}) {
    std::vector<std::uint8_t> bytes(valid.begin(), valid.begin() + 48);
    bytes[6] = static_cast<std::uint8_t>(name.size() % 256);
    bytes[7] = static_cast<std::uint8_t>(name.size() / 256);
    bytes.insert(bytes.end(), name.begin(), name.end());
    const std::uint32_t crc = Crc32c(0, static_cast<std::int64_t>(bytes.size()), bytes.data());
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<std::uint8_t>(crc >> (8 * i)));
    EXPECT_THROW((void)DecodeStream(bytes), DamagedBytes) << name;
  }
}

TEST(Texts, CodecsWithinCodecs) {
  for (const std::size_t count : {8, 9, 100, 20000}) {
    std::string text;
    for (std::size_t i = 0; i < count; ++i) text += "feedback ";
    const std::string message =
        refusal([](const auto& one) { return MakeCodec(one); }, text + "fp16");
    EXPECT_NE(message.find("8 deep at most"), std::string::npos) << message;
    EXPECT_LE(message.size(), kLongestError);
  }
}

TEST(Texts, Readable) {
  EXPECT_EQ(Readable("a b\nc"), "a b\nc");
  EXPECT_EQ(Readable(std::string(100, 'x')), std::string(100, 'x'));
  EXPECT_EQ(Readable(std::string(101, 'x') + " y"), std::string(80, 'x') + "… y");
  const std::string path = "/" + std::string(999, 'p');
  EXPECT_EQ(Readable(path), path);
  EXPECT_EQ(Readable(path + "p"), path + "…");
  EXPECT_EQ(Readable(std::string(50000, ' ')).size(), 4000 + std::string_view("…").size());
}

}  // namespace
}  // namespace cpd
