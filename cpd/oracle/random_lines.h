// SPDX-License-Identifier: Apache-2.0
//
// Generates random inputs for the lines of an element-wise operation, as vectors for RTL.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "cpd/export.h"
#include "cpd/oracle/oracle.h"

namespace cpd {

/// A stream of random 64-bit words: NumPy's PCG64 (PCG XSL RR 128/64). The stream can skip any
/// number of words.
class CPD_API RandomWords {
 public:
  __extension__ using State = unsigned __int128;

  /// The transition of the stream's state that skips a number of words: state -> factor * state +
  /// plus.
  struct Leap {
    State factor = 1;
    State plus = 0;
  };

  RandomWords(State state, State increment) : state_(state), increment_(increment) {}

  /// Returns the transition that skips `count` words.
  [[nodiscard]] Leap leap(std::uint64_t count) const;

  [[nodiscard]] RandomWords moved(const Leap& leap) const {
    return {leap.factor * state_ + leap.plus, increment_};
  }

  /// Returns the word at the current state of the stream.
  [[nodiscard]] std::uint64_t word() const {
    const auto low = static_cast<std::uint64_t>(state_);
    const auto high = static_cast<std::uint64_t>(state_ >> 64);
    return std::rotr(low ^ high, static_cast<int>(high >> 58));
  }

 private:
  State state_;
  State increment_;
};

/// Memory of the caller for the inputs of n lines: one array for each operand of the operation and,
/// for stochastic rounding, an array of random integers.
struct RandomLines {
  std::int64_t n = 0;
  std::array<std::uint32_t*, 3> operands{};
  std::uint32_t* random = nullptr;
};

/// Generates the inputs of n lines. Returns w, the number of random words per line. In half of the
/// lines, the codes of the operands are uniformly distributed. In the other half, the exact result
/// is often near a corner case of the result's format, such as overflow, underflow or a tie between
/// two numbers. The significands of many of these operands have few ones or few zeros. Word
/// n * k + i of the stream is word k of line i.
CPD_API int DrawLines(const ElementRule& rule, const RandomWords& words, const RandomLines& lines);

}  // namespace cpd
