// SPDX-License-Identifier: Apache-2.0
//
// The rounding kernel: one source for every format, mode and lane type.
//
// A finite |x| = sig * 2^(e - bias - mantissa) is cut at the format's last place: the low `cut`
// bits of sig are the discarded fraction nu, and the other bits are the significand on the grid.
// The result is a magnitude *code* (format.h) on the grid continued upward without bound. Codes of
// neighbors differ by one, also across binades. So a carry needs no special case, and "even" means
// an even code, also for man = 0. Overflow is code > max_code ("round first, then test"). The code
// is then converted to a value (cast) or packed as it is (encode).
//
// The kernel is exact for every binary32 x if plan.wide is false. The kernel is exact for every
// binary64 x, because the formats' grids lie within 2^-149 … 2^128, far inside binary64's range.
// The caller must have set the default floating-point environment: no flush to zero, nearest-even.
#pragma once

#include "cpd/numeric/lanes/lanes.h"
#include "cpd/numeric/round/round_plan.h"

namespace cpd {
inline namespace CPD_ISA {

/// The bit patterns of one lane of V: masks of its fields, and special values.
template <class V>
struct Pattern {
  using U = typename ElementOf<Unsigned<V>>::type;
  static constexpr int mantissa = Lanes<V>::mantissa;
  static constexpr int width = 8 * static_cast<int>(sizeof(U));
  static constexpr U sign = U{1} << (width - 1);
  static constexpr U magnitude = sign - 1;
  static constexpr U implicit = U{1} << mantissa;
  static constexpr U fraction = implicit - 1;
  static constexpr U infinity = magnitude & ~fraction;
  static constexpr U quiet_nan = infinity | (implicit >> 1);
};

template <class V>
CPD_FN constexpr const Grid& grid_of(const RoundPlan& plan) {
  if constexpr (Lanes<V>::mantissa == 23) {
    return plan.grid32;
  } else {
    return plan.grid64;
  }
}

/// Returns whether every plan of this form has the properties of Form::simple (round_plan.h).
CPD_FN constexpr bool is_simple(Form form) {
  return form != Form::general && form != Form::general_addition && form != Form::integer;
}

/// The mode of a Rule for all modes but nearest-even and stochastic; the plan holds the actual
/// mode. (kOtherMode has the value of one of these modes, as nvcc accepts only enumerators here.)
constexpr Rounding kOtherMode = Rounding::to_odd;

/// The mode and form of a plan as compile-time constants, for loops without needless branches.
template <Rounding kMode, Form kForm = Form::general>
struct Rule {
  static constexpr Rounding mode = kMode;
  static constexpr Form form = kForm;
  static constexpr bool integer = kForm == Form::integer;
  /// True: the format has signs, zero, subnormals, no overflow to NaN and, unless `integer`, -0.
  static constexpr bool simple = is_simple(kForm) || integer;
  /// True if rounding by this rule is done by an addition of binary32 numbers.
  static constexpr bool adds = kForm == Form::addition || kForm == Form::general_addition ||
                               (integer && kMode == Rounding::nearest_even);

  CPD_FN static constexpr Rounding mode_of(const RoundPlan& plan) {
    return kMode == kOtherMode ? plan.mode : kMode;
  }
  /// Returns whether an exact zero sum of numbers of different signs is -0 (IEEE 754, 6.3).
  CPD_FN static constexpr bool is_down(const RoundPlan& plan) {
    return mode_of(plan) == Rounding::down;
  }
};

/// Passes the mode to `run` as a template argument: nearest_even, stochastic or else kOtherMode.
template <class Run>
CPD_FN constexpr void with_mode(Rounding mode, Run run) {
  if (mode == Rounding::nearest_even) {
    run.template operator()<Rounding::nearest_even>();
  } else if (mode == Rounding::stochastic) {
    run.template operator()<Rounding::stochastic>();
  } else {
    run.template operator()<kOtherMode>();
  }
}

/// Returns whether an overflow in this mode may give the largest finite value (Overflow::ieee).
CPD_FN constexpr bool may_clip(Rounding mode) {
  return mode != Rounding::nearest_even && mode != Rounding::stochastic &&
         mode != Rounding::nearest_away;
}

/// Passes the rule of a mode and a form to `run` as a template argument (default: Form::simple).
template <Rounding mode, class Run>
CPD_FN constexpr void with_form(Form form, Run run) {
  if constexpr (mode == Rounding::nearest_even) {
    if (form == Form::in_place) return run.template operator()<Rule<mode, Form::in_place>>();
    if (form == Form::integer) return run.template operator()<Rule<mode, Form::integer>>();
  }
  if constexpr (mode != Rounding::stochastic) {
    if (form == Form::addition) return run.template operator()<Rule<mode, Form::addition>>();
    if (form == Form::general_addition) {
      return run.template operator()<Rule<mode, Form::general_addition>>();
    }
  }
  if constexpr (mode == Rounding::stochastic) {
    if (form == Form::scaled) return run.template operator()<Rule<mode, Form::scaled>>();
    if (form == Form::integer) return run.template operator()<Rule<mode, Form::integer>>();
    if (form == Form::in_place) return run.template operator()<Rule<mode, Form::in_place>>();
  }
  if (form == Form::general) return run.template operator()<Rule<mode, Form::general>>();
  run.template operator()<Rule<mode, Form::simple>>();
}

/// Calls `run` with a template argument: the rule by which the plan's codes are decoded.
template <class Run>
CPD_FN constexpr void with_codes(const RoundPlan& plan, Run run) {
  constexpr Rounding kAny = Rounding::nearest_even;
  if (plan.form == Form::integer) return run.template operator()<Rule<kAny, Form::integer>>();
  if (!is_simple(plan.form)) return run.template operator()<Rule<kAny, Form::general>>();
  if (plan.form == Form::in_place) return run.template operator()<Rule<kAny, Form::in_place>>();
  run.template operator()<Rule<kAny, Form::simple>>();
}

/// Returns sig / 2^cut rounded to the nearest integer q. A tie goes to the q for which q + parity,
/// and therefore the code, is even. For cut > mantissa + 1, sig / 2^cut is below one half and the
/// result is 0, also if cut exceeds the lane's width.
template <class V>
CPD_FN constexpr Unsigned<V> divide_nearest_even(Unsigned<V> sig, Unsigned<V> cut,
                                                 Unsigned<V> parity) {
  using U = Unsigned<V>;
  const U one = splat<U>(1);
  const U odd = (shift_right(sig, cut) + parity) & one;
  return shift_right((sig << 1) + (shift_left(one, cut) - one) + odd, cut + one);
}

/// Rounds sig / 2^cut stochastically to its floor or ceiling, by the integer R in [0, 2^N). Variant
/// A compares the first N bits of the fraction with R, variant B the first N + 1 bits with 2R + 1,
/// and variant C the fraction rounded to N bits with R. The sum of these bits and R carries into
/// the quotient exactly if the rule rounds away. If the fraction has fewer bits than R, the low
/// bits of R have no effect and are dropped.
template <class V>
CPD_FN constexpr Unsigned<V> divide_stochastic(Unsigned<V> sig, Signed<V> cut, Unsigned<V> random,
                                               const RoundPlan& plan) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  const bool is_b = plan.variant == Variant::B;
  const int bits = plan.random_bits + (is_b ? 1 : 0);
  const U addend = is_b ? (random << 1) + splat<U>(1) : random;
  const U below = (U)max(cut - splat<I>(bits), I{});
  const U kept = (U)min(cut, splat<I>(bits));  // bits of the fraction that R meets
  const U head = plan.variant == Variant::C ? divide_nearest_even<V>(sig, below, U{})
                                            : shift_right(sig, below);
  return shift_right(head + shift_right(addend, splat<U>(bits) - kept), kept);
}

/// Returns q = sig / 2^cut, rounded by the rule's mode. q's code is even if q + parity is even.
template <class R, class V, class Mask>
CPD_FN constexpr Unsigned<V> divide(Unsigned<V> sig, Signed<V> cut_wanted, Unsigned<V> parity,
                                    Mask negative, Unsigned<V> random, const RoundPlan& plan) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  if constexpr (R::mode == Rounding::stochastic) {
    return divide_stochastic<V>(sig, cut_wanted, random, plan);
  } else if constexpr (R::mode == Rounding::nearest_even) {
    return divide_nearest_even<V>(sig, (U)cut_wanted, parity);
  } else {
    const Rounding mode = plan.mode;
    const U one = splat<U>(1);
    // Limits `cut`: larger values give the same result, but the additions to `sig` could overflow.
    const U cut = (U)min(cut_wanted, splat<I>(Lanes<V>::mantissa + 2));
    const U ceiling = (one << cut) - one;
    if (mode == Rounding::up) return (sig + select(negative, U{}, ceiling)) >> cut;
    if (mode == Rounding::down) return (sig + select(negative, ceiling, U{})) >> cut;
    if (mode == Rounding::nearest_away) return ((sig << 1) + (one << cut)) >> (cut + one);
    const U floor = sig >> cut;
    if (mode == Rounding::toward_zero) return floor;
    const U even = (floor + parity + one) & one;  // to odd
    return floor + select((floor << cut) == sig, U{}, even);
  }
}

