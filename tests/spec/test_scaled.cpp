// SPDX-License-Identifier: Apache-2.0
//
// Tests the names and texts of scaled formats: their meaning, printing and parsing, and refused
// texts.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cpd/spec/error.h"
#include "cpd/spec/scaled.h"
#include "tests/testing/refusal.h"

namespace cpd {
namespace {

using Kind = BlockShape::Kind;

/// Returns the text of the Error that `call` throws; empty if it throws none.
template <class Call>
std::string Refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

const std::vector<std::string> kNames = {"mxfp8",   "mxfp8-e5m2", "mxfp6-e3m2", "mxfp6-e2m3",
                                         "mxfp4",   "mxint8",     "nvfp4",      "fp8-tensor",
                                         "fp8-row", "fp8-block"};

TEST(ScaledText, NamesAreTheirOwnTexts) {
  for (const std::string& name : kNames) EXPECT_EQ(ToString(ParseScaled(name)), name);
  for (const char* text : {"bfp8", "bfp2", "bfp25", "int8 row", "int4 64", "mxfp8 128",
                           "fp8-block 128x128", "nvfp4 scale_max=256 choose=mae"}) {
    EXPECT_EQ(ToString(ParseScaled(text)), text);
  }
  EXPECT_EQ(ToString(ParseScaled("bfp8 block=16")), "bfp8");
  EXPECT_EQ(ToString(ParseScaled("MXFP8")), "mxfp8");
  EXPECT_EQ(ToString(ParseScaled("e4m3fn 1x32")), "mxfp8");
  EXPECT_EQ(ToString(ParseScaled("mxfp8 rule=nearest")), "mxfp8 rule=max");
}

TEST(ScaledText, WhatNamesStandFor) {
  for (const auto& [name, element] :
       std::vector<std::pair<std::string, std::string>>{{"mxfp8", "e4m3fn"},
                                                        {"mxfp8-e5m2", "e5m2"},
                                                        {"mxfp6-e3m2", "e3m2"},
                                                        {"mxfp6-e2m3", "e2m3"},
                                                        {"mxfp4", "e2m1"},
                                                        {"mxint8", "e1m6int:bias=1"}}) {
    EXPECT_EQ(ParseScaled(name), (Scaled{.element = ParseFormat(element)})) << name;
  }
  const Format e4m3 = ParseFormat("e4m3fn");
  EXPECT_EQ(ParseScaled("nvfp4"), (Scaled{.element = ParseFormat("e2m1"),
                                          .block = {.columns = 16},
                                          .scale = e4m3,
                                          .rule = ScaleRule::max,
                                          .tensor_scale = kFp32,
                                          .arithmetic = Arithmetic::te,
                                          .non_finite = NonFinite::element}));
  const Scaled plain{.element = e4m3, .scale = kFp32, .rule = ScaleRule::max};
  Scaled expected = plain;
  expected.block.kind = Kind::tensor;
  EXPECT_EQ(ParseScaled("fp8-tensor").element, expected.element);
  EXPECT_EQ(ParseScaled("fp8-tensor").block.kind, Kind::tensor);
  EXPECT_EQ(ParseScaled("fp8-row").block.kind, Kind::row);
  for (const char* name : {"fp8-tensor", "fp8-row"}) {
    EXPECT_EQ(ParseScaled(name).arithmetic, Arithmetic::exact);
    EXPECT_EQ(ParseScaled(name).scale, kFp32);
    EXPECT_EQ(ParseScaled(name).rule, ScaleRule::max);
  }
  expected = plain;
  expected.block = {.columns = 128};
  expected.arithmetic = Arithmetic::deepgemm;
  EXPECT_EQ(ParseScaled("fp8-block"), expected);
  expected.block = {.rows = 128, .columns = 128};
  EXPECT_EQ(ParseScaled("fp8-block 128x128"), expected);
  EXPECT_EQ(ParseScaled("bfp8"), (Scaled{.element = ParseFormat("sm8"), .block = {.columns = 16}}));
  EXPECT_EQ(ParseScaled("int4 64").scale, kFp32);
}

TEST(ScaledText, OptionsChangeDefaults) {
  EXPECT_EQ(ParseScaled("e4m3fn 16 scale=fp32").rule, ScaleRule::max);
  EXPECT_EQ(ParseScaled("e4m3fn 16 rule=floor scale=fp32").rule, ScaleRule::floor);
  EXPECT_EQ(ParseScaled("e4m3fn 16 scale=fp32 arithmetic=te").non_finite, NonFinite::element);
  EXPECT_EQ(ParseScaled("e4m3fn 16 scale=fp32 non_finite=block arithmetic=te").non_finite,
            NonFinite::block);
  EXPECT_EQ(ParseScaled("nvfp4 tensor_scale=none arithmetic=exact").tensor_scale, std::nullopt);
  EXPECT_EQ(DefaultRule(kE8m0), ScaleRule::floor);
  EXPECT_EQ(DefaultRule(ParseFormat("e4m3fn")), ScaleRule::max);
  EXPECT_EQ(DefaultNonFinite(Arithmetic::te), NonFinite::element);
  EXPECT_EQ(DefaultNonFinite(Arithmetic::torchao), NonFinite::block);
}

/// Returns a random descriptor of a scaled format. Many are invalid, so that `Check` refuses them.
Scaled Drawn(std::mt19937& bits) {
  const auto one_of = [&](const auto& all) { return all[bits() % all.size()]; };
  const std::vector<std::string> elements = {"e4m3fn", "e5m2", "e3m2",        "e2m3", "e2m1",
                                             "int8",   "int4", "e3m4:bias=2", "fp16"};
  const std::vector<std::string> scales = {"e8m0", "e8m0", "fp32", "bf16", "e4m3fn", "e5m2"};
  const std::vector<std::int64_t> sizes = {1, 2, 16, 32, 128};
  Scaled s{.element = ParseFormat(one_of(elements)), .scale = ParseFormat(one_of(scales))};
  s.block.kind = static_cast<Kind>(bits() % 3);
  if (s.block.kind == Kind::tile) {
    s.block.rows = bits() % 2 == 0 ? 1 : one_of(sizes);
    s.block.columns = one_of(sizes);
  }
  s.arithmetic = static_cast<Arithmetic>(bits() % 5);
  s.rule = bits() % 2 == 0 ? DefaultRule(s.scale) : static_cast<ScaleRule>(bits() % 7);
  s.non_finite = static_cast<NonFinite>(bits() % 2);
  if (bits() % 3 == 0) s.tensor_scale = ParseFormat(one_of(scales));
  if (s.tensor_scale && bits() % 3 == 0) s.outer = Kind::row;
  if (s.tensor_scale && bits() % 3 == 0) s.scale_max = static_cast<float>(1 + bits() % 448) / 3;
  if (bits() % 4 == 0) s.margin = static_cast<int>(bits() % 129) - 64;
  if (bits() % 4 == 0) s.choose = static_cast<ScaleChoice>(bits() % 3);
  return s;
}

TEST(ScaledText, ParsesBack) {
  std::mt19937 bits(1);
  int good = 0;
  for (int i = 0; i < 20000; ++i) {
    const Scaled s = Drawn(bits);
    if (!Refusal([&] { Check(s); }).empty()) {
      EXPECT_FALSE(Refusal([&] { ToString(s); }).empty());
      continue;
    }
    ++good;
    const std::string text = ToString(s);
    ASSERT_EQ(ParseScaled(text), s) << text;
    ASSERT_EQ(ToString(ParseScaled(text)), text);
    ASSERT_TRUE(NamesScaled(text)) << text;
  }
  EXPECT_GT(good, 2000);
}

TEST(ScaledText, NamesOfFieldsParseBack) {
  const auto expect_names = [](auto last) {
    using E = decltype(last);
    EXPECT_EQ(NamesOf(last).size(), static_cast<std::size_t>(last) + 1);
    for (int i = 0; i <= static_cast<int>(last); ++i) {
      const auto value = static_cast<E>(i);
      EXPECT_EQ(ParseName<E>("a field", ToString(value)), value);
    }
  };
  expect_names(ScaleRule::up);
  expect_names(Arithmetic::microxcaling);
  expect_names(NonFinite::element);
  expect_names(ScaleChoice::mse);
  EXPECT_EQ(ParseScaled("nvfp4 rule=nearest").rule, ScaleRule::max);
  for (const char* block : {"tensor", "row", "1", "32", "128x128", "3x5"}) {
    EXPECT_EQ(ToString(ParseBlockShape(block)), block);
  }
  EXPECT_EQ(ToString(ParseBlockShape("1x128")), "128");
}

TEST(ScaledText, WhichTextsNameOne) {
  for (const char* text : {"mxfp8", "NVFP4", "bfp8", "int8 row", "e4m3 32", "no such thing"}) {
    EXPECT_TRUE(NamesScaled(text)) << text;
  }
  for (const char* text : {"", "e4m3", "int8", "fp32", "mxfp9"}) {
    EXPECT_FALSE(NamesScaled(text)) << text;
  }
}

TEST(ScaledText, RefusedTexts) {
  const std::vector<std::pair<std::string, std::string>> all = {
      {"", "mxfp8, mxfp8-e5m2, mxfp6-e3m2"},
      {"e4m3", "'e4m3' is a format without scales; a scaled one is mxfp8"},
      {"e4m3 row rule=sideways", "floor, ceil, rceil, even, max, max_pow2"},
      {"e4m3 32 arithmetic=intel", "exact, te, torchao, deepgemm"},
      {"e4m3 32 non_finite=ignore", "block"},
      {"e4m3 32 choose=max", "mae"},
      {"e4m3 32 outer=tile", "tensor"},
      {"e4m3 32 scale=fp33", "fp33"},
      {"e4m3 32 margin=x", "margin"},
      {"e4m3 32 margin=65", "margin must be -64…64, got 65"},
      {"nvfp4 scale_max=large", "scale_max must be a number, got 'large'"},
      {"nvfp4 scale_max=449", "scale_max must be positive and at most e4m3fn's max"},
      {"nvfp4 scale_max=-1", "scale_max must be positive"},
      {"e4m3 32 scale_max=2", "scale_max and outer are for two levels: give tensor_scale"},
      {"e4m3 32 outer=row", "scale_max and outer are for two levels: give tensor_scale"},
      {"e4m3 0", "a block must be at least 1x1, got 1x0"},
      {"e4m3 0x4", "a block must be at least 1x1, got 0x4"},
      {"e4m3 4x", "a block must be tensor, row, a number as 32 or a shape as 128x128, got '4x'"},
      {"e4m3 block=column", "got 'column'"},
      {"e4m3 32 roole=floor",
       "unknown option 'roole' of a scaled format; there are element, block"},
      {"nvfp4 tensor", "under a tensor_scale blocks must be smaller than its tensor"},
      {"nvfp4 outer=row block=row", "under a tensor_scale blocks must be smaller than its row"},
      {"nvfp4 outer=row block=2x4", "under outer=row a block lies in one row, got 2x4"},
      {"bf16 16 scale=fp32 tensor_scale=fp32", "at most 53 significant bits together"},
      {"mxfp8 arithmetic=te margin=1 rule=max", "arithmetic te has one level in fp32"},
      {"nvfp4 margin=1", "margin is for exact arithmetic, and te's with one level"},
      {"nvfp4 rule=floor", "arithmetic te has two levels with tensor_scale fp32 and rule max"},
      {"mxfp8 arithmetic=torchao rule=up", "arithmetic torchao has rules max"},
      {"mxfp8 arithmetic=deepgemm", "arithmetic deepgemm has one level in fp32 with rule max"},
      {"mxfp8 arithmetic=microxcaling rule=ceil", "has one level in e8m0 with rule floor"},
      {"mxfp8 choose=mae", "choose is for rule max"},
      {"fp8-row choose=mae", "choose is for blocks, not rows or tensors"},
      {"e4m3:unsigned 32 scale=e1m0", "a scale must have a positive value"},
      {"e8m0 32", "elements must have zero and a positive value, got e8m0"},
  };
  for (const auto& [text, expected] : all) {
    const std::string message = Refusal([&, &given = text] { ParseScaled(given); });
    EXPECT_NE(message.find(expected), std::string::npos) << "'" << text << "': " << message;
  }
}

TEST(ScaledText, RefusedFields) {
  Scaled wrong{.element = ParseFormat("e4m3")};
  wrong.rule = static_cast<ScaleRule>(7);
  EXPECT_THROW(Check(wrong), Error);
  wrong = {.element = ParseFormat("e4m3"), .arithmetic = static_cast<Arithmetic>(5)};
  EXPECT_THROW(Check(wrong), Error);
  wrong = {.element = ParseFormat("e4m3"), .non_finite = static_cast<NonFinite>(2)};
  EXPECT_THROW(Check(wrong), Error);
  wrong = {.element = ParseFormat("e4m3"), .choose = static_cast<ScaleChoice>(3)};
  EXPECT_THROW(Check(wrong), Error);
  wrong = {.element = ParseFormat("e4m3"), .outer = Kind::tile};
  EXPECT_THROW(Check(wrong), Error);
  wrong = {.element = ParseFormat("e4m3"), .block = {.kind = static_cast<Kind>(3)}};
  EXPECT_REFUSAL("block must be a tensor, a row or a tile, got number 3", Check(wrong));
  wrong = {.element = Format{.exp = 9}};
  EXPECT_THROW(Check(wrong), Error);
}

TEST(ScaledText, BracketsHoldAWordTogether) {
  EXPECT_EQ(ParseScaled(" (5, 2)  16 scale=(4, 3)  rule=max "),
            ParseScaled("e5m2 16 scale=e4m3 rule=max"));
}

TEST(ScaledText, ValuesAndScalesFitBinary64) {
  // A decoded value is the product of an element, a scale and a tensor scale. Their significands
  // have 5, 24 and 24 bits, so the product has up to 53. With 6, 24 and 24 bits the product does
  // not fit in binary64.
  EXPECT_NO_THROW(ParseScaled("e5m4 32 scale=fp32 rule=max tensor_scale=fp32"));
  EXPECT_THROW(ParseScaled("e5m5 32 scale=fp32 rule=max tensor_scale=fp32"), Error);
}

TEST(ScaledText, ScaleMaxMayBeTheFormatsOwn) {
  const std::string text = "e2m1 16 scale=e4m3fn rule=max tensor_scale=fp32 scale_max=";
  EXPECT_EQ(ParseScaled(text + "448").scale_max, 448);
  EXPECT_THROW(ParseScaled(text + "449"), Error);
}

TEST(ScaledText, GridsOfBlocks) {
  const std::vector<std::int64_t> shape{3, 8, 6};
  const auto grid = [&](int axis) { return ScaleGrid({.rows = 2, .columns = 4}, shape, axis); };
  EXPECT_EQ(grid(2), (std::vector<std::int64_t>{3, 4, 2}));
  EXPECT_EQ(grid(1), (std::vector<std::int64_t>{3, 2, 3})) << "rows lie along the last axis";
  EXPECT_EQ(grid(-2), grid(1));
}

TEST(ScaledText, BitsPerValue) {
  const std::vector<std::int64_t> shape = {4, 64};
  EXPECT_EQ(BitsPerValue(ParseScaled("mxfp8"), shape, -1), 8.25);
  EXPECT_EQ(BitsPerValue(ParseScaled("mxfp8"), shape, 0), 8 + 8 / 4.0);
  EXPECT_EQ(BitsPerValue(ParseScaled("nvfp4"), shape, -1), 4.5 + 32 / 256.0);
  EXPECT_EQ(BitsPerValue(ParseScaled("nvfp4 outer=row"), shape, -1), 4.5 + 32 / 64.0);
  EXPECT_EQ(BitsPerValue(ParseScaled("fp8-tensor"), shape, -1), 8 + 32 / 256.0);
  EXPECT_EQ(BitsPerValue(ParseScaled("int4 row"), shape, -1), 4.5);
  EXPECT_EQ(BitsPerValue(ParseScaled("mxfp4"), std::vector<std::int64_t>{0, 3}, -1), 4);
}

}  // namespace
}  // namespace cpd
