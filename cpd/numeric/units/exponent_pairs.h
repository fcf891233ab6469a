// SPDX-License-Identifier: Apache-2.0
//
// The greatest exponents of the blocks of two sums at a time: signed integers of 16 bits in the
// halves of a word. An operand's exponent is worked out once, for all sums that it is in.
#pragma once

#include <cstdint>

#include "cpd/numeric/units/block_fma.h"

namespace cpd {
inline namespace CPD_ISA {

/// The exponent of Inf and NaN in a pair: with any other's, a zero's too, it is above kMostEnd32,
/// and twice it is within 16 bits.
constexpr std::int32_t kSpecialExponent = 8192;
static_assert(kSpecialExponent + kNoExponent > kMostEnd32);

/// e(x) of an operand, as the half of a pair.
CPD_FN constexpr std::uint16_t paired_exponent(float x, int emin) {
  const std::int32_t e = exponent_from(x, emin);
  return static_cast<std::uint16_t>(e == 128 ? kSpecialExponent : e);
}
constexpr std::uint32_t kNoExponents = (2 * kNoExponent & 0xFFFF) * 0x10001U;  ///< of no products

CPD_FN constexpr std::int32_t first_exponent(std::uint32_t pair) {
  return static_cast<std::int16_t>(pair & 0xFFFF);
}
CPD_FN constexpr std::int32_t second_exponent(std::uint32_t pair) {
  return static_cast<std::int32_t>(pair) >> 16;
}

/// Which blocks binary32 serves, their products by aligned_product and their end by end_in_range32
/// or in binary64, where plan.has_short_blocks: those whose E is least_end32 … kMostEnd32, and
/// those without a term but zeros. Then 2^(F - E) is a binary32 number, no product is above its
/// range, and one below it (of 23 bits, under 2^-127) is at most half a unit.
class ShortBlocks {
 public:
  CPD_FN constexpr explicit ShortBlocks(const BlockFmaPlan& plan)
      : floor_(max(plan.min_exponent, least_end32(plan))),
        least_(plan.min_exponent < least_end32(plan) ? least_end32(plan) : kLowest),
        most_(plan.min_exponent > kMostEnd32 ? kLowest : kMostEnd32) {}

  /// Notes a block, with the greatest exponent of its terms; returns its E if binary32 serves it.
  CPD_FN constexpr std::int32_t take(std::int32_t greatest) {
    highest_ = max(highest_, greatest);
    const auto above = static_cast<std::uint32_t>(greatest - kLowest);  // of no term: 2^31 and more
    lowest_ = above < lowest_ ? above : lowest_;
    return max(greatest, floor_);
  }
  /// Returns whether it serves all that were noted.
  [[nodiscard]] CPD_FN constexpr bool all() const {
    return highest_ <= most_ && lowest_ >= static_cast<std::uint32_t>(least_ - kLowest);
  }

 private:
  static constexpr std::int32_t kLowest = -600;  ///< below every product's

  std::int32_t floor_, least_, most_;
  std::int32_t highest_ = 2 * kNoExponent;
  std::uint32_t lowest_ = 0xFFFFFFFF;
};

}  // namespace CPD_ISA
}  // namespace cpd
