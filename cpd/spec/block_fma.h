// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "cpd/export.h"
#include "cpd/spec/format.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// The rule by which a matrix unit adds one block's products and its running sum.
enum class Adder : std::uint8_t {
  aligned,        ///< every term is cut below the greatest exponent (BlockFma)
  exact,          ///< the exact sum of the products and the addend, rounded once (CDNA1)
  flushed_pairs,  ///< binary32 without subnormals: ((p0 + p1) + (p2 + p3)) + addend (CDNA2)
  two_steps,  ///< cut products are summed first, then the addend is aligned to their sum (CDNA3)
  two_steps_even,  ///< as two_steps, with separate sums of even and of odd k (CDNA3's FP8)
};

/// The rule of a matrix unit ("block FMA with truncated alignment"). In each block of products,
/// each product is exact and has the exponent ea + eb of its operands (not normalized; a subnormal
/// operand has the exponent emin). E is the greatest of these exponents, of the addend's exponent
/// (if the addend is aligned) and of min_exponent. Every term is cut toward zero, fraction_bits
/// below 2^E. The sum of the cut terms is exact and rounded once into `sum`. With adder `aligned`,
/// a sum beyond the range of `sum` is Inf if `sum` has Inf, also when rounding toward zero.
///
/// A matrix unit with scales multiplies each product exactly by the magnitudes of its two scales.
/// The product's exponent is then ea + eb + e(scale of a) + e(scale of b). With dot > 1, a term is
/// the exact sum of `dot` scaled products, and only the scales determine a term's exponent. A zero
/// term has no exponent. A scale that is NaN makes the sum NaN. Units with scales take k in
/// ascending order and have the adder `aligned`.
struct BlockFma {
  Format a{}, b{};         ///< the operands' formats: their emin decides exponents
  int block = 16;          ///< products per block, 1…64
  int fraction_bits = 25;  ///< F, 1…30; with scales as far as binary64 holds a block's sum
  /// True: the running sum is one of the aligned terms. False: the running sum is added to the sum
  /// of the terms.
  bool aligns_addend = true;
  int min_exponent = -133;                    ///< the least E
  Format sum{};                               ///< the format of the unit's running sum
  Rounding rounding = Rounding::toward_zero;  ///< into `sum`: toward_zero or nearest_even
  /// After every `promote` values of k (a multiple of `block`), the matrix unit's sum is added to
  /// the accumulator and starts again from +0. 0: never.
  std::int64_t promote = 0;
  /// The format of the scales (GemmScaled); none: the matrix unit takes no scales.
  std::optional<Format> scale{};
  int scale_block = 32;  ///< values of k that share a scale: `block` or a divisor of it
  int dot = 1;           ///< the number of products that form one term, a divisor of scale_block
  Adder adder = Adder::aligned;
  /// The order of the products in each `group` (a multiple of `block`) of successive k. First come
  /// the k with k mod stride < take, then the k with the next `take` values of k mod stride, and so
  /// on, each in ascending order. Each block has successive products in that order. group = 0: k
  /// ascends.
  int group = 0;
  int stride = 4;
  int take = 2;

  bool operator==(const BlockFma&) const = default;
};

CPD_API std::span<const std::string_view> NamesOf(Adder adder);

/// Throws Error if a field is out of range. The error's message has the value and the allowed
/// values.
CPD_API void Check(const BlockFma& unit);

/// Returns whether the adder cuts terms. If not, fraction_bits and min_exponent have no effect, and
/// Check requires their defaults.
constexpr bool CutsTerms(Adder adder) {
  return adder != Adder::exact && adder != Adder::flushed_pairs;
}

}  // namespace cpd