/// True if short_code and short_magnitude, which take few operations, can round values of type V.
template <class R, class V>
constexpr bool kIsShort =
    Lanes<V>::mantissa == 23 && R::form != Form::general && R::form != Form::simple;

/// The binary32 addition that rounds |x|. Let e be the exponent of |x|, at least emin, and `cut`
/// the number of fraction bits that rounding drops. The sum |x| + 2^(e + cut) has the format's last
/// place, so one nearest-even addition of binary32 rounds |x| to the grid. If man = 0, the first
/// codes of successive binades are alternately odd and even. That parity is then added to the
/// addend's last bit, so that an even sum is an even code. |x| is first limited to 2^(emax + 2),
/// which overflows the format too, so that the sum is finite.
template <class V>
struct GridSum {
  Unsigned<V> unit, sum;  ///< patterns of the addend and of the sum
  Unsigned<V> above;      ///< the binade's pattern minus the pattern of 2^emin
};

/// Rounds |x| up, down or toward zero, as the plan's mode requires. `a` is the pattern of |x|, and
/// `sum` the pattern of |x| + `unit` rounded to nearest-even. If that sum rounds |x| to the wrong
/// side, its pattern changes by 1.
template <class R, class V>
CPD_FN constexpr Unsigned<V> directed_sum(V x, Signed<V> a, Unsigned<V> sum, Unsigned<V> unit,
                                          const RoundPlan& plan) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  const Rounding mode = R::mode_of(plan);
  const I rounded = bits_as<I>(bits_as<V>(sum) - bits_as<V>(unit));
  const U one = splat<U>(1);
  const U inward = sum - ((U)(rounded > a) & one);
  if (mode == Rounding::toward_zero) return inward;
  const U outward = sum + ((U)(rounded < a) & one);
  const auto negative = (I)bits_as<U>(x) < I{};
  return mode == Rounding::up ? select(negative, inward, outward)
                              : select(negative, outward, inward);
}

