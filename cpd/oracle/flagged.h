// SPDX-License-Identifier: Apache-2.0
//
// The oracle's exception flags and corner cases. Determines which exceptions a rounding of
// oracle/reference.h raises, by their IEEE 754 definitions, and which classes of corner cases the
// rounding belongs to. Shares no arithmetic with the kernels.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "cpd/oracle/oracle.h"
#include "cpd/oracle/reference.h"
#include "cpd/spec/operation.h"

namespace cpd::reference {

using soft::Tininess;

/// Returns the exponent of the least normal power of two. For e8m0, returns the exponent of the
/// least value.
inline int least_exponent(const Spec& spec) {
  return spec.encoding == Encoding::e8m0 ? -127 : spec.emin();
}

/// Returns the grid of a format that has all numbers of `spec` and, below its least normal number,
/// `more` additional binades of normal numbers. If `more` is even, the code of each power of two is
/// even or odd as in `spec`.
inline Spec extended(const Spec& spec, int more) {
  const int bias = 1 - least_exponent(spec) + more;
  const bool odd_below = spec.encoding == Encoding::e8m0;  // code c is 2^(c - 127): 127 + more
  return {spec.exp, spec.man, bias + (odd_below ? 1 : 0)};
}

/// Returns the magnitude of finite x, rounded to the format's precision with unbounded exponent
/// range.
template <class Integer>
Number<Integer> round_unbounded(const Spec& spec, const Number<Integer>& x, const Options& o) {
  const int below = std::max(0, least_exponent(spec) - top_exponent(x));
  const Spec grid = extended(spec, (below + 3) / 2 * 2);
  return grid_value<Integer>(grid, round_magnitude(grid, x, o));
}

/// Returns whether finite x is tiny. With Tininess::before: |x| is below 2^emin. With
/// Tininess::after: |x| rounded with unbounded exponent range is below 2^emin.
template <class Integer>
bool is_tiny(const Spec& spec, const Number<Integer>& x, const Options& o, Tininess tininess) {
  if (x.is_zero() || spec.is_integer()) return false;
  const int below = least_exponent(spec) - top_exponent(x);
  if (below <= 0) return false;
  if (tininess == Tininess::before || below > 1) return true;
  return top_exponent(round_unbounded(spec, x, o)) < least_exponent(spec);
}

/// Returns the exception flags of a rounding of the exact number x to `result`, together with
/// `raised`, the flags of the operation itself.
template <class Integer>
std::uint8_t flags_of(const Spec& spec, const Number<Integer>& x, const Number<Integer>& result,
                      const Options& o, Tininess tininess, std::uint8_t raised = 0) {
  const bool below_unsigned = x.negative && !spec.is_signed;
  if (x.is_nan()) return raised | (spec.nan_code() ? 0 : soft::kInvalid);
  if (below_unsigned && result.is_nan()) return raised != 0 ? raised : soft::kInvalid;
  if (x.is_infinite()) {
    if (raised != 0 || result.is_infinite()) return raised;
    return soft::kOverflow | soft::kInexact;
  }
  const bool same_sign = x.negative == result.negative || result.is_zero();
  if (result.kind == Kind::finite && same_sign && compare_magnitude(x, result) == 0) {
    return 0;
  }
  std::uint8_t flags = soft::kInexact;
  if (is_tiny(spec, x, o, tininess)) flags |= soft::kUnderflow;
  const bool passes =
      compare_magnitude(x, grid_value<Integer>(spec, spec.max_code(x.negative))) > 0 &&
      round_magnitude(spec, x, o) > spec.max_code(x.negative);
  if (passes && !below_unsigned) flags |= soft::kOverflow;
  return flags;
}

/// Returns whether |x| is halfway between two neighboring numbers of the format's precision.
template <class Integer>
bool is_tie(const Spec& spec, const Number<Integer>& x) {
  if (x.kind != Kind::finite || x.is_zero()) return false;
  const int lowest = x.exponent + x.significand.trailing_zeros();
  return lowest == std::max(top_exponent(x), least_exponent(spec)) - spec.man - 1;
}

inline constexpr std::uint16_t bit(Corner corner) { return static_cast<std::uint16_t>(corner); }

template <class Integer>
bool counts(const Number<Integer>& x) {
  return x.kind == Kind::finite && !x.is_zero();
}

/// Returns the corner flags tie and carry for a rounding of x to `result`.
template <class Integer>
std::uint16_t rounding_corners(const Spec& spec, const Number<Integer>& x,
                               const Number<Integer>& result) {
  const bool carries = counts(x) && counts(result) && top_exponent(result) > top_exponent(x);
  const bool ties = !result.is_nan() && is_tie(spec, x);
  return static_cast<std::uint16_t>((carries ? bit(Corner::carry) : 0) |
                                    (ties ? bit(Corner::tie) : 0));
}

/// Returns whether two terms of opposite signs cancel: `sum` is zero, or at least two binades below
/// the greater term.
template <class Integer>
bool cancels(const Number<Integer>& x, const Number<Integer>& y, const Number<Integer>& sum) {
  if (!counts(x) || !counts(y) || x.negative == y.negative) return false;
  return sum.is_zero() || top_exponent(sum) <= std::max(top_exponent(x), top_exponent(y)) - 2;
}

/// Returns an operand's corner flag: zero, subnormal, infinity or NaN. Returns 0 for other
/// operands.
template <class Integer>
std::uint16_t corners_in(const Spec& spec, const Number<Integer>& x) {
  if (x.is_nan()) return bit(Corner::nan_in);
  if (x.is_infinite()) return bit(Corner::infinity_in);
  if (x.is_zero()) return bit(Corner::zero_in);
  return top_exponent(x) < least_exponent(spec) ? bit(Corner::subnormal_in) : std::uint16_t{0};
}

/// Returns the corner flags of a result and of the rounding of `exact` that gave the result.
template <class Integer>
std::uint16_t corners_out(const Spec& spec, const Number<Integer>& exact,
                          const Number<Integer>& result, std::uint8_t flags) {
  std::uint16_t corners = flags == 0 ? bit(Corner::exact) : std::uint16_t{0};
  if (result.is_nan()) return corners | bit(Corner::nan_out);
  if (result.is_infinite()) return corners | bit(Corner::infinity_out);
  if (result.is_zero()) {
    corners |= bit(result.negative ? Corner::negative_zero : Corner::positive_zero);
  } else {
    const int top = top_exponent(result);
    const bool is_below = !spec.is_integer() && top < least_exponent(spec);
    if (is_below) corners |= bit(Corner::subnormal_out);
    const auto largest = grid_value<Integer>(spec, spec.max_code(result.negative));
    if (compare_magnitude(result, largest) == 0) corners |= bit(Corner::largest);
  }
  return corners | rounding_corners(spec, exact, result);
}

}  // namespace cpd::reference
