// SPDX-License-Identifier: Apache-2.0
//
// Computes a block's scale, and the factor of its elements, from the block's largest magnitude. In
// binary64 lanes, a binary32 operation is a binary64 operation rounded once more. For +, -, *, / of
// binary32 numbers, the result is the same (Figueroa 1995: 53 >= 2 * 24 + 2). Rules that consist
// only of such operations also run in binary32 lanes (steps_in_binary32).
//
// Sources, at the commits that reference/scaling.md names: OCP MX 1.0 section 6.3 (floor);
// TransformerEngine's compute_scale_from_amax and NVFP4 quantization kernels; torchao's
// mx_tensor.py, float8_utils.py and nvfp4_tensor.py; DeepGEMM's utils/math.py; microxcaling's
// shared exponents.
#pragma once

#include "cpd/numeric/round/exact.h"
#include "cpd/numeric/round/round.h"
#include "cpd/numeric/scaled/scaled_plan.h"

namespace cpd {
inline namespace CPD_ISA {

/// A block's scale and the factor by which its elements are multiplied. Both are binary32 numbers
/// or NaN. In exact arithmetic, elements are multiplied by 1 / scale if scales are powers of two;
/// otherwise they are divided by the scale.
template <class W>
struct BlockScale {
  W scale, factor;
};

/// The outer scale (1 if the format has none). `encode` is about 1 / scale; TransformerEngine's
/// arithmetic (te) computes the scales of blocks from it.
template <class W>
struct OuterScale {
  W scale, encode;
};

/// Returns x / y rounded to odd, for y > 0. NaN and infinities result as in a division. Takes 1
/// division, 1 fused multiply-add and toward_odd. In binary64 lanes, the result is exact for any
/// binary32 x if y is a product of two binary32 numbers. In binary32 lanes, it is exact for
/// quotients of at least 2^-20 by y >= 2^-70, because the remainder is then a binary32 number.
template <class V>
CPD_FN V divide_to_odd(V x, V y) {
  const V quotient = x / y;
  return toward_odd(quotient, negative_fma(quotient, y, x));
}

/// Returns x rounded to binary32, to nearest even.
template <class W>
CPD_FN W to_binary32(W x) {
  if constexpr (Lanes<W>::mantissa == 23) {
    return x;
  } else {
    return convert<W>(convert<typename Narrow<W>::F32>(x));
  }
}

template <class W>
CPD_FN W nan_of() {
  return bits_as<W>(splat<Unsigned<W>>(Pattern<W>::quiet_nan));
}

/// Returns x, or `limit` if x is larger. NaN remains NaN.
template <class W>
CPD_FN W limited_to(W x, double limit) {
  return select(x > splat<W>(limit), splat<W>(limit), x);
}
template <class W>
CPD_FN W no_less(W x, double limit) {
  return select(x < splat<W>(limit), splat<W>(limit), x);
}

/// Returns whether a magnitude `a` is below infinity. Returns false for NaN.
template <class W>
CPD_FN auto is_below_inf(W a) {
  return (Signed<W>)bits_as<Unsigned<W>>(a) < splat<Signed<W>>(Pattern<W>::infinity);
}

/// Returns floor(log2 x) of a normal binary64 number x > 0.
template <class W>
CPD_FN Signed<W> exponent_of(W x) {
  return (Signed<W>)(bits_as<Unsigned<W>>(x) >> 52) - splat<Signed<W>>(1023);
}

/// Returns floor(fl(log2 x)) for binary32 x > 0, where fl rounds the logarithm to binary32. Just
/// below 2^k, the result is k if the logarithm rounds to k. The logarithm of x = 2^k (1 - d) is
/// below k by d / ln 2, plus less than d^2. So it rounds to k if this distance is at most half of
/// the distance from k to the binary32 number before k.
template <class W>
CPD_FN Signed<W> floor_of_rounded_log(W x) {
  using I = Signed<W>;
  using U = Unsigned<W>;
  const I floor = exponent_of(x);
  const I next = floor + splat<I>(1);
  const W below = splat<W>(1) - x * power_of_two<W>(splat<I>(0) - next);
  const W k = convert<W>(next);
  const U magnitude = bits_as<U>(k) & splat<U>(Pattern<W>::magnitude);
  const auto is_power = (magnitude & splat<U>(Pattern<W>::fraction)) == U{};
  const auto halves = select((k > W{}) & is_power, splat<I>(-25), splat<I>(-24));
  const W half = power_of_two<W>(exponent_of(bits_as<W>(magnitude)) + halves);
  const W distance = below * splat<W>(0x1.71547652b82fep0) * (splat<W>(1) + below * splat<W>(0.5));
  const auto rounds_up = (distance <= half) & (next != I{});
  return select(rounds_up, next, floor);
}

/// Returns whether the plan computes scales by binary32 operations alone. TransformerEngine's
/// arithmetic (te) does, with two exceptions: scales in e8m0, and rule max_pow2 if multipliers may
/// be subnormal.
constexpr bool steps_in_binary32(const ScaledPlan& plan) {
  return plan.arithmetic == Arithmetic::te && (plan.two_levels || !plan.of_powers) &&
         !plan.scale.wide && (plan.rule != ScaleRule::max_pow2 || plan.max >= 4);
}

/// Returns the scale that the rules floor, ceil, rceil, even and max_pow2 give, a power of two. z
/// is the magnitude, rounded to odd, from which the scale is computed. The result is limited to the
/// powers of two of the scale's format.
template <class W>
CPD_FN W power_scale(W z, const ScaledPlan& plan) {
  using I = Signed<W>;
  using U = Unsigned<W>;
  U bits = bits_as<U>(z);
  if (plan.rule == ScaleRule::even) bits = bits + splat<U>(std::uint64_t{1} << (51 - plan.man));
  const I fraction = (I)(bits & splat<U>(Pattern<W>::fraction));
  I e = exponent_of(bits_as<W>(bits)) - splat<I>(plan.emax);
  if (plan.rule == ScaleRule::ceil) {
    e = e + select(fraction > I{}, splat<I>(1), I{});
  } else if (plan.rule == ScaleRule::rceil || plan.rule == ScaleRule::max_pow2) {
    e = e + select(fraction > splat<I>(plan.max_fraction), splat<I>(1), I{});
  }
  const W power = power_of_two<W>(min(max(e, splat<I>(plan.least)), splat<I>(plan.most)));
  return plan.scale.has_zero ? select(z == W{}, W{}, power) : power;
}

/// Returns z rounded into the format of the scales.
template <class W>
CPD_FN W into_scale(W z, const ScaledPlan& plan) {
  if constexpr (Lanes<W>::mantissa == 23) {
    return round<Rounding::nearest_even>(z, Unsigned<W>{}, plan.scale);
  }
  if (plan.scale.mode == Rounding::up) {
    return round<Rounding::up>(z, Unsigned<W>{}, plan.scale);
  }
  return round<Rounding::nearest_even>(z, Unsigned<W>{}, plan.scale);
}

/// Returns a block's scale in arithmetic `exact`: computed exactly and rounded once. The
/// arithmetics te and torchao use this function for scales in e8m0, too. For rule rceil, te and
/// torchao use rounded_up_scale instead. For rule max, torchao uses torchao_scale instead.
template <class W>
CPD_FN W exact_scale(W a, W outer, double share, const ScaledPlan& plan) {
  const bool by_power = plan.rule != ScaleRule::max && plan.rule != ScaleRule::up;
  const W divisor = by_power ? outer : outer * splat<W>(plan.max);
  // If the block's largest magnitude is zero, the scale is zero rounded into the scale's format.
  // The quotient 0 / 0 for an outer scale of zero is not used.
  const W above = a * splat<W>(plan.margin * share);
  const bool undivided = by_power && !plan.two_levels;
  const W quotient = undivided ? above : divide_to_odd(above, divisor);
  const W z = select(a == W{}, W{}, quotient);
  return by_power ? power_scale(z, plan) : into_scale(z, plan);
}

template <class W>
CPD_FN W inverse(W x) {
  return to_binary32(splat<W>(1) / x);
}

/// Returns the factor by which a block's elements are multiplied. In arithmetic `exact`, the factor
/// is 0 if the scale is 0.
template <class W>
CPD_FN W factor_of(W scale, W outer, const ScaledPlan& plan) {
  if (plan.arithmetic == Arithmetic::exact) return select(scale == W{}, W{}, inverse(scale));
  if (!plan.two_levels) return inverse(scale);
  if (plan.arithmetic == Arithmetic::torchao) {
    return to_binary32(inverse(outer) / scale);
  }
  return limited_to(inverse(to_binary32(scale * outer)), 0x1.FFFFFEp127);
}

template <class W>
CPD_FN BlockScale<W> te_scale(W a, OuterScale<W> outer, double share, const ScaledPlan& plan) {
  if (plan.two_levels) {
    const W ratio = splat<W>(plan.inverse_max);
    W product = to_binary32(a * to_binary32(outer.encode * ratio));
    if (plan.chooses) {
      product = to_binary32(to_binary32(a / splat<W>(plan.max)) * outer.encode);
      product = to_binary32(product * splat<W>(share));
    }
    const W scale = into_scale(product, plan);
    return {scale, factor_of(scale, outer.scale, plan)};
  }
  W multiplier = to_binary32(splat<W>(plan.max) / a);
  multiplier = select(is_below_inf(multiplier), multiplier, splat<W>(plan.largest_multiplier));
  if (plan.rule == ScaleRule::max_pow2) {
    multiplier =
        bits_as<W>(bits_as<Unsigned<W>>(multiplier) & splat<Unsigned<W>>(Pattern<W>::infinity));
  }
  multiplier = to_binary32(multiplier * splat<W>(1 / plan.margin));
  const auto usable = (a > W{}) & is_below_inf(a);
  multiplier = select(usable, multiplier, splat<W>(1));
  return {inverse(multiplier), multiplier};
}

template <class W>
CPD_FN BlockScale<W> torchao_scale(W a, OuterScale<W> outer, const ScaledPlan& plan) {
  if (plan.in_fp32 && !plan.two_levels) {
    W multiplier = to_binary32(splat<W>(plan.max) / no_less(a, 1e-12));
    if (plan.rule == ScaleRule::max_pow2) {
      const W power = power_of_two<W>(floor_of_rounded_log(multiplier));
      const auto positive = (multiplier > W{}) & is_below_inf(multiplier);
      multiplier = select(positive, power, multiplier);
    }
    return {inverse(multiplier), multiplier};
  }
  W ratio = to_binary32(a / splat<W>(plan.max));
  if (plan.two_levels) ratio = to_binary32(ratio / outer.scale);
  const W scale = into_scale(no_less(ratio, plan.scale_min_normal), plan);
  return {scale, factor_of(scale, outer.scale, plan)};
}

template <class W>
CPD_FN BlockScale<W> deepgemm_scale(W a, const ScaledPlan& plan) {
  using I = Signed<W>;
  using U = Unsigned<W>;
  W scale = to_binary32(no_less(a, static_cast<double>(1e-4F)) / splat<W>(plan.max));
  if (plan.rule != ScaleRule::max) {
    const auto more = (bits_as<U>(scale) & splat<U>(Pattern<W>::fraction)) != U{};
    const I e = exponent_of(scale) + select(more, splat<I>(1), I{});
    const W power = power_of_two<W>(min(max(e, splat<I>(-126)), splat<I>(127)));
    scale = select(scale == scale, power, scale);
  }
  return {scale, inverse(scale)};
}

template <class W>
CPD_FN BlockScale<W> microxcaling_scale(W a, const ScaledPlan& plan) {
  using I = Signed<W>;
  const I log = select(a == W{}, splat<I>(-126), floor_of_rounded_log(a));
  const I e = log - splat<I>(plan.emax);
  const W power = power_of_two<W>(min(max(e, splat<I>(-127)), splat<I>(127)));
  const W scale = select(e <= splat<I>(127), power, nan_of<W>());
  return {scale, inverse(scale)};
}

/// Returns a block's scale by rule rceil in the arithmetics of TransformerEngine and torchao: a *
/// fl(1 / M), rounded to binary32, then up to a power of two (cvt.rp.ue8m0). M is the element
/// format's max. A product below 2^-126 has fewer bits, and may round down to 2^-127.
template <class W>
CPD_FN W rounded_up_scale(W a, const ScaledPlan& plan) {
  using I = Signed<W>;
  const W product = to_binary32(a * splat<W>(plan.inverse_max));
  const W z = to_binary32(product * splat<W>(plan.margin));
  const auto more =
      (bits_as<Unsigned<W>>(z) & splat<Unsigned<W>>(Pattern<W>::fraction)) != Unsigned<W>{};
  const I e = exponent_of(z) + select(more, splat<I>(1), I{});
  return power_of_two<W>(min(max(e, splat<I>(-127)), splat<I>(127)));
}

/// Returns the scale and factor of a block in arithmetic `exact`. Also serves the arithmetics te
/// and torchao if scales are powers of two.
template <class W>
CPD_FN BlockScale<W> power_or_exact_scale(W a, W outer, double share, const ScaledPlan& plan) {
  if (plan.arithmetic != Arithmetic::exact && plan.rule == ScaleRule::rceil) {
    const W scale = rounded_up_scale(a, plan);
    return {scale, factor_of(scale, outer, plan)};
  }
  W scale = exact_scale(a, outer, share, plan);
  if (plan.arithmetic == Arithmetic::torchao) {
    // torchao's scale is NaN if an intermediate result has the bit pattern of Inf. With rule
    // `even`, this occurs for some magnitudes below 2^128. With other rules, it occurs from 2^128
    // on.
    const double half = 0x1p126 / static_cast<double>(std::int64_t{1} << plan.man);
    const double limit = plan.rule == ScaleRule::even ? 0x1p128 - half : 0x1p128;
    scale = select(a < splat<W>(limit), scale, nan_of<W>());
  }
  return {scale, factor_of(scale, outer, plan)};
}

template <class W>
CPD_FN BlockScale<W> scale_by_arithmetic(W a, OuterScale<W> outer, double share,
                                         const ScaledPlan& plan) {
  const bool in_e8m0 = plan.of_powers && !plan.two_levels;
  switch (plan.arithmetic) {
    case Arithmetic::te:
      if (!in_e8m0) return te_scale(a, outer, share, plan);
      break;
    case Arithmetic::torchao:
      if (!in_e8m0 || plan.rule == ScaleRule::max) return torchao_scale(a, outer, plan);
      break;
    case Arithmetic::deepgemm:
      return deepgemm_scale(a, plan);
    case Arithmetic::microxcaling:
      return microxcaling_scale(a, plan);
    case Arithmetic::exact:
      break;
  }
  return power_or_exact_scale(a, outer.scale, share, plan);
}

/// Returns the scale and factor of a block with the largest magnitude `a`, under an outer scale.
/// `a` is Inf or NaN if the block contains Inf or NaN and the plan makes such blocks NaN. The scale
/// is computed from a * share. `share` is 1 or, for the second of two candidate scales
/// (ScaleChoice), kOtherShare.
template <class W>
CPD_FN BlockScale<W> block_scale(W a, OuterScale<W> outer, double share, const ScaledPlan& plan) {
  BlockScale<W> block;
  if constexpr (Lanes<W>::mantissa == 23) {
    block = te_scale(a, outer, share, plan);  // valid, as steps_in_binary32 holds
  } else {
    block = scale_by_arithmetic(a, outer, share, plan);
  }
  // For a block with NaN or infinity, torchao (outside e8m0) and DeepGEMM return what their
  // operations give. All other arithmetics return a NaN scale.
  const bool in_e8m0 = plan.of_powers && !plan.two_levels;
  const bool by_steps = plan.arithmetic == Arithmetic::deepgemm ||
                        (plan.arithmetic == Arithmetic::torchao && !in_e8m0);
  if (!plan.makes_nan || by_steps) return block;
  const auto finite = is_below_inf(a) & (outer.scale == outer.scale);
  return {select(finite, block.scale, nan_of<W>()), select(finite, block.factor, nan_of<W>())};
}

/// Returns the outer scale for the largest magnitude `a` of a tensor or row.
template <class W>
CPD_FN OuterScale<W> outer_scale(W a, const ScaledPlan& plan) {
  const W one = splat<W>(1);
  const W target = splat<W>(plan.target);
  W scale, encode = one;
  if (plan.arithmetic == Arithmetic::te) {
    encode = limited_to(to_binary32(target / a), 0x1.FFFFFEp127);
    encode = select((encode > W{}) & (a > W{}), encode, one);
    scale = inverse(encode);
  } else if (plan.arithmetic == Arithmetic::torchao) {
    scale = to_binary32(a / target);
  } else {
    const W quotient = divide_to_odd(a * splat<W>(plan.margin), target);
    scale = round<Rounding::nearest_even>(quotient, Unsigned<W>{}, plan.outer);
  }
  if (plan.makes_nan && plan.arithmetic != Arithmetic::torchao) {
    scale = select(is_below_inf(a), scale, nan_of<W>());
  }
  return {scale, encode};
}

/// Returns torchft's multiplier for a row of FP8 values (torchft/quantization.py at commit
/// 001d404). Values are multiplied by this number before the cast, and the values of codes are
/// divided by it. The multiplier is max / largest rounded once to binary32, or 1 if that quotient
/// is infinite.
CPD_FN float row_multiplier(float max, float largest) {
  const float multiplier = max / largest;
  return multiplier == bits_as<float>(Pattern<float>::infinity) ? 1 : multiplier;
}

}  // namespace CPD_ISA
}  // namespace cpd
