// SPDX-License-Identifier: Apache-2.0
//
// A second oracle, about 20 times faster than reference.h and independent of it and of the kernels.
// Sums and products of binary32 numbers are exact in 128-bit integers. Bits farther below are
// combined into one sticky bit. Rounding is integer arithmetic. The oracle serves as the arithmetic
// of dot in reference_gemm.h, and for millions of cases for which reference.h is too slow. The
// oracle supports only signed formats with a zero.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "cpd/oracle/reference.h"

namespace cpd::testing {

__extension__ using U128 = unsigned __int128;

inline int bit_length(U128 x) {
  const auto high = static_cast<std::uint64_t>(x >> 64);
  if (high != 0) return 128 - std::countl_zero(high);
  return 64 - std::countl_zero(static_cast<std::uint64_t>(x));
}

// A number (significand + f) * 2^exponent, where f = 0, or f is in (0, 1) if sticky. A sticky
// number has a significand of at least 60 bits, so all bits that decide a rounding are above the
// sticky bit.
struct Wide {
  enum class Kind : std::uint8_t { finite, infinite, nan };
  Kind kind = Kind::finite;
  bool negative = false;
  bool sticky = false;
  int exponent = 0;
  U128 significand = 0;

  bool is_zero() const { return kind == Kind::finite && significand == 0 && !sticky; }
};

struct WideArithmetic {
  using Number = Wide;
  using Spec = reference::Spec;
  using Options = reference::Options;

  static Wide number(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const bool negative = (bits >> 31) != 0;
    const std::uint32_t fraction = bits & 0x7FFFFF;
    const auto field = static_cast<int>((bits >> 23) & 0xFF);
    if (field == 255) {
      return {fraction != 0 ? Wide::Kind::nan : Wide::Kind::infinite, negative, false, 0, 0};
    }
    if (field == 0) return {Wide::Kind::finite, negative, false, -149, fraction};
    return {Wide::Kind::finite, negative, false, field - 150, fraction | 0x800000};
  }

  static Wide product(float x, float y) {
    const Wide a = number(x);
    const Wide b = number(y);
    const bool negative = a.negative != b.negative;
    if (a.kind == Wide::Kind::nan || b.kind == Wide::Kind::nan) return nan();
    if (a.kind == Wide::Kind::infinite || b.kind == Wide::Kind::infinite) {
      if (a.is_zero() || b.is_zero()) return nan();
      return {Wide::Kind::infinite, negative, false, 0, 0};
    }
    return {Wide::Kind::finite, negative, false, a.exponent + b.exponent,
            a.significand * b.significand};
  }

  static Wide minus(Wide x) {
    x.negative = !x.negative;
    return x;
  }

  static Wide sum(const Wide& x, const Wide& y, const Options& o) {
    if (x.kind == Wide::Kind::nan || y.kind == Wide::Kind::nan) return nan();
    if (x.kind == Wide::Kind::infinite || y.kind == Wide::Kind::infinite) {
      if (x.kind == y.kind && x.negative != y.negative) return nan();
      return x.kind == Wide::Kind::infinite ? x : y;
    }
    const Wide cancelled{Wide::Kind::finite, o.rounding == Rounding::down, false, 0, 0};
    if (x.is_zero() && y.is_zero()) return x.negative == y.negative ? x : cancelled;
    if (x.is_zero()) return y;
    if (y.is_zero()) return x;
    return finite_sum(x, y, cancelled);
  }

  static Wide rounded(const Spec& spec, const Wide& x, const Options& o) {
    if (!spec.is_signed || spec.encoding == Encoding::e8m0) {
      throw std::invalid_argument("signed formats with a zero only");
    }
    if (x.kind == Wide::Kind::nan) return nan();
    if (x.kind == Wide::Kind::infinite) return beyond(spec, x.negative, o);
    const std::uint64_t code = round_to_code(spec, x, o);
    if (code <= spec.max_code()) return of_code(spec, code, x.negative);
    if (is_inward(spec, o, x.negative)) return of_code(spec, spec.max_code(), x.negative);
    return beyond(spec, x.negative, o);
  }

  static bool is_finite(const Wide& x) { return x.kind == Wide::Kind::finite; }

  // Converts x to float. x must be a binary32 value.
  static float to_float(const Wide& x) {
    const std::uint32_t sign = x.negative ? 0x80000000u : 0;
    if (x.kind == Wide::Kind::nan) return std::bit_cast<float>(reference::kNanBits);
    if (x.kind == Wide::Kind::infinite) return std::bit_cast<float>(sign | 0x7F800000u);
    const std::uint64_t code = round_to_code(Spec{}, x, {});
    return std::bit_cast<float>(sign | static_cast<std::uint32_t>(code));
  }

 private:
  static Wide nan() { return {Wide::Kind::nan, false, false, 0, 0}; }

