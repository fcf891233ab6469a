// SPDX-License-Identifier: Apache-2.0
//
// Tests the texts of recipes: every field is printed and parsed back, and wrong texts are refused.
// Tests also the part of a recipe that GEMMs use.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpd/spec/error.h"
#include "cpd/spec/keys.h"
#include "cpd/spec/recipe.h"

namespace cpd {
namespace {

std::string RecipeError(const std::string& text) {
  try {
    ParseRecipe(text);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// A value for each field of a recipe, in the order of the recipe's canonical text.
const std::vector<std::pair<std::string, std::string>> kFields{
    {"grad_input", "native"},
    {"grad_weight", "h100-fp8 b=e5m2"},
    {"grad_bias", "fp32 kahan"},
    {"activation", "e4m3fn rounding=stochastic"},
    {"weight", "mxfp4 factor=0.75"},
    {"gradient", "nvfp4"},
    {"grad_input_gradient", "none"},
    {"grad_input_weight", "mxfp4"},
    {"grad_weight_activation", "none"},
    {"grad_weight_gradient", "e5m2"},
    {"output", "bf16"},
    {"norm", "fp16 rounding=toward_zero"},
    {"softmax", "e5m9"},
    {"embedding", "bf16 overflow=saturate"},
    {"residual", "e8m6:nosub"}};

TEST(Recipe, EachFieldAloneParsesBack) {
  for (const auto& [name, value] : kFields) {
    if (name == "grad_weight") continue;  // a unit, whose text is longer
    const std::string text = "native sums='e6m9 chunked chunk=32' " + name + "='" + value + "'";
    const std::string canonical = ToString(ParseRecipe(text));
    EXPECT_EQ(ToString(ParseRecipe(canonical)), canonical);
    EXPECT_NE(canonical.find(" " + name + "="), std::string::npos) << canonical;
  }
  for (const char* at : {"block", "epilogue"}) {
    const std::string text = std::string("native sums='e4m3 kahan' weight=mxfp8 scales_at=") + at;
    EXPECT_EQ(ToString(ParseRecipe(text)), text);
  }
}

TEST(Recipe, AllFieldsInOneText) {
  std::string forwards = "native";
  std::string backwards = forwards;
  for (const auto& [name, value] : kFields) {
    if (name != "grad_weight") forwards += " " + name + "='" + value + "'";
  }
  for (auto field = kFields.rbegin(); field != kFields.rend(); ++field) {
    if (field->first != "grad_weight")
      backwards += "  " + field->first + "=\"" + field->second + "\"";
  }
  const Recipe recipe = ParseRecipe(backwards);
  EXPECT_EQ(ToString(recipe), ToString(ParseRecipe(forwards)));
  EXPECT_FALSE(recipe.forward);
  EXPECT_EQ(ToString(*recipe.grad_bias), "fp32 kahan");
  EXPECT_EQ(ToString(*recipe.activation), "e4m3fn rounding=stochastic");
  EXPECT_EQ(ToString(*recipe.weight), "mxfp4 factor=0.75");
  EXPECT_EQ(ToString(*recipe.gradient), "nvfp4");
  EXPECT_FALSE(*recipe.grad_input_gradient);
  EXPECT_EQ(ToString(**recipe.grad_input_weight), "mxfp4");
  EXPECT_FALSE(*recipe.grad_weight_activation);
  EXPECT_EQ(ToString(**recipe.grad_weight_gradient), "e5m2");
  EXPECT_EQ(ToString(*recipe.output), "bf16");
  EXPECT_EQ(ToString(*recipe.norm), "fp16 rounding=toward_zero");
  EXPECT_EQ(ToString(*recipe.softmax), "e5m9");
  EXPECT_EQ(ToString(*recipe.embedding), "bf16 overflow=saturate");
  EXPECT_EQ(ToString(*recipe.residual), "e8m6:nosub");
}

TEST(Recipe, DefaultsAreLeftOut) {
  const std::vector<std::pair<std::string, std::string>> texts{
      {"native", "native"},
      {"native grad_bias=native scales_at=operand weight=none grad_input_weight=same", "native"},
      {"weight=none", "native"},
      {"native grad_bias='fp32 sequential'", "native grad_bias='fp32 sequential'"},
      {"native sums=e4m3", "native sums='e4m3 sequential'"},
      {"native forward=e4m3", "native sums='e4m3 sequential'"},
      {"sums=e4m3 grad_input='e4m3 sequential' grad_weight=(4,3) grad_bias=fp32",
       "native sums='e4m3 sequential'"},
      {"native grad_bias=native sums=e4m3", "native sums='e4m3 sequential' grad_bias=native"},
      {"native sums=e4m3 forward=native",
       "native grad_input='e4m3 sequential' grad_weight='e4m3 sequential'"},
      {"  weight=e5m2  sums=int32 ", "native sums='fp32 fixed width=32 fraction=0' weight=e5m2"},
      {"native weight='mxfp8 overflow=saturate'", "native weight=mxfp8"},
      {"native output=\"bf16 rounding=nearest_even\"", "native output=bf16"},
      {"int8 row weight=mxfp8", "native activation='int8 row' weight=mxfp8 gradient='int8 row'"},
      {"e5m2 rounding=stochastic weight=none random_bits=8",
       "native activation='e5m2 rounding=stochastic random_bits=8' gradient='e5m2 "
       "rounding=stochastic random_bits=8'"},
      {"(4, 3)", "native activation=(4,3) weight=(4,3) gradient=(4,3)"}};
  for (const auto& [text, canonical] : texts) {
    EXPECT_EQ(ToString(ParseRecipe(text)), canonical) << text;
  }
  EXPECT_EQ(ToString(ParseRecipe("native sums=h100-fp8")),
            "native sums='" + ToString(ParseAccumulator("h100-fp8")) + "'");
  const Recipe made{};
  EXPECT_EQ(ToString(made), "native");
}

TEST(Recipe, SumsOfAUnitSayWhereScalesAre) {
  const auto at = [](const std::string& text) {
    const Recipe recipe = ParseRecipe(text);
    EXPECT_EQ(ToString(ParseRecipe(ToString(recipe))), ToString(recipe)) << text;
    return recipe.scales_at;
  };
  EXPECT_EQ(at("fp8-row sums=h100-fp8"), ScalesAt::epilogue);
  EXPECT_EQ(at("fp8-tensor sums=h100-fp8"), ScalesAt::epilogue);
  EXPECT_EQ(at("mxfp8 sums=h100-fp8"), ScalesAt::block);
  EXPECT_EQ(at("fp8-row weight=mxfp8 sums=h100-fp8"), ScalesAt::block);
  EXPECT_EQ(at("nvfp4 block=row sums=rtx-blackwell-nvfp4"), ScalesAt::block);
  EXPECT_EQ(at("e4m3fn sums=h100-fp8"), ScalesAt::operand);
  EXPECT_EQ(at("fp8-row sums=fp32"), ScalesAt::operand);
  EXPECT_EQ(at("fp8-row sums=h100-bf16 scales_at=operand"), ScalesAt::operand);
  EXPECT_EQ(at("fp8-row forward=h100-bf16"), ScalesAt::operand);
}

TEST(Recipe, FieldsHaveTheirDefaultsToo) {
  const Fields expected{{"sums", "e4m3 sequential"},
                        {"forward", "e4m3 sequential"},
                        {"grad_input", "e4m3 sequential"},
                        {"grad_weight", "native"},
                        {"grad_bias", "fp32 sequential"},
                        {"activation", "none"},
                        {"weight", "mxfp8"},
                        {"gradient", "none"},
                        {"grad_input_gradient", "same"},
                        {"grad_input_weight", "none"},
                        {"grad_weight_activation", "same"},
                        {"grad_weight_gradient", "same"},
                        {"output", "none"},
                        {"norm", "bf16"},
                        {"softmax", "none"},
                        {"embedding", "none"},
                        {"residual", "none"},
                        {"scales_at", "operand"}};
  EXPECT_EQ(FieldsOf(ParseRecipe("native sums=e4m3 grad_weight=native weight=mxfp8 "
                                 "grad_input_weight=none norm=bf16")),
            expected);
}

TEST(Recipe, RefusesWithWhatIsGivenAndWhatIsAllowed) {
  const std::string unit = "native forward=h100-fp8";
  const std::vector<std::pair<std::string, std::string>> refused{
      {"", "a recipe's text is empty"},
      {"native sums=e99m3", "forward: "},
      {"e99m3", "exp"},
      {"native weigth=mxfp8", "unknown option 'weigth' of a recipe; there are sums, forward, "},
      {"native weigth=mxfp8", "; did you mean 'weight'?"},
      {"e5m2 weigth=mxfp8", "; did you mean 'weight'?"},
      {"native rounding=stochastic", "unknown option 'rounding' of a recipe"},
      {"native weight=mxfp8 weight=mxfp8", "option 'weight' of a recipe is given twice"},
      {"native mxfp8", "text is a format or native, and options, name=value, got 'mxfp8'"},
      {"native sums='e4m3 kahan", "a quote is not closed in 'native sums="},
      {"native; weight=mxfp8; sums", "write 'native weight=mxfp8 sums=sums'"},
      {"e4m3 kahan;", "no semicolons: write 'native sums='e4m3 kahan''"},
      {"native; weight = mxfp8 rule=rceil ; output=bf16",
       "write 'native weight='mxfp8 rule=rceil' output=bf16'"},
      {"native weight=mxfp9", "weight: "},
      {"native weight=same", "weight: "},
      {"native grad_bias=none", "grad_bias: "},
      {"native output=mxfp8", "output: must be a format without scales, got 'mxfp8'"},
      {"native scales_at=sums", "scales_at must be operand, block or epilogue, got 'sums'"},
      {"native weight=mxfp8 scales_at=block",
       "scales_at='block' takes accumulators, got forward='native'"},
      {"native sums=e4m3 grad_weight=native scales_at=epilogue",
       "scales_at='epilogue' takes accumulators, got grad_weight='native'"},
      {"native sums=e4m3 weight='mxfp4 factor=0.75' scales_at=block",
       "scales_at='block' takes no factor, got one in weight"},
      {unit + " weight=mxfp8", " takes elements, and weight=mxfp8 has scales: say scales_at"},
      {unit + " grad_input_weight=mxfp8", " takes elements, and grad_input_weight=mxfp8 has"},
      {"native weight='fp8-tensor history=4' activation='fp8-tensor history=5'",
       "a layer keeps one length and use of histories, got fp8-tensor history=5 and fp8-tensor "
       "history=4"},
      {"native weight='fp8-tensor history=4' gradient='fp8-tensor history=4 amax=most_recent'",
       "a layer keeps one length and use of histories"},
      {"native grad_input_weight='fp8-tensor history=4'",
       "grad_input_weight: a history belongs to weight itself, whose cast both GEMMs take"}};
  for (const auto& [text, told] : refused) {
    EXPECT_NE(RecipeError(text).find(told), std::string::npos) << text << ": " << RecipeError(text);
  }
  Recipe recipe;
  recipe.scales_at = static_cast<ScalesAt>(3);
  EXPECT_THROW(ToString(recipe), Error);
}

TEST(Recipe, RoundingsByPurpose) {
  const auto got = [](const char* text) {
    std::map<std::string, std::string> texts;
    const auto all = RoundingsOf(ParseRecipe(text));
    for (const auto& [name, purpose] : kPurposes) {
      const std::string& one = all.at(static_cast<std::size_t>(purpose));
      if (!one.empty()) texts[std::string(name)] = one;
    }
    return texts;
  };
  using Texts = std::map<std::string, std::string>;
  EXPECT_EQ(got("native"), (Texts{{"given", "native"},
                                  {"grad_input", "native"},
                                  {"grad_weight", "native"},
                                  {"grad_bias", "native"}}));
  EXPECT_EQ(got("native sums=e4m3 grad_input='e5m2 kahan' grad_weight=native activation=mxfp8 "
                "weight=e4m3fn gradient=e5m2 output=bf16"),
            (Texts{{"given", "e4m3 sequential"},
                   {"grad_input", "e5m2 kahan"},
                   {"grad_weight", "native"},
                   {"grad_bias", "fp32 sequential"},
                   {"cast_activation", "mxfp8"},
                   {"cast_weight", "e4m3fn"},
                   {"cast_gradient", "e5m2"},
                   {"recast_weight", "e4m3fn"},
                   {"recast_activation", "mxfp8"},
                   {"recast_gradient", "e5m2"},
                   {"cast_output", "bf16"}}));
  EXPECT_EQ(got("native activation=mxfp8 gradient=e5m2 grad_input_gradient=(4,3) "
                "grad_input_weight=e3m4 grad_weight_activation=none grad_weight_gradient=mxfp4"),
            (Texts{{"given", "native"},
                   {"grad_input", "native"},
                   {"grad_weight", "native"},
                   {"grad_bias", "native"},
                   {"cast_activation", "mxfp8"},
                   {"cast_gradient", "(4,3)"},
                   {"recast_weight", "e3m4"},
                   {"recast_gradient", "mxfp4"}}));
}

TEST(Recipe, PartsByPurpose) {
  std::vector<std::string> got;
  for (const RecipePart& part : RecipeParts()) {
    got.push_back(ToString(part.purpose) + " " + std::string(part.field) + " " +
                  std::string(part.tensor));
  }
  const std::vector<std::string> expected{"given forward ",
                                          "grad_input grad_input ",
                                          "grad_weight grad_weight ",
                                          "grad_bias grad_bias ",
                                          "cast_activation activation activation",
                                          "cast_weight weight weight",
                                          "cast_gradient grad_input_gradient gradient",
                                          "recast_weight grad_input_weight weight",
                                          "recast_activation grad_weight_activation activation",
                                          "recast_gradient grad_weight_gradient gradient"};
  EXPECT_EQ(got, expected);
}

TEST(Recipe, OneCastServesBothGemms) {
  const auto once = [](const std::string& text, Purpose cast) {
    return IsCastOnce(ParseRecipe(text), cast);
  };
  for (const char* cast : {"e4m3fn", "fp8-tensor", "fp8-block 128x128", "fp8-tensor history=2"}) {
    EXPECT_TRUE(once(std::string("native weight='") + cast + "'", Purpose::cast_weight)) << cast;
    EXPECT_TRUE(once(std::string("native activation='") + cast + "'", Purpose::cast_activation))
        << cast;
    EXPECT_FALSE(once(std::string("native weight='") + cast + "'", Purpose::cast_activation))
        << cast;
  }
  EXPECT_TRUE(once("native weight=(4,3) grad_input_weight=(4,3)", Purpose::cast_weight));
  for (const char* text :
       {"native weight=mxfp8", "native weight=fp8-row", "native weight='mxfp8 4x4 factor=0.5'",
        "native weight=(4,3) grad_input_weight=none", "native grad_input_weight=(4,3)",
        "native weight=(4,3) grad_input_weight=e5m2",
        "native sums=fp32 weight=fp8-tensor scales_at=block"}) {
    EXPECT_FALSE(once(text, Purpose::cast_weight)) << text;
  }
  EXPECT_TRUE(once("native sums=fp32 weight=(4,3) scales_at=block", Purpose::cast_weight));
  EXPECT_THROW(once("native", Purpose::cast_gradient), Error);
}

TEST(Recipe, WhatTheGemmsTake) {
  const Recipe recipe = ParseRecipe(
      "native sums=e4m3 activation=e5m2 weight=mxfp8 gradient=e3m4 grad_input_weight=(4,3) "
      "grad_weight_activation=e2m1 output=bf16 norm=bf16 softmax=bf16 embedding=bf16 "
      "residual=bf16 scales_at=block");
  const auto text = [&](bool activation, bool weight) {
    return ToString(GemmsOf(recipe, activation, weight));
  };
  EXPECT_EQ(text(false, false),
            "native sums='e4m3 sequential' activation=e5m2 weight=mxfp8 gradient=e3m4 "
            "grad_input_weight=(4,3) grad_weight_activation=e2m1 scales_at=block");
  EXPECT_EQ(text(true, false),
            "native sums='e4m3 sequential' weight=mxfp8 gradient=e3m4 grad_input_weight=(4,3) "
            "scales_at=block");
  EXPECT_EQ(text(true, true), "native sums='e4m3 sequential' gradient=e3m4 scales_at=block");
}

}  // namespace
}  // namespace cpd
