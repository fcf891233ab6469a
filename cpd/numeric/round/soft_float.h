// SPDX-License-Identifier: Apache-2.0
//
// Floating-point arithmetic in integers (host only): an exact operation on binary64 operands, one
// rounding into any format, and the exceptions that IEEE 754-2019 (clause 7) defines.
//
// An exact result is sign * (significand + s) * 2^exponent. The significand has 128 bits with bit
// 127 set, 0 <= s < 1, and `sticky` records whether s > 0. Sums, products and fused products are
// exact unless an operand lies wholly below bit 0. Quotients have 128 bits, roots 96. A rounding
// uses 53 bits of a format, 24 bits that a random integer meets, and two more bits, so it rounds
// the exact result. No function of this file reads or changes the floating-point environment.
//
// round.h's rule decides whether a number rounds away. This file finds a number's neighbors and
// applies the limits of the format's range. round.h has no lanes for formats wider than binary32.
// Lanes of 128 bits would take 17 to 21 ns a number for value and exceptions, in any format; the
// code in this file takes 10 to 15 ns (one thread of an Intel Xeon, g++ 12).
#pragma once

#include <bit>
#include <cstdint>

#include "cpd/numeric/round/round.h"
#include "cpd/numeric/round/round_plan.h"
#include "cpd/spec/format.h"
#include "cpd/spec/operation.h"
#include "cpd/spec/rounding.h"
#include "cpd/spec/wide_format.h"

namespace cpd::soft {

__extension__ using Wide = unsigned __int128;

/// An exact number, an infinity or a NaN.
struct Number {
  enum class Kind : std::uint8_t { zero, finite, infinite, nan };
  Kind kind = Kind::zero;
  bool negative = false;
  bool sticky = false;
  std::uint8_t flags = 0;  ///< the exceptions of the operation itself: kInvalid or kDivideByZero
  int exponent = 0;
  Wide significand = 0;  ///< for finite numbers: bit 127 is set

