// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/accumulator.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cpd/spec/block_fma.h"
#include "cpd/spec/fixed_point.h"
#include "cpd/spec/keys.h"
#include "cpd/spec/names.h"
#include "cpd/spec/options.h"
#include "cpd/spec/presets.h"

namespace cpd {
namespace {

constexpr std::array<std::string_view, 6> kSchemes{"sequential", "kahan",     "chunked",
                                                   "pairwise",   "block_fma", "fixed"};
/// The words for schemes in a text: the names of the schemes in the order of their enumerators,
/// then `fma`, which stands for sequential with exact products.
constexpr std::array<std::string_view, 7> kSchemeWords{"sequential", "kahan", "chunked", "pairwise",
                                                       "block_fma",  "fixed", "fma"};
constexpr std::size_t kFma = kSchemeWords.size() - 1;
constexpr std::int64_t kDefaultChunk = Accumulator{}.chunk;

bool IsChunked(const Accumulator& accumulator) { return accumulator.scheme == Scheme::chunked; }

/// Throws Error for a field that belongs to another scheme, for a missing unit or integer, and for
/// `product` with block_fma or fixed, whose products are exact.
void CheckFields(const Accumulator& accumulator) {
  const auto refuse = [&](const char* what) {
    throw Error(what + (", got scheme " + ToString(accumulator.scheme)));
  };
  const bool is_chunked = IsChunked(accumulator);
  const bool is_unit = accumulator.scheme == Scheme::block_fma;
  const bool is_fixed = accumulator.scheme == Scheme::fixed;
  if (accumulator.inner && !is_chunked) refuse("inner is for scheme chunked");
  if (accumulator.chunk != kDefaultChunk && !is_chunked) refuse("chunk is for scheme chunked");
  if (accumulator.unit && !is_unit) refuse("a unit is for scheme block_fma");
  if (!accumulator.unit && is_unit) {
    throw Error(
        "scheme block_fma needs its unit: a name (v100, h100-fp8, …) or its keys a, b, block, …");
  }
  if (accumulator.fixed && !is_fixed) refuse("an integer is for scheme fixed");
  if (!accumulator.fixed && is_fixed) {
    throw Error("scheme fixed needs its integer: a width and a fraction");
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

/// Throws Error if a sum would be rounded after each term into an integer format. Integer formats
/// are not supported for that.
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

// ---- the keys of a text ---------------------------------------------------------------------

bool IsUnit(const Accumulator& accumulator) { return accumulator.unit.has_value(); }
bool IsInteger(const Accumulator& accumulator) { return accumulator.fixed.has_value(); }
bool HasSumRounding(const Accumulator& accumulator) {
  return IsUnit(accumulator) || IsInteger(accumulator);
}
bool IsOrdered(const Accumulator& accumulator) { return !HasSumRounding(accumulator); }

bool Always(const Accumulator& /*accumulator*/) { return true; }
bool HasCuts(const Accumulator& accumulator) { return CutsTerms(accumulator.unit->adder); }
bool HasScale(const Accumulator& accumulator) { return accumulator.unit->scale.has_value(); }
bool HasGroup(const Accumulator& accumulator) { return accumulator.unit->group != 0; }

void SetProduct(Accumulator& accumulator, std::string_view text) {
  accumulator.exact_products = text == "exact";
  accumulator.product.reset();
  if (!accumulator.exact_products) accumulator.product = ParseFormat(text);
}

FieldValue ProductOf(const Accumulator& accumulator) {
  if (accumulator.exact_products) return FieldOf("exact");
  return FieldOf(accumulator.product.value_or(accumulator.format));
}

void SetAddend(Accumulator& accumulator, std::string_view text) {
  constexpr std::array<std::string_view, 2> kAddends{"separate", "aligned"};
  accumulator.unit->aligns_addend = ParseName<int>("addend", kAddends, text) == 1;
}

FieldValue AddendOf(const Accumulator& accumulator) {
  return FieldOf(accumulator.unit->aligns_addend ? "aligned" : "separate");
}

void SetSumRounding(Accumulator& accumulator, std::string_view text) {
  Rounding& rounding = accumulator.unit ? accumulator.unit->rounding : accumulator.fixed->rounding;
  rounding = ParseRounding(text);
}

FieldValue SumRoundingOf(const Accumulator& accumulator) {
  return FieldOf(accumulator.unit ? accumulator.unit->rounding : accumulator.fixed->rounding);
}

FieldValue FormOf(const Accumulator& accumulator) {
  return FieldOf(IsUnit(accumulator) ? "unit" : IsInteger(accumulator) ? "integer" : "ordered");
}

/// Returns the row of the table of keys for a field of the accumulator's matrix unit.
template <KeyName name, auto member>
constexpr Key<Accumulator> OfUnit(bool (*always)(const Accumulator&) = nullptr) {
  return KeyOf<name, &Accumulator::unit, member>(&IsUnit, always);
}

/// The rows of `format` and `scheme` come before the other rows, because they determine the form of
/// the accumulator.
constexpr std::array<Key<Accumulator>, 28> kAccumulatorKeys{{
    {"form", "word", nullptr, &FormOf},
    KeyOf<"format", &Accumulator::format>(),
    KeyOf<"scheme", &Accumulator::scheme>(&IsOrdered),
    KeyOf<"chunk", &Accumulator::chunk>(&IsOrdered, &IsChunked),
    {"inner", "format", [](Accumulator& a, std::string_view text) { a.inner = ParseFormat(text); },
     [](const Accumulator& a) { return FieldOf(a.inner.value_or(a.format)); }, &IsOrdered},
    {"product", "product", &SetProduct, &ProductOf, &IsOrdered},
    OfUnit<"a", &BlockFma::a>(&Always),
    OfUnit<"b", &BlockFma::b>(&Always),
    OfUnit<"block", &BlockFma::block>(&Always),
    OfUnit<"fraction_bits", &BlockFma::fraction_bits>(&HasCuts),
    OfUnit<"min_exponent", &BlockFma::min_exponent>(&HasCuts),
    OfUnit<"sum", &BlockFma::sum>(&Always),
    KeyOf<"width", &Accumulator::fixed, &FixedPoint::width>(&IsInteger, &Always),
    KeyOf<"fraction", &Accumulator::fixed, &FixedPoint::fraction>(&IsInteger, &Always),
    {"sum_rounding", "word", &SetSumRounding, &SumRoundingOf, &HasSumRounding},
    {"addend", "word", &SetAddend, &AddendOf, &IsUnit},
    OfUnit<"promote", &BlockFma::promote>(),
    OfUnit<"scale", &BlockFma::scale>(),
    OfUnit<"scale_block", &BlockFma::scale_block>(&HasScale),
    OfUnit<"dot", &BlockFma::dot>(),
    OfUnit<"adder", &BlockFma::adder>(),
    OfUnit<"group", &BlockFma::group>(&HasGroup),
    OfUnit<"stride", &BlockFma::stride>(&HasGroup),
    OfUnit<"take", &BlockFma::take>(&HasGroup),
    KeyOf<"rounding", &Accumulator::rounding, &RoundingOptions::mode>(),
    KeyOf<"overflow", &Accumulator::rounding, &RoundingOptions::overflow>(),
    KeyOf<"variant", &Accumulator::rounding, &RoundingOptions::variant>(),
    KeyOf<"random_bits", &Accumulator::rounding, &RoundingOptions::random_bits>(),
}};
constexpr std::size_t kWords = 3;  ///< rows before the rows that a text has as name=value

/// Sets a key that a text has. Throws Error if the scheme does not have the key, even if the text
/// gives the key's default value. Every ordered sum has the fields `chunk` and `inner`, but only
/// the scheme `chunked` has the keys.
void SetKey(Accumulator& accumulator, const Key<Accumulator>& key, std::string_view text) {
  const bool is_of_chunks = key.name == "chunk" || key.name == "inner";
  if (key.IsOf(accumulator) && (!is_of_chunks || IsChunked(accumulator))) {
    return key.set(accumulator, text);
  }
  if (key.name == "product") {
    throw Error("scheme " + ToString(accumulator.scheme) +
                " forms its products exactly: leave product out");
  }
  const char* schemes = key.has == &IsOrdered   ? "scheme chunked"
                        : key.has == &IsUnit    ? "scheme block_fma"
                        : key.has == &IsInteger ? "scheme fixed"
                                                : "schemes block_fma and fixed";
  throw Error(std::string(key.name) + " is for " + schemes + ", got scheme " +
              ToString(accumulator.scheme));
}

/// Returns whether the sums of a matrix unit are rounded once more, into the accumulator's format.
bool RoundsSums(const BlockFma& unit, const Format& format) {
  return unit.promote != 0 || !Holds(format, unit.sum);
}

/// Returns whether the integer in which terms are summed can hold a sum that is not a number of the
/// accumulator's format.
bool RoundsSums(const FixedPoint& point, const Format& format) {
  const int top = point.width - 1;  // the least sum is -2^top units
  return top > format.precision() || -point.fraction < format.min_quantum_exponent() ||
         top - point.fraction > format.emax() || !format.is_signed;
}

/// Throws Error if the text sets rounding= or overflow= although no sum of the matrix unit or the
/// integer is rounded. `rounds` and `overflows`: whether the text has rounding= and overflow=.
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

// ---- texts ----------------------------------------------------------------------------------

/// The parts of an accumulator's text: format, scheme and options. A part is empty if the text does
/// not have it.
struct Parts {
  std::string format, scheme;
  std::vector<Option> options;  ///< all but format and scheme

  [[nodiscard]] bool Has(std::string_view name) const { return ValueOf(options, name) != nullptr; }
  [[nodiscard]] bool HasAnyOf(bool (*form)(const Accumulator&)) const {
    return std::ranges::any_of(
        kAccumulatorKeys, [&](const auto& key) { return key.has == form && this->Has(key.name); });
  }
};

/// Returns whether a word may be a format's text, also with options after a colon: `e4m3:bias=9`.
bool IsFormatText(std::string_view word) {
  return !IsOption(word) || word.find(':') < word.find('=');
}

/// Removes an option and returns its value; empty if the option is not in `options`.
std::string Taken(std::vector<Option>& options, std::string_view name) {
  const std::string* const text = ValueOf(options, name);
  std::string taken = text == nullptr ? "" : *text;
  std::erase_if(options, [&](const Option& one) { return one.first == name; });
  return taken;
}

/// Splits an accumulator's text into format, scheme and options. The format is the first word,
/// unless that word is an option. The scheme is the first other word that is not an option. The
/// options `format` and `scheme` replace these words. If a given scheme replaces `chunked`, the
/// text's keys of chunks are dropped.
Parts PartsOf(std::string_view text, std::span<const Option> given) {
  std::vector<std::string> words = WordsOf(text);
  Parts parts;
  if (!words.empty() && IsFormatText(words[0])) {
    parts.format = words[0];
    words.erase(words.begin());
  }
  if (const auto found = std::ranges::find_if_not(words, IsOption); found != words.end()) {
    parts.scheme = *found;
    words.erase(found);
  }
  std::vector<Option> own = OptionsOf(words, "an accumulator");
  if (const std::string* const scheme = ValueOf(given, "scheme");
      scheme != nullptr && parts.scheme == "chunked" && *scheme != "chunked") {
    Taken(own, "chunk");
    Taken(own, "inner");
  }
  parts.options = Merged(std::move(own), given);
  const std::string format = Taken(parts.options, "format");
  if (const std::string scheme = Taken(parts.options, "scheme"); !scheme.empty()) {
    parts.scheme = scheme;
  }
  if (parts.scheme.empty() && (NamesPreset(parts.format) || NamesFixed(parts.format))) {
    std::swap(parts.format, parts.scheme);
  }
  if (!format.empty()) parts.format = format;
  return parts;
}

/// Returns the format that `word` names. `is_alone`: `word` is the whole text of the accumulator.
/// An error then also mentions schemes and matrix units, which the user may have meant.
Format FormatOf(std::string_view word, bool is_alone) {
  try {
    return ParseFormat(word);
  } catch (const Error& error) {
    const std::string why = error.what();
    if (!is_alone || !why.starts_with("unknown format")) throw;
    throw Error(why +
                "; an accumulator may also be a text such as 'e4m3 kahan', or a matrix unit such "
                "as 'h100-fp8' (see cpd.Accumulator.named())");
  }
}

/// Returns the name of the scheme that the text gives. If the text gives no scheme, returns the
/// scheme to which the text's options belong.
std::string_view SchemeOf(const Parts& parts) {
  if (!parts.scheme.empty()) return parts.scheme;
  if (parts.HasAnyOf(&IsUnit)) return "block_fma";
  return parts.HasAnyOf(&IsInteger) ? "fixed" : "sequential";
}

/// Makes an accumulator from the name of a scheme, of a matrix unit, or of an integer format of
/// sums (such as `int32`).
Accumulator WithScheme(std::string_view word, const Parts& parts) {
  Accumulator accumulator;
  const bool is_scheme = std::ranges::find(kSchemeWords, word) != kSchemeWords.end();
  if (!is_scheme && NamesFixed(word)) {
    accumulator.scheme = Scheme::fixed;
    accumulator.fixed = FixedNamed(word);
    return accumulator;
  }
  if (!is_scheme && NamesPreset(word)) {
    return Preset(word, parts.format.empty() ? kFp32 : ParseFormat(parts.format));
  }
  const auto number = ParseName<std::size_t>("scheme", kSchemeWords, word);
  accumulator.exact_products = number == kFma;
  if (number == kFma) return accumulator;
  accumulator.scheme = static_cast<Scheme>(number);
  if (accumulator.scheme == Scheme::block_fma) accumulator.unit.emplace();
  if (accumulator.scheme == Scheme::fixed) accumulator.fixed.emplace();
  return accumulator;
}

/// Throws Error for a matrix unit whose operand formats are missing.
void CheckUnitText(const Parts& parts) {
  if (parts.Has("a") && parts.Has("b")) return;
  throw Error(
      "block_fma needs a= and b=, the formats that its operands hold, as in 'fp32 block_fma "
      "a=e4m3fn b=e4m3fn block=4': exponents follow from them");
}

/// Removes redundant formats: a product format or an inner format that equals the format of the
/// sum.
void DropWhatIsSaidTwice(Accumulator& accumulator) {
  if (accumulator.product == accumulator.format) accumulator.product.reset();
  if (accumulator.inner == accumulator.format) accumulator.inner.reset();
}

}  // namespace

std::span<const std::string_view> NamesOf(Scheme /*scheme*/) { return kSchemes; }

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

void Check(const Accumulator& accumulator) {
  Check(accumulator.format);
  Check(accumulator.rounding);
  CheckName("scheme", accumulator.scheme);
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
  Accumulator base{.format = accumulator.format, .scheme = accumulator.scheme};
  if (accumulator.unit) base.unit.emplace();
  if (accumulator.fixed) base.fixed.emplace();
  const Keys<Accumulator> keys{.owner = {}, .rows = std::span(kAccumulatorKeys).subspan(kWords)};
  return ToString(accumulator.format) + " " + ToString(accumulator.scheme) +
         TextOfKeys(keys, accumulator, base);
}

Accumulator ParseAccumulator(std::string_view text) { return Make<Accumulator>(text, {}); }

template <>
Accumulator Make<Accumulator>(std::string_view text, std::span<const Option> given) {
  const Parts parts = PartsOf(text, given);
  const std::string_view scheme = SchemeOf(parts);
  Accumulator accumulator = WithScheme(scheme, parts);
  const bool has_format = !parts.format.empty();
  if (has_format) accumulator.format = FormatOf(parts.format, text == parts.format);
  if (!has_format && IsOrdered(accumulator)) {
    std::string shown(text);
    for (const auto& [name, value] : given) {
      shown += (shown.empty() ? "" : " ") + name + "=" + value;
    }
    throw Error(
        "an accumulator is a format, a scheme and options, as in 'e6m9 chunked chunk=64', or a "
        "matrix unit and options, as in 'h100-fp8 a=e5m2'; got " +
        Quoted(shown));
  }
  SetKeys(KeysOf<Accumulator>(), parts.options,
          [&](const auto& key, const auto& value) { SetKey(accumulator, key, value); });
  if (scheme == "fma" && accumulator.product) {
    throw Error("scheme fma has exact products, got product=" + ToString(*accumulator.product));
  }
  const bool is_rule = scheme == "block_fma";  // not a unit's name
  if (is_rule && !has_format) accumulator.format = accumulator.unit->sum;
  DropWhatIsSaidTwice(accumulator);
  Check(accumulator);
  CheckDraws(accumulator.rounding);
  if (is_rule) CheckUnitText(parts);
  CheckEffect(accumulator, parts.Has("rounding"), accumulator.rounding.overflow != Overflow::ieee);
  return accumulator;
}

template <>
Keys<Accumulator> KeysOf<Accumulator>() {
  return {"an accumulator", kAccumulatorKeys};
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
