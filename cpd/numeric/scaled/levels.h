// SPDX-License-Identifier: Apache-2.0
//
// Rounds the values of a bucket without bias to levels at equal distances, as fractions of the
// bucket's norm. A random integer selects one of the two levels next to a value.
//
// Let s be the number of steps, u = v s / norm, R a random integer below 2^N and R' = R / 2^N. In
// exact arithmetic, the result is:
// - signed: level floor(|u| + R') of |v|, with v's sign. There are s levels above zero (QSGD 3.1).
// - intervals: [-norm, norm] is divided into s equal intervals, whose ends have the numbers 0 … s.
//   The result is the end with number floor((u + s) / 2 + R'), which has level 2 * number - s
//   (Grubic et al. 3.2.2). Zero is not a level, and rounding up means toward +infinity.
// Let f be the fraction of |u|. |u| rounds up if floor(f 2^N) + R >= 2^N, as a stochastic cast
// (variant A) does. A level beyond the last level becomes the last level. The value of a level is
// level * norm / s, rounded once.
//
// The distances of signed levels may also be unequal (LevelSpacing): level j is at place[j] * norm
// / 256. A value between two levels rounds up by the same rule, with f as the fraction of the
// levels' distance.
//
// Exactness: v s has 40 bits. To decide between two levels, v s is compared with norm * h. h is a
// multiple of 2^-N and has 40 bits; norm has 24 bits. TwoProduct (Dekker 1971; 2 operations with
// FMA) holds norm * h in two binary64 numbers. Vector lanes estimate u + R', and apply the exact
// rule if an integer is within `slack` of the estimate.
#pragma once

#include <cmath>
#include <cstdint>

#include "cpd/numeric/lanes/lanes.h"
#include "cpd/numeric/round/exact.h"