  [[nodiscard]] bool is(Kind other) const { return kind == other; }
};
using Kind = Number::Kind;

inline Number zero(bool negative) { return {.negative = negative}; }
inline Number infinity(bool negative, std::uint8_t flags = 0) {
  return {.kind = Kind::infinite, .negative = negative, .flags = flags};
}
inline Number nan(std::uint8_t flags = 0) { return {.kind = Kind::nan, .flags = flags}; }

/// Returns (significand + s) * 2^exponent, where s > 0 if `sticky`. The significand must be above
/// 0.
inline Number finite(bool negative, Wide significand, int exponent, bool sticky = false) {
  const auto high = static_cast<std::uint64_t>(significand >> 64);
  const int up = high != 0 ? std::countl_zero(high)
                           : 64 + std::countl_zero(static_cast<std::uint64_t>(significand));
  return {.kind = Kind::finite,
          .negative = negative,
          .sticky = sticky,
          .exponent = exponent - up,
          .significand = significand << up};
}

/// Returns a binary64 number as a Number.
inline Number number(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const bool negative = (bits >> 63) != 0;
  const int field = static_cast<int>(bits >> 52) & 0x7FF;
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
  if (field == 0x7FF) return fraction != 0 ? nan() : infinity(negative);
  if (field == 0) return fraction == 0 ? zero(negative) : finite(negative, fraction, -1074);
  return {.kind = Kind::finite,
          .negative = negative,
          .exponent = field - 1075 - 75,
          .significand = Wide{fraction | std::uint64_t{1} << 52} << 75};
}

// ---- operations ---------------------------------------------------------------------------------

namespace detail {

/// Shifts the significand right by `count` bits. Sets `sticky` if a set bit is lost.
inline void lower(Wide& significand, int count, bool& sticky) {
  if (count == 0) return;
  const Wide out = count < 128 ? significand << (128 - count) : significand;
  sticky = sticky || out != 0;
  significand = count < 128 ? significand >> count : 0;
}

/// Returns |a| + |b|, or |a| - |b| if `subtracts`, with a's sign. Both numbers must be finite and
/// exact (not sticky), and a.exponent >= b.exponent.
inline Number aligned(const Number& a, const Number& b, bool subtracts, bool cancels_to_minus) {
  Wide x = a.significand >> 1;  // a free bit for a carry; the operands' low bits are zero
  Wide y = b.significand >> 1;
  bool sticky = false;
  lower(y, a.exponent - b.exponent, sticky);
  if (!subtracts) return finite(a.negative, x + y, a.exponent + 1, sticky);
  if (x == y && !sticky) return zero(cancels_to_minus);
  if (x < y) return finite(!a.negative, y - x, a.exponent + 1);  // of equal exponents: exact
  return finite(a.negative, x - y - (sticky ? 1 : 0), a.exponent + 1, sticky);
}

/// Replaces the integer root and remainder of n by the root and remainder of n * 2^64. This is one
/// step of Zimmermann's recursion (Karatsuba Square Root, 1999) with zeros as the next digits.
/// Needs root >= 2^31.
inline void extend_root(Wide& root, Wide& rest) {
  const Wide quotient = (rest << 31) / root;
  const Wide left = ((rest << 31) - quotient * root) << 33;
  const Wide square = quotient * quotient;
  root = (root << 32) + quotient;
  if (left >= square) {
    rest = left - square;
  } else {
    rest = left + (root << 1) - 1 - square;
    root -= 1;
  }
}

}  // namespace detail

/// Returns a + b. Each operand is a binary64 number or a product of two binary64 numbers. Operands
/// that cancel give +0, or -0 if `cancels_to_minus` (IEEE 754, 6.3: rounding down).
inline Number add(const Number& a, const Number& b, bool cancels_to_minus) {
  if (a.is(Kind::nan) || b.is(Kind::nan)) {
    // If an argument of the operation was NaN, the sum raises nothing, even if the other operand is
    // the product Inf * 0.
    const bool given = (a.is(Kind::nan) && a.flags == 0) || (b.is(Kind::nan) && b.flags == 0);
    return nan(given ? 0 : kInvalid);
  }
  if (a.is(Kind::infinite) && b.is(Kind::infinite) && a.negative != b.negative)
    return nan(kInvalid);
  if (a.is(Kind::infinite)) return a;
  if (b.is(Kind::infinite)) return b;
  const bool differ = a.negative != b.negative;
  if (a.is(Kind::zero) && b.is(Kind::zero)) return zero(differ ? cancels_to_minus : a.negative);
  if (a.is(Kind::zero)) return b;
  if (b.is(Kind::zero)) return a;
  return a.exponent >= b.exponent ? detail::aligned(a, b, differ, cancels_to_minus)
                                  : detail::aligned(b, a, differ, cancels_to_minus);
}

/// Returns the exact product a * b of binary64 numbers.
inline Number mul(const Number& a, const Number& b) {
  if (a.is(Kind::nan) || b.is(Kind::nan)) return nan();
  const bool negative = a.negative != b.negative;
  if (a.is(Kind::infinite) || b.is(Kind::infinite)) {
    return a.is(Kind::zero) || b.is(Kind::zero) ? nan(kInvalid) : infinity(negative);
  }
  if (a.is(Kind::zero) || b.is(Kind::zero)) return zero(negative);
  // The 53-bit significands are in the upper 64 bits. Their product has 127 or 128 bits.
  const auto x = static_cast<std::uint64_t>(a.significand >> 64);
  const auto y = static_cast<std::uint64_t>(b.significand >> 64);
  return finite(negative, Wide{x} * y, a.exponent + b.exponent + 128);
}

/// Returns a * b + c of binary64 numbers. The result is exact, with `sticky` for bits below its
/// significand.
inline Number fma(const Number& a, const Number& b, const Number& c, bool cancels_to_minus) {
  return add(mul(a, b), c, cancels_to_minus);
}

/// Returns a / b of binary64 numbers. The result has at least 127 bits, and `sticky` is set if
/// later bits of the quotient are not all zero.
inline Number div(const Number& a, const Number& b) {
  if (a.is(Kind::nan) || b.is(Kind::nan)) return nan();
  const bool negative = a.negative != b.negative;
  if (a.is(Kind::infinite)) return b.is(Kind::infinite) ? nan(kInvalid) : infinity(negative);
  if (b.is(Kind::infinite)) return zero(negative);
  if (b.is(Kind::zero)) return a.is(Kind::zero) ? nan(kInvalid) : infinity(negative, kDivideByZero);
  if (a.is(Kind::zero)) return zero(negative);
  const auto x = static_cast<std::uint64_t>(a.significand >> 64);
  const auto y = static_cast<std::uint64_t>(b.significand >> 64);
  const Wide first = Wide{x} << 63;  // below 2^64 * y, so that digits of 64 bits follow
  const auto high = static_cast<std::uint64_t>(first / y);
  const Wide second = Wide{static_cast<std::uint64_t>(first - Wide{high} * y)} << 64;
  const auto low = static_cast<std::uint64_t>(second / y);
  const bool rest = second != Wide{low} * y;
  return finite(negative, Wide{high} << 64 | low, a.exponent - b.exponent - 127, rest);
}

/// Returns the square root of a binary64 number: 96 bits, with `sticky` for the bits below. The
/// root of -0 is -0.
inline Number sqrt(const Number& a) {
  if (a.is(Kind::nan) || a.is(Kind::zero)) return a;
  if (a.negative) return nan(kInvalid);
  if (a.is(Kind::infinite)) return a;
  const int odd = (a.exponent + 64) & 1;  // radicand * 2^(exponent + 64 + odd), an even exponent
  const auto radicand = static_cast<std::uint64_t>(a.significand >> 64) >> odd;  // 11 bits are zero
  std::uint64_t digits = 0;
  std::uint64_t left = radicand;
  for (std::uint64_t bit = std::uint64_t{1} << 62; bit != 0; bit >>= 2) {
    const std::uint64_t fits = left >= (digits | bit) ? ~std::uint64_t{0} : 0;
    left -= (digits | bit) & fits;
    digits = digits >> 1 | (bit & fits);
  }
  Wide root = digits;
  Wide rest = left;
  detail::extend_root(root, rest);
  detail::extend_root(root, rest);
  return finite(false, root, (a.exponent + 64 + odd) / 2 - 64, rest != 0);
}

// ---- rounding -----------------------------------------------------------------------------------

/// A target format and its rounding options, as constants.
struct Target {
  RoundPlan plan;  ///< only the mode, the variant and the number of random bits are used
  Tininess tininess = Tininess::after;
  bool saturates = false;
  bool subnormals = true;
  bool has_zero = true, has_inf = true, has_nan = true;
  bool overflows_to_nan = false;
  bool odd_overflow_is_inf = false, clips_negative = false;  ///< round_plan.h
  bool is_signed = true, has_negative_zero = true;
  bool is_integer = false;  ///< one spacing for all values; underflow is never raised
  int man = 23;
  int emin = -126;
  std::uint64_t max = 0;     ///< pattern of the largest finite value
  std::uint64_t lowest = 0;  ///< pattern of the least value, or if signed of its magnitude

