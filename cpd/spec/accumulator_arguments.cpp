// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/accumulator_arguments.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "cpd/spec/fixed_point.h"
#include "cpd/spec/names.h"
#include "cpd/spec/options.h"
#include "cpd/spec/presets.h"

namespace cpd {
namespace {

/// Whether there is more than one word, so that it is no format and no preset's name.
bool IsWholeText(std::string_view text) {
  const std::size_t open = std::min(text.find('('), text.size());
  if (text.substr(0, open).find(' ') != std::string_view::npos) return true;
  if (open == text.size()) return false;
  const std::size_t close = text.find(')', open);
  return close == std::string_view::npos || text.find(' ', close) != std::string_view::npos;
}

/// Without what is said twice: a product or an inner sum of the sum's own format.
Accumulator Canonical(Accumulator made) {
  if (made.product == made.format) made.product.reset();
  if (made.inner == made.format) made.inner.reset();
  return made;
}

/// The accumulator of a whole text, besides which there may be seed and stream only.
Accumulator Whole(const std::string& text, const AccumulatorArguments& given) {
  std::string options;
  PutMode(options, given.rounding);
  PutVariant(options, given.rounding);
  PutRandomBits(options, given.rounding);
  const bool is_chunked = given.inner || given.chunk != AccumulatorArguments{}.chunk;
  const bool is_unit = given.preset || given.unit || given.a || given.b;
  if (given.scheme || given.product || is_chunked || is_unit || given.fixed || !options.empty()) {
    throw Error(Quoted(text) +
                " is a whole accumulator, besides which there may be seed and stream: write the "
                "other options in it");
  }
  Accumulator parsed = Canonical(ParseAccumulator(text));
  parsed.rounding.seed = given.rounding.seed;
  parsed.rounding.stream = given.rounding.stream;
  return parsed;
}

/// The scheme meant, checked against preset, unit, operands and fixed.
std::string_view SchemeOf(const AccumulatorArguments& given) {
  if (given.scheme && std::ranges::find(SchemeNames(), *given.scheme) == SchemeNames().end()) {
    std::string names;
    for (const std::string_view one : SchemeNames()) names += std::string(one) + ", ";
    throw Error("scheme must be one of " + names + "got " + Quoted(*given.scheme));
  }
  if (given.preset && given.unit) {
    throw Error("preset and unit both name a matrix unit: give one of them");
  }
  if ((given.a || given.b) && !given.preset) {
    throw Error("operands goes with preset, the matrix unit that it is about");
  }
  if (given.fixed) {
    if (given.preset || given.unit || given.scheme.value_or("fixed") != "fixed") {
      throw Error("fixed, an integer's sum, goes with scheme 'fixed' and no matrix unit");
    }
    return "fixed";
  }
  if (!given.preset && !given.unit) {
    if (given.scheme == "block_fma") {
      throw Error("scheme 'block_fma' needs preset (a matrix unit's name) or unit");
    }
    if (given.scheme == "fixed")
      throw Error("scheme 'fixed' needs fixed, the integer (FixedPoint)");
    return given.scheme ? std::string_view(*given.scheme) : "sequential";
  }
  if (given.scheme && given.scheme != "block_fma") {
    throw Error("preset and unit go with scheme 'block_fma', got " + Quoted(*given.scheme));
  }
  return "block_fma";
}

/// The format of one word, which might have been meant as a text or a preset.
Format FormatOrText(std::string_view word) {
  try {
    return ParseFormat(word);
  } catch (const Error& error) {
    const std::string why = error.what();
    if (!why.starts_with("unknown format")) throw;
    throw Error(why +
                "; an accumulator may also be a text such as 'e4m3 kahan', or a preset such as "
                "'h100-fp8' (see cpd.presets)");
  }
}

/// The sum's format, scheme and unit where a preset or a unit says them.
Accumulator OfUnit(const AccumulatorArguments& given) {
  Accumulator made;
  if (!given.preset) {
    made.scheme = Scheme::block_fma;
    const BlockFma unit = given.unit.value_or(BlockFma{});
    made.unit = unit;
    made.format = given.format ? FormatOrText(*given.format) : unit.sum;
    return made;
  }
  if (given.rounding.mode != RoundingOptions{}.mode) {
    throw Error("preset " + Quoted(*given.preset) + " says how it rounds, got rounding='" +
                ToString(given.rounding.mode) + "'");
  }
  made = Preset(*given.preset, given.format ? ParseFormat(*given.format) : kFp32);
  if (given.a) made.unit->a = ParseFormat(*given.a);  // every preset has a unit
  if (given.b) made.unit->b = ParseFormat(*given.b);
  return made;
}

void TakeChunks(Accumulator& made, const AccumulatorArguments& given) {
  if (given.inner) made.inner = ParseFormat(*given.inner);
  const Format inner = made.inner.value_or(made.format);
  if (made.scheme != Scheme::chunked &&
      (inner != made.format || given.chunk != AccumulatorArguments{}.chunk)) {
    throw Error("inner and chunk are for scheme 'chunked' only, got '" + ToString(made.scheme) +
                "' with inner " + ToString(inner) + " (format: " + ToString(made.format) +
                "), chunk " + std::to_string(given.chunk));
  }
  made.chunk = given.chunk;
}

Accumulator OfParts(const AccumulatorArguments& given) {
  const std::string_view scheme = SchemeOf(given);
  const bool is_exact = scheme == "fma" || scheme == "block_fma" || scheme == "fixed";
  if (is_exact && given.product && given.product != "exact") {
    throw Error("scheme '" + std::string(scheme) + "' has exact products, got product='" +
                *given.product + "'");
  }
  Accumulator made;
  if (scheme == "block_fma") {
    made = OfUnit(given);
  } else if (scheme == "fixed") {
    made.scheme = Scheme::fixed;
    made.fixed = given.fixed;
    if (given.format) made.format = FormatOrText(*given.format);
  } else {
    if (!given.format) throw Error("format must be given: it is that of the sum");
    made.format = FormatOrText(*given.format);
    made.scheme = scheme == "fma" ? Scheme::sequential : ParseScheme(scheme);
    made.exact_products = scheme == "fma" || given.product == "exact";
    if (given.product && !made.exact_products) made.product = ParseFormat(*given.product);
  }
  TakeChunks(made, given);
  made.rounding = given.rounding;
  made = Canonical(made);
  Check(made);
  CheckDraws(made.rounding);
  return made;
}

/// Takes one argument that is kept as its text; false where there is none of that name.
bool TakeText(AccumulatorArguments& arguments, std::string_view name, const std::string& value) {
  using Text = std::optional<std::string> AccumulatorArguments::*;
  static constexpr std::array<std::pair<std::string_view, Text>, 7> kTexts{
      {{"format", &AccumulatorArguments::format},
       {"scheme", &AccumulatorArguments::scheme},
       {"product", &AccumulatorArguments::product},
       {"inner", &AccumulatorArguments::inner},
       {"preset", &AccumulatorArguments::preset},
       {"a", &AccumulatorArguments::a},
       {"b", &AccumulatorArguments::b}}};
  const auto* found = std::ranges::find(kTexts, name, [](const auto& one) { return one.first; });
  if (found == kTexts.end()) return false;
  arguments.*found->second = value;
  return true;
}

}  // namespace

Accumulator MakeAccumulator(std::span<const Option> arguments) {
  AccumulatorArguments made;
  for (const auto& [name, value] : arguments) {
    if (TakeText(made, name, value) || ParseRoundingOption(made.rounding, name, value)) continue;
    if (name == "chunk") {
      made.chunk = ParseInteger<std::int64_t>(name, value);
    } else if (name == "unit") {
      made.unit = ParseBlockFma(value);
    } else if (name == "fixed") {
      made.fixed = ParseFixedPoint(value);
    } else {
      throw Error("unknown argument " + Quoted(name) + " of an accumulator");
    }
  }
  Check(made.rounding);
  return MakeAccumulator(made);
}

Accumulator MakeAccumulator(const AccumulatorArguments& given) {
  if (given.format && IsWholeText(*given.format)) return Whole(*given.format, given);
  AccumulatorArguments named = given;
  if (given.format && !given.fixed && NamesFixed(*given.format)) {
    named.fixed = FixedNamed(*given.format);
    named.format.reset();
    return OfParts(named);
  }
  if (!given.format || given.preset || !NamesPreset(*given.format)) return OfParts(given);
  named.preset = named.format;
  named.format.reset();
  return OfParts(named);
}

Accumulator Swapped(Accumulator accumulator) {
  if (accumulator.unit) std::swap(accumulator.unit->a, accumulator.unit->b);
  return accumulator;
}

Accumulator OfTerms(Accumulator accumulator) {
  if (accumulator.unit || accumulator.fixed) return accumulator;
  accumulator.product.reset();
  accumulator.exact_products = true;
  return accumulator;
}

}  // namespace cpd
