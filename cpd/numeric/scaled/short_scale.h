// SPDX-License-Identifier: Apache-2.0
//
// Computes scales that are powers of two by a few operations on the bits of a block's largest
// magnitude. block_scale (scale_rules.h) gives the same scales if magnitude and scale are far from
// the ends of binary32's range.
#pragma once

#include "cpd/numeric/scaled/scale_rules.h"

namespace cpd {
inline namespace CPD_ISA {

/// A rule that computes the exponent of a block's scale from the bits of the block's largest
/// magnitude or, if by_ratio is set, of magnitude * ratio: add `carry` to the bits, take the
/// exponent, and subtract `less`.
struct PowerRule {
  bool fits = false;  ///< whether the plan's scales follow such a rule
  bool by_ratio = false;
  float ratio = 1;
  /// The number to add to the bits of magnitude or magnitude * ratio. The addition carries into the
  /// exponent if the scale rounds up.
  std::uint32_t carry = 0;
  std::int32_t less = 0;
};

constexpr PowerRule power_rule_of(const ScaledPlan& plan) {
  constexpr std::uint32_t kFraction = 0x7FFFFF;
  const bool by_steps = plan.arithmetic != Arithmetic::exact;
  const bool has_rule =
      plan.arithmetic == Arithmetic::exact ||
      ((plan.arithmetic == Arithmetic::te || plan.arithmetic == Arithmetic::torchao) &&
       plan.rule != ScaleRule::max_pow2);
  PowerRule rule;
  rule.fits = has_rule && plan.of_powers && !plan.two_levels && !plan.scale.has_zero &&
              plan.least <= -100 && plan.most >= 100 && plan.margin == 1 && plan.man <= 22 &&
              plan.rule != ScaleRule::max && plan.rule != ScaleRule::up;
  rule.less = plan.emax;
  if (plan.rule == ScaleRule::ceil) rule.carry = kFraction;
  if (plan.rule == ScaleRule::even)
    rule.carry = std::uint32_t{1} << (plan.man <= 22 ? 22 - plan.man : 0);
  if (plan.rule == ScaleRule::rceil || plan.rule == ScaleRule::max_pow2) {
    rule.carry = kFraction - static_cast<std::uint32_t>(plan.max_fraction >> 29);
  }
  if (by_steps && plan.rule == ScaleRule::rceil) {
    rule.by_ratio = true;
    rule.ratio = static_cast<float>(plan.inverse_max);
    rule.carry = kFraction;
    rule.less = 0;
  }
  return rule;
}

/// Sets the scale of a block whose largest magnitude has the bits `largest`, and the factor of the
/// block's elements. Returns false, and sets nothing, unless the magnitude and the scale are in
/// 2^-100 … 2^100. In this range, the scale, the factor and (if by_ratio is set) magnitude * ratio
/// are normal numbers.
CPD_FN bool power_scale_of_bits(std::uint32_t largest, const PowerRule& rule,
                                BlockScale<float>* block) {
  constexpr std::uint32_t kLeast = 27U << 23;
  constexpr std::uint32_t kRange = 200U << 23;
  std::uint32_t bits = largest;
  if (rule.by_ratio) bits = bits_as<std::uint32_t>(bits_as<float>(largest) * rule.ratio);
  const std::int32_t field =
      static_cast<std::int32_t>((bits + rule.carry) >> 23) - rule.less;  // biased
  if (largest - kLeast >= kRange || static_cast<std::uint32_t>(field - 27) > 200U) return false;
  *block = {bits_as<float>(static_cast<std::uint32_t>(field) << 23),
            bits_as<float>(static_cast<std::uint32_t>(254 - field) << 23)};
  return true;
}

}  // namespace CPD_ISA
}  // namespace cpd
