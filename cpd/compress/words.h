// SPDX-License-Identifier: Apache-2.0
//
// Reads a codec's text word by word: its name, single words, and options as key=value.
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
  /// `depth`: 1, and one more for each codec around this one.
  explicit CodecWords(std::string_view text, int depth = 1);

  [[nodiscard]] int depth() const { return depth_; }
  /// The whole text, for error texts.
  [[nodiscard]] const std::string& text() const { return text_; }
  /// Returns whether no word is left.
  [[nodiscard]] bool IsEmpty() const { return words_.empty(); }
  /// Removes and returns the next word; empty if there is none.
  std::string Next();
  /// Removes and returns all words left.
  std::string Rest();

  /// Puts these options in place of the text's own. `stochastic`, with `true` or `false`, is a
  /// word.
  void Replace(std::span<const Option> options);
  /// Removes the options of a table, wherever they are in the text, sets them in the table's order,
  /// and returns them. Throws Error if an option occurs twice, has an invalid value, or does not
  /// fit the options before it in the table.
  template <class Options>
  std::vector<Option> Take(const Keys<Options>& keys, Options& options) {
    const std::vector<Option> given = Given(NamesOf(keys));
    SetKeys(keys, given, [&](const Key<Options>& row, const std::string& text) {
      if (!row.IsOf(options)) RefuseOption(row.name, keys.owner, NamesOf(keys, options));
      row.set(options, text);
    });
    return given;
  }
  /// Removes `word` and returns whether it was there.
  bool Flag(std::string_view word);
  /// Throws Error where a word is left: the options of `codec`, and the word that it takes alone.
  void End(std::string_view codec, std::span<const std::string_view> names,
           std::string_view word = {}) const;

 private:
  std::vector<Option> Given(std::span<const std::string_view> names);

  std::string text_;
  int depth_;
  std::vector<std::string> words_;
};

/// Reads a word as a number. Throws Error with the name `what` unless it is least … most.
CPD_API double ParseNumber(std::string_view what, std::string_view word, double least, double most);
std::int64_t ParseInteger(std::string_view what, std::string_view word, std::int64_t least,
                          std::int64_t most);
/// The shortest text that ParseNumber reads back.
CPD_API std::string NumberText(double value);

// ---- rows of tables ------------------------------------------------------------------------

template <class Options>
using Condition = bool (*)(const Options&);

/// An integer of a member that stands for something else at 0 or where it is not set.
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

/// One of several words, each at its enumerator's index, or at the index of false and true.
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
