// SPDX-License-Identifier: Apache-2.0
//
// A scaled format and the rounding of its elements as the constants that the kernels need.
// ScaledPlan is an aggregate of numbers, which the objects of every ISA and the GPU read.
#pragma once

#include <cstdint>

#include "cpd/numeric/round/round_plan.h"
#include "cpd/spec/scaled.h"

namespace cpd {

/// The method by which an element is divided by its scales and rounded into its format.
enum class ElementRoute : std::uint8_t {
  multiply,  ///< round(fl(x * factor)), in binary32
  divide,    ///< round(x / scale), the quotient rounded to odd, in binary32
  wide,      ///< round(x / (scale * outer)), the quotient rounded to odd, in binary64
};

struct ScaledPlan {
  RoundPlan element;  ///< rounds elements, by the call's options
  RoundPlan scale;    ///< rounds into the scale's format: to nearest-even or up, saturating
  RoundPlan outer;    ///< rounds into the outer scale's format: to nearest-even, saturating
  Arithmetic arithmetic = Arithmetic::exact;
  ScaleRule rule = ScaleRule::floor;
  bool two_levels = false;
  bool makes_nan = true;     ///< NonFinite::block: Inf or NaN in a block makes its scale NaN
  bool in_fp32 = false;      ///< the scale's format is binary32
  bool of_powers = false;    ///< the positive numbers of the scale's format are powers of two
  bool chooses = false;      ///< chooses between two candidates of a scale
  bool wide_values = false;  ///< element * scale may leave binary32: values are formed in binary64

  double max = 0;                    ///< M, the element format's max
  std::int32_t emax = 0;             ///< M's exponent
  std::int64_t max_fraction = 0;     ///< M's binary64 fraction bits
  std::int32_t man = 0;              ///< mantissa bits of the element's format
  std::int32_t least = 0, most = 0;  ///< exponents of the scale format's powers of two
  double margin = 1;                 ///< 2^margin
  double inverse_max = 0;            ///< fl(1 / M)
  double scale_max = 0;              ///< two levels: the largest scale
  double target = 0;                 ///< M * scale_max
  double scale_min_normal = 0;       ///< torchao's least scale in formats that have subnormals
  /// TransformerEngine's arithmetic (te) multiplies elements by 1 / scale. If this multiplier is
  /// infinite, it becomes the largest number of binary32, or of bf16 for blocks of bf16 inputs.
  double largest_multiplier = 0;
};

/// Returns the constants of a format that has passed Check. `bf16`: the inputs are of type bf16.
constexpr ScaledPlan make_scaled_plan(const Scaled& scaled, const RoundingOptions& rounding,
                                      bool bf16, const RandomKey& key = {}) {
  ScaledPlan plan;
  plan.element = make_plan(scaled.element, rounding, key);
  RoundingOptions saturating{.overflow = Overflow::saturate};
  plan.outer = make_plan(scaled.tensor_scale.value_or(kFp32), saturating);
  if (scaled.rule == ScaleRule::up) saturating.mode = Rounding::up;
  plan.scale = make_plan(scaled.scale, saturating);
  plan.arithmetic = scaled.arithmetic;
  plan.rule = scaled.rule;
  plan.two_levels = scaled.tensor_scale.has_value();
  plan.makes_nan = scaled.non_finite == NonFinite::block;
  plan.in_fp32 = scaled.scale == kFp32;
  plan.of_powers = scaled.scale.man == 0;

  plan.max = scaled.element.max();
  const auto bits = std::bit_cast<std::uint64_t>(plan.max);
  plan.emax = scaled.element.emax();
  plan.max_fraction = static_cast<std::int64_t>(bits & ((std::uint64_t{1} << 52) - 1));
  plan.man = scaled.element.man;
  const bool goes_below = scaled.scale.has_zero() && scaled.scale.subnormals;
  plan.least = goes_below ? scaled.scale.min_quantum_exponent() : scaled.scale.emin();
  plan.most = scaled.scale.emax();
  plan.margin = Format::power_of_two(scaled.margin);
  plan.inverse_max = static_cast<float>(1 / plan.max);
  plan.scale_max = scaled.scale_max > 0 ? scaled.scale_max : scaled.scale.max();
  plan.target = plan.max * plan.scale_max;
  plan.scale_min_normal = scaled.scale.min_normal();
  plan.chooses = scaled.choose != ScaleChoice::none;
  const bool narrow = bf16 && scaled.block.kind != BlockShape::Kind::tensor;
  plan.largest_multiplier = narrow ? 0x1.FEp127 : 0x1.FFFFFEp127;

  // A product of element and scale is a binary32 number under three conditions: it has at most 24
  // bits, no bit is below 2^-149, and the largest product is below 2^128.
  const bool narrow_product =
      scaled.element.precision() + scaled.scale.precision() <= 24 &&
      scaled.element.min_quantum_exponent() + plan.least - scaled.scale.man * !goes_below >= -149 &&
      plan.max * scaled.scale.max() < 0x1p128;
  plan.wide_values = plan.two_levels && !narrow_product;
  return plan;
}

/// Returns the route (the method of division) of elements whose scales are in 2^-70 … 2^100 (powers
/// of two: in 2^-127 … 2^127). Elements with other scales take the route `wide`.
constexpr ElementRoute route_of(const ScaledPlan& plan) {
  if (plan.element.wide || plan.wide_values) return ElementRoute::wide;
  if (plan.arithmetic != Arithmetic::exact) return ElementRoute::multiply;
  const RoundPlan& element = plan.element;
  if (plan.two_levels || !element.scale_in_binary32) return ElementRoute::wide;
  if (plan.of_powers) return ElementRoute::multiply;
  // The route `divide` requires that a rounding reads at most 22 bits of the quotient. A binary32
  // quotient that is rounded to odd has the first 22 bits of the exact quotient, and shows whether
  // the bits after them are all zero.
  const int looked_at =
      element.man + 1 + (element.mode == Rounding::stochastic ? element.random_bits + 1 : 1);
  const int least = element.grid32.emin_field - 127 - element.man;
  return looked_at <= 22 && least >= -20 ? ElementRoute::divide : ElementRoute::wide;
}

/// Rows of n elements and the scales of their blocks (ElementScale in scaled_elements.h). Every
/// `run` successive elements of a row share a scale. `run` is 1, or 16, 32, … 512, or a multiple of
/// 1024. `random` points to the random integers of a stochastic plan, else is null.
struct ScaledRun {
  std::int64_t rows = 1, n = 0, run = 1;
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  const float* factor = nullptr;
  const float* scale = nullptr;
  const float* outer = nullptr;
  const std::uint32_t* random = nullptr;
  std::int64_t random_stride = 0;
  /// True: the scales of tensors or rows (two levels) or of blocks (one level) are returned to the
  /// caller, and the written values are not multiplied by them.
  bool apart = false;
  bool streaming = false;  ///< binary32 values or codes are not needed in cache
};

}  // namespace cpd