template <class R, class V>
CPD_FN constexpr GridSum<V> add_grid_unit(V x, const RoundPlan& plan) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using P = Pattern<V>;
  const I a = min((I)(bits_as<U>(x) & splat<U>(P::magnitude)), splat<I>(plan.beyond));
  const I least = splat<I>(plan.grid32.emin_field << P::mantissa);
  const I place = max(a & splat<I>(P::infinity), least);
  const U above = (U)(place - least);
  U unit = (U)(place + splat<I>(plan.grid32.cut << P::mantissa));
  if (plan.man == 0) unit = unit + ((above >> P::mantissa) & splat<U>(1));
  const U sum = bits_as<U>(bits_as<V>(a) + bits_as<V>(unit));
  if constexpr (R::mode == Rounding::nearest_even) return {unit, sum, above};
  return {unit, directed_sum<R>(x, a, sum, unit, plan), above};
}

/// Returns the pattern of |x| plus an integer. The sum carries into the format's last place exactly
/// if x rounds away, and the caller clears the `cut` bits below that place. Form::in_place rounds
/// all numbers in this way, Form::scaled normal numbers. In stochastic modes, R is added to the N
/// bits after the last place; if there are fewer bits, the low bits of R have no effect.
template <class R, class V>
CPD_FN constexpr Unsigned<V> carried_pattern(V x, Unsigned<V> random, const RoundPlan& plan) {
  using U = Unsigned<V>;
  const int cut = plan.grid32.cut;
  const U a = bits_as<U>(x) & splat<U>(Pattern<V>::magnitude);
  if constexpr (R::mode == Rounding::stochastic) {
    const int excess = plan.random_bits - cut;
    return a + (excess > 0 ? shift_right(random, excess) : shift_left(random, -excess));
  } else {
    if (cut == 0) return a;
    return a + splat<U>((1U << (cut - 1)) - 1) + (shift_right(a, cut) & splat<U>(1));
  }
}

