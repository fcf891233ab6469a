// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of sums in integers of a fixed width (cpd/spec/fixed_point.h). A sum takes one
// term at a time.
//
// A term is any binary32 or binary64 value, or the exact product of two binary32 values, which is a
// binary64 value. All operations are on integers and independent of the floating-point environment.
// A sum is a two's complement integer in words of 32 bits, the lowest word first. The sum has one
// word more than its width needs, so the sum plus one more term below 2^(width + 1) fits exactly. A
// greater term leaves the range whatever the sum is; a saturating sum then needs only the term's
// sign.
#pragma once

#include <cstdint>

#include "cpd/numeric/round/exact64.h"
#include "cpd/numeric/sums/fixed_plan.h"

namespace cpd {

inline namespace CPD_ISA {

constexpr int kMostFixedWords = kMostFixedWidth / 32 + 1;  ///< the most words of a FixedNumber

/// A term as an integer in units of 2^-fraction. Its value is significand * 2^shift with a sign.
struct FixedTerm {
  std::uint64_t significand = 0;  ///< 0 or below 2^53 + 1
  int shift = 0;                  ///< at least 0
  bool negative = false;
  bool exact = true;   ///< no bit was lost
  bool finite = true;  ///< false: the other fields have no meaning
};

/// Returns whether significand / 2^cut rounds away from zero. `cut` must be above 0, and the
/// quotient must not be an integer. `whole` is the quotient rounded down.
CPD_FN constexpr bool goes_away(std::uint64_t significand, int cut, std::uint64_t whole,
                                bool negative, Rounding mode) {
  const std::uint64_t half = std::uint64_t{1} << (cut - 1);
  const std::uint64_t rest = significand - (whole << cut);
  switch (mode) {
    case Rounding::nearest_even:
      return rest > half || (rest == half && (whole & 1) != 0);
    case Rounding::nearest_away:
      return rest >= half;
    case Rounding::up:
      return !negative;
    case Rounding::down:
      return negative;
    case Rounding::to_odd:
      return (whole & 1) == 0;
    default:
      return false;
  }
}

/// Returns x in units of 2^-fraction, rounded once to an integer. V: float or double.
template <class V>
CPD_FN constexpr FixedTerm fixed_term(V x, int fraction, Rounding mode) {
  using P = Pattern<V>;
  const auto bits = bits_as<Unsigned<V>>(x);
  const auto magnitude = bits & P::magnitude;
  FixedTerm term;
  term.negative = (bits & P::sign) != 0;
  term.finite = magnitude < P::infinity;
  const int field = static_cast<int>(magnitude >> P::mantissa);
  constexpr int kBias = static_cast<int>(P::infinity >> (P::mantissa + 1));
  term.significand = (magnitude & P::fraction) | (field > 0 ? P::implicit : 0);
  if (term.significand == 0) return term;
  term.shift = (field > 0 ? field : 1) - kBias - P::mantissa + fraction;
  if (term.shift >= 0) return term;
  const int cut = -term.shift < 60 ? -term.shift : 60;  // a larger cut gives the same result
  const std::uint64_t whole = term.significand >> cut;
  term.shift = 0;
  if (whole << cut == term.significand) {
    term.significand = whole;
    return term;
  }
  const bool away = goes_away(term.significand, cut, whole, term.negative, mode);
  term.significand = whole + (away ? 1 : 0);
  term.exact = false;
  return term;
}

/// A sum as a two's complement integer of plan.point.width bits.
class FixedNumber {
 public:
  /// +0.
  CPD_FN explicit FixedNumber(const FixedPlan& plan)
      : width_(plan.point.width), count_(plan.words) {
    for (int q = 0; q <= count_; ++q) word_[q] = 0;
  }
  /// Reads the sum's 32-bit words, which are `stride` elements apart in memory. T is an integer, or
  /// float for words stored as the bits of binary32 values. Bits beyond the width are ignored.
  template <class Word>
  CPD_FN FixedNumber(const FixedPlan& plan, const Word* words, std::int64_t stride)
      : width_(plan.point.width), count_(plan.words) {
    std::uint32_t high = 0;
    for (int q = 0; q < count_; ++q) high = word_[q] = bits_as<std::uint32_t>(words[q * stride]);
    wrap(high);
  }
  template <class Word>
  CPD_FN void store(Word* words, std::int64_t stride) const {
    for (int q = 0; q < count_; ++q) words[q * stride] = bits_as<Word>(word_[q]);
  }

  /// Adds a finite term. Returns false if the sum left the range, and therefore wrapped or
  /// saturated.
  CPD_FN bool add(const FixedTerm& term, bool saturates) {
    if (term.significand == 0) return true;
    const int bits = 64 - __builtin_clzll(term.significand) + term.shift;
    const bool beyond = bits > width_ + 1;
    if (beyond && saturates) {
      saturate(term.negative);
      return false;
    }
    add_bits(term);
    if (!beyond && is_in_range()) return true;
    saturates ? saturate(is_negative()) : wrap(word_[count_ - 1]);
    return false;
  }

  /// Returns sum * 2^-fraction in binary64, rounded to odd. A magnitude below 2^-900 becomes
  /// kLeastSeen, and one from 2^1001 on kGreatest (exact64.h). Rounding the result into any format
  /// gives the same number as rounding the exact value.
  [[nodiscard]] CPD_FN double value(int fraction) const {
    std::uint32_t size[kMostFixedWords];
    const bool negative = is_negative();
    std::uint64_t carry = negative ? 1 : 0;
    int top = -1;
    for (int q = 0; q <= count_; ++q) {
      carry += negative ? ~word_[q] : word_[q];
      size[q] = static_cast<std::uint32_t>(carry);
      carry >>= 32;
      if (size[q] != 0) top = q;
    }
    if (top < 0) return 0.0;
    const auto below = [&](int q) { return std::uint64_t{q < 0 ? 0 : size[q]}; };
    const int zeros = __builtin_clz(size[top]);
    std::uint64_t leading = (below(top) << 32 | below(top - 1)) << zeros;
    leading |= below(top - 2) << zeros >> 32;
    bool lost = (leading & 0x7FF) != 0 || below(top - 2) << zeros << 32 != 0;
    for (int q = top - 3; q >= 0; --q) lost = lost || size[q] != 0;
    const int exponent = 32 * top + 31 - zeros - fraction;
    const double sign = negative ? -1.0 : 1.0;
    if (exponent < -900) return sized(kLeastSeen, sign);
    if (exponent > 1000) return sized(kGreatest, sign);
    const std::uint64_t significand = (leading >> 11 | (lost ? 1 : 0)) & Pattern<double>::fraction;
    const auto field = static_cast<std::uint64_t>(exponent + 1023) << Pattern<double>::mantissa;
    return sized(bits_as<double>(field | significand), sign);
  }

 private:
  [[nodiscard]] CPD_FN bool is_negative() const { return word_[count_] >> 31 != 0; }
  /// Returns the sign bit of the width-bit integer and the bits above it in the same word, as a
  /// signed number: 0 or -1 if the sum fits the width.
  [[nodiscard]] CPD_FN std::int32_t high_bits() const {
    return static_cast<std::int32_t>(word_[count_ - 1]) >> ((width_ - 1) % 32);
  }
  [[nodiscard]] CPD_FN bool is_in_range() const {
    const std::uint32_t sign = is_negative() ? ~std::uint32_t{0} : 0;
    return word_[count_] == sign && high_bits() == static_cast<std::int32_t>(sign);
  }
  /// Wraps the sum: preserves its low `width` bits and extends their sign. `high` is the word that
  /// holds the highest of these bits.
  CPD_FN void wrap(std::uint32_t high) {
    const int unused = 32 * count_ - width_;
    const auto kept = static_cast<std::int32_t>(high << unused);
    word_[count_ - 1] = static_cast<std::uint32_t>(kept >> unused);
    word_[count_] = kept < 0 ? ~std::uint32_t{0} : 0;
  }
  /// Sets the sum to the least number if `negative`, else to the greatest number.
  CPD_FN void saturate(bool negative) {
    const std::uint32_t ones = negative ? 0 : ~std::uint32_t{0};
    for (int q = 0; q < count_; ++q) word_[q] = ones;
    const std::uint32_t sign = std::uint32_t{1} << ((width_ - 1) % 32);
    word_[count_ - 1] = negative ? ~(sign - 1) : sign - 1;
    word_[count_] = ~ones;
  }
  /// Adds a term modulo 2^(32 (count + 1)).
  CPD_FN void add_bits(const FixedTerm& term) {
    const int part = term.shift % 32;
    const std::uint64_t low = term.significand << part;
    const std::uint64_t high = part == 0 ? 0 : term.significand >> (64 - part);
    const std::uint64_t parts[3] = {low & 0xFFFFFFFFU, low >> 32, high};
    std::int64_t carry = 0;
    int i = 0;
    for (int q = term.shift / 32; q <= count_ && (i < 3 || carry != 0); ++q, ++i) {
      const auto more = static_cast<std::int64_t>(i < 3 ? parts[i] : 0);
      carry += static_cast<std::int64_t>(word_[q]) + (term.negative ? -more : more);
      word_[q] = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
  }

  int width_, count_;
  std::uint32_t word_[kMostFixedWords];
};

}  // namespace CPD_ISA
}  // namespace cpd
