// SPDX-License-Identifier: Apache-2.0
//
// A codec's text, word by word: its name, what stands alone, and options as key=value.
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
  /// `depth`: 1, and one more for each codec that this one is within.
  explicit CodecWords(std::string_view text, int depth = 1);

  [[nodiscard]] int depth() const { return depth_; }
  /// Every word as it was given, for messages.
  [[nodiscard]] const std::string& text() const { return text_; }
  /// Whether every word was taken away.
  [[nodiscard]] bool IsEmpty() const { return words_.empty(); }
  /// The next word, taken away; empty: there is none.
  std::string Next();
  /// All that is left, taken away.
  std::string Rest();

  /// Options, taken away wherever they stand. Throw Error where one is given twice, is no such
  /// value or out of range.
  std::optional<std::string> Option(std::string_view key);
  std::int64_t Integer(std::string_view key, std::int64_t otherwise, std::int64_t least,
                       std::int64_t most);
  double Number(std::string_view key, double otherwise, double least, double most);
  /// Which of `names`.
  std::size_t Choice(std::string_view key, std::span<const std::string_view> names,
                     std::size_t otherwise);
  /// Whether the word stands there.
  bool Flag(std::string_view word);
  /// Throws Error where a word is left: `takes` says what the codec knows.
  void End(std::string_view takes) const;

 private:
  std::string text_;
  int depth_;
  std::vector<std::string> words_;
};

/// A word as a number. Throws Error, naming `what`.
CPD_API double ParseNumber(std::string_view what, const std::string& word, double least,
                           double most);
/// The shortest text that ParseNumber reads back.
CPD_API std::string NumberText(double value);

}  // namespace cpd