/// The result of round_below, which rounds subnormals stochastically: whether |x| is below 2^emin
/// and, if so, its code. round_below counts |x| in units of 2^-N times the least spacing, truncates
/// the count, adds the random integer R < 2^N and drops the last N bits.
template <class V>
struct Below {
  decltype(Signed<V>{} < Signed<V>{}) is_below;
  Signed<V> code;
};
template <class V>
CPD_FN constexpr Below<V> round_below(V x, Unsigned<V> random, const RoundPlan& plan) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  const I a = (I)(bits_as<U>(x) & splat<U>(Pattern<V>::magnitude));
  const I below = splat<I>(plan.scaled_below);
  const V units = bits_as<V>(min(a, below)) * splat<V>(plan.to_units);
  return {a < below, (I)shift_right((U)convert<I>(units) + random, plan.random_bits)};
}

/// Returns the magnitude code of x, rounded by a rule for which kIsShort is true. Takes one
/// binary32 addition if R::adds, and one binary32 multiplication for Form::scaled.
template <class R, class V>
CPD_FN constexpr Signed<V> short_code(V x, Unsigned<V> random, const RoundPlan& plan) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  if constexpr (R::adds) {
    const GridSum<V> s = add_grid_unit<R>(x, plan);  // the sum's pattern counts codes
    return (I)(s.sum - s.unit + shift_right(s.above, plan.grid32.cut));
  } else {
    const U code = shift_right(carried_pattern<R>(x, random, plan), plan.grid32.cut);
    if constexpr (R::form == Form::in_place) return (I)code;
    const Below<V> subnormal = round_below(x, random, plan);
    const U normal = code - splat<U>((plan.grid32.emin_field - 1) << plan.man);
    return select(subnormal.is_below, subnormal.code, (I)normal);
  }
}

/// Returns |x| rounded by a rule for which kIsShort is true. Takes one binary32 addition and one
/// subtraction if R::adds, and two binary32 multiplications for Form::scaled.
template <class R, class V>
CPD_FN constexpr V short_magnitude(V x, Unsigned<V> random, const RoundPlan& plan) {
  using U = Unsigned<V>;
  if constexpr (R::adds) {
    // Subtracting s.unit is exact: the result has the last place of s.sum and is at most 2^(e + 1).
    const GridSum<V> s = add_grid_unit<R>(x, plan);
    return bits_as<V>(s.sum) - bits_as<V>(s.unit);
  } else {
    const U kept = ~splat<U>((1U << plan.grid32.cut) - 1);
    const V normal = bits_as<V>(carried_pattern<R>(x, random, plan) & kept);
    if constexpr (R::form == Form::in_place) return normal;
    const Below<V> subnormal = round_below(x, random, plan);
    const V small = convert<V>(subnormal.code) * splat<V>(plan.from_units);
    return select(subnormal.is_below, small, normal);
  }
}

/// Returns the magnitude code of x, rounded. Inf and NaN give a code above max_code.
template <class R, class V>
CPD_FN constexpr Signed<V> round_to_code(V x, Unsigned<V> random, const RoundPlan& plan) {
  if constexpr (kIsShort<R, V>) return short_code<R>(x, random, plan);
  using U = Unsigned<V>;
  using I = Signed<V>;
  using P = Pattern<V>;
  using E = typename ElementOf<I>::type;
  const Grid& grid = grid_of<V>(plan);
  const U u = bits_as<U>(x);
  const U a = u & splat<U>(P::magnitude);
  // Exponent fields, at their position in x's bit pattern. Subnormal numbers get field 1.
  const I least = splat<I>(static_cast<E>(grid.emin_field) << P::mantissa);
  const I exponent = max((I)(a & splat<U>(P::infinity)), splat<I>(P::implicit));
  const U sig = (a - (U)exponent) + splat<U>(P::implicit);
  const I place = max(exponent, least);  // the binade whose spacing x is rounded to
  const I depth = (I)((U)(place - exponent) >> P::mantissa);
  I cut = depth + splat<I>(grid.cut);
  // A number's code is its significand in spacings plus `base`, which a binade's numbers share.
  U base = (U)(place - least) >> grid.cut;
  if constexpr (!R::simple) {
    if (!plan.has_zero) base = base - splat<U>(1);
    if (plan.flush) {
      // Without subnormals, |x| < 2^emin rounds to 0, or to 2^emin, whose code is 2^man.
      const auto below = depth > I{};
      cut = cut + select(below, splat<I>(plan.man), I{});
      const U quotient = divide<R, V>(sig, cut, base, (I)u < I{}, random, plan);
      return (I)(base + select(below, quotient << plan.man, quotient));
    }
  }
  return (I)(base + divide<R, V>(sig, cut, base, (I)u < I{}, random, plan));
}

