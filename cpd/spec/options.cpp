// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/options.h"

#include <algorithm>

namespace cpd {

void PutMode(std::string& text, const RoundingOptions& rounding) {
  const RoundingOptions usual;
  if (rounding.mode != usual.mode) Put(text, "rounding", rounding.mode);
  if (rounding.overflow != usual.overflow) Put(text, "overflow", rounding.overflow);
}

void PutVariant(std::string& text, const RoundingOptions& rounding) {
  if (rounding.variant != RoundingOptions{}.variant) Put(text, "variant", rounding.variant);
}

void PutRandomBits(std::string& text, const RoundingOptions& rounding) {
  if (rounding.random_bits != RoundingOptions{}.random_bits) {
    Put(text, "random_bits", rounding.random_bits);
  }
}

void CheckDraws(const RoundingOptions& rounding) {
  if (rounding.mode == Rounding::stochastic) return;
  std::string given;
  PutRandomBits(given, rounding);
  if (given.empty()) PutVariant(given, rounding);
  if (given.empty()) return;
  throw Error(given.substr(1) + " has no effect with rounding=" + ToString(rounding.mode) +
              ": random_bits= and variant= are for rounding=stochastic");
}

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

std::string Written(std::string_view name, std::string_view value) {
  const char* const quote = value.find(' ') == std::string_view::npos ? "" : "'";
  return " " + std::string(name) + "=" + quote + std::string(value) + quote;
}

std::vector<std::string> QuotedWords(std::string_view text) {
  std::vector<std::string> words;
  char until = 0;
  bool begins = true;
  for (const char c : text) {
    if (until == 0 && (c == ' ' || c == '\t' || c == '\n' || c == '\r')) {
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

bool IsOption(std::string_view word) { return word.find('=') != std::string_view::npos; }

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

void PutFields(Fields& fields, const RoundingOptions& rounding) {
  fields.insert(fields.end(), {{"rounding", FieldOf(rounding.mode)},
                               {"overflow", FieldOf(rounding.overflow)},
                               {"random_bits", FieldOf(rounding.random_bits)},
                               {"variant", FieldOf(rounding.variant)}});
}

std::vector<Option> OptionsOf(const std::vector<std::string_view>& words,
                              const std::string& owner) {
  std::vector<Option> options;
  ParseOptions(words, owner, [&](std::string_view name, std::string_view value) {
    options.emplace_back(name, value);
  });
  return options;
}

}  // namespace cpd
