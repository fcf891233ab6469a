// SPDX-License-Identifier: Apache-2.0
//
// A fuzz target: any text of a grammar must parse to the same meaning as its canonical text, or
// throw an Error with a message of readable length. CPD_FUZZ_GRAMMAR names the grammar.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "cpd/comm/spec.h"
#include "cpd/compress/codecs.h"
#include "cpd/spec/accumulator.h"
#include "cpd/spec/block_fma.h"
#include "cpd/spec/cast_spec.h"
#include "cpd/spec/fixed_point.h"
#include "cpd/spec/hadamard.h"
#include "cpd/spec/names.h"
#include "cpd/spec/presets.h"
#include "cpd/spec/purpose.h"
#include "cpd/spec/recipe.h"
#include "cpd/spec/scaled.h"

namespace cpd::fuzz {
namespace {

constexpr std::size_t kLongestError = 4096;

/// Parses a text that must be valid and prints the result; aborts if the text is refused.
template <class Print>
std::string PrintedAgain(const std::string& canonical, const Print& print) {
  try {
    return print(canonical);
  } catch (const Error&) {
    std::abort();
  }
}

/// Parses `text` and prints the result, then parses and prints the printed text. Both printed texts
/// must be equal.
template <class Parse>
void CheckText(std::string_view text, const Parse& parse) {
  const auto print = [&](std::string_view given) { return ToString(parse(given)); };
  const std::string canonical = print(text);
  if (PrintedAgain(canonical, print) != canonical) std::abort();
}

/// Makes a codec from the text, and a second codec from the first codec's name. Both must have the
/// same name and the same text.
void CheckCodec(std::string_view text) {
  const auto print = [](std::string_view given) {
    const SharedCodec codec = MakeCodec(given);
    return codec->name() + ": " + codec->text();
  };
  const std::string name = MakeCodec(text)->name();
  if (PrintedAgain(name, print) != print(text)) std::abort();
}

/// Checks a recipe, and the part of the recipe that GEMMs use, which must be a valid recipe too.
void CheckRecipe(std::string_view text) {
  CheckText(text, ParseRecipe);
  const Recipe recipe = ParseRecipe(text);
  for (const bool is_cast : {false, true}) {
    CheckText(ToString(GemmsOf(recipe, is_cast, !is_cast)), ParseRecipe);
  }
  (void)RoundingsOf(recipe);
  (void)IsCastOnce(recipe, Purpose::cast_activation);
  (void)IsCastOnce(recipe, Purpose::cast_weight);
}

template <class Parse>
void Try(std::string_view text, const Parse& parse) {
  try {
    (void)parse(text);
  } catch (const Error&) {
    return;
  }
}

/// Parses the text as the name of an enumerator. Enumerators have no other text form, so nothing is
/// printed and parsed back.
void CheckNames(std::string_view text) {
  Try(text, ParseRounding);
  Try(text, ParseOverflow);
  Try(text, ParseVariant);
  Try(text, [](std::string_view word) { return ParseName<Scheme>("scheme", word); });
  Try(text, [](std::string_view word) { return ParseName<Encoding>("encoding", word); });
  Try(text, [](std::string_view word) { return ParseName<Adder>("adder", word); });
  Try(text, ParseOrder);
  Try(text, ParseExchange);
  Try(text, ParseDivide);
  Try(text, ParsePurpose);
  Try(text, NamesScaled);
  Try(text, NamesFixed);
  Try(text, NamesPreset);
}

using Run = void (*)(std::string_view);
const std::map<std::string_view, Run> kGrammars{
    {"format", [](std::string_view text) { CheckText(text, ParseFormat); }},
    {"cast", [](std::string_view text) { CheckText(text, ParseCastSpec); }},
    {"accumulator", [](std::string_view text) { CheckText(text, ParseAccumulator); }},
    {"scaled", [](std::string_view text) { CheckText(text, ParseScaled); }},
    {"recipe", CheckRecipe},
    {"block", [](std::string_view text) { CheckText(text, ParseBlockShape); }},
    {"hadamard", [](std::string_view text) { CheckText(text, ParseHadamard); }},
    {"preset", [](std::string_view text) { CheckText(ToString(Preset(text)), ParseAccumulator); }},
    {"codec", CheckCodec},
    {"reduce", [](std::string_view text) { CheckText(text, ParseReduce); }},
    {"names", CheckNames},
};

Run TheGrammar() {
  const char* const name = std::getenv("CPD_FUZZ_GRAMMAR");
  if (name == nullptr || !kGrammars.contains(name)) std::abort();
  return kGrammars.at(name);
}

}  // namespace
}  // namespace cpd::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const cpd::fuzz::Run run = cpd::fuzz::TheGrammar();
  try {
    run({reinterpret_cast<const char*>(data), size});
  } catch (const cpd::Error& error) {
    const std::string_view what = error.what();
    if (what.empty() || what.size() > cpd::fuzz::kLongestError) std::abort();
  }
  return 0;
}