/// Returns the value of a finite magnitude code. A code above max_code gives an unspecified value.
template <class R, class V>
CPD_FN constexpr V magnitude_of_code(Signed<V> code, const RoundPlan& plan) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using E = typename ElementOf<U>::type;
  const Grid& grid = grid_of<V>(plan);
  const E least = static_cast<E>(grid.emin_field) << Lanes<V>::mantissa;
  const U significand = shift_left((U)code, grid.cut);
  // With binary32's own exponents, the code << grid.cut is the value's bit pattern. (A subtraction
  // with a subnormal result would take some CPUs a hundred cycles.)
  if constexpr (Lanes<V>::mantissa == 23 && R::form == Form::in_place) {
    return bits_as<V>(significand);
  }
  if constexpr (!R::simple) {
    if (!plan.has_zero) return bits_as<V>(significand + splat<U>(least));
  }
  const V normal = bits_as<V>(significand + splat<U>(least - Pattern<V>::implicit));
  // 2^emin + (the subnormal value) has the exponent of 2^emin, so subtracting 2^emin is exact.
  const V subnormal = bits_as<V>(significand + splat<U>(least)) - bits_as<V>(splat<U>(least));
  return select(code < splat<I>(plan.min_normal_code), subnormal, normal);
}

/// Masks of the lanes whose result is not the value of the rounded magnitude code.
template <class Mask>
struct Outcome {
  Mask overflowed;  ///< the result is the policy's overflow value, unless it is `clipped`
  Mask clipped;     ///< the result is the largest finite value
  Mask nan;
};

/// Returns masks of the lanes that overflow, become the largest value, or are NaN. `code`, or
/// another integer that ascends with the result, overflows above `most`, the largest value's code.
template <class R, class V>
CPD_FN constexpr auto outcome_of(V x, Signed<V> code, Signed<V> most, const RoundPlan& plan) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using P = Pattern<V>;
  using Mask = decltype(code > code);
  const U u = bits_as<U>(x);
  const I a = (I)(u & splat<U>(P::magnitude));
  Outcome<Mask> outcome{code > most, Mask{}, a > splat<I>(P::infinity)};
  const Rounding mode = R::mode_of(plan);
  if (may_clip(mode) && !plan.odd_overflow_is_inf) {
    // A finite overflow rounded inward gives the largest finite value.
    const Mask negative = (I)u < I{};
    Mask inward = without(outcome.overflowed, Mask(a == splat<I>(P::infinity)));
    if (mode == Rounding::up) inward = inward & negative;
    if (mode == Rounding::down) inward = without(inward, negative);
    outcome.clipped = inward;
  }
  if constexpr (!R::simple) {
    if (plan.overflow_is_nan) {
      outcome.nan = outcome.nan | without(outcome.overflowed, outcome.clipped);
    }
  }
  return outcome;
}

/// Returns the largest finite magnitude of x's sign: `most`, or `below` for x < 0 in int_full.
template <class R, class T, class V>
CPD_FN constexpr T largest_of(V x, T most, T below, const RoundPlan& plan) {
  if constexpr (!R::simple) {
    if (plan.is_lopsided)
      return select((Signed<V>)bits_as<Unsigned<V>>(x) < Signed<V>{}, below, most);
  }
  return most;
}

/// Returns `over`, the result of an overflow; for int_full, without Inf and NaN, `largest`.
template <class R, class T>
CPD_FN constexpr T overflow_of(T over, T largest, const RoundPlan& plan) {
  if constexpr (!R::simple) {
    if (plan.is_lopsided) return largest;  // such a format has neither Inf nor NaN
  }
  return over;
}

/// Returns whether the codes of the plan's format are two's complement.
template <class R>
CPD_FN constexpr bool has_complements(const RoundPlan& plan) {
  return R::integer || (!R::simple && plan.complement);
}

