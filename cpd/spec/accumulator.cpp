// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/accumulator.h"

#include <algorithm>
#include <array>
#include <span>

#include "cpd/spec/block_fma.h"
#include "cpd/spec/fixed_point.h"
#include "cpd/spec/names.h"
#include "cpd/spec/options.h"
#include "cpd/spec/presets.h"

namespace cpd {
namespace {

constexpr std::array<std::string_view, 6> kSchemes{"sequential", "kahan",     "chunked",
                                                   "pairwise",   "block_fma", "fixed"};
/// Of the text form: the same, then fma, which is sequential with exact products.
constexpr std::array<std::string_view, 7> kSchemeWords{"sequential", "kahan", "chunked", "pairwise",
                                                       "block_fma",  "fixed", "fma"};
constexpr std::size_t kFma = kSchemeWords.size() - 1;
/// Options of the text form, those of a unit, then those of an integer, last.
constexpr std::array<std::string_view, 25> kOptions{"product",      "inner",    "chunk",
                                                    "rounding",     "overflow", "variant",
                                                    "random_bits",  "a",        "b",
                                                    "block",        "sum",      "fraction_bits",
                                                    "min_exponent", "promote",  "sum_rounding",
                                                    "addend",       "scale",    "scale_block",
                                                    "dot",          "adder",    "group",
                                                    "stride",       "take",     "width",
                                                    "fraction"};

constexpr std::int64_t kDefaultChunk = Accumulator{}.chunk;

/// Fields that only one scheme has, and products, which block_fma has its own way with.
void CheckFields(const Accumulator& accumulator) {
  const auto refuse = [&](const char* what) {
    throw Error(what + (", got scheme " + ToString(accumulator.scheme)));
  };
  const bool is_chunked = accumulator.scheme == Scheme::chunked;
  const bool is_unit = accumulator.scheme == Scheme::block_fma;
  const bool is_fixed = accumulator.scheme == Scheme::fixed;
  if (accumulator.inner && !is_chunked) refuse("inner is for scheme chunked");
  if (accumulator.chunk != kDefaultChunk && !is_chunked) refuse("chunk is for scheme chunked");
  if (accumulator.unit && !is_unit) refuse("a unit is for scheme block_fma");
  if (!accumulator.unit && is_unit) {
    throw Error("scheme block_fma needs its unit: a preset (v100, h100-fp8, …) or a BlockFma");
  }
  if (accumulator.fixed && !is_fixed) refuse("an integer is for scheme fixed");
  if (!accumulator.fixed && is_fixed) {
    throw Error("scheme fixed needs its integer: a width and a fraction, or a FixedPoint");
  }
  if (accumulator.product && accumulator.exact_products) {
    throw Error("product must be a format or exact, got both " + ToString(*accumulator.product) +
                " and exact");
  }
  if ((is_unit || is_fixed) && (accumulator.product || accumulator.exact_products)) {
    throw Error("scheme " + ToString(accumulator.scheme) +
                " forms its products exactly: leave product out");
  }
  if (is_fixed && accumulator.rounding.mode == Rounding::stochastic) {
    throw Error("scheme fixed rounds without random bits, got rounding stochastic");
  }
}

/// Formats that are rounded to after each term, which an integer never is.
void CheckFormatsOfSums(const Accumulator& accumulator) {
  if (accumulator.scheme == Scheme::fixed) return;
  const auto check = [&](const char* what, const Format& format) {
    if (!format.is_integer()) return;
    const std::string bits = std::to_string(format.bits());
    throw Error(std::string(what) + " must be a floating-point format with scheme " +
                ToString(accumulator.scheme) + ", got " + ToString(format) + "; int" + bits +
                " alone is an accumulator of two's complement, which wraps unless "
                "overflow=saturate, and sm" +
                bits + " the format of sign and magnitude, which every scheme takes");
  };
  check("format", accumulator.format);
  if (accumulator.product) check("product", *accumulator.product);
  if (accumulator.inner) check("inner", *accumulator.inner);
}

/// Sets the scheme, and what it implies; true for fma.
bool ParseSchemeWord(Accumulator& accumulator, std::string_view word) {
  const auto number = ParseName<std::size_t>("scheme", kSchemeWords, word);
  accumulator.exact_products = number == kFma;
  if (accumulator.exact_products) return true;
  accumulator.scheme = static_cast<Scheme>(number);
  if (accumulator.scheme == Scheme::block_fma) accumulator.unit.emplace();
  if (accumulator.scheme == Scheme::fixed) accumulator.fixed.emplace();
  return false;
}

void ParseProduct(Accumulator& accumulator, std::string_view text) {
  accumulator.exact_products = text == "exact";
  accumulator.product.reset();
  if (!accumulator.exact_products) accumulator.product = ParseFormat(text);
}

/// Refuses an option that only another scheme has.
void RefuseOtherSchemesOption(const Accumulator& accumulator, std::string_view name) {
  if (std::ranges::find(kOptions, name) == kOptions.end()) return;
  const char* scheme = name == "width" || name == "fraction" ? "scheme fixed"
                       : name == "sum_rounding"              ? "schemes block_fma and fixed"
                                                             : "scheme block_fma";
  throw Error(std::string(name) + " is for " + scheme + ", got scheme " +
              ToString(accumulator.scheme));
}

void ParseOption(Accumulator& accumulator, std::string_view name, std::string_view text) {
  if (name == "product") return ParseProduct(accumulator, text);
  if (name == "inner") {
    accumulator.inner = ParseFormat(text);
    return;
  }
  if (name == "chunk") {
    accumulator.chunk = ParseInteger<std::int64_t>(name, text);
    return;
  }
  if (ParseRoundingOption(accumulator.rounding, name, text)) return;
  if (accumulator.unit && ParseUnitOption(*accumulator.unit, name, text)) return;
  if (accumulator.fixed) {
    if (ParseFixedOption(*accumulator.fixed, name, text)) return;
    RefuseOtherSchemesOption(accumulator, name);
    throw Error("unknown option " + Quoted(name) +
                " of an integer's sum; there are width, fraction, sum_rounding, "
                "rounding and overflow" +
                DidYouMean(name, kOptions));
  }
  RefuseOtherSchemesOption(accumulator, name);
  throw Error(
      "unknown option " + Quoted(name) +
      " of an accumulator; there are product, inner, chunk, rounding, overflow, variant, "
      "random_bits, and with block_fma a, b, block, fraction_bits, min_exponent, sum, "
      "sum_rounding, addend, promote, scale, scale_block, dot, adder, group, stride and take" +
      DidYouMean(name, kOptions));
}

/// Whether a unit's sums are rounded once more, into the accumulator's format.
bool RoundsSums(const BlockFma& unit, const Format& format) {
  return unit.promote != 0 || !Holds(format, unit.sum);
}

/// Returns true if some sum of an integer lies outside the accumulator's format.
bool RoundsSums(const FixedPoint& point, const Format& format) {
  const int top = point.width - 1;  // the least sum is -2^top units
  return top > format.precision() || -point.fraction < format.min_quantum_exponent() ||
         top - point.fraction > format.emax() || !format.is_signed;
}

/// Refuses rounding= and overflow= where no sum of a unit or an integer is rounded by them:
/// `rounds` and `overflows` say whether they are given.
void CheckEffect(const Accumulator& accumulator, bool rounds, bool overflows) {
  const std::string format = ToString(accumulator.format);
  if (rounds && accumulator.unit && !RoundsSums(*accumulator.unit, accumulator.format)) {
    throw Error("block_fma: rounding= has no effect, as " + format +
                " holds every sum of the unit: sum_rounding= is how the unit rounds its sums");
  }
  if (overflows && accumulator.unit && !accumulator.unit->sum.has_inf() &&
      !RoundsSums(*accumulator.unit, accumulator.format)) {
    throw Error("block_fma: overflow= has no effect, as " + format +
                " holds every sum of the unit, which overflows as " +
                ToString(accumulator.unit->sum) + " does: sum= is the format of its sums");
  }
  if (rounds && accumulator.fixed && !RoundsSums(*accumulator.fixed, accumulator.format)) {
    throw Error("fixed: rounding= has no effect, as " + format +
                " holds every sum of the integer: sum_rounding= is how terms are rounded to units");
  }
}

/// Refuses a unit without its operands' formats.
void CheckUnitText(std::span<const std::string_view> given) {
  const auto has = [&](std::string_view name) {
    return std::ranges::find(given, name) != given.end();
  };
  if (!(has("a") && has("b"))) {
    throw Error(
        "block_fma needs a= and b=, the formats that its operands hold, as in 'fp32 block_fma "
        "a=e4m3fn b=e4m3fn block=4': exponents follow from them");
  }
}

/// Takes the scheme out of the words behind a format: the first that is no option.
std::string_view TakeScheme(std::vector<std::string_view>& words, std::string_view text) {
  const auto found = std::ranges::find_if_not(words, IsOption);
  if (found == words.end()) {
    throw Error(
        "an accumulator is a format, a scheme and options, as in 'e6m9 chunked chunk=64', "
        "or a preset and options, as in 'h100-fp8 a=e5m2'; got " +
        Quoted(text));
  }
  const std::string_view scheme = *found;
  words.erase(found);
  return scheme;
}

/// Whether a scheme follows the first word, which is then a format: `int8 fixed width=32` sums in
/// 32 bits and rounds the sum into int8.
bool NamesScheme(std::span<const std::string_view> words) {
  return std::ranges::any_of(words.subspan(1), [](std::string_view word) {
    return std::ranges::find(kSchemeWords, word) != kSchemeWords.end();
  });
}

}  // namespace

Scheme ParseScheme(std::string_view name) { return ParseName<Scheme>("scheme", kSchemes, name); }

std::string ToString(Scheme scheme) {
  return std::string(kSchemes.at(static_cast<std::size_t>(scheme)));
}

std::span<const std::string_view> SchemeNames() {
  static constexpr std::array<std::string_view, 7> kGiven{
      "sequential", "kahan", "fma", "chunked", "pairwise", "block_fma", "fixed"};
  return kGiven;
}

std::span<const std::string_view> SumSchemeNames() {
  static constexpr std::array<std::string_view, 5> kGiven{"sequential", "kahan", "chunked",
                                                          "pairwise", "fixed"};
  return kGiven;
}

void Check(const Accumulator& accumulator, bool on_gpu) {
  Check(accumulator.format);
  Check(accumulator.rounding, on_gpu);
  CheckName("scheme", kSchemes, accumulator.scheme);
  if (accumulator.product) Check(*accumulator.product);
  if (accumulator.inner) Check(*accumulator.inner);
  CheckFields(accumulator);
  CheckFormatsOfSums(accumulator);
  if (accumulator.chunk < 1) {
    throw Error("chunk must be at least 1, got " + std::to_string(accumulator.chunk));
  }
  if (accumulator.unit) {
    Check(*accumulator.unit);
  }
  if (accumulator.fixed) Check(*accumulator.fixed);
  CheckEffect(accumulator, accumulator.rounding.mode != Rounding::nearest_even,
              accumulator.rounding.overflow != Overflow::ieee);
}

std::string ToString(const Accumulator& accumulator) {
  std::string text = ToString(accumulator.format) + " " + ToString(accumulator.scheme);
  if (accumulator.scheme == Scheme::chunked) Put(text, "chunk", accumulator.chunk);
  if (accumulator.inner) Put(text, "inner", *accumulator.inner);
  if (accumulator.product) Put(text, "product", *accumulator.product);
  if (accumulator.exact_products) Put(text, "product", "exact");
  if (accumulator.unit) text += " " + ToString(*accumulator.unit);
  if (accumulator.fixed) text += " " + ToString(*accumulator.fixed);
  PutMode(text, accumulator.rounding);
  PutVariant(text, accumulator.rounding);
  PutRandomBits(text, accumulator.rounding);
  return text;
}

Accumulator ParseAccumulator(std::string_view text) {
  std::vector<std::string_view> words = Words(text);
  Accumulator accumulator;
  std::vector<std::string_view> given;
  bool is_fma = false;
  const bool is_preset = !words.empty() && NamesPreset(words[0]);
  if (!words.empty() && NamesFixed(words[0]) && !NamesScheme(words)) {
    accumulator.scheme = Scheme::fixed;
    accumulator.fixed = FixedNamed(words[0]);
    words.erase(words.begin());
  } else if (is_preset) {
    accumulator = Preset(words[0]);
    words.erase(words.begin());
  } else {
    const std::string_view format = words.empty() ? "" : words[0];
    if (!words.empty()) words.erase(words.begin());
    const std::string_view scheme = TakeScheme(words, text);
    accumulator.format = ParseFormat(format);
    is_fma = ParseSchemeWord(accumulator, scheme);
  }
  ParseOptions(words, "an accumulator", [&](std::string_view name, std::string_view value) {
    ParseOption(accumulator, name, value);
    given.push_back(name);
  });
  if (is_fma && accumulator.product) {
    throw Error("scheme fma has exact products, got product=" + ToString(*accumulator.product));
  }
  Check(accumulator);
  CheckDraws(accumulator.rounding);
  if (accumulator.unit && !is_preset) CheckUnitText(given);
  const bool rounds = std::ranges::find(given, "rounding") != given.end();
  CheckEffect(accumulator, rounds, accumulator.rounding.overflow != Overflow::ieee);
  return accumulator;
}

Fields FieldsOf(const Accumulator& accumulator) {
  const bool is_exact = accumulator.exact_products || accumulator.unit || accumulator.fixed;
  const Format product = accumulator.product.value_or(accumulator.format);
  Fields fields{{"format", FieldOf(accumulator.format)},
                {"scheme", FieldOf(accumulator.scheme)},
                {"product", is_exact ? FieldOf("exact") : FieldOf(product)},
                {"inner", FieldOf(accumulator.inner.value_or(accumulator.format))},
                {"chunk", FieldOf(accumulator.chunk)},
                {"unit", FieldOf(accumulator.unit)},
                {"fixed", FieldOf(accumulator.fixed)}};
  PutFields(fields, accumulator.rounding);
  return fields;
}

}  // namespace cpd
