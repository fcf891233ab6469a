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

/// Returns the first `most` bytes of `text` and "…", or the whole text if it has at most `most`
/// bytes. Returns fewer bytes if the cut would be within a UTF-8 character.
inline std::string Shortened(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) --most;
  return std::string(text.substr(0, most)) + "…";
}

/// Returns `message` in a length that a person can read, whatever text it quotes. A word of more
/// than 100 bytes is cut after 80 bytes, or after 1,000 if it contains '/' and so may be a path.
/// The whole message is cut after 4,000 bytes.
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

/// Thrown for a bad argument. The message has the value and the allowed values. Nothing has been
/// written. Long quotations are cut (see Readable). In Python, the exception is a ValueError.
class CPD_API Error : public std::invalid_argument {
 public:
  explicit Error(const std::string& message) : std::invalid_argument(Readable(message)) {}

 protected:
  struct AsItIs {};
  Error(AsItIs, const std::string& message) : std::invalid_argument(message) {}
};

/// Thrown if the machine could not execute a call with good arguments: a GPU or its driver fails or
/// is missing, its memory is exhausted, or a library cannot be loaded. The message names the
/// package to install if that helps. In Python, the exception is a RuntimeError. (If the CPU has no
/// memory, NoMemory is thrown.)
class CPD_API MachineError : public std::runtime_error {
 public:
  explicit MachineError(const std::string& message) : std::runtime_error(message) {}
};

/// Thrown if the CPU has no memory for `bytes` bytes. In Python, the exception is a MemoryError.
/// (The containers of the standard library throw std::bad_alloc, whose message does not state the
/// number of bytes.)
class CPD_API NoMemory : public std::bad_alloc {
 public:
  /// `of` names the object that needs the bytes, such as "a tensor of shape (3, 4)".
  NoMemory(std::uint64_t bytes, const std::string& of)
      : message_("no memory for " + std::to_string(bytes) + " bytes, " + of) {}
  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

}  // namespace cpd