/// Returns the two's complement code of a magnitude code with the sign of x.
template <class V>
CPD_FN constexpr Unsigned<V> complement_of(Signed<V> code, V x, const RoundPlan& plan) {
  using U = Unsigned<V>;
  using P = Pattern<V>;
  const U negative = (U)((Signed<V>)bits_as<U>(x) >> (P::width - 1));
  const auto mask = static_cast<typename ElementOf<U>::type>((std::uint64_t{1} << plan.bits) - 1);
  return (((U)code ^ negative) - negative) & splat<U>(mask);
}

/// Returns the magnitude with its sign in the format. -0 results only if the format has -0. In
/// unsigned formats, a negative number that does not round to zero gives the argument `negative`.
template <class R, class U, class Mask>
CPD_FN constexpr U with_sign(U magnitude, U sign, Mask rounds_to_zero, U negative,
                             const RoundPlan& plan) {
  if constexpr (R::integer) {
    return magnitude | select(magnitude == U{}, U{}, sign);
  } else if constexpr (R::simple) {
    return magnitude | sign;
  } else {
    if (plan.plain) return magnitude | sign;
    if (plan.is_signed) return magnitude | select(magnitude == U{}, U{}, sign);
    return select((sign != U{}) & !rounds_to_zero, negative, magnitude);
  }
}

/// Returns the result for a negative x that does not round to zero in an unsigned format: NaN or
/// the least value.
template <class R, class V>
CPD_FN constexpr Unsigned<V> negative_of(V x, Unsigned<V> nan, Unsigned<V> least,
                                         const RoundPlan& plan) {
  using U = Unsigned<V>;
  using P = Pattern<V>;
  if (!plan.negative_is_nan) return least;
  if constexpr (!R::simple) {
    if (may_clip(R::mode) && plan.clips_negative) {
      return select((bits_as<U>(x) & splat<U>(P::magnitude)) < splat<U>(P::infinity), least, nan);
    }
  }
  return nan;
}

/// Returns whether x, whose rounded magnitude code is `code`, rounds to zero. e8m0 has no zero:
/// there, returns true only for x = 0, and replaces a negative `code` by 0, the least code.
template <class R, class V>
CPD_FN constexpr auto take_zero(V x, Signed<V>& code, const RoundPlan& plan) {
  using U = Unsigned<V>;
  auto rounds_to_zero = code == Signed<V>{};
  if constexpr (!R::simple) {
    if (!plan.has_zero) {
      rounds_to_zero = (bits_as<U>(x) & splat<U>(Pattern<V>::magnitude)) == U{};
      code = max(code, Signed<V>{});
    }
  }
  return rounds_to_zero;
}

/// Returns x rounded once into the plan's format, as a value of V.
template <class R, class V>
CPD_FN constexpr V round(V x, Unsigned<V> random, const RoundPlan& plan) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using P = Pattern<V>;
  V y{};
  I size{};  // the magnitude code, or in a short form the value's pattern
  const V largest = largest_of<R>(x, splat<V>(plan.max_value), splat<V>(-plan.lowest_value), plan);
  I most = splat<I>(plan.max_code);
  if constexpr (kIsShort<R, V>) {
    y = short_magnitude<R>(x, random, plan);
    size = bits_as<I>(y);
    most = bits_as<I>(largest);
  } else {
    size = round_to_code<R>(x, random, plan);
    most = largest_of<R>(x, most, most + splat<I>(1), plan);
  }
  const auto outcome = outcome_of<R>(x, size, most, plan);
  const auto rounds_to_zero = take_zero<R>(x, size, plan);
  if constexpr (!kIsShort<R, V>) y = magnitude_of_code<R, V>(size, plan);
  y = select(outcome.overflowed, overflow_of<R>(splat<V>(plan.overflow_value), largest, plan), y);
  if (may_clip(R::mode)) y = select(outcome.clipped, largest, y);
  const U nan = splat<U>(P::quiet_nan);
  const U negative = negative_of<R>(x, nan, bits_as<U>(splat<V>(plan.lowest_value)), plan);
  const U sign = bits_as<U>(x) & splat<U>(P::sign);
  const U bits = with_sign<R>(bits_as<U>(y), sign, rounds_to_zero, negative, plan);
  return bits_as<V>(select(outcome.nan, nan, bits));
}

