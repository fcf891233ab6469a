// SPDX-License-Identifier: Apache-2.0
//
// Reads a codec's text word by word: its name, single words, and options as key=value.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpd/export.h"

namespace cpd {

class CPD_API CodecWords {
 public:
  /// `depth`: 1, and one more for each codec around this one.
  explicit CodecWords(std::string_view text, int depth = 1);

  [[nodiscard]] int depth() const { return depth_; }
  /// The whole text, for error texts.
  [[nodiscard]] const std::string& text() const { return text_; }
  /// Whether no word is left.
  [[nodiscard]] bool IsEmpty() const { return words_.empty(); }
  /// Removes and returns the next word; empty where there is none.
  std::string Next();
  /// Removes and returns all words left.
  std::string Rest();

  /// Removes an option, wherever it is in the text, and returns its value; none, or `otherwise`,
  /// where it is missing. These functions throw Error where it occurs twice, has no such value or
  /// is out of range.
  std::optional<std::string> Option(std::string_view key);
  std::int64_t Integer(std::string_view key, std::int64_t otherwise, std::int64_t least,
                       std::int64_t most);
  double Number(std::string_view key, double otherwise, double least, double most);
  /// The index of the option's value in `names`.
  std::size_t Choice(std::string_view key, std::span<const std::string_view> names,
                     std::size_t otherwise);
  /// Removes `word` and returns whether it was there.
  bool Flag(std::string_view word);
  /// Throws Error where a word is left; `takes` lists the codec's options.
  void End(std::string_view takes) const;

 private:
  std::string text_;
  int depth_;
  std::vector<std::string> words_;
};

/// Reads a word as a number. Throws Error with the name `what` unless it is least … most.
CPD_API double ParseNumber(std::string_view what, const std::string& word, double least,
                           double most);
/// The shortest text that ParseNumber reads back.
CPD_API std::string NumberText(double value);

}  // namespace cpd
