// SPDX-License-Identifier: Apache-2.0
//
// Splits, reads and writes the words of a spec's text, including its options `name=value`.
#pragma once

#include <charconv>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "cpd/spec/fields.h"
#include "cpd/spec/names.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// Returns the words of a text, separated by blanks. Blanks within quotes and within parentheses,
/// as in `(4, 3)`, do not separate words; the quotes are removed. Throws Error for a quote that is
/// not closed.
CPD_API std::vector<std::string> WordsOf(std::string_view text);

/// Returns ` name=value`. The value is in quotes if it has several words.
CPD_API std::string Written(std::string_view name, std::string_view value);

bool IsOption(std::string_view word);

/// Returns the options in `words`. Throws Error for a word that is not an option, and for an option
/// that occurs twice. The error names `owner`, to which the options belong.
CPD_API std::vector<Option> OptionsOf(std::span<const std::string> words, std::string_view owner);

/// Returns the value of an option; null if `options` does not have it.
const std::string* ValueOf(std::span<const Option> options, std::string_view name);

/// Returns the options of a text with replacements: `given` replaces options of the same names.
CPD_API std::vector<Option> Merged(std::vector<Option> options, std::span<const Option> given);

/// Reads all of `text` as a decimal integer. Throws Error, naming `name`, for any other text, and
/// for a number beyond the range of Number.
template <class Number>
Number ParseInteger(std::string_view name, std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = end == text.data() + text.size();
  if (is_whole && error == std::errc()) return value;
  using Limits = std::numeric_limits<Number>;
  std::string range;
  if (is_whole && error == std::errc::result_out_of_range) {
    range = " " + std::to_string(Limits::min()) + "…" + std::to_string(Limits::max());
  }
  throw Error(std::string(name) + " must be an integer" + range + ", got " + Quoted(text));
}

/// Reads all of `text` as a binary floating-point number. Throws Error as ParseInteger does.
template <class Number>
Number ParseNumber(std::string_view name, std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = end == text.data() + text.size();
  if (is_whole && error == std::errc()) return value;
  const bool is_beyond = is_whole && error == std::errc::result_out_of_range;
  throw Error(std::string(name) + " must be a number" +
              (is_beyond ? " of binary" + std::to_string(8 * sizeof(Number)) : "") + ", got " +
              Quoted(text));
}

/// Returns the text of a field's value. A number is written in the shortest decimal digits that
/// read back as the number, and a field that is not set as `none`.
CPD_API std::string TextOf(const FieldValue& value);
/// Returns a word of a text, in quotes if it has spaces.
std::string Enclosed(std::string_view word);

/// Throws Error if random_bits or variant differs from its default although the rounding is not
/// stochastic, because the option then has no effect. The checks of specs and the parsers of texts
/// call this function. Operations do not call it, because their options may come from a codec.
CPD_API void CheckDraws(const RoundingOptions& rounding);

}  // namespace cpd