  // Neither is zero.
  static Wide finite_sum(Wide x, Wide y, const Wide& cancelled) {
    if (bit_length(x.significand) + x.exponent < bit_length(y.significand) + y.exponent) {
      std::swap(x, y);
    }
    // The leading exponent of y is at most the leading exponent of x. Shifts x's significand left
    // to lower x's exponent to y's, but keeps the top bit of the integer free for a carry.
    const int room = 126 - bit_length(x.significand);
    const int places = std::min(room, std::max(0, x.exponent - y.exponent));
    x.significand <<= places;
    x.exponent -= places;
    bool sticky = false;
    if (y.exponent >= x.exponent) {
      y.significand <<= y.exponent - x.exponent;
    } else {
      const int drop = x.exponent - y.exponent;
      const U128 kept = drop > 127 ? 0 : y.significand >> drop;
      sticky = drop > 127 || (kept << drop) != y.significand;
      y.significand = kept;
    }
    if (x.negative == y.negative) {
      return {Wide::Kind::finite, x.negative, sticky, x.exponent, x.significand + y.significand};
    }
    if (sticky) ++y.significand;  // x - (y + part) = (x - y - 1) + (1 - part)
    if (x.significand == y.significand && !sticky) return cancelled;
    const bool swapped = x.significand < y.significand;
    return {Wide::Kind::finite, swapped ? y.negative : x.negative, sticky, x.exponent,
            swapped ? y.significand - x.significand : x.significand - y.significand};
  }

  static Wide beyond(const Spec& spec, bool negative, const Options& o) {
    if (o.overflow == Overflow::ieee) {
      if (spec.infinity_code()) return {Wide::Kind::infinite, negative, false, 0, 0};
      if (spec.nan_code() && spec.encoding != Encoding::p3109finite) return nan();
    }
    return of_code(spec, spec.max_code(), negative);
  }

  static Wide of_code(const Spec& spec, std::uint64_t code, bool negative) {
    const auto field = static_cast<int>(code >> spec.man);
    std::uint64_t significand = code & ((std::uint64_t{1} << spec.man) - 1);
    if (field > 0) {
      significand |= std::uint64_t{1} << spec.man;
    } else if (!spec.subnormals) {
      significand = 0;
    }
    const bool sign = negative && (significand != 0 || spec.has_negative_zero());
    return {Wide::Kind::finite, sign, false, spec.emin() - spec.man + (field > 0 ? field - 1 : 0),
            significand};
  }

  static bool goes_up(const Options& o, bool negative, bool odd, U128 rest, int shift,
                      bool sticky) {
    if (rest == 0 && !sticky) return false;
    const U128 half = U128{1} << (shift - 1);
    switch (o.rounding) {
      case Rounding::nearest_even:
        return rest > half || (rest == half && (sticky || odd));
      case Rounding::nearest_away:
        return rest >= half;
      case Rounding::toward_zero:
        return false;
      case Rounding::up:
        return !negative;
      case Rounding::down:
        return negative;
      case Rounding::to_odd:
        return !odd;
      case Rounding::stochastic:
        return stochastic_up(o, rest, shift, sticky);
    }
    throw std::logic_error("unknown rounding");
  }

  static bool stochastic_up(const Options& o, U128 rest, int shift, bool sticky) {
    const int n = o.random_bits;
    // nu is the distance of the exact value from the next value of the format below, as a fraction
    // of the gap to the next value above. With n random bits, `twice` is floor(nu * 2^(n + 1)), and
    // `below` is true if nu * 2^(n + 1) is not an integer.
    const int down = shift - (n + 1);
    const U128 twice = down >= 0 ? rest >> down : rest << -down;
    const bool below = sticky || (down > 0 && (twice << down) != rest);
    const auto need = (U128{1} << n) - o.random;
    switch (o.variant) {
      case Variant::A:
        return twice / 2 >= need;
      case Variant::B:
        return twice + 2 * U128{o.random} + 1 >= U128{2} << n;
      case Variant::C: {
        const U128 whole = twice / 2;
        const bool up = twice % 2 != 0 && (below || whole % 2 != 0);
        return whole + (up ? 1 : 0) >= need;
      }
    }
    throw std::logic_error("unknown variant");
  }

  // Returns the code of the magnitude to which |x| rounds. Codes continue beyond the largest finite
  // code.
  static std::uint64_t round_to_code(const Spec& spec, const Wide& x, const Options& o) {
    if (x.is_zero()) return 0;
    const int top = bit_length(x.significand) + x.exponent - 1;
    const bool gap = !spec.subnormals && top < spec.emin();
    const int exponent = std::max(top, spec.emin());
    // The spacing of values at x. Below the least normal number of a format without subnormals, the
    // spacing is that number.
    const int quantum = gap ? spec.emin() : exponent - spec.man;
    U128 significand = x.significand;
    bool sticky = x.sticky;
    int shift = quantum - x.exponent;
    if (shift <= 0) {
      return code_of(spec, exponent, static_cast<std::uint64_t>(significand << -shift));
    }
    if (shift > 120) {  // far below the grid: keep the value's place, 120 places are plenty
      const int drop = shift - 120;
      const U128 kept = drop > 127 ? 0 : significand >> drop;
      sticky = sticky || drop > 127 || (kept << drop) != significand;
      significand = kept;
      shift = 120;
    }
    const auto whole = static_cast<std::uint64_t>(significand >> shift);
    const U128 rest = significand - (U128{whole} << shift);
    // Ties go to the even code. With no mantissa bits, an even code has an even exponent field.
    const bool odd = !gap && code_of(spec, exponent, whole) % 2 != 0;
    const bool up = goes_up(o, x.negative, odd, rest, shift, sticky);
    if (gap) return up ? std::uint64_t{1} << spec.man : 0;
    return code_of(spec, exponent, whole) + (up ? 1 : 0);
  }

  static std::uint64_t code_of(const Spec& spec, int exponent, std::uint64_t whole) {
    return whole + (static_cast<std::uint64_t>(exponent - spec.emin()) << spec.man);
  }
};

}  // namespace cpd::testing
