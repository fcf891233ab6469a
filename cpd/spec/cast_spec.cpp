// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/cast_spec.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "cpd/spec/keys.h"
#include "cpd/spec/names.h"
#include "cpd/spec/options.h"

namespace cpd {
namespace {

using Kind = BlockShape::Kind;

constexpr std::array<std::string_view, 2> kAmaxNames{"max", "most_recent"};

std::string FormatText(const CastSpec& cast) {
  return std::visit([](const auto& format) { return ToString(format); }, cast.format);
}

constexpr std::array<Key<CastSpec>, 8> kCastKeys{{
    {"format", "cast", nullptr, [](const CastSpec& cast) { return FieldOf(FormatText(cast)); }},
    KeyOf<"rounding", &CastSpec::rounding, &RoundingOptions::mode>(),
    KeyOf<"overflow", &CastSpec::rounding, &RoundingOptions::overflow>(),
    KeyOf<"random_bits", &CastSpec::rounding, &RoundingOptions::random_bits>(),
    KeyOf<"variant", &CastSpec::rounding, &RoundingOptions::variant>(),
    KeyOf<"factor", &CastSpec::factor>(),
    KeyOf<"history", &CastSpec::history>(),
    KeyOf<"amax", &CastSpec::amax>(),
}};
/// The keys of a cast in the order of the text of a scaled format, in which overflow comes after
/// variant.
constexpr auto kCastKeysOfScaled = [] {
  auto keys = kCastKeys;
  std::rotate(keys.begin() + 2, keys.begin() + 3, keys.begin() + 5);
  return keys;
}();

/// Returns a cast to the format or the scaled format of a text. All other fields have their
/// defaults.
CastSpec Plain(std::string_view text) {
  if (!NamesScaled(text)) return {.format = ParseFormat(text)};
  return {.format = ParseScaled(text), .rounding = {.overflow = Overflow::saturate}};
}

/// Throws Error for a word after the format that is neither a rounding nor a block.
[[noreturn]] void RefuseWord(std::string_view word) {
  const auto overflows = NamesOf(Overflow{});
  const bool is_overflow = std::ranges::find(overflows, word) != overflows.end();
  std::string roundings;
  for (const std::string_view one : NamesOf(Rounding{})) roundings += std::string(one) + ", ";
  throw Error("a cast is a format, a rounding (" + roundings.substr(0, roundings.size() - 2) +
              ") and options, name=value, got " + Quoted(word) +
              (is_overflow ? "; did you mean overflow=" + std::string(word) + "?" : ""));
}

}  // namespace

void Check(const CastSpec& cast) {
  const Scaled* const to = cast.scaled();
  if (to != nullptr) Check(*to);
  Check(cast.rounding);
  CheckDraws(cast.rounding);
  CheckName("amax", cast.amax);
  const auto got = [&] { return ", got " + FormatText(cast); };
  if (!(cast.factor > 0 && cast.factor <= 1)) {
    throw Error("factor must be above 0 and at most 1, got " + TextOf(cast.factor));
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

std::span<const std::string_view> NamesOf(CastSpec::Amax /*amax*/) { return kAmaxNames; }

template <>
Keys<CastSpec> KeysOf<CastSpec>() {
  return {"a cast", kCastKeys};
}

std::string ToString(const CastSpec& cast) {
  Check(cast);
  const bool is_scaled = cast.scaled() != nullptr;
  CastSpec base{.format = cast.format};
  if (is_scaled) base.rounding.overflow = Overflow::saturate;
  return FormatText(cast) + TextOfKeys({{}, is_scaled ? kCastKeysOfScaled : kCastKeys}, cast, base);
}

CastSpec ParseCastSpec(std::string_view text) { return Make<CastSpec>(text, {}); }

template <>
CastSpec Make<CastSpec>(std::string_view text, std::span<const Option> keys) {
  const std::vector<std::string_view> names = NamesOf(KeysOf<CastSpec>());
  const std::vector<std::string_view> of_scaled = NamesOf(KeysOf<Scaled>());
  const auto has = [](const std::vector<std::string_view>& all, std::string_view name) {
    return std::ranges::find(all, name) != all.end();
  };
  std::string format;
  std::string wrong;
  std::vector<std::string> options;
  for (const std::string& word : WordsOf(text)) {
    const std::string name = word.substr(0, word.find_first_of("=:"));  // e4m3:bias=11 is a format
    const bool is_option = IsOption(word) && word[name.size()] == '=';
    if (is_option && !has(names, name) && !has(of_scaled, name)) {
      RefuseOption(name, "a cast", names, of_scaled);
    }
    const bool is_rounding = !IsOption(word) && !Nearest(word, NamesOf(Rounding{})).empty();
    if (is_rounding) {
      options.push_back("rounding=" + ToString(ParseRounding(word)));  // throws for a wrong letter
    } else if (is_option && has(names, name)) {
      options.push_back(word);
    } else if (!format.empty() && !IsOption(word) && !IsBlockWord(word)) {
      wrong = word;
    } else {
      format += (format.empty() ? "" : " ") + word;
    }
  }
  CastSpec cast = Plain(format);
  if (!wrong.empty()) RefuseWord(wrong);
  SetKeys(KeysOf<CastSpec>(), Merged(OptionsOf(options, "a cast"), keys), cast);
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

}  // namespace cpd
