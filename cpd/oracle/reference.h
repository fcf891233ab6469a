// SPDX-License-Identifier: Apache-2.0
//
// The slow exact oracle (host only). Implements formats and roundings again, from their
// specification, and shares no arithmetic with the kernels:
//
//  - Numbers are exact (exact_number.h).
//  - The neighbors of a value on a format's grid are found by exact comparisons with the values of
//    codes. The first guess of the search does not affect the result.
//  - Stochastic rounding also compares integers and computes no quotient.
//
// Use the oracle to test, not to compute: a rounding takes about 50 ns.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include "cpd/oracle/exact_number.h"
#include "cpd/spec/format.h"
#include "cpd/spec/rounding.h"

namespace cpd::reference {

inline constexpr std::uint32_t kNanBits = 0x7FC00000u;

// --- What a format holds -------------------------------------------------------------------------

/// A format's six fields. A magnitude code is a code without its sign bit.
struct Spec {
  int exp = 8;
  int man = 23;
  int bias = 127;
  Encoding encoding = Encoding::ieee;
  bool is_signed = true;
  bool subnormals = true;

  int emin() const { return 1 - bias; }
  std::uint64_t magnitudes() const { return std::uint64_t{1} << (exp + man); }
  int bits() const { return exp + man + (is_signed ? 1 : 0); }
  bool is_integer() const { return cpd::is_integer(encoding); }
  bool has_negative_zero() const {
    return is_signed && encoding != Encoding::fnuz && !is_p3109() && !is_integer();
  }
  bool is_p3109() const { return encoding == Encoding::p3109 || encoding == Encoding::p3109finite; }

  /// Returns the largest magnitude code that stands for a finite value.
  [[gnu::always_inline]] std::uint64_t max_code() const {
    switch (encoding) {
      case Encoding::ieee:
        return (((std::uint64_t{1} << exp) - 1) << man) - 1;
      case Encoding::fn:
        return magnitudes() - 2;
      case Encoding::p3109:
        return magnitudes() - (is_signed ? 2 : 3);
      case Encoding::p3109finite:
        return magnitudes() - (is_signed ? 1 : 2);
      case Encoding::fnuz:
      case Encoding::finite:
      case Encoding::integer:
      case Encoding::int_full:
        return magnitudes() - 1;
      case Encoding::e8m0:
        return 254;
    }
    throw std::logic_error("unknown encoding");
  }
  /// Returns the largest finite magnitude code for a sign. Encoding::int_full has one more negative
  /// value than positive values.
  std::uint64_t max_code(bool negative) const {
    return negative && encoding == Encoding::int_full ? magnitudes() : max_code();
  }

  std::optional<std::uint64_t> infinity_code() const {
    if (encoding == Encoding::ieee || encoding == Encoding::p3109) return max_code() + 1;
    return std::nullopt;
  }

