// SPDX-License-Identifier: Apache-2.0
//
// Computes the greatest exponents of blocks for two sums at a time. The exponents are signed
// integers of 16 bits in the two halves of a word. An operand's exponent is computed once for all
// sums that use the operand.
#pragma once

#include <cstdint>

#include "cpd/numeric/units/block_fma.h"

namespace cpd {
inline namespace CPD_ISA {

/// The 16-bit exponent that stands for Inf and NaN. Added to any other exponent, even of a zero, it
/// exceeds kMostEnd32. So a block with Inf or NaN never uses binary32. Twice this exponent fits 16
/// bits.
constexpr std::int32_t kSpecialExponent = 8192;
static_assert(kSpecialExponent + kNoExponent > kMostEnd32);

/// Returns the exponent e(x) of an operand, as 16 bits of a word that holds two exponents.
CPD_FN constexpr std::uint16_t paired_exponent(float x, int emin) {
  const std::int32_t e = exponent_from(x, emin);
  return static_cast<std::uint16_t>(e == 128 ? kSpecialExponent : e);
}
/// The initial word of greatest exponents for two sums that have no products yet. Each exponent is
/// 2 * kNoExponent, as for a product of two zeros.
constexpr std::uint32_t kNoExponents = (2 * kNoExponent & 0xFFFF) * 0x10001U;

CPD_FN constexpr std::int32_t first_exponent(std::uint32_t pair) {
  return static_cast<std::int16_t>(pair & 0xFFFF);
}
CPD_FN constexpr std::int32_t second_exponent(std::uint32_t pair) {
  return static_cast<std::int32_t>(pair) >> 16;
}

/// Determines whether binary32 lanes give the right bits for blocks of products, if
/// plan.has_short_blocks is true. This is so if all products of a block are zero, or if the block's
/// greatest exponent E is in least_end32 … kMostEnd32. aligned_product then computes the products
/// in binary32: 2^(F - E) is a binary32 number, and no product overflows. A product of up to 23
/// bits loses bits only below 2^-127. Such a product is at most half of 2^(E - F), and is cut to 0.
/// end_in_range32 or binary64 arithmetic then computes the sum after the block.
class ShortBlocks {
 public:
  CPD_FN constexpr explicit ShortBlocks(const BlockFmaPlan& plan)
      : floor_(max(plan.min_exponent, least_end32(plan))),
        least_(plan.min_exponent < least_end32(plan) ? least_end32(plan) : kLowest),
        most_(plan.min_exponent > kMostEnd32 ? kLowest : kMostEnd32) {}

  /// Records a block whose terms have the greatest exponent `greatest`. Returns the largest of
  /// `greatest`, plan.min_exponent and least_end32, which is the block's E if binary32 serves the
  /// block.
  CPD_FN constexpr std::int32_t take(std::int32_t greatest) {
    highest_ = max(highest_, greatest);
    // If all terms are zero, `greatest` is below kLowest. The unsigned difference `above` is then
    // 2^31 or more, so that lowest_ does not change.
    const auto above = static_cast<std::uint32_t>(greatest - kLowest);
    lowest_ = above < lowest_ ? above : lowest_;
    return max(greatest, floor_);
  }
  /// Returns whether binary32 serves all recorded blocks.
  [[nodiscard]] CPD_FN constexpr bool all() const {
    return highest_ <= most_ && lowest_ >= static_cast<std::uint32_t>(least_ - kLowest);
  }

 private:
  static constexpr std::int32_t kLowest = -600;  ///< below the exponent of every product

  std::int32_t floor_, least_, most_;
  std::int32_t highest_ = 2 * kNoExponent;
  std::uint32_t lowest_ = 0xFFFFFFFF;
};

}  // namespace CPD_ISA
}  // namespace cpd
