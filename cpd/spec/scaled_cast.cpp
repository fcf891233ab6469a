// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/scaled_cast.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <vector>

#include "cpd/spec/names.h"
#include "cpd/spec/options.h"

namespace cpd {
namespace {

using Kind = BlockShape::Kind;

constexpr std::array<std::string_view, 2> kAmaxNames{"max", "most_recent"};
/// The options that are the cast's; a scaled format has the others.
constexpr std::array<std::string_view, 7> kCastOptions{
    "rounding", "overflow", "random_bits", "variant", "factor", "history", "amax"};

bool IsOptionOfCast(std::string_view word) {
  return std::ranges::find(kCastOptions, word.substr(0, word.find('='))) != kCastOptions.end();
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

bool ParseCastOption(ScaledCast& cast, std::string_view name, std::string_view text) {
  if (ParseRoundingOption(cast.rounding, name, text)) return true;
  if (name == "factor") {
    cast.factor = ParseFactor(text);
  } else if (name == "history") {
    cast.history = ParseInteger<int>(name, text);
  } else if (name == "amax") {
    cast.amax = ParseName<ScaledCast::Amax>("amax", kAmaxNames, text);
  } else {
    return false;
  }
  return true;
}

std::string Joined(const std::vector<std::string_view>& words) {
  std::string text;
  for (const std::string_view word : words) {
    text += (text.empty() ? "" : " ") + std::string(word);
  }
  return text;
}

}  // namespace

void Check(const ScaledCast& cast) {
  Check(cast.scaled);
  Check(cast.rounding);
  CheckDraws(cast.rounding);
  CheckName("amax", kAmaxNames, cast.amax);
  const Scaled& to = cast.scaled;
  const auto got = [&] { return ", got " + ToString(to); };
  if (!(cast.factor > 0 && cast.factor <= 1)) {
    throw Error("factor must be above 0 and at most 1, got " + Digits(cast.factor));
  }
  if (cast.history < 0 || cast.history > ScaledCast::kMostHistory) {
    throw Error("history must be 0…2^20 steps, got " + std::to_string(cast.history));
  }
  if (cast.amax != ScaledCast::Amax::max && cast.history == 0) {
    throw Error("amax=" + ToString(cast.amax) + " has no effect without a history: give history=");
  }
  const bool one_scale =
      to.block.kind == Kind::tensor && !to.tensor_scale && to.scale == kFp32 && !to.transform;
  if (cast.history != 0 && (!one_scale || cast.factor != 1)) {
    throw Error(
        "a history goes with one fp32 scale a tensor, without transform and factor "
        "(e4m3fn block=tensor scale=fp32)" +
        got());
  }
  if (cast.factor != 1 && (to.block.kind == Kind::tensor || to.tensor_scale)) {
    throw Error("a factor goes with one level of blocks" + got());
  }
}

std::string ToString(ScaledCast::Amax amax) {
  return std::string(kAmaxNames.at(static_cast<std::size_t>(amax)));
}

std::span<const std::string_view> AmaxNames() { return kAmaxNames; }

std::string ToString(const ScaledCast& cast) {
  Check(cast);
  std::string text = ToString(cast.scaled);
  if (cast.rounding.mode != Rounding::nearest_even) Put(text, "rounding", cast.rounding.mode);
  PutRandomBits(text, cast.rounding);
  PutVariant(text, cast.rounding);
  if (cast.rounding.overflow != Overflow::saturate) Put(text, "overflow", cast.rounding.overflow);
  if (cast.factor != 1) Put(text, "factor", Digits(cast.factor));
  if (cast.history != 0) Put(text, "history", cast.history);
  if (cast.amax != ScaledCast::Amax::max) Put(text, "amax", cast.amax);
  return text;
}

std::string ToString(const OperandCast& cast) {
  return std::visit([](const auto& one) { return ToString(one); }, cast);
}

OperandCast ParseOperandCast(std::string_view text) {
  std::vector<std::string_view> format = Words(text);
  std::vector<std::string_view> options;
  std::ranges::copy_if(format, std::back_inserter(options), IsOptionOfCast);
  std::erase_if(format, IsOptionOfCast);
  const std::string to = Joined(format);
  if (!NamesScaled(to)) return ParseCastSpec(to + (options.empty() ? "" : " ") + Joined(options));
  ScaledCast cast{.scaled = ParseScaled(to)};
  ParseOptions(options, "a cast", [&](std::string_view name, std::string_view value) {
    ParseCastOption(cast, name, value);
  });
  Check(cast);
  return cast;
}

bool IsWhole(const OperandCast& cast) {
  const auto* const scaled = std::get_if<ScaledCast>(&cast);
  if (scaled == nullptr) return true;
  const Scaled& to = scaled->scaled;
  if (to.transform || (to.tensor_scale && to.outer == Kind::row)) return false;
  if (to.block.kind == Kind::tile) return to.block.rows > 1 && to.block.rows == to.block.columns;
  return to.block.kind == Kind::tensor;
}

Fields FieldsOf(const ScaledCast& cast) {
  return {{"scaled", FieldOf(cast.scaled)},
          {"cast", FieldOf(CastSpec{cast.scaled.element, cast.rounding})},
          {"factor", FieldOf(cast.factor)},
          {"history", FieldOf(cast.history)},
          {"amax", FieldOf(cast.amax)}};
}

}  // namespace cpd
