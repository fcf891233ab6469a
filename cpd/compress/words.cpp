// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/words.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "cpd/spec/names.h"

namespace cpd {

CodecWords::CodecWords(std::string_view text, int depth) : text_(text), depth_(depth) {
  std::istringstream stream(text_);
  for (std::string word; stream >> word;) words_.push_back(word);
}

std::string CodecWords::Next() {
  if (words_.empty()) return {};
  std::string word = std::move(words_.front());
  words_.erase(words_.begin());
  return word;
}

std::string CodecWords::Rest() {
  std::string rest;
  for (const std::string& word : words_) rest += (rest.empty() ? "" : " ") + word;
  words_.clear();
  return rest;
}

void CodecWords::Replace(std::span<const Option> options) {
  for (const Option& option : options) {
    const auto& name = option.first;
    const std::string start = name + "=";
    std::erase_if(words_,
                  [&](const std::string& word) { return word == name || word.starts_with(start); });
    if (name != "stochastic") words_.push_back(start + option.second);
    if (name == "stochastic" && option.second == "true") words_.push_back(name);
  }
  text_.clear();
  for (const std::string& word : words_) text_ += (text_.empty() ? "" : " ") + word;
}

std::vector<Option> CodecWords::Given(std::span<const std::string_view> names) {
  std::vector<std::string> given;
  std::erase_if(words_, [&](const std::string& word) {
    const std::string_view name = std::string_view(word).substr(0, word.find('='));
    const bool is_given = IsOption(word) && std::ranges::find(names, name) != names.end();
    if (is_given) given.push_back(word);
    return is_given;
  });
  return OptionsOf(given, Quoted(text_));
}

bool CodecWords::Flag(std::string_view word) {
  const auto found = std::ranges::find(words_, word);
  if (found == words_.end()) return false;
  words_.erase(found);
  return true;
}

void CodecWords::End(std::string_view codec, std::span<const std::string_view> names,
                     std::string_view word) const {
  if (words_.empty()) return;
  const std::string& left = words_.front();
  if (IsOption(left) && !names.empty()) {
    RefuseOption(std::string_view(left).substr(0, left.find('=')), codec, names);
  }
  std::string takes;
  for (const std::string_view name : names) {
    takes += (takes.empty() ? "" : ", ") + std::string(name) + "=";
  }
  if (!word.empty()) takes += (takes.empty() ? "" : ", ") + std::string(word);
  throw Error(Quoted(left) + " is no option in " + Quoted(text_) + ": it takes " + takes);
}

double ParseNumber(std::string_view what, std::string_view word, double least, double most) {
  double value = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  if (error == std::errc() && stop == end && value >= least && value <= most) return value;
  throw Error(std::string(what) + " must be a number from " + NumberText(least) + " to " +
              NumberText(most) + ", got " + Quoted(word));
}

std::int64_t ParseInteger(std::string_view what, std::string_view word, std::int64_t least,
                          std::int64_t most) {
  std::int64_t value = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  if (error == std::errc() && stop == end && value >= least && value <= most) return value;
  throw Error(std::string(what) + " must be an integer " + std::to_string(least) + "…" +
              std::to_string(most) + ", got " + Quoted(word));
}

std::string NumberText(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  return {text, end};
}

}  // namespace cpd
