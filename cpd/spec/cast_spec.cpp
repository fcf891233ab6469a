// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/cast_spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "cpd/spec/names.h"
#include "cpd/spec/options.h"

namespace cpd {
namespace {

using Kind = BlockShape::Kind;

constexpr std::array<std::string_view, 2> kAmaxNames{"max", "most_recent"};
/// The options of the cast; a scaled format has the others.
constexpr std::array<std::string_view, 7> kCastOptions{
    "rounding", "overflow", "random_bits", "variant", "factor", "history", "amax"};

bool HasName(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

double ParseFactor(std::string_view text) {
  double factor = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), factor);
  if (error == std::errc() && end == text.data() + text.size()) return factor;
  throw Error("factor must be a number, got " + Quoted(text));
}

/// The shortest decimal digits that read as the same number; with an exponent where it is below
/// 10^-4 or has more than 16 digits before the point.
std::string Digits(double value) {
  const bool plain = std::abs(value) >= 1e-4 && std::abs(value) < 1e16;
  const auto how = plain ? std::chars_format::fixed : std::chars_format::scientific;
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value, how);
  return {text.data(), end};
}

void ReadCastOption(CastSpec& cast, std::string_view name, std::string_view text) {
  if (ParseRoundingOption(cast.rounding, name, text)) return;
  if (name == "factor") {
    cast.factor = ParseFactor(text);
  } else if (name == "history") {
    cast.history = ParseInteger<int>(name, text);
  } else {
    cast.amax = ParseName<CastSpec::Amax>("amax", kAmaxNames, text);
  }
}

/// Throws Error for an option that neither casts nor scaled formats have. `e4m3:bias=11` is a
/// format.
void CheckOption(std::string_view name) {
  if (name.find(':') != std::string_view::npos) return;
  std::vector<std::string_view> names(kCastOptions.begin(), kCastOptions.end());
  const auto of_scaled = ScaledOptionNames();
  names.insert(names.end(), of_scaled.begin(), of_scaled.end());
  if (HasName(names, name)) return;
  std::string known;
  for (const std::string_view one : kCastOptions) {
    known += (known.empty() ? "" : ", ") + std::string(one);
  }
  throw Error("unknown option " + Quoted(name) + " of a cast; there are " + known +
              ", and those of scaled formats" + DidYouMean(name, names));
}

std::string FormatText(const CastSpec& cast) {
  return std::visit([](const auto& format) { return ToString(format); }, cast.format);
}

}  // namespace

void Check(const CastSpec& cast) {
  const Scaled* const to = cast.scaled();
  if (to != nullptr) Check(*to);
  Check(cast.rounding);
  CheckDraws(cast.rounding);
  CheckName("amax", kAmaxNames, cast.amax);
  const auto got = [&] { return ", got " + FormatText(cast); };
  if (!(cast.factor > 0 && cast.factor <= 1)) {
    throw Error("factor must be above 0 and at most 1, got " + Digits(cast.factor));
  }
  if (cast.history < 0 || cast.history > CastSpec::kMostHistory) {
    throw Error("history must be 0…2^20 steps, got " + std::to_string(cast.history));
  }
  if (cast.amax != CastSpec::Amax::max && cast.history == 0) {
    throw Error("amax=" + ToString(cast.amax) + " has no effect without a history: give history=");
  }
  const bool one_scale = to != nullptr && to->block.kind == Kind::tensor && !to->tensor_scale &&
                         to->scale == kFp32 && !to->transform;
  if (cast.history != 0 && (!one_scale || cast.factor != 1)) {
    throw Error(
        "a history goes with one fp32 scale a tensor, without transform and factor "
        "(e4m3fn block=tensor scale=fp32)" +
        got());
  }
  const bool one_level = to != nullptr && to->block.kind != Kind::tensor && !to->tensor_scale;
  if (cast.factor != 1 && !one_level) throw Error("a factor goes with one level of blocks" + got());
}

std::string ToString(CastSpec::Amax amax) {
  return std::string(kAmaxNames.at(static_cast<std::size_t>(amax)));
}

std::span<const std::string_view> AmaxNames() { return kAmaxNames; }

std::string ToString(const CastSpec& cast) {
  Check(cast);
  const bool is_scaled = cast.scaled() != nullptr;
  const Overflow usual = is_scaled ? Overflow::saturate : Overflow::ieee;
  std::string overflow;
  if (cast.rounding.overflow != usual) Put(overflow, "overflow", cast.rounding.overflow);
  std::string text = FormatText(cast);
  if (cast.rounding.mode != Rounding::nearest_even) Put(text, "rounding", cast.rounding.mode);
  if (!is_scaled) text += overflow;
  PutRandomBits(text, cast.rounding);
  PutVariant(text, cast.rounding);
  if (is_scaled) text += overflow;
  if (cast.factor != 1) Put(text, "factor", Digits(cast.factor));
  if (cast.history != 0) Put(text, "history", cast.history);
  if (cast.amax != CastSpec::Amax::max) Put(text, "amax", cast.amax);
  return text;
}

CastSpec ParseCastSpec(std::string_view text) {
  std::string format;
  std::string options;
  for (const std::string_view word : Words(text)) {
    const std::string_view name = word.substr(0, word.find('='));
    if (IsOption(word)) CheckOption(name);
    const bool is_rounding = !IsOption(word) && !Nearest(word, RoundingNames()).empty();
    if (is_rounding) ParseRounding(word);  // throws where a letter is wrong
    const bool is_option = is_rounding || (IsOption(word) && HasName(kCastOptions, name));
    std::string& words = is_option ? options : format;
    words += (words.empty() ? "" : " ") + std::string(is_rounding ? "rounding=" : "");
    words += word;
  }
  CastSpec cast;
  if (NamesScaled(format)) {
    cast.format = ParseScaled(format);
    cast.rounding.overflow = Overflow::saturate;
  } else {
    cast.format = ParseFormat(format);
  }
  ParseOptions(Words(options), "a cast", [&](std::string_view name, std::string_view value) {
    ReadCastOption(cast, name, value);
  });
  Check(cast);
  return cast;
}

bool IsWhole(const CastSpec& cast) {
  const Scaled* const to = cast.scaled();
  if (to == nullptr) return true;
  if (to->transform || (to->tensor_scale && to->outer == Kind::row)) return false;
  if (to->block.kind != Kind::tile) return to->block.kind == Kind::tensor;
  return to->block.rows > 1 && to->block.rows == to->block.columns;
}

Fields FieldsOf(const CastSpec& cast) {
  Fields fields{{"format", FieldOf(FormatText(cast))}};
  PutFields(fields, cast.rounding);
  fields.insert(fields.end(), {{"factor", FieldOf(cast.factor)},
                               {"history", FieldOf(cast.history)},
                               {"amax", FieldOf(cast.amax)}});
  return fields;
}

}  // namespace cpd