/// Returns x rounded once into the plan's format, as its code with the sign bit. A NaN gives 0 if
/// the format has no NaN code; the caller must check for such NaNs first.
template <class R, class V>
CPD_FN constexpr Unsigned<V> round_to_whole_code(V x, Unsigned<V> random, const RoundPlan& plan) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using P = Pattern<V>;
  I code = round_to_code<R>(x, random, plan);
  const I most = splat<I>(plan.max_code);
  const I largest = largest_of<R>(x, most, most + splat<I>(1), plan);
  const auto outcome = outcome_of<R>(x, code, largest, plan);
  const auto rounds_to_zero = take_zero<R>(x, code, plan);
  code =
      select(outcome.overflowed, overflow_of<R>(splat<I>(plan.overflow_code), largest, plan), code);
  if (may_clip(R::mode)) code = select(outcome.clipped, largest, code);
  if (has_complements<R>(plan)) return select(outcome.nan, U{}, complement_of(code, x, plan));
  const U nan = splat<U>(plan.nan_code);
  const U negative = negative_of<R>(x, nan, U{}, plan);
  const U sign = shift_right(bits_as<U>(x) & splat<U>(P::sign), P::width - plan.bits);
  const U whole = with_sign<R>((U)code, sign, rounds_to_zero, negative, plan);
  return select(outcome.nan, nan, whole);
}

/// Returns the value of a two's complement code. The least code has a value even if rounding never
/// gives that code.
template <class R, class V>
CPD_FN constexpr V value_of_complement(Unsigned<V> whole, const RoundPlan& plan) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using P = Pattern<V>;
  const int unused = P::width - plan.bits;
  const U extended = (U)((I)(whole << unused) >> unused);
  if constexpr (R::integer && Lanes<V>::mantissa == 23) {
    return convert<V>((I)extended) * splat<V>(plan.unit);
  }
  const U negative = (U)((I)extended >> (P::width - 1));
  const U value = bits_as<U>(magnitude_of_code<R, V>((I)((extended ^ negative) - negative), plan));
  return bits_as<V>(value | (negative & splat<U>(P::sign)));
}

/// Returns the value of a whole code. Every bit pattern of plan.bits bits has a value.
template <class R, class V>
CPD_FN constexpr V value_of_code(Unsigned<V> whole, const RoundPlan& plan) {
  using U = Unsigned<V>;
  using I = Signed<V>;
  using P = Pattern<V>;
  if (has_complements<R>(plan)) return value_of_complement<R, V>(whole, plan);
  U sign{};
  U magnitude = whole;
  if (R::simple || plan.is_signed) {
    sign = (whole << (P::width - plan.bits)) & splat<U>(P::sign);
    magnitude = whole & splat<U>((typename ElementOf<U>::type{1} << (plan.bits - 1)) - 1);
  }
  const I code = (I)magnitude;
  U value = bits_as<U>(magnitude_of_code<R, V>(code, plan));
  if (!R::simple && plan.flush && plan.has_zero) {
    value = select(code < splat<I>(plan.min_normal_code), U{}, value);
  }
  auto nan = code > splat<I>(plan.max_code);
  if (!R::simple && plan.is_signed && !plan.plain) {
    nan = nan | (whole == splat<U>(plan.nan_code));
    sign = select(value == U{}, U{}, sign);
  }
  U result = select(nan, splat<U>(P::quiet_nan), value | sign);
  if (plan.has_inf) {  // the code of Inf is above max_code too
    result = select(code == splat<I>(plan.inf_code), splat<U>(P::infinity) | sign, result);
  }
  return bits_as<V>(result);
}

/// Overloads of round, round_to_whole_code and value_of_code without a Rule, for callers that know
/// at compile time only the rounding mode, or nothing, about the plan.
template <Rounding mode, class V>
CPD_FN constexpr V round(V x, Unsigned<V> random, const RoundPlan& plan) {
  return round<Rule<mode>>(x, random, plan);
}
template <Rounding mode, class V>
CPD_FN constexpr Unsigned<V> round_to_whole_code(V x, Unsigned<V> random, const RoundPlan& plan) {
  return round_to_whole_code<Rule<mode>>(x, random, plan);
}
template <class V>
CPD_FN constexpr V value_of_code(Unsigned<V> whole, const RoundPlan& plan) {
  return value_of_code<Rule<Rounding::nearest_even>, V>(whole, plan);
}

}  // namespace CPD_ISA
}  // namespace cpd
