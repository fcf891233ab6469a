// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <variant>

namespace cpd {
namespace {

/// Returns a number in plain digits. A binary64 number that is not 0 and is below 10^-4, or has
/// more than 16 digits before the point, is written with an exponent.
std::string Digits(double value) {
  const bool plain = value == 0 || (std::abs(value) >= 1e-4 && std::abs(value) < 1e16);
  const auto how = plain ? std::chars_format::fixed : std::chars_format::scientific;
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value, how);
  return {text.data(), end};
}

std::string Digits(float value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end};
}

}  // namespace

std::vector<std::string> WordsOf(std::string_view text) {
  std::vector<std::string> words;
  char until = 0;
  bool begins = true;
  for (const char c : text) {
    if (until == 0 && (c == ' ' || (c >= '\t' && c <= '\r'))) {
      begins = true;
      continue;
    }
    if (begins) words.emplace_back();
    begins = false;
    if (until != 0 && c == until) {
      until = 0;
      if (c != ')') continue;
    } else if (until == 0 && (c == '\'' || c == '"')) {
      until = c;
      continue;
    } else if (until == 0 && c == '(') {
      until = ')';
    }
    words.back() += c;
  }
  if (until == '\'' || until == '"') throw Error("a quote is not closed in " + Quoted(text));
  return words;
}

std::string Written(std::string_view name, std::string_view value) {
  return " " + std::string(name) + "=" + Enclosed(value);
}

bool IsOption(std::string_view word) { return word.find('=') != std::string_view::npos; }

std::vector<Option> OptionsOf(std::span<const std::string> words, std::string_view owner) {
  std::vector<Option> options;
  for (const std::string& word : words) {
    if (!IsOption(word)) {
      throw Error(std::string(owner) + "'s options are name=value, got " + Quoted(word));
    }
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (ValueOf(options, name) != nullptr) {
      throw Error("option " + Quoted(name) + " of " + std::string(owner) + " is given twice");
    }
    options.emplace_back(name, word.substr(equals + 1));
  }
  return options;
}

const std::string* ValueOf(std::span<const Option> options, std::string_view name) {
  const auto found = std::ranges::find(options, name, &Option::first);
  return found == options.end() ? nullptr : &found->second;
}

std::vector<Option> Merged(std::vector<Option> options, std::span<const Option> given) {
  std::erase_if(options, [&](const Option& one) { return ValueOf(given, one.first) != nullptr; });
  options.insert(options.end(), given.begin(), given.end());
  return options;
}

std::string TextOf(const FieldValue& value) {
  return std::visit(
      [](const auto& one) -> std::string {
        using T = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return "none";
        } else if constexpr (std::is_same_v<T, bool>) {
          return one ? "true" : "false";
        } else if constexpr (std::is_integral_v<T>) {
          return std::to_string(one);
        } else if constexpr (std::is_floating_point_v<T>) {
          return Digits(one);
        } else {
          return one;
        }
      },
      value);
}

std::string Enclosed(std::string_view word) {
  const char* const quote = word.find(' ') == std::string_view::npos ? "" : "'";
  return quote + std::string(word) + quote;
}

void CheckDraws(const RoundingOptions& rounding) {
  if (rounding.mode == Rounding::stochastic) return;
  const RoundingOptions usual;
  std::string given;
  if (rounding.variant != usual.variant) given = "variant=" + ToString(rounding.variant);
  if (rounding.random_bits != usual.random_bits) {
    given = "random_bits=" + std::to_string(rounding.random_bits);
  }
  if (given.empty()) return;
  throw Error(given + " has no effect with rounding=" + ToString(rounding.mode) +
              ": random_bits= and variant= are for rounding=stochastic");
}

}  // namespace cpd
