// SPDX-License-Identifier: Apache-2.0
#include "cpd/numeric/accumulator.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "cpd/text/format_names.h"
#include "cpd/text/names.h"

namespace cpd {
namespace {

constexpr std::array<std::string_view, 5> kSchemes{"sequential", "kahan", "chunked", "pairwise",
                                                   "block_fma"};
/// Of the text form: the same, then fma, which is sequential with exact products.
constexpr std::array<std::string_view, 6> kSchemeWords{"sequential", "kahan",     "chunked",
                                                       "pairwise",   "block_fma", "fma"};
constexpr std::size_t kFma = kSchemeWords.size() - 1;
/// Options of the text form, those of a unit last.
constexpr std::array<std::string_view, 16> kOptions{"product",      "inner",    "chunk",
                                                    "rounding",     "overflow", "variant",
                                                    "random_bits",  "a",        "b",
                                                    "block",        "sum",      "fraction_bits",
                                                    "min_exponent", "promote",  "sum_rounding",
                                                    "addend"};

constexpr std::int64_t kDefaultChunk = Accumulator{}.chunk;
constexpr int kMostBlock = 64;
constexpr int kMostFraction = 30;
constexpr int kLeastExponent = -400;  // below every product of binary32 values
constexpr int kMostExponent = 127;

// --- checks --------------------------------------------------------------------------------------

void CheckBetween(const std::string& what, std::int64_t low, std::int64_t high,
                  std::int64_t given) {
  if (given >= low && given <= high) return;
  throw Error(what + " must be " + std::to_string(low) + "…" + std::to_string(high) + ", got " +
              std::to_string(given));
}

void CheckOperand(const char* name, const Format& format) {
  if (format.has_zero()) return;
  throw Error("block_fma: " + std::string(name) + " must be a format with a zero, got " +
              ToString(format));
}

void CheckUnit(const BlockFma& unit) {
  Check(unit.a);
  Check(unit.b);
  Check(unit.sum);
  Check(RoundingOptions{.mode = unit.rounding});
  CheckOperand("a", unit.a);
  CheckOperand("b", unit.b);
  CheckBetween("block_fma: block", 1, kMostBlock, unit.block);
  CheckBetween("block_fma: fraction_bits", 1, kMostFraction, unit.fraction_bits);
  CheckBetween("block_fma: min_exponent", kLeastExponent, kMostExponent, unit.min_exponent);
  if (!unit.sum.has_zero() || !unit.sum.is_signed) {
    throw Error("block_fma: sum must be a signed format with a zero, got " + ToString(unit.sum));
  }
  if (unit.rounding != Rounding::toward_zero && unit.rounding != Rounding::nearest_even) {
    throw Error("block_fma: the unit rounds toward_zero or nearest_even, got " +
                ToString(unit.rounding));
  }
  if (unit.promote < 0 || unit.promote % unit.block != 0) {
    throw Error("block_fma: promote must be 0 or a multiple of block = " +
                std::to_string(unit.block) + ", got " + std::to_string(unit.promote));
  }
}

/// Fields that only one scheme has, and products, which block_fma has its own way with.
void CheckFields(const Accumulator& accumulator) {
  const auto refuse = [&](const char* what) {
    throw Error(what + (", got scheme " + ToString(accumulator.scheme)));
  };
  const bool is_chunked = accumulator.scheme == Scheme::chunked;
  const bool is_unit = accumulator.scheme == Scheme::block_fma;
  if (accumulator.inner && !is_chunked) refuse("inner is for scheme chunked");
  if (accumulator.chunk != kDefaultChunk && !is_chunked) refuse("chunk is for scheme chunked");
  if (accumulator.unit && !is_unit) refuse("a unit is for scheme block_fma");
  if (!accumulator.unit && is_unit) {
    throw Error("scheme block_fma needs its unit: a preset (v100, h100-fp8, …) or a BlockFma");
  }
  if (accumulator.product && accumulator.exact_products) {
    throw Error("product must be a format or exact, got both " + ToString(*accumulator.product) +
                " and exact");
  }
  if (is_unit && (accumulator.product || accumulator.exact_products)) {
    throw Error("scheme block_fma forms its products exactly: leave product out");
  }
}

// --- text ----------------------------------------------------------------------------------------

/// Writes ` name=value`.
template <class T>
void Put(std::string& text, const char* name, const T& value) {
  text += ' ';
  text += name;
  text += '=';
  if constexpr (std::is_convertible_v<T, std::string_view>) {
    text += value;
  } else if constexpr (std::is_integral_v<T>) {
    text += std::to_string(value);
  } else {
    text += ToString(value);
  }
}

void PutUnit(std::string& text, const BlockFma& unit) {
  Put(text, "a", unit.a);
  Put(text, "b", unit.b);
  Put(text, "block", unit.block);
  Put(text, "fraction_bits", unit.fraction_bits);
  Put(text, "min_exponent", unit.min_exponent);
  Put(text, "sum", unit.sum);
  if (unit.rounding != BlockFma{}.rounding) Put(text, "sum_rounding", unit.rounding);
  if (!unit.aligns_addend) Put(text, "addend", "separate");
  if (unit.promote != 0) Put(text, "promote", unit.promote);
}

void PutRounding(std::string& text, const RoundingOptions& rounding) {
  const RoundingOptions usual;
  if (rounding.mode != usual.mode) Put(text, "rounding", rounding.mode);
  if (rounding.overflow != usual.overflow) Put(text, "overflow", rounding.overflow);
  if (rounding.variant != usual.variant) Put(text, "variant", rounding.variant);
  if (rounding.random_bits != usual.random_bits) Put(text, "random_bits", rounding.random_bits);
}

template <class Integer>
Integer ParseInteger(std::string_view name, std::string_view text) {
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Error(std::string(name) + " must be an integer, got '" + std::string(text) + "'");
  }
  return value;
}

/// Sets the scheme, and what it implies; true for fma.
bool ParseSchemeWord(Accumulator& accumulator, std::string_view word) {
  const auto number = ParseName<std::size_t>("scheme", kSchemeWords, word);
  accumulator.exact_products = number == kFma;
  if (accumulator.exact_products) return true;
  accumulator.scheme = static_cast<Scheme>(number);
  if (accumulator.scheme == Scheme::block_fma) accumulator.unit.emplace();
  return false;
}

void ParseProduct(Accumulator& accumulator, std::string_view text) {
  accumulator.exact_products = text == "exact";
  accumulator.product.reset();
  if (!accumulator.exact_products) accumulator.product = ParseFormat(text);
}

/// An option of a unit; false where there is none of that name.
bool ParseUnitOption(BlockFma& unit, std::string_view name, std::string_view text) {
  constexpr std::array<std::string_view, 2> kAddends{"separate", "aligned"};
  if (name == "a") {
    unit.a = ParseFormat(text);
  } else if (name == "b") {
    unit.b = ParseFormat(text);
  } else if (name == "block") {
    unit.block = ParseInteger<int>(name, text);
  } else if (name == "fraction_bits") {
    unit.fraction_bits = ParseInteger<int>(name, text);
  } else if (name == "min_exponent") {
    unit.min_exponent = ParseInteger<int>(name, text);
  } else if (name == "sum") {
    unit.sum = ParseFormat(text);
  } else if (name == "sum_rounding") {
    unit.rounding = ParseRounding(text);
  } else if (name == "addend") {
    unit.aligns_addend = ParseName<int>("addend", kAddends, text) == 1;
  } else if (name == "promote") {
    unit.promote = ParseInteger<std::int64_t>(name, text);
  } else {
    return false;
  }
  return true;
}

bool ParseRoundingOption(RoundingOptions& rounding, std::string_view name, std::string_view text) {
  if (name == "rounding") {
    rounding.mode = ParseRounding(text);
  } else if (name == "overflow") {
    rounding.overflow = ParseOverflow(text);
  } else if (name == "variant") {
    rounding.variant = ParseVariant(text);
  } else if (name == "random_bits") {
    rounding.random_bits = ParseInteger<int>(name, text);
  } else {
    return false;
  }
  return true;
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
  throw Error("unknown option " + Quoted(name) +
              " of an accumulator; there are product, inner, chunk, rounding, overflow, variant, "
              "random_bits, and with block_fma a, b, block, fraction_bits, min_exponent, sum, "
              "sum_rounding, addend and promote" +
              DidYouMean(name, kOptions));
}

/// The words between spaces; those within parentheses, as in `(4, 3)`, do not count.
std::vector<std::string_view> Words(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    if (text.empty()) return words;
    std::size_t end = 0;
    for (bool inside = false; end < text.size() && (inside || text[end] != ' '); ++end) {
      if (text[end] == '(') inside = true;
      if (text[end] == ')') inside = false;
    }
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

bool IsOption(std::string_view word) { return word.find('=') != std::string_view::npos; }

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

// --- presets -------------------------------------------------------------------------------------

constexpr Format kFp16{.exp = 5, .man = 10, .bias = 15};
constexpr Format kBf16{.exp = 8, .man = 7, .bias = 127};
constexpr Format kTf32{.exp = 8, .man = 10, .bias = 127};
constexpr Format kE4m3fn{.exp = 4, .man = 3, .bias = 7, .encoding = Encoding::fn};
constexpr Format kE8m13{.exp = 8, .man = 13, .bias = 127};  ///< what FP8 units keep of fp32

constexpr std::string_view kReplayed = "replayed";
constexpr std::string_view kLiterature = "literature";
constexpr std::string_view kVectors =
    "5,000 published dot products of the GPU (MATLAB-tensor-core, arXiv 2512.07004)";
constexpr std::string_view kMmaSim = "MMA-Sim (arXiv 2511.10909)";
constexpr std::string_view kDeepSeek =
    "DeepSeek-V3 (arXiv 2412.19437, section 3.3.2) for the promotion; the unit is h100-fp8";

struct Unit {
  std::string_view name;
  Format operand;
  int block;
  int fraction_bits;
  int min_exponent;
  std::int64_t promote;
  std::string_view evidence;
  std::string_view source;
};

// V100's least exponent is published nowhere and never counts: what is not zero lies above it.
constexpr std::array<Unit, 16> kUnits{{
    {"v100", kFp16, 4, 23, -133, 0, kReplayed, kVectors},
    {"a100", kFp16, 8, 24, -132, 0, kLiterature, kMmaSim},
    {"a100-bf16", kBf16, 8, 24, -132, 0, kLiterature, kMmaSim},
    {"a100-tf32", kTf32, 4, 24, -132, 0, kLiterature, kMmaSim},
    {"ada-fp16", kFp16, 8, 24, -132, 0, kLiterature, kMmaSim},
    {"ada-bf16", kBf16, 8, 24, -132, 0, kLiterature, kMmaSim},
    {"ada-tf32", kTf32, 4, 24, -132, 0, kLiterature, kMmaSim},
    {"ada-fp8", kE4m3fn, 16, 13, -132, 0, kLiterature, kMmaSim},
    {"h100-fp16", kFp16, 16, 25, -133, 0, kReplayed, kVectors},
    {"h100-bf16", kBf16, 16, 25, -133, 0, kReplayed, kVectors},
    {"h100-tf32", kTf32, 8, 25, -133, 0, kReplayed, kVectors},
    {"h100-fp8", kE4m3fn, 32, 13, -139, 0, kReplayed, kVectors},
    {"b200-fp16", kFp16, 16, 25, -133, 0, kLiterature, kMmaSim},
    {"b200-bf16", kBf16, 16, 25, -133, 0, kLiterature, kMmaSim},
    {"b200-tf32", kTf32, 8, 25, -133, 0, kLiterature, kMmaSim},
    {"deepseek-promoted", kE4m3fn, 32, 13, -139, 128, kLiterature, kDeepSeek},
}};

constexpr std::string_view kRefused = "b200-fp8";

/// In any letter case.
const Unit* FindUnit(std::string_view name) {
  const auto* const found = std::ranges::find(kUnits, Lower(name), &Unit::name);
  return found == kUnits.end() ? nullptr : found;
}

const Unit& UnitNamed(std::string_view name) {
  if (const Unit* unit = FindUnit(name)) return *unit;
  if (Lower(name) == kRefused) {
    throw Error(
        "no preset b200-fp8: no known rule reproduces the published results of B200's FP8 unit");
  }
  std::array<std::string_view, kUnits.size()> names;
  std::ranges::transform(kUnits, names.begin(), &Unit::name);
  std::string known;
  for (const std::string_view one : names) known += (known.empty() ? "" : ", ") + std::string(one);
  throw Error("unknown preset " + Quoted(name) + "; there are " + known + DidYouMean(name, names));
}

void CheckOutput(const Unit& unit, const Format& output) {
  if (output == kFp32) return;
  const std::string name(unit.name);
  if (output != kFp16) {
    throw Error("preset " + name + ": output must be fp32 or fp16, got " + ToString(output));
  }
  if (unit.operand == kE4m3fn) {
    throw Error("preset " + name +
                ": output must be fp32, got fp16: no known rule reproduces the published fp16 "
                "results of FP8 units");
  }
  if (unit.operand != kFp16) {
    throw Error("preset " + name + ": output must be fp32, got fp16, which is for fp16 operands");
  }
}

}  // namespace

Scheme ParseScheme(std::string_view name) { return ParseName<Scheme>("scheme", kSchemes, name); }

std::string ToString(Scheme scheme) {
  return std::string(kSchemes.at(static_cast<std::size_t>(scheme)));
}

void Check(const Accumulator& accumulator, bool on_gpu) {
  Check(accumulator.format);
  Check(accumulator.rounding, on_gpu);
  CheckName("scheme", kSchemes, accumulator.scheme);
  if (accumulator.product) Check(*accumulator.product);
  if (accumulator.inner) Check(*accumulator.inner);
  CheckFields(accumulator);
  if (accumulator.chunk < 1) {
    throw Error("chunk must be at least 1, got " + std::to_string(accumulator.chunk));
  }
  if (accumulator.unit) CheckUnit(*accumulator.unit);
}

std::string ToString(const Accumulator& accumulator) {
  std::string text = ToString(accumulator.format) + " " + ToString(accumulator.scheme);
  if (accumulator.scheme == Scheme::chunked) Put(text, "chunk", accumulator.chunk);
  if (accumulator.inner) Put(text, "inner", *accumulator.inner);
  if (accumulator.product) Put(text, "product", *accumulator.product);
  if (accumulator.exact_products) Put(text, "product", "exact");
  if (accumulator.unit) PutUnit(text, *accumulator.unit);
  PutRounding(text, accumulator.rounding);
  return text;
}

bool NamesPreset(std::string_view word) {
  if (FindUnit(word) != nullptr || Lower(word) == kRefused) return true;
  const bool hyphen = word.find('-') != std::string_view::npos;
  return hyphen && word.find_first_of(":=( ") == std::string_view::npos &&
         FormatMeant(word).empty();
}

Accumulator ParseAccumulator(std::string_view text) {
  std::vector<std::string_view> words = Words(text);
  Accumulator accumulator;
  bool is_fma = false;
  if (!words.empty() && NamesPreset(words[0])) {
    accumulator = Preset(words[0]);
    words.erase(words.begin());
  } else {
    const std::string_view format = words.empty() ? "" : words[0];
    if (!words.empty()) words.erase(words.begin());
    const std::string_view scheme = TakeScheme(words, text);
    accumulator.format = ParseFormat(format);
    is_fma = ParseSchemeWord(accumulator, scheme);
  }
  std::set<std::string_view> given;
  for (const std::string_view word : words) {
    if (!IsOption(word)) {
      throw Error("an accumulator's options are name=value, got " + Quoted(word));
    }
    const std::size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    if (!given.insert(name).second) {
      throw Error("option " + Quoted(name) + " of an accumulator is given twice");
    }
    ParseOption(accumulator, name, word.substr(equals + 1));
  }
  if (is_fma && accumulator.product) {
    throw Error("scheme fma has exact products, got product=" + ToString(*accumulator.product));
  }
  Check(accumulator);
  return accumulator;
}

Accumulator Preset(std::string_view name, const Format& output) {
  const Unit& unit = UnitNamed(name);
  Check(output);
  CheckOutput(unit, output);
  BlockFma rule;
  rule.a = rule.b = unit.operand;
  rule.block = unit.block;
  rule.fraction_bits = unit.fraction_bits;
  rule.min_exponent = unit.min_exponent;
  rule.promote = unit.promote;
  rule.sum = unit.operand == kE4m3fn ? kE8m13 : output;
  if (output == kFp16) rule.rounding = Rounding::nearest_even;
  Accumulator accumulator;
  accumulator.format = output;
  accumulator.scheme = Scheme::block_fma;
  accumulator.unit = rule;
  return accumulator;
}

std::vector<PresetInfo> Presets() {
  std::vector<PresetInfo> all;
  all.reserve(kUnits.size());
  for (const Unit& unit : kUnits) {
    all.push_back({std::string(unit.name), std::string(unit.evidence), std::string(unit.source)});
  }
  return all;
}

}  // namespace cpd
