// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cpd/export.h"

namespace cpd {

/// The first `most` bytes of `text`, fewer where a UTF-8 letter would be cut, and "…"; all of a
/// text that has no more.
inline std::string Shortened(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) --most;
  return std::string(text.substr(0, most)) + "…";
}

/// `message` as a person can read it, whatever it quotes: a word of more than 100 bytes is cut
/// after 80, one with a '/', which may be a path, after 1,000, and the whole after 4,000.
inline std::string Readable(std::string_view message) {
  constexpr std::size_t kLongWord = 100, kShownWord = 80, kShownPath = 1000, kShown = 4000;
  std::string readable;
  while (!message.empty() && readable.size() <= kShown) {
    std::size_t end = message.find_first_of(" \n");
    if (end == std::string_view::npos) end = message.size();
    const std::string_view word = message.substr(0, end);
    const bool is_path = word.find('/') != std::string_view::npos;
    const std::size_t most = is_path                   ? kShownPath
                             : word.size() > kLongWord ? kShownWord
                                                       : kLongWord;
    readable += Shortened(word, most);
    if (end < message.size()) readable += message[end++];
    message.remove_prefix(end);
  }
  return Shortened(message.empty() ? readable : readable + "…", kShown);
}

/// A bad argument. The message gives the value and the allowed ones; nothing has been written. Long
/// quotations are cut: see Readable. In Python a ValueError.
class CPD_API Error : public std::invalid_argument {
 public:
  explicit Error(const std::string& message) : std::invalid_argument(Readable(message)) {}

 protected:
  struct AsItIs {};
  Error(AsItIs, const std::string& message) : std::invalid_argument(message) {}
};

/// The machine could not carry out a call with good arguments: a GPU or its driver fails or is
/// missing, its memory is exhausted, a library cannot be loaded. The message names the package to
/// install if that helps. In Python a RuntimeError. (No memory on the CPU is NoMemory.)
class CPD_API MachineError : public std::runtime_error {
 public:
  explicit MachineError(const std::string& message) : std::runtime_error(message) {}
};

/// The CPU has no memory for `bytes` bytes. In Python a MemoryError. (std::bad_alloc of the
/// standard library's containers is one without the number.)
class CPD_API NoMemory : public std::bad_alloc {
 public:
  /// `of`: the content of the bytes, such as "a tensor of shape (3, 4)".
  NoMemory(std::uint64_t bytes, const std::string& of)
      : message_("no memory for " + std::to_string(bytes) + " bytes, " + of) {}
  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

}  // namespace cpd