  /// Returns the code (sign bit included) that encodes NaN, if the format has one.
  std::optional<std::uint64_t> nan_code() const {
    switch (encoding) {
      case Encoding::ieee:
        if (man == 0) return std::nullopt;
        return max_code() + 1 + (std::uint64_t{1} << (man - 1));
      case Encoding::fn:
        return magnitudes() - 1;
      case Encoding::fnuz:
        return magnitudes();
      case Encoding::p3109:
      case Encoding::p3109finite:
        return is_signed ? magnitudes() : magnitudes() - 1;
      case Encoding::e8m0:
        return 255;
      case Encoding::finite:
      case Encoding::integer:
      case Encoding::int_full:
        return std::nullopt;
    }
    throw std::logic_error("unknown encoding");
  }
};

inline Spec spec_of(const Format& f) {
  return {f.exp, f.man, f.bias, f.encoding, f.is_signed, f.subnormals};
}

/// Returns the value of a magnitude code. The grid of values continues beyond the format's largest
/// value without an upper bound.
template <class Integer = Natural>
[[gnu::always_inline]] inline Number<Integer> grid_value(const Spec& spec, std::uint64_t code) {
  if (spec.encoding == Encoding::e8m0)
    return exact_finite<Integer>(false, 1, static_cast<int>(code) - 127);
  const int unit = spec.emin() - spec.man;
  if (spec.is_integer()) return exact_finite<Integer>(false, code, unit);
  const int field = static_cast<int>(code >> spec.man);
  const std::uint64_t low = code & ((std::uint64_t{1} << spec.man) - 1);
  if (field == 0) return exact_finite<Integer>(false, spec.subnormals ? low : 0, unit);
  return exact_finite<Integer>(false, (std::uint64_t{1} << spec.man) + low, unit + field - 1);
}

/// Returns the value of a code. All 2^bits codes are valid.
template <class Integer = Natural>
[[gnu::always_inline]] inline Number<Integer> value_of(const Spec& spec, std::uint64_t code) {
  const bool negative = spec.is_signed && code >= spec.magnitudes();
  if (spec.is_integer()) {
    Number<Integer> value =
        grid_value<Integer>(spec, negative ? 2 * spec.magnitudes() - code : code);
    value.negative = negative;
    return value;
  }
  const std::uint64_t magnitude = code & (spec.magnitudes() - 1);
  if (magnitude == 0 && negative && !spec.has_negative_zero()) return exact_nan<Integer>();
  if (magnitude <= spec.max_code()) {
    Number<Integer> value = grid_value<Integer>(spec, magnitude);
    const bool keep_sign = !value.is_zero() || spec.has_negative_zero();
    value.negative = negative && keep_sign;
    return value;
  }
  if (spec.infinity_code() == magnitude) return exact_infinity<Integer>(negative);
  return exact_nan<Integer>();
}

/// Returns whether a code is a signaling NaN. Only IEEE formats have signaling NaNs: their first
/// mantissa bit is zero.
inline bool is_signalling(const Spec& spec, std::uint64_t code) {
  if (spec.encoding != Encoding::ieee || spec.man == 0) return false;
  return value_of<ShortNatural<Digits>>(spec, code).is_nan() && (code >> (spec.man - 1)) % 2 == 0;
}

/// Returns the binary32 number that equals x. Throws std::range_error if x is not a binary32
/// number.
inline float to_float(const Exact& x) {
  const std::uint32_t sign = x.negative ? 0x80000000u : 0u;
  if (x.is_nan()) return std::bit_cast<float>(kNanBits);
  if (x.is_infinite()) return std::bit_cast<float>(sign | 0x7F800000u);
  std::uint32_t low = 0;
  std::uint32_t high = 0x7F7FFFFFu;
  while (low < high) {
    const std::uint32_t middle = low + (high - low + 1) / 2;
    const bool below = compare_magnitude(exact(std::bit_cast<float>(middle)), x) <= 0;
    low = below ? middle : low;
    high = below ? high : middle - 1;
  }
  if (compare_magnitude(exact(std::bit_cast<float>(low)), x) != 0) {
    throw std::range_error("value is not a binary32 number");
  }
  return std::bit_cast<float>(sign | low);
}

inline float decode(const Spec& spec, std::uint64_t code) { return to_float(value_of(spec, code)); }

// --- Rounding ------------------------------------------------------------------------------------

/// The options of one rounding. Stochastic rounding also uses `random_bits` N, the variant, and the
/// random integer `random` in [0, 2^N).
struct Options {
  Rounding rounding = Rounding::nearest_even;
  Overflow overflow = Overflow::ieee;
  Variant variant = Variant::A;
  int random_bits = 24;
  std::uint32_t random = 0;
};

/// The two neighbors of |x| on the grid: `below` is the code of the greatest grid point not above
/// |x|, `above` the code of the next grid point. `part` is |x| minus the lower neighbor; `gap` is
/// the distance of the neighbors.
template <class Integer>
struct Neighbours {
  std::uint64_t below;
  std::uint64_t above;
  Number<Integer> part;
  Number<Integer> gap;
};

/// Returns a code above every code that rounding can give if codes have no upper bound: the code of
/// a power of two above every binary64 number. (e8m0 counts exponents from -127, other formats from
/// emin = 1 - bias.)
inline std::uint64_t end_of_grid(const Spec& spec) { return std::uint64_t{2400 + 512} << spec.man; }

/// Returns |x| cut to a multiple of the format's step, as a code. This is only a first guess at the
/// lower neighbor; round_magnitude verifies the guess.
template <class Integer>
std::uint64_t likely_code(const Spec& spec, const Number<Integer>& x) {
  if (x.is_zero()) return 0;
  const int top = top_exponent(x);
  if (spec.encoding == Encoding::e8m0) return static_cast<std::uint64_t>(std::max(0, top + 127));
  const int least = spec.emin() - spec.man;
  const int step = spec.is_integer() ? least : std::max(least, top - spec.man);
  if (top - step >= 63) return end_of_grid(spec);
  const int drop = step - x.exponent;
  const std::uint64_t steps =
      drop >= 0 ? x.significand.bits_from(drop) : x.significand.bits_from(0) << -drop;
  return (static_cast<std::uint64_t>(step - least) << spec.man) + steps;
}

/// Returns the greatest code whose value is not above |x|, or 0 if every value is above |x|.
/// Searches by bisection.
template <class Integer>
std::uint64_t searched_code(const Spec& spec, const Number<Integer>& x) {
  std::uint64_t low = 0;
  std::uint64_t high = end_of_grid(spec);
  while (low < high) {
    const std::uint64_t middle = low + (high - low + 1) / 2;
    const bool below = compare_magnitude(grid_value<Integer>(spec, middle), x) <= 0;
    low = below ? middle : low;
    high = below ? high : middle - 1;
  }
  return low;
}

/// Returns the neighbors of |x| on the grid if the guess `low` is the lower neighbor's code, else
/// nullopt.
template <class Integer>
[[gnu::always_inline]] inline std::optional<Neighbours<Integer>> neighbours_at(
    const Spec& spec, const Number<Integer>& x, std::uint64_t low) {
  const std::uint64_t first_normal = std::uint64_t{1} << spec.man;
  const bool gap_at_zero = !spec.subnormals && spec.encoding != Encoding::e8m0;
  const bool is_in_gap = gap_at_zero && low < first_normal;
  if (is_in_gap) low = 0;
  const std::uint64_t next = is_in_gap ? first_normal : low + 1;
  const Number<Integer> below = grid_value<Integer>(spec, low);
  if (compare_magnitude(below, x) > 0) return std::nullopt;
  const Number<Integer> part = difference(x, below);
  const Number<Integer> gap = difference(grid_value<Integer>(spec, next), below);
  if (compare_magnitude(part, gap) >= 0) return std::nullopt;
  return Neighbours<Integer>{low, next, part, gap};
}

/// Returns whether stochastic rounding rounds a value away from zero. The value lies at the
/// fraction nu = part / gap of the way from its lower to its upper neighbor.
template <class Integer>
bool rounds_away(const Number<Integer>& part, const Number<Integer>& gap, const Options& o) {
  // Each variant's condition is transformed so that no quotient is needed. For variant A, floor(nu
  // 2^n) + r >= 2^n (r: the random integer, of n bits) is equivalent to nu 2^n >= 2^n - r.
  const std::uint64_t need = (std::uint64_t{1} << o.random_bits) - o.random;
  Number<Integer> scaled = part;  // 2 nu 2^n, in units of the gap
  scaled.exponent += o.random_bits + 1;
  const auto at_least = [&](std::uint64_t halves) {
    return compare_magnitude(scaled, multiply(gap, exact_finite<Integer>(false, halves, 0)));
  };
  switch (o.variant) {
    case Variant::A:
      return at_least(2 * need) >= 0;
    case Variant::B:
      return at_least(2 * need - 1) >= 0;
    case Variant::C: {
      const auto order = at_least(2 * need - 1);  // need - 1/2 rounds to need where that is even
      return order > 0 || (order == 0 && need % 2 == 0);
    }
  }
  throw std::logic_error("unknown variant");
}

/// Returns the magnitude code to which finite x rounds, on the grid without upper bound.
template <class Integer>
std::uint64_t round_magnitude(const Spec& spec, const Number<Integer>& x, const Options& o) {
  if (spec.encoding == Encoding::e8m0 && compare_magnitude(grid_value<Integer>(spec, 0), x) > 0) {
    return 0;  // below the least value
  }
  const std::uint64_t end = end_of_grid(spec);
  const std::uint64_t likely = likely_code(spec, x);
  if (likely >= end && compare_magnitude(grid_value<Integer>(spec, end), x) <= 0) return end;
  auto found = neighbours_at(spec, x, likely);
  if (!found) found = neighbours_at(spec, x, searched_code(spec, x));
  const auto& [below, above, part, gap] = found.value();
  if (part.is_zero()) return below;
  Number<Integer> twice = part;
  ++twice.exponent;
  const auto half = compare_magnitude(twice, gap);
  // In a format without subnormals, the first grid step is from an even point (0) to the least
  // normal number, which counts as odd.
  const bool even_below = above - below > 1 || below % 2 == 0;
  switch (o.rounding) {
    case Rounding::nearest_even:
      return half < 0 || (half == 0 && even_below) ? below : above;
    case Rounding::nearest_away:
      return half < 0 ? below : above;
    case Rounding::toward_zero:
      return below;
    case Rounding::up:
      return x.negative ? below : above;
    case Rounding::down:
      return x.negative ? above : below;
    case Rounding::to_odd:
      return even_below ? above : below;
    case Rounding::stochastic:
      return rounds_away(part, gap, o) ? above : below;
  }
  throw std::logic_error("unknown rounding");
}

/// Returns whether a finite overflow gives the largest value rather than Inf or NaN. Rounding to
/// odd gives the largest value, except in a P3109 format with Inf if the code after the largest
/// value's code is odd.
inline bool is_inward(const Spec& spec, const Options& o, bool negative) {
  if (o.rounding == Rounding::to_odd) {
    const bool odd_above = (spec.max_code() + 1) % 2 == 1;
    return !(spec.encoding == Encoding::p3109 && odd_above && o.overflow == Overflow::ieee);
  }
  return o.rounding == Rounding::toward_zero ||
         o.rounding == (negative ? Rounding::up : Rounding::down);
}

/// Returns the value of a magnitude code, negated if `negative` is set and the format has signs.
template <class Integer = Natural>
Number<Integer> signed_grid_value(const Spec& spec, std::uint64_t code, bool negative) {
  Number<Integer> value = grid_value<Integer>(spec, code);
  value.negative = negative && spec.is_signed && (!value.is_zero() || spec.has_negative_zero());
  return value;
}

template <class Integer = Natural>
Number<Integer> signed_max(const Spec& spec, bool negative) {
  return signed_grid_value<Integer>(spec, spec.max_code(negative), negative);
}

/// Returns the result of an infinity or an overflow: the largest value if `overflow` saturates,
/// else Inf, else NaN. A format with neither, and P3109's finite formats, give the largest value.
template <class Integer = Natural>
Number<Integer> infinite_result(const Spec& spec, bool negative, Overflow overflow) {
  if (overflow == Overflow::saturate) return signed_max<Integer>(spec, negative);
  if (spec.infinity_code()) return exact_infinity<Integer>(negative);
  if (spec.nan_code() && spec.encoding != Encoding::p3109finite) return exact_nan<Integer>();
  return signed_max<Integer>(spec, negative);
}

/// Returns the result of a negative number in an unsigned format, if the number does not round to
/// zero: NaN with Overflow::ieee in a format that has NaN, else 0. In a P3109 format, a finite
/// number that is rounded toward zero or up also gives 0.
template <class Integer>
Number<Integer> negative_result(const Spec& spec, const Number<Integer>& x, const Options& o) {
  const bool upward = o.rounding == Rounding::toward_zero || o.rounding == Rounding::up;
  const bool is_zero = spec.is_p3109() && upward && !x.is_infinite();
  if (o.overflow == Overflow::ieee && spec.nan_code() && !is_zero) return exact_nan<Integer>();
  return grid_value<Integer>(spec, 0);
}

template <class Integer>
Number<Integer> round_exact(const Spec& spec, const Number<Integer>& x, const Options& o = {}) {
  if (x.is_nan()) return exact_nan<Integer>();
  if (x.is_infinite()) {
    if (x.negative && !spec.is_signed) return negative_result(spec, x, o);
    return infinite_result<Integer>(spec, x.negative, o.overflow);
  }
  if (spec.encoding == Encoding::e8m0 && x.negative && !x.is_zero()) {
    return negative_result(spec, x, o);
  }
  const std::uint64_t code = round_magnitude(spec, x, o);
  if (x.negative && !spec.is_signed && code != 0) return negative_result(spec, x, o);
  if (code > spec.max_code(x.negative)) {
    if (is_inward(spec, o, x.negative)) return signed_max<Integer>(spec, x.negative);
    return infinite_result<Integer>(spec, x.negative, o.overflow);
  }
  return signed_grid_value<Integer>(spec, code, x.negative);
}

/// Returns exact x rounded once into the format. NaN gives the canonical quiet NaN.
inline float round(const Spec& spec, const Exact& x, const Options& o = {}) {
  return to_float(round_exact(spec, x, o));
}

inline float cast(const Spec& spec, float x, const Options& o = {}) {
  return round(spec, exact(x), o);
}
inline float cast(const Spec& spec, double x, const Options& o = {}) {
  return round(spec, exact(x), o);
}

/// Returns the code of a result of round_exact. Returns nullopt for a NaN if the format has no code
/// for NaN.
template <class Integer>
std::optional<std::uint32_t> code_of(const Spec& spec, const Number<Integer>& value) {
  std::optional<std::uint64_t> code;
  if (value.is_nan()) {
    code = spec.nan_code();
  } else {
    const std::uint64_t sign = value.negative ? spec.magnitudes() : 0;
    if (value.is_infinite()) {
      if (const auto infinity = spec.infinity_code()) code = sign + *infinity;
    } else if (spec.encoding == Encoding::e8m0) {
      code = static_cast<std::uint64_t>(value.exponent + 127);
    } else if (spec.is_integer()) {
      const std::uint64_t size = value.significand.bits_from(0);
      code = value.negative && size != 0 ? 2 * spec.magnitudes() - size : size;
    } else {  // the value has grid_value's integer and exponent
      const std::uint64_t integer = value.significand.bits_from(0);
      const auto field = static_cast<std::uint64_t>(value.exponent - (spec.emin() - spec.man));
      code = sign + (integer < (std::uint64_t{1} << spec.man) ? 0 : field << spec.man) + integer;
    }
  }
  if (!code) return std::nullopt;
  return static_cast<std::uint32_t>(*code);
}

/// Returns the code of x rounded into the format. Returns nullopt for a NaN if the format has no
/// code for NaN.
inline std::optional<std::uint64_t> encode(const Spec& spec, const Exact& x,
                                           const Options& o = {}) {
  return code_of(spec, round_exact(spec, x, o));
}

// --- One operation, one rounding -----------------------------------------------------------------

/// Returns the exact sum of x and y, to be rounded with options `o`. The options decide the sign of
/// a zero sum.
template <class Integer>
Number<Integer> add_for(const Options& o, const Number<Integer>& x, const Number<Integer>& y) {
  return add(x, y, o.rounding == Rounding::down);
}

inline float add(const Spec& spec, float x, float y, const Options& o = {}) {
  return round(spec, add_for(o, exact(x), exact(y)), o);
}
inline float subtract(const Spec& spec, float x, float y, const Options& o = {}) {
  return round(spec, add_for(o, exact(x), negate(exact(y))), o);
}
inline float mul(const Spec& spec, float x, float y, const Options& o = {}) {
  return round(spec, multiply(exact(x), exact(y)), o);
}
inline float fma(const Spec& spec, float x, float y, float z, const Options& o = {}) {
  return round(spec, add_for(o, multiply(exact(x), exact(y)), exact(z)), o);
}

// --- Step functions ------------------------------------------------------------------------------

/// One step of a cast: all bit patterns from `first` up to the next step's `first` give `value`.
struct Step {
  std::uint32_t first;
  float value;
};

/// Returns the cast as a step function of the binary32 bit pattern, without the NaN patterns. The
/// steps ascend by pattern: 0 … 0x7F800000, then 0x80000000 … 0xFF800000. Every rounding mode with
/// a fixed random integer is monotone in each of these two ranges, so bisection finds all steps.
inline std::vector<Step> step_function(const Spec& spec, const Options& o = {}) {
  std::vector<Step> steps;
  const auto value_at = [&](std::uint32_t bits) {
    return cast(spec, std::bit_cast<float>(bits), o);
  };
  const auto same = [](float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
  };
  // Finds the steps of the cast that begin in (low, high] by bisection, and appends them to
  // `steps`.
  const auto split = [&](const auto& self, std::uint32_t low, float at_low, std::uint32_t high,
                         float at_high) -> void {
    if (same(at_low, at_high)) return;
    if (high - low == 1) {
      steps.push_back({high, at_high});
      return;
    }
    const std::uint32_t middle = low + (high - low) / 2;
    const float at_middle = value_at(middle);
    self(self, low, at_low, middle, at_middle);
    self(self, middle, at_middle, high, at_high);
  };
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    const std::uint32_t low = sign;
    const std::uint32_t high = sign | 0x7F800000u;
    steps.push_back({low, value_at(low)});
    split(split, low, value_at(low), high, value_at(high));
  }
  return steps;
}

}  // namespace cpd::reference
