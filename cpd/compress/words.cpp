// SPDX-License-Identifier: Apache-2.0
#include "cpd/compress/words.h"

#include <algorithm>
#include <charconv>
#include <cmath>
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

std::optional<std::string> CodecWords::Option(std::string_view key) {
  const std::string start = std::string(key) + "=";
  std::optional<std::string> value;
  for (auto word = words_.begin(); word != words_.end();) {
    if (!word->starts_with(start)) {
      ++word;
      continue;
    }
    if (value) throw Error(std::string(key) + " is given twice in " + Quoted(text_));
    value = word->substr(start.size());
    word = words_.erase(word);
  }
  return value;
}

std::int64_t CodecWords::Integer(std::string_view key, std::int64_t otherwise, std::int64_t least,
                                 std::int64_t most) {
  const auto given = Option(key);
  if (!given) return otherwise;
  std::int64_t value = 0;
  const char* const end = given->data() + given->size();
  const auto [stop, error] = std::from_chars(given->data(), end, value);
  if (error != std::errc() || stop != end || value < least || value > most) {
    throw Error(std::string(key) + " must be an integer " + std::to_string(least) + "…" +
                std::to_string(most) + ", got " + Quoted(*given));
  }
  return value;
}

double CodecWords::Number(std::string_view key, double otherwise, double least, double most) {
  const auto given = Option(key);
  return given ? ParseNumber(key, *given, least, most) : otherwise;
}

std::size_t CodecWords::Choice(std::string_view key, std::span<const std::string_view> names,
                               std::size_t otherwise) {
  const auto given = Option(key);
  if (!given) return otherwise;
  const auto found = std::ranges::find(names, *given);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  std::string allowed;
  for (const std::string_view one : names) {
    allowed += (allowed.empty() ? "" : ", ") + std::string(one);
  }
  throw Error(std::string(key) + " must be one of " + allowed + ", got " + Quoted(*given));
}

bool CodecWords::Flag(std::string_view word) {
  const auto found = std::ranges::find(words_, word);
  if (found == words_.end()) return false;
  words_.erase(found);
  return true;
}

void CodecWords::End(std::string_view takes) const {
  if (words_.empty()) return;
  throw Error(Quoted(words_.front()) + " is no option in " + Quoted(text_) + ": it takes " +
              std::string(takes));
}

double ParseNumber(std::string_view what, const std::string& word, double least, double most) {
  double value = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  if (error == std::errc() && stop == end && value >= least && value <= most) return value;
  throw Error(std::string(what) + " must be a number from " + NumberText(least) + " to " +
              NumberText(most) + ", got " + Quoted(word));
}

std::string NumberText(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  return {text, end};
}

}  // namespace cpd
