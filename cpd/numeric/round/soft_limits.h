// SPDX-License-Identifier: Apache-2.0
//
// Finds the limits of flag_limits.h for a format and a mode, by test roundings (host only).
#pragma once

#include <bit>
#include <limits>
#include <type_traits>

#include "cpd/numeric/round/flag_limits.h"
#include "cpd/numeric/round/soft_float.h"

namespace cpd::soft {

namespace detail {

/// Returns the least number of type T from which on every inexact magnitude raises `flag`. With
/// `ends`, returns the least number from which on no inexact magnitude raises `flag`. Finds the
/// number by bisection over the bit patterns of T, because the flag changes at one pattern only.
template <class T>
T limit_of(const Target& to, bool negative, std::uint8_t flag, bool ends, std::uint32_t random) {
  using U = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  const auto flags_at = [&](U pattern, bool sticky) {
    Number x = number(std::bit_cast<T>(pattern));
    x.negative = negative;
    x.sticky = sticky;  // stands for the numbers just above, which are inexact in every format
    return round(x, to, random).flags;
  };
  const auto is_beyond = [&](std::uint8_t flags) { return ((flags & flag) != 0) != ends; };
  U low = 0;
  U high = std::bit_cast<U>(std::numeric_limits<T>::infinity());
  const U infinity = high;
  while (high - low > 1) {
    const U middle = low + (high - low) / 2;
    (is_beyond(flags_at(middle, true)) ? high : low) = middle;
  }
  const std::uint8_t itself = high == infinity ? 0 : flags_at(high, false);
  const bool begins_above = itself != 0 && !is_beyond(itself);
  return std::bit_cast<T>(begins_above ? high + 1 : high);
}

template <class T>
SignLimits<T> sign_limits(const Target& to, bool negative) {
  // In stochastic modes, each limit depends on the random integer. The greatest integer, `most`,
  // gives the least limits, because rounding away from zero then begins at the smallest magnitude.
  // The integer 0 gives the greatest limits.
  const std::uint32_t most =
      to.plan.mode == Rounding::stochastic ? (1U << to.plan.random_bits) - 1 : 0;
  return {limit_of<T>(to, negative, kUnderflow, true, most),
          limit_of<T>(to, negative, kUnderflow, true, 0),
          limit_of<T>(to, negative, kOverflow, false, most),
          limit_of<T>(to, negative, kOverflow, false, 0)};
}

}  // namespace detail

/// Returns whether flag_limits supports a format.
inline bool has_flag_limits(const Target& to) { return to.is_signed && to.has_zero; }

/// Returns the limits from which on numbers of T (float or double) underflow or overflow. A double
/// may hold a number rounded to odd.
template <class T>
FlagLimits<T> flag_limits(const Target& to) {
  return {detail::sign_limits<T>(to, false), detail::sign_limits<T>(to, true)};
}

}  // namespace cpd::soft
