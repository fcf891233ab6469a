// SPDX-License-Identifier: Apache-2.0
//
// The sum of one block of products in matrix units whose Adder (cpd/spec/block_fma.h) is not
// `aligned`. The model is mmasim 2.1.1, arithmetic/fdpa.py and ftz_mul_add.py. A zero result has
// the sign that an IEEE 754 sum has, except that an exact zero sum, and a sum truncated to zero, is
// +0.
//
// Binary64 holds a product of binary32 values exactly. The further operations of each adder are
// exact for these reasons:
// - two steps: let E be a block's greatest exponent and F the plan's fraction_bits. Products cut
//   toward zero are integers below 2^(F + 2), in units of 2^(E - F). The sum of 64 such products
//   and the addend has up to 8 more bits below one unit. In multiples of the last of these bits,
//   the sum is below 2^(F + 17). F is at most 30 (Check in spec/block_fma.cpp).
// - flushed pairs: a sum of two binary32 values that is rounded to nearest in binary64 and then in
//   binary32 equals one rounding (53 >= 2 * 24 + 2: Figueroa, 1995).
// - exact: the sum is formed in integers and returned rounded to odd (exact.h).
#pragma once

#include <cstdint>

#include "cpd/numeric/units/block_fma.h"

namespace cpd {
inline namespace CPD_ISA {

/// Returns the greatest integer that is not above x.
template <class V>
CPD_FN constexpr V floor(V x) {
  const V whole = truncate(x);
  return select(x < whole, whole - splat<V>(1.0), whole);
}

/// Returns x rounded down to a multiple of 2^quantum.
template <class V>
CPD_FN constexpr V floor_to(V x, Signed<V> quantum) {
  return floor(x * power_of_two<V>(Signed<V>{} - quantum)) * power_of_two<V>(quantum);
}

// --- two steps -----------------------------------------------------------------------------------

constexpr std::int32_t kLeastExponent = -600;  ///< below the exponent of every product

/// A sum of products (`value`), and the greatest exponent of the nonzero products. Each product is
/// first cut toward zero to a multiple of 2^(exponent - F), where F is the plan's fraction_bits.
template <class V>
struct CutSum {
  V value{};
  Signed<V> exponent = splat<Signed<V>>(kLeastExponent);
};

/// Returns `product`, or Inf with its sign if |product| >= 2^128.
template <class V>
CPD_FN constexpr V limited(V product) {
  const V infinite =
      bits_as<V>((bits_as<Unsigned<V>>(product) & splat<Unsigned<V>>(Pattern<V>::sign)) |
                 splat<Unsigned<V>>(Pattern<V>::infinity));
  return select(absolute(product) >= splat<V>(0x1p128), infinite, product);
}

/// Returns the sum of the products a(k) * b(k) for k = first, first + step, … below `count`. Each
/// product is cut as CutSum describes.
template <class V, class Operands>
CPD_FN constexpr CutSum<V> cut_sum(const BlockFmaPlan& plan, const Operands& x, int first, int step,
                                   int count) {
  using I = Signed<V>;
  CutSum<V> sum;
  for (int k = first; k < count; k += step) {
    const I e = scaled_exponent(x.a(k), plan.emin_a) + scaled_exponent(x.b(k), plan.emin_b);
    sum.exponent = max(sum.exponent, e);
  }
  const V scale = alignment<V>(sum.exponent, plan);
  for (int k = first; k < count; k += step) {
    sum.value = sum.value + truncate(limited(x.a(k) * x.b(k)) * scale);
  }
  sum.value = sum.value * power_of_two<V>(sum.exponent - splat<I>(plan.fraction_bits));
  return sum;
}

/// Returns the running sum of a matrix unit after a block, by Adder::two_steps. If `halves`
/// (Adder::two_steps_even), the even and the odd products are first cut and summed separately.
template <class R, class V, class Operands>
CPD_FN constexpr V add_in_two_steps(const BlockFmaPlan& plan, const Operands& x, int count, V sum,
                                    bool halves) {
  using I = Signed<V>;
  const I f = splat<I>(plan.fraction_bits);
  CutSum<V> products = cut_sum<V>(plan, x, 0, halves ? 2 : 1, count);
  if (halves) {
    const CutSum<V> odd = cut_sum<V>(plan, x, 1, 2, count);
    const I exponent = max(products.exponent, odd.exponent);
    products.value = floor_to(products.value, exponent - f) + floor_to(odd.value, exponent - f);
    products.exponent = exponent;
  }
  const I of_addend = scaled_exponent(sum, plan.emin_sum);
  const I greatest = max(max(products.exponent, of_addend), splat<I>(plan.min_exponent));
  V addend = floor_to(sum, greatest - f);
  if (halves) addend = select(of_addend < greatest - f - splat<I>(1), V{}, addend);
  const V total = floor_to(products.value, greatest - f - splat<I>(8)) + addend;
  const I own = max(scaled_exponent(total, plan.emin_sum), splat<I>(plan.emin_sum));
  return round<R>(floor_to(total, own - f - splat<I>(7)), Unsigned<V>{}, plan.sum);
}

// --- flushed pairs -------------------------------------------------------------------------------

/// Returns x, or +0 if |x| is below 2^emin.
template <class V>
CPD_FN constexpr V flushed_operand(V x, int emin) {
  const V least = power_of_two<V>(splat<Signed<V>>(emin));
  return select(absolute(x) < least, V{}, x);
}

/// Returns x rounded into the format of the matrix unit's running sum, binary32. A subnormal result
/// becomes a zero of the same sign.
template <class R, class V>
CPD_FN constexpr V flushed_result(V x, const BlockFmaPlan& plan) {
  const V rounded = round<R>(x, Unsigned<V>{}, plan.sum);
  const V zero = bits_as<V>(bits_as<Unsigned<V>>(rounded) & splat<Unsigned<V>>(Pattern<V>::sign));
  const V least = power_of_two<V>(splat<Signed<V>>(plan.emin_sum));
  return select(absolute(rounded) < least, zero, rounded);
}

/// Returns the running sum of a matrix unit after a block of 2 or 4 products, by
/// Adder::flushed_pairs. Each product and each sum is rounded. (p0 + p1), or ((p0 + p1) + (p2 +
/// p3)), is added to the addend.
template <class R, class V, class Operands>
CPD_FN constexpr V add_flushed_pairs(const BlockFmaPlan& plan, const Operands& x, int count,
                                     V sum) {
  const auto product = [&](int k) {
    if (k >= count) return V{};
    return flushed_result<R>(
        flushed_operand(x.a(k), plan.emin_a) * flushed_operand(x.b(k), plan.emin_b), plan);
  };
  V pairs = flushed_result<R>(product(0) + product(1), plan);
  if (plan.block == 4) {
    pairs = flushed_result<R>(pairs + flushed_result<R>(product(2) + product(3), plan), plan);
  }
  return flushed_result<R>(flushed_operand(sum, plan.emin_sum) + pairs, plan);
}

// --- exact ---------------------------------------------------------------------------------------

/// An exact sum of at most 65 binary64 numbers from 2^-298 to 2^257, in digits of 32 bits.
class ExactSum {
 public:
  CPD_FN constexpr void add(double x) {
    const auto bits = bits_as<std::uint64_t>(x);
    const std::uint64_t magnitude = bits & Pattern<double>::magnitude;
    if (magnitude >= Pattern<double>::infinity) {
      special_ = special_ + x;
      return;
    }
    if (magnitude == 0) return;
    const std::uint64_t significand = (magnitude & Pattern<double>::fraction) | (1ULL << 52);
    const int at = static_cast<int>(magnitude >> 52) - 1075 - kLast;
    const std::uint64_t low = (significand & kDigit) << (at % 32);
    const std::uint64_t high = (significand >> 32) << (at % 32);
    std::int64_t* digit = digits_ + at / 32;
    const bool negative = (bits & Pattern<double>::sign) != 0;
    put(digit[0], low & kDigit, negative);
    put(digit[1], (low >> 32) + (high & kDigit), negative);
    put(digit[2], high >> 32, negative);
  }

  /// Returns the sum rounded to odd; +0 if the sum is zero. If terms are Inf or NaN, the result is
  /// the sum that IEEE 754 defines.
  CPD_FN constexpr double to_odd() {
    if (special_ != 0) return special_;
    const bool negative = settle();
    if (negative) {
      for (std::int64_t& digit : digits_) digit = -digit;
      settle();
    }
    int top = kDigits - 1;
    while (top > 2 && digits_[top] == 0) --top;
    // Forms `value` from the highest nonzero digit and the next two digits, rounded to odd. `below`
    // reports whether later digits are nonzero. The highest nonzero digit is digit 2 or higher,
    // because all terms are multiples of 2^-298.
    bool below = false;
    for (int i = 0; i < top - 2; ++i) below = below || digits_[i] != 0;
    const auto rest = static_cast<std::uint64_t>(digits_[top - 1] << 32 | digits_[top - 2]);
    const std::uint64_t odd = rest >> 11 | static_cast<std::uint64_t>((rest & 0x7FF) != 0);
    double value =
        add_to_odd(static_cast<double>(digits_[top]) * 0x1p64, static_cast<double>(odd) * 0x1p11);
    if (below) value = toward_odd(value, 1.0);
    value = value * power_of_two<double>(std::int64_t{32 * (top - 2) + kLast});
    return negative ? -value : value;
  }

 private:
  static constexpr int kLast = -384;  ///< the exponent of the lowest digit
  static constexpr int kDigits = 22;
  static constexpr std::uint64_t kDigit = 0xFFFFFFFF;

  CPD_FN static constexpr void put(std::int64_t& digit, std::uint64_t x, bool negative) {
    digit += negative ? -static_cast<std::int64_t>(x) : static_cast<std::int64_t>(x);
  }
  /// Propagates carries, so that all digits but the highest are 0 … 2^32 - 1. Returns whether the
  /// sum is negative.
  CPD_FN constexpr bool settle() {
    for (int i = 0; i + 1 < kDigits; ++i) {
      const std::int64_t carry = digits_[i] >> 32;
      digits_[i + 1] += carry;
      digits_[i] &= static_cast<std::int64_t>(kDigit);
    }
    return digits_[kDigits - 1] < 0;
  }

  std::int64_t digits_[kDigits] = {};
  double special_ = 0;
};

/// Returns the running sum of a matrix unit after a block by Adder::exact, in lanes. `lost` is the
/// sum of the magnitudes of the rounding errors: the result is valid where `lost` is 0. With Inf or
/// NaN, `lost` is NaN. A product takes 8 operations; 6 of them are TwoSum.
template <class R, class V, class Operands>
CPD_FN constexpr V add_in_binary64(const BlockFmaPlan& plan, const Operands& x, int count, V sum,
                                   V& lost) {
  lost = V{};
  for (int k = 0; k < count; ++k) {
    const V product = x.a(k) * x.b(k);
    const V next = sum + product;
    lost = lost + absolute(error_of_sum(sum, product, next));
    sum = next;
  }
  return round<R>(sum + V{}, Unsigned<V>{}, plan.sum);  // an exact zero is +0
}

/// Returns the running sum of a matrix unit after a block by Adder::exact, for one element of the
/// result, not for lanes.
template <class R, class Operands>
CPD_FN constexpr double add_exactly(const BlockFmaPlan& plan, const Operands& x, int count,
                                    double sum) {
  ExactSum total;
  for (int k = 0; k < count; ++k) total.add(x.a(k) * x.b(k));
  total.add(sum);
  return round<R>(total.to_odd(), std::uint64_t{0}, plan.sum);
}

}  // namespace CPD_ISA
}  // namespace cpd
