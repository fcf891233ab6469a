// SPDX-License-Identifier: Apache-2.0
//
// Random inputs of the lines of an element-wise operation, for vectors for RTL.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "cpd/export.h"
#include "cpd/oracle/oracle.h"

namespace cpd {

/// A stream of random 64-bit words, NumPy's PCG64 (PCG XSL RR 128/64), in which one may move on by
/// any number of words.
class CPD_API RandomWords {
 public:
  __extension__ using State = unsigned __int128;

  /// A step of a stream by a number of words: state -> factor * state + plus.
  struct Leap {
    State factor = 1;
    State plus = 0;
  };

  RandomWords(State state, State increment) : state_(state), increment_(increment) {}

  /// The leap of so many words.
  [[nodiscard]] Leap leap(std::uint64_t count) const;

  [[nodiscard]] RandomWords moved(const Leap& leap) const {
    return {leap.factor * state_ + leap.plus, increment_};
  }

  /// The word to which the stream was last moved.
  [[nodiscard]] std::uint64_t word() const {
    const auto low = static_cast<std::uint64_t>(state_);
    const auto high = static_cast<std::uint64_t>(state_ >> 64);
    return std::rotr(low ^ high, static_cast<int>(high >> 58));
  }

 private:
  State state_;
  State increment_;
};

/// Inputs of n lines in the caller's memory: as many operands as the operation takes, and where
/// rounding is stochastic random integers.
struct RandomLines {
  std::int64_t n = 0;
  std::array<std::uint32_t*, 3> operands{};
  std::uint32_t* random = nullptr;
};

/// Draws n lines and returns how many words each took: half of the lines of equally likely codes,
/// half of them with exact results near the corners of the result's format, and with significands
/// of few ones or few zeros. Word n w + i of the stream is line i's w-th.
CPD_API int DrawLines(const ElementRule& rule, const RandomWords& words, const RandomLines& lines);

}  // namespace cpd
