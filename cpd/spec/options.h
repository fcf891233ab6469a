// SPDX-License-Identifier: Apache-2.0
//
// The options of a spec's text, `name=value` between spaces: what writes and reads them.
#pragma once

#include <charconv>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cpd/spec/fields.h"
#include "cpd/spec/names.h"
#include "cpd/spec/rounding.h"

namespace cpd {

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

/// What is not its default: rounding and overflow; variant; random_bits.
void PutMode(std::string& text, const RoundingOptions& rounding);
void PutVariant(std::string& text, const RoundingOptions& rounding);
void PutRandomBits(std::string& text, const RoundingOptions& rounding);

/// Adds the fields rounding, overflow, random_bits and variant.
void PutFields(Fields& fields, const RoundingOptions& rounding);

/// The words between spaces; those within parentheses, as in `(4, 3)`, do not count.
std::vector<std::string_view> Words(std::string_view text);

/// The words between spaces, tabs and ends of lines. Quotes, which are left out, and parentheses
/// hold words together. Throws Error for a quote that is not closed.
CPD_API std::vector<std::string> QuotedWords(std::string_view text);

/// Returns ` name=value`, with the value in quotes if it has several words.
CPD_API std::string Written(std::string_view name, std::string_view value);

bool IsOption(std::string_view word);

/// The number that all of `text` is, in decimal digits. Throws Error, naming `name`, for any other
/// text, and for digits beyond Integer.
template <class Integer>
Integer ParseInteger(std::string_view name, std::string_view text) {
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = end == text.data() + text.size();
  if (is_whole && error == std::errc()) return value;
  using Limits = std::numeric_limits<Integer>;
  std::string range;
  if (is_whole && error == std::errc::result_out_of_range) {
    range = " " + std::to_string(Limits::min()) + "…" + std::to_string(Limits::max());
  }
  throw Error(std::string(name) + " must be an integer" + range + ", got " + Quoted(text));
}

/// Throws Error where random_bits or variant differs from its default and the rounding is not
/// stochastic, so that no result depends on it. Texts and specs check this; operations, whose
/// options may come from a codec, do not.
CPD_API void CheckDraws(const RoundingOptions& rounding);

/// Takes one of the four options above; false where there is none of that name.
bool ParseRoundingOption(RoundingOptions& rounding, std::string_view name, std::string_view text);

/// Calls take(name, value) for each word. `owner`, in errors: whose options they are.
template <class Take>
void ParseOptions(const std::vector<std::string_view>& words, const std::string& owner, Take take) {
  std::set<std::string_view> given;
  for (const std::string_view word : words) {
    if (!IsOption(word)) throw Error(owner + "'s options are name=value, got " + Quoted(word));
    const std::size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    if (!given.insert(name).second) {
      throw Error("option " + Quoted(name) + " of " + owner + " is given twice");
    }
    take(name, word.substr(equals + 1));
  }
}

/// The options that the words are. Throws Error as ParseOptions does.
std::vector<Option> OptionsOf(const std::vector<std::string_view>& words, const std::string& owner);

}  // namespace cpd