  [[nodiscard]] std::uint64_t largest(bool negative) const {
    return negative && is_signed ? lowest : max;
  }
};

inline Target target(const Format& format, const RoundingOptions& options = {},
                     Tininess tininess = Tininess::after) {
  RoundPlan plan;
  plan.mode = options.mode;
  plan.variant = options.variant;
  plan.random_bits = options.random_bits;
  return {.plan = plan,
          .tininess = tininess,
          .saturates = options.overflow == Overflow::saturate,
          .subnormals = format.subnormals,
          .has_zero = format.has_zero(),
          .has_inf = format.has_inf(),
          .has_nan = format.has_nan(),
          .overflows_to_nan = format.overflows_to_nan(),
          .odd_overflow_is_inf = odd_overflow_is_inf(format, options.mode),
          .clips_negative = clips_negative(format, options.mode),
          .is_signed = format.is_signed,
          .has_negative_zero = format.has_negative_zero(),
          .is_integer = format.is_integer(),
          .man = format.man,
          .emin = format.emin(),
          .max = pattern_of(format, max_code_of(format)),
          .lowest = pattern_of(format, lowest_code_of(format))};
}

/// A value of a format and the exceptions that its rounding raised.
struct Rounded {
  double value = 0;
  std::uint8_t flags = 0;
};

namespace detail {

constexpr std::uint64_t kInfinity = 0x7FF0000000000000;
constexpr std::uint64_t kNan = 0x7FF8000000000000;
constexpr std::uint8_t kInexactTiny = kInexact | kUnderflow;

/// A magnitude that is split at a bit of its significand: `units`, the integer above the split, and
/// `fraction`, the 128 bits below it.
struct Cut {
  std::uint64_t units = 0;
  Wide fraction = 0;
  bool sticky = false;
  [[nodiscard]] bool is_inexact() const { return fraction != 0 || sticky; }
};

/// Splits |x| at bit `count` of its significand (bit 0 is the lowest) into an integer above the
/// split and a fraction below it. `count` must be at least 75.
inline Cut cut_at(const Number& x, int count) {
  Cut cut{.sticky = x.sticky};
  if (count < 128) {
    cut.units = static_cast<std::uint64_t>(x.significand >> count);
    cut.fraction = x.significand << (128 - count);
  } else {
    cut.fraction = x.significand;
    lower(cut.fraction, count - 128, cut.sticky);
  }
  return cut;
}

/// Returns whether an inexact magnitude rounds to the next larger code. Decides by rounding a
/// shorter number with `divide` of round.h, which has the same outcome. The shorter number's
/// integer part is `odd`, the last bit of the next smaller code. Its fraction has 52 bits, rounded
/// to odd.
inline bool rounds_away(const Cut& cut, bool negative, bool odd, std::uint32_t random,
                        const Target& to) {
  constexpr int kBits = 52;
  const bool rest = cut.fraction << kBits != 0 || cut.sticky;
  const auto fraction = static_cast<std::uint64_t>(cut.fraction >> (128 - kBits)) | (rest ? 1 : 0);
  const std::uint64_t digits = (std::uint64_t{odd} << kBits) + fraction;
  std::uint64_t quotient = 0;
  with_mode(to.plan.mode, [&]<Rounding kMode>() {
    quotient = divide<Rule<kMode>, double>(digits, kBits, 0, negative, random, to.plan);
  });
  return quotient != std::uint64_t{odd};
}

inline Rounded with_sign(std::uint64_t magnitude, bool negative, std::uint8_t flags) {
  return {std::bit_cast<double>(magnitude | (negative ? std::uint64_t{1} << 63 : 0)), flags};
}

inline Rounded not_a_number(std::uint8_t flags) { return with_sign(kNan, false, flags); }

inline bool is_inward(Rounding mode, bool negative) {
  return mode == Rounding::toward_zero || mode == Rounding::to_odd ||
         mode == (negative ? Rounding::up : Rounding::down);
}

/// Returns the value that replaces an infinite number or an overflow: an infinity, NaN or the
/// largest value, as the target's format and overflow require. The result has the flags `exact` if
/// it is an infinity, else the flags `other`; the caller passes both sets of flags.
inline Rounded infinite(bool negative, const Target& to, std::uint8_t exact, std::uint8_t other) {
  if (to.saturates) return with_sign(to.largest(negative), negative, other);
  if (to.has_inf) return with_sign(kInfinity, negative, exact);
  return to.overflows_to_nan ? not_a_number(other)
                             : with_sign(to.largest(negative), negative, other);
}

/// Returns the result in an unsigned format for a negative value that does not round to zero.
/// `finite`: the value is finite.
inline Rounded below_unsigned(bool finite, const Target& to, std::uint8_t flags) {
  if (!to.saturates && to.has_nan && !(finite && to.clips_negative)) return not_a_number(kInvalid);
  return with_sign(to.lowest, false, flags);
}

/// Returns log2 of |x|, rounded down.
inline int binade(const Number& x) { return x.exponent + 127; }

/// Returns whether the code of a number from 2^binade up to 2^(binade + 1) is odd. The number's
/// significand is `units` spacings. Codes continue above the format's largest value.
inline bool is_odd(std::uint64_t units, int binade, const Target& to) {
  if (to.man > 0) return (units & 1) != 0;
  const bool odd_binade = ((binade - to.emin) & 1) != 0;
  return odd_binade != to.has_zero;  // 2^emin has code 1, or 0 without zero
}

/// Returns the exceptions of an inexact result, except overflow.
inline std::uint8_t inexact_flags(const Number& x, std::uint32_t random, const Target& to) {
  const int binade = detail::binade(x);
  if (to.is_integer || binade >= to.emin) return kInexact;
  if (to.tininess == Tininess::before || binade < to.emin - 1) return kInexactTiny;
  const Cut cut = cut_at(x, 127 - to.man);
  const bool odd = is_odd(cut.units, binade, to);
  const bool away = cut.is_inexact() && rounds_away(cut, x.negative, odd, random, to);
  const bool reaches_emin = away && cut.units + 1 == std::uint64_t{2} << to.man;
  return reaches_emin ? kInexact : kInexactTiny;
}

inline Rounded round_finite(const Number& x, const Target& to, std::uint32_t random) {
  const int binade = detail::binade(x);
  // True if x is in the range next to zero in which the format's numbers have their least spacing.
  const bool below = binade < to.emin + (to.is_integer ? 2 : 0);
  if (!to.has_zero && (below || x.negative)) {  // e8m0 rounds all lesser numbers to its least value
    const std::uint8_t flags = inexact_flags(x, random, to);
    return x.negative ? below_unsigned(true, to, flags) : with_sign(to.lowest, false, flags);
  }
  // log2 of the distance between the format's numbers around x. Without subnormals, the only
  // numbers up to 2^emin are 0 and 2^emin.
  const int place = below ? to.emin - (to.subnormals ? to.man : 0) : binade - to.man;
  const Cut cut = cut_at(x, place - x.exponent);
  std::uint64_t units = cut.units;
  std::uint8_t flags = 0;
  if (cut.is_inexact()) {
    const bool odd = below ? (units & 1) != 0 : is_odd(units, binade, to);
    if (rounds_away(cut, x.negative, odd, random, to)) ++units;
    flags = inexact_flags(x, random, to);
  }
  if (units == 0) return with_sign(0, x.negative && to.has_negative_zero, flags);
  if (x.negative && !to.is_signed) return below_unsigned(true, to, inexact_flags(x, random, to));
  const std::uint64_t magnitude = binary64_pattern(units, place);
  const std::uint64_t largest = to.largest(x.negative);
  if (magnitude <= largest) return with_sign(magnitude, x.negative, flags);
  flags = static_cast<std::uint8_t>(inexact_flags(x, random, to) | kOverflow);
  const bool clips = is_inward(to.plan.mode, x.negative) && !to.odd_overflow_is_inf;
  if (clips) return with_sign(largest, x.negative, flags);
  return infinite(x.negative, to, flags, flags);
}

/// Rounds an infinite result. The result raises no exception if the format has infinities. A
/// division by zero raises only its own exception.
inline Rounded round_infinity(const Number& x, const Target& to) {
  const bool by_zero = x.flags != 0;
  const std::uint8_t other = by_zero ? x.flags : std::uint8_t{kOverflow | kInexact};
  if (!x.negative || to.is_signed) return infinite(x.negative, to, x.flags, other);
  const Rounded made = below_unsigned(false, to, other);
  return by_zero ? Rounded{made.value, x.flags} : made;
}

}  // namespace detail

/// Returns x rounded once into a format. In a stochastic mode with N random bits, `random` is the
/// random integer, below 2^N.
inline Rounded round(const Number& x, const Target& to, std::uint32_t random = 0) {
  switch (x.kind) {
    case Kind::nan:
      return detail::not_a_number(to.has_nan ? x.flags : kInvalid);
    case Kind::infinite:
      return detail::round_infinity(x, to);
    case Kind::zero:
      if (!to.has_zero) return detail::with_sign(to.lowest, false, kInexact);
      return detail::with_sign(0, x.negative && to.has_negative_zero, 0);
    case Kind::finite:
      break;
  }
  return detail::round_finite(x, to, random);
}

// ---- operation and rounding ---------------------------------------------------------------------

/// Returns the exact result of an operation, which the caller will round in mode `mode`. The mode
/// determines only the sign of an exact zero sum.
inline Number exact(Operation operation, double x, double y, double z, Rounding mode) {
  const bool down = mode == Rounding::down;
  switch (operation) {
    case Operation::cast:
      return number(x);
    case Operation::add:
      return add(number(x), number(y), down);
    case Operation::mul:
      return mul(number(x), number(y));
    case Operation::fma:
      return fma(number(x), number(y), number(z), down);
    case Operation::div:
      return div(number(x), number(y));
    case Operation::sqrt:
      break;
  }
  return sqrt(number(x));
}

/// Returns the exact result of an operation, rounded once. Ignores operands that the operation does
/// not take.
inline Rounded compute(Operation operation, double x, double y, double z, const Target& to,
                       std::uint32_t random = 0) {
  return round(exact(operation, x, y, z, to.plan.mode), to, random);
}

}  // namespace cpd::soft
