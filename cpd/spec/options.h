// SPDX-License-Identifier: Apache-2.0
//
// The words of a spec's text, with its options `name=value`: splits, reads and writes them.
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

/// The words between blanks. Those within quotes, which are left out, and within parentheses, as in
/// `(4, 3)`, do not count. Throws Error for a quote that is not closed.
CPD_API std::vector<std::string> WordsOf(std::string_view text);

/// Returns ` name=value`, with the value in quotes if it has several words.
CPD_API std::string Written(std::string_view name, std::string_view value);

bool IsOption(std::string_view word);

/// Returns the options that the words are. Throws Error, naming `owner`, whose options they are,
/// for another word and for an option that is given twice.
CPD_API std::vector<Option> OptionsOf(std::span<const std::string> words, std::string_view owner);

/// Returns the value of an option; null if it is not given.
const std::string* ValueOf(std::span<const Option> options, std::string_view name);

/// Returns the options of a text; `given` replaces options of the same names.
CPD_API std::vector<Option> Merged(std::vector<Option> options, std::span<const Option> given);

/// The number that all of `text` is, in decimal digits. Throws Error, naming `name`, for any other
/// text, and for digits beyond Number.
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

/// Likewise of a binary floating-point number.
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

/// Returns a field's value as a text has it: of a number the shortest decimal digits that read as
/// it, `none` for a field that is not set.
CPD_API std::string TextOf(const FieldValue& value);
/// A word of a text: in quotes where it has spaces.
std::string Enclosed(std::string_view word);

/// Throws Error if random_bits or variant differs from its default and the rounding is not
/// stochastic, so that no result depends on it. Texts and specs check this. Operations, whose
/// options may come from a codec, do not.
CPD_API void CheckDraws(const RoundingOptions& rounding);

}  // namespace cpd
