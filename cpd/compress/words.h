// SPDX-License-Identifier: Apache-2.0
//
// Reads the text of a codec word by word: its name, single words, and options as key=value.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpd/export.h"
#include "cpd/spec/keys.h"

namespace cpd {

class CPD_API CodecWords {
 public:
  /// `depth` is 1 for the outermost codec, and one more for each codec around this one.
  explicit CodecWords(std::string_view text, int depth = 1);

  [[nodiscard]] int depth() const { return depth_; }
  /// Returns the whole text, for error messages.
  [[nodiscard]] const std::string& text() const { return text_; }
  /// Returns whether no word is left.
  [[nodiscard]] bool IsEmpty() const { return words_.empty(); }
  /// Removes the next word from the codec's text and returns it. Returns an empty text if no word
  /// is left.
  std::string Next();
  /// Removes all words that are left in the codec's text and returns them.
  std::string Rest();

  /// Adds `options` to the codec's text, in place of options of the same names. The option
  /// `stochastic` is a word without a value in the text: `true` adds the word, any other value
  /// removes it.
  void Replace(std::span<const Option> options);
  /// Removes the options that the table `keys` lists from the text, wherever they are. Sets them in
  /// `options`, in the table's order, and returns them. Throws Error if an option occurs twice, has
  /// an invalid value, or does not fit the options before it in the table.
  template <class Options>
  std::vector<Option> Take(const Keys<Options>& keys, Options& options) {
    const std::vector<Option> given = Given(NamesOf(keys));
    SetKeys(keys, given, [&](const Key<Options>& row, const std::string& text) {
      if (!row.IsOf(options)) RefuseOption(row.name, keys.owner, NamesOf(keys, options));
      row.set(options, text);
    });
    return given;
  }
  /// Removes `word` from the text. Returns false if the text does not have it.
  bool Flag(std::string_view word);
  /// Throws Error if a word is left. The error lists `names`, the options of `codec`, and `word`,
  /// which `codec` takes without a value.
  void End(std::string_view codec, std::span<const std::string_view> names,
           std::string_view word = {}) const;

 private:
  std::vector<Option> Given(std::span<const std::string_view> names);

  std::string text_;
  int depth_;
  std::vector<std::string> words_;
};

/// Reads a word as a number. Throws Error, naming `what`, unless the number is least … most.
CPD_API double ParseNumber(std::string_view what, std::string_view word, double least, double most);
std::int64_t ParseInteger(std::string_view what, std::string_view word, std::int64_t least,
                          std::int64_t most);
/// Returns the shortest text that ParseNumber reads back as the same number.
CPD_API std::string NumberText(double value);

// ---- rows of tables ------------------------------------------------------------------------

template <class Options>
using Condition = bool (*)(const Options&);

/// The key of an integer option that a text may set to least … most. Other values of the member,
/// such as 0 or not set, have a special meaning and cannot be set by a text.
template <KeyName name, auto member, std::int64_t least, std::int64_t most>
constexpr auto RangedKey(Condition<decltype(ClassOf(member))> has = nullptr,
                         Condition<decltype(ClassOf(member))> always = nullptr) {
  using Options = decltype(ClassOf(member));
  return Key<Options>{name.letters,
                      "integer",
                      [](Options& options, std::string_view text) {
                        options.*member =
                            static_cast<int>(ParseInteger(name.letters, text, least, most));
                      },
                      [](const Options& options) { return FieldOf(options.*member); },
                      has,
                      always};
}

/// Makes the key of an enumeration or bool, whose value in a text is one of `words`. The index of a
/// word is the value of the enumerator, or 0 for false and 1 for true.
template <KeyName name, auto member, const auto& words>
constexpr auto ChoiceKey(Condition<decltype(ClassOf(member))> always = nullptr) {
  using Options = decltype(ClassOf(member));
  using T = std::remove_cvref_t<decltype(std::declval<Options&>().*member)>;
  return Key<Options>{name.letters,
                      "word",
                      [](Options& options, std::string_view text) {
                        options.*member = static_cast<T>(ParseName<int>(name.letters, words, text));
                      },
                      [](const Options& options) {
                        return FieldOf(words[static_cast<std::size_t>(options.*member)]);
                      },
                      nullptr,
                      always};
}

}  // namespace cpd