namespace cpd {

/// The norm of a bucket. The levels are fractions of the norm.
enum class LevelNorm : std::uint8_t {
  largest,  ///< the largest |v|; NaN if a value is NaN or infinite
  /// The root of the sum of v^2, from the partial sums of Moments, rounded once. NaN if a value is
  /// NaN or infinite, or if the norm is beyond binary32.
  euclidean,
  clipped,  ///< for finite values: the smaller of the largest |v| and c standard deviations
};

/// The positions of levels 0 … s, for s <= 127, at unequal distances. A position is in units of
/// norm / 256. Positions ascend from 0 to 256.
struct LevelSpacing {
  static constexpr int kUnits = 256;
  static constexpr int kMostSteps = 127;
  std::uint16_t place[kMostSteps + 1] = {};
  /// below[p] is the last level whose position (in units of norm / 256) is at most p.
  std::uint8_t below[kUnits] = {};
};

/// The plan by which values become codes of `bits` bits. A code is a signed level modulo 2^bits or,
/// with `intervals`, the number of the interval's end to which the value is rounded.
struct LevelPlan {
  int bits = 0;
  std::int32_t steps = 0;  ///< s, the number of steps
  std::int32_t most = 0;   ///< the last level: s, or without random bits any number below 2^22
  bool intervals = false;
  /// True if NaN and infinities have the code 2^(bits - 1), which is not the code of a signed
  /// level. False: a NaN or infinity makes the norm of its bucket NaN.
  bool has_nan = false;
  /// N, the number of random bits. 0: no rounding, because all values are integers, the norm is 1
  /// and `steps` is 1, so each value is a level.
  int random_bits = 0;
  std::uint64_t seed = 0, stream = 0;
  std::int64_t bucket = 0;                ///< values that share a norm
  const LevelSpacing* spacing = nullptr;  ///< signed levels' places; null: equal distances
};

/// The moments of the finite values x about a number `mean`: the sums of x - mean and of its
/// square, the number of finite values and the largest magnitude. Each square is exact if `mean` is
/// 0.
struct Moments {
  double sum = 0, squares = 0;
  std::int64_t finite = 0;
  float largest = 0;
};

inline namespace CPD_ISA {

/// The number of partial sums of Moments. Value i is added to sum i mod 16, in ascending order.
/// Afterwards sum i + 8 is added to sum i, then sum i + 4, i + 2 and i + 1.
constexpr int kPartialSums = 16;
CPD_FN constexpr double add_partial_sums(double* sum) {
  for (int half = kPartialSums / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sum[i] = sum[i] + sum[i + half];
  }
  return sum[0];
}

/// Return sqrt(x) and a * b rounded once to binary32; x and a * b must not be negative. An
/// operation and a fused multiply-add give the binary64 number rounded to odd (exact.h), which is
/// then rounded to binary32.
CPD_FN float root_in_binary32(double x) {
  const double root = std::sqrt(x);
  return static_cast<float>(toward_odd(root, fma(-root, root, x)));
}
CPD_FN float product_in_binary32(double a, double b) {
  const double product = a * b;
  return static_cast<float>(toward_odd(product, fma(a, b, -product)));
}

/// Returns the variance of the values as a population, from moments about a number near the mean.
/// Each of the 5 operations rounds. A result that would be negative is 0.
CPD_FN constexpr double variance_of(const Moments& about) {
  const auto n = static_cast<double>(about.finite);
  const double squares = about.squares - about.sum * (about.sum / n);
  return squares > 0 ? squares / n : 0;
}

/// Returns the norm of n values. LevelNorm::clipped limits the norm to c standard deviations (c =
/// 0: no limit). The caller takes `moments` about 0 or, for a limited norm, about the first finite
/// value, so that equal values have the deviation 0. A norm that is not finite becomes NaN.
CPD_FN float norm_of(LevelNorm norm, double c, const Moments& moments, std::int64_t n) {
  const bool clips = norm == LevelNorm::clipped;
  float found = moments.largest;
  if (norm == LevelNorm::euclidean) found = root_in_binary32(moments.squares);
  if (clips && c != 0 && moments.finite > 0) {
    const float limit = product_in_binary32(c, std::sqrt(variance_of(moments)));
    if (limit < found) found = limit;
  }
  const bool is_number = found - found == 0 && (clips || moments.finite == n);
  return is_number ? found : bits_as<float>(0x7FC00000U);
}

/// Returns whether x >= a * b, exactly, by TwoProduct: 1 multiplication and 1 fused multiply-add.
CPD_FN bool is_product_at_most(double a, double b, double x) {
  const double product = a * b;
  return (x > product) | ((x == product) & (fma(a, b, -product) <= 0));  // without a jump
}

/// Returns the level to which |v| rounds. With plan.intervals, returns the number of the interval's
/// end to which v rounds. v and norm must be finite, and norm >= 0. If norm is 0, the result is 0.
CPD_FN std::int32_t level_of(const LevelPlan& plan, float v, float norm, std::uint32_t random) {
  if (!(norm > 0)) return 0;
  const double draws = exact_power(plan.random_bits);
  const double x = (!plan.intervals && v < 0 ? -v : v) * static_cast<double>(plan.steps) * draws;
  const std::int32_t unit = plan.intervals ? 2 : 1;
  const std::int32_t offset = plan.intervals ? plan.steps : 0;
  const auto is_reached = [&](std::int32_t level) {
    const double place = static_cast<double>(unit * level - offset) * draws;
    return is_product_at_most(norm, place - unit * static_cast<double>(random), x);
  };
  double near = (x / (norm * draws) + offset) / unit;
  near = near < 0 ? 0 : near < plan.most ? near : plan.most;
  auto level = static_cast<std::int32_t>(near);
  while (level > 0 && !is_reached(level)) --level;
  while (level < plan.most && is_reached(level + 1)) ++level;
  return level;
}

/// Returns the level of |v| if levels have unequal distances (plan.spacing).
CPD_FN std::int32_t spaced_level_of(const LevelPlan& plan, float v, float norm,
                                    std::uint32_t random) {
  if (!(norm > 0)) return 0;
  const LevelSpacing& spacing = *plan.spacing;
  const double draws = exact_power(plan.random_bits);
  const double x = (v < 0 ? -v : v) * static_cast<double>(LevelSpacing::kUnits);
  const double near = x / norm;
  int unit = near < LevelSpacing::kUnits - 1 ? static_cast<int>(near) : LevelSpacing::kUnits - 1;
  while (unit > 0 && unit * static_cast<double>(norm) > x) --unit;
  const std::int32_t level = spacing.below[unit];
  const std::int32_t lower = spacing.place[level];
  const std::int32_t upper = spacing.place[level + 1];
  const double place = upper * draws - static_cast<double>(random) * (upper - lower);
  return is_product_at_most(norm, place, x * draws) ? level + 1 : level;
}

/// Returns the code of NaN and infinities, 2^(bits - 1).
CPD_FN constexpr std::uint32_t no_level(const LevelPlan& plan) { return 1U << (plan.bits - 1); }

/// Returns the code of v. v may be NaN or infinite only if the plan has a code for NaN (has_nan).
CPD_FN std::uint32_t level_code(const LevelPlan& plan, float v, float norm, std::uint32_t random) {
  if (plan.has_nan && !(v - v == 0)) return no_level(plan);
  const std::int32_t level = plan.spacing != nullptr ? spaced_level_of(plan, v, norm, random)
                                                     : level_of(plan, v, norm, random);
  const std::uint32_t mask = (1U << plan.bits) - 1;
  return static_cast<std::uint32_t>(!plan.intervals && v < 0 ? -level : level) & mask;
}

/// Computes the codes of values in lanes by an estimate, and reports the few lanes that need the
/// exact rule of level_code. V is binary64 for any norm, or binary32 for 2^-60 <= norm <= 2^60. In
/// binary32, a plan with more than 255 steps needs kFine, an estimate with fewer rounding errors.
template <class V, bool kFine = false>
struct LevelLanes {
  using Value = typename Narrow<V>::F32;
  using I = typename Narrow<V>::I32;
  using U = typename Narrow<V>::U32;
  using S = Scalar<V>;

  /// The distance between the values of two neighboring codes of a bucket: norm / s for levels, 2
  /// norm / s for ends of intervals (s: LevelPlan::steps). high + low is this distance, and
  /// `inverse` is 1 / distance.
  struct Step {
    V inverse, high, low;
  };

  V offset, unit, limit, slack;
  I most;
  U mask, none;

  /// Returns a bound on the error of the estimated level (before truncation). Without kFine, four
  /// operations round: Step::inverse, and in code() two fused multiply-adds and the addition of the
  /// bound itself (`slack`). Each errs by at most half an ulp of s + 2. With kFine, the remainder
  /// `rest` in code() errs by at most 2 * 2^-24 of a step, and the operations on `rest` by 7 *
  /// 2^-24.
  CPD_FN static double error_of(const LevelPlan& plan) {
    if (plan.random_bits == 0) return 0;
    return kFine ? 0x1p-20 : (plan.steps + 2) * exact_power(1 - Lanes<V>::mantissa);
  }

  CPD_FN explicit LevelLanes(const LevelPlan& plan) {
    offset = splat<V>(static_cast<S>(plan.intervals ? plan.steps * 0.5 : 0));
    unit = splat<V>(static_cast<S>(exact_power(-plan.random_bits)));
    limit = splat<V>(static_cast<S>(plan.most + 0.5));
    slack = splat<V>(static_cast<S>(error_of(plan)));
    most = splat<I>(plan.most);
    mask = splat<U>((1U << plan.bits) - 1);
    none = splat<U>(no_level(plan));
  }

  CPD_FN static Step step_of(const LevelPlan& plan, float norm) {
    const double steps = plan.intervals ? plan.steps * 0.5 : plan.steps;
    const double step = norm / steps;
    const auto high = static_cast<S>(step);
    return {splat<V>(static_cast<S>(norm > 0 ? steps / norm : 0)), splat<V>(high),
            splat<V>(static_cast<S>(step - high))};
  }

  /// Stores the estimated codes. Returns a mask of the lanes whose code the estimate does not
  /// determine; for these lanes the caller must use level_code.
  template <bool kIntervals, bool kHasNan>
  CPD_FN auto code(Value x, const Step& step, U random, U* codes) const {
    const U pattern = bits_as<U>(x);
    const U magnitude = pattern & splat<U>(0x7FFFFFFFU);
    const V v = convert<V>(kIntervals ? x : bits_as<Value>(magnitude));
    const V draw = convert<V>((I)random);
    I level, above;
    if constexpr (kFine) {
      const V whole = at_place<kIntervals>(fma(v, step.inverse, offset));
      const I base = convert<I>(whole);
      const V count = convert<V>(base) - offset;
      const V rest = negative_fma(count, step.low, negative_fma(count, step.high, v));
      // The estimated level is `base`, a first estimate, plus the correction `more` - 1. The 1
      // keeps `more` positive even if `base` is 1 too large, so that truncation rounds down.
      const V one = splat<V>(S{1});
      V more = fma(rest, step.inverse, fma(draw, unit, one));
      more = select(more < splat<V>(S{3}), more, splat<V>(S{3}));
      more = select(more > one - one, more, one - one);
      const I less_1 = base - splat<I>(1);
      level = max(min(less_1 + convert<I>(more - slack), most), I{});
      above = max(min(less_1 + convert<I>(more + slack), most), I{});
    } else {
      const V place = at_place<kIntervals>(fma(v, step.inverse, fma(draw, unit, offset)));
      level = convert<I>(place - slack);
      above = convert<I>(place + slack);
    }
    U number = (U)level;
    if constexpr (!kIntervals) {
      const U sign = (U)((I)pattern >> 31);
      number = ((number ^ sign) - sign) & mask;
    }
    if constexpr (kHasNan) {
      number = select((I)magnitude < splat<I>(0x7F800000), number, none);
    }
    *codes = number;
    return level != above;
  }

 private:
  /// Returns `place`, the estimate of a level before truncation, but not beyond the last level or,
  /// with kIntervals, below the first. So the result can be converted to an integer.
  template <bool kIntervals>
  CPD_FN V at_place(V place) const {
    place = select(place < limit, place, limit);
    return kIntervals ? select(place > -unit, place, -unit) : place;
  }
};

/// Returns the value of a code if levels have unequal distances; NaN for a code without a level.
/// `norm` must be finite.
CPD_FN float spaced_value(const LevelPlan& plan, std::uint32_t code, float norm) {
  const int spare = 32 - plan.bits;
  const std::int32_t level = static_cast<std::int32_t>(code << spare) >> spare;
  const std::int32_t magnitude = level < 0 ? -level : level;
  if (magnitude > plan.most) return bits_as<float>(0x7FC00000U);
  const double place = plan.spacing->place[magnitude] * exact_power(-8);
  const auto value = static_cast<float>(place * norm);
  return level < 0 && norm > 0 ? -value : value;
}

/// Returns whether some signed codes, in addition to the code of NaN, stand for no level. This is
/// so if the bits of a code can hold a level beyond the plan's last level.
CPD_FN constexpr bool has_spare_codes(const LevelPlan& plan) {
  return !plan.intervals && static_cast<std::uint32_t>(plan.most) < no_level(plan) - 1;
}

/// Computes the values of codes in lanes. The codes are signed levels (NaN for a code without a
/// level) or ends of intervals.
template <class V>
struct LevelValues {
  using Value = typename Narrow<V>::F32;
  using I = typename Narrow<V>::I32;
  using U = typename Narrow<V>::U32;

  V norm, steps, inverse;
  int spare;
  I offset, none, most;

  CPD_FN LevelValues(const LevelPlan& plan, float bucket_norm) {
    using S = Scalar<V>;
    norm = splat<V>(static_cast<S>(bucket_norm));
    steps = splat<V>(static_cast<S>(plan.steps));
    inverse = splat<V>(static_cast<S>(1.0 / plan.steps));
    spare = 32 - plan.bits;
    offset = splat<I>(plan.intervals ? plan.steps : 0);
    none = splat<I>(-static_cast<std::int32_t>(no_level(plan)));
    most = splat<I>(plan.most);
  }

  /// Returns level * norm / s, rounded once, for a finite norm. kSpare is the result of
  /// has_spare_codes for the plan.
  ///
  /// level * norm is exact in binary64. One multiplication and two fused multiply-adds divide it by
  /// s in binary64 (Markstein 1990). That quotient rounds to binary32 as the exact quotient does,
  /// because the exact quotient has at most 41 bits, or differs from every tie by at least 2^-41 of
  /// itself.
  template <bool kIntervals, bool kDivides, bool kSpare>
  CPD_FN Value value(U code) const {
    I level;
    if constexpr (kIntervals) {
      level = (I)(code + code) - offset;
    } else {
      level = (I)(code << spare) >> spare;
    }
    // Adding +0 turns a product of -0 into +0.
    const V product = fma(convert<V>(level), norm, V{});
    V result = product;
    if constexpr (kDivides) {
      const V quotient = product * inverse;
      result = fma(negative_fma(quotient, steps, product), inverse, quotient);
    }
    const Value rounded = convert<Value>(result);
    if constexpr (kIntervals) return rounded;
    const Value nan = bits_as<Value>(splat<U>(0x7FC00000U));
    if constexpr (kSpare) return select(max(level, -level) > most, nan, rounded);
    return select(level == none, nan, rounded);
  }
};

/// Returns the value of one code: by spaced_value if levels have unequal distances, else by
/// LevelValues. Returns NaN if the norm is NaN or infinite.
CPD_FN float level_value(const LevelPlan& plan, std::uint32_t code, float norm) {
  if (!(norm - norm == 0)) return bits_as<float>(0x7FC00000U);
  if (plan.spacing != nullptr) return spaced_value(plan, code, norm);
  const LevelValues<double> values(plan, norm);
  if (plan.intervals) return values.template value<true, true, false>(code);
  return values.template value<false, true, true>(code);
}

}  // namespace CPD_ISA
}  // namespace cpd
