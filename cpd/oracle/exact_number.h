// SPDX-License-Identifier: Apache-2.0
//
// The oracle's numbers: sign * integer * 2^exponent. The integer is wide enough for an exact
// binary32 fused multiply-add (554 bits) and checked against overflow.
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace cpd::reference {

/// An unsigned integer of up to 1024 bits; throws std::overflow_error beyond that.
class Natural {
 public:
  // Only the digits that a number has are set and copied: an oracle's time is that of small
  // numbers.
  Natural() {}  // NOLINT(modernize-use-equals-default, cppcoreguidelines-pro-type-member-init)
  explicit Natural(std::uint64_t value) : Natural() {
    for (; value != 0; value >>= 32) push(static_cast<std::uint32_t>(value));
  }
  Natural(const Natural& other) : size_(other.size_) { copy_limbs(other); }
  Natural& operator=(const Natural& other) {
    size_ = other.size_;
    copy_limbs(other);
    return *this;
  }

  bool is_zero() const { return size_ == 0; }

  /// The number of binary digits; 0 for zero.
  int bit_length() const {
    if (size_ == 0) return 0;
    return 32 * size_ - std::countl_zero(limbs_[static_cast<std::size_t>(size_) - 1]);
  }

  /// Binary digits 32 i … 32 i + 31; digit 0 is the lowest.
  std::uint32_t limb(int i) const { return i < size_ ? limbs_[static_cast<std::size_t>(i)] : 0; }

  friend std::strong_ordering operator<=>(const Natural& a, const Natural& b) {
    if (a.size_ != b.size_) return a.size_ <=> b.size_;
    for (int i = a.size_ - 1; i >= 0; --i) {
      if (a.limb(i) != b.limb(i)) return a.limb(i) <=> b.limb(i);
    }
    return std::strong_ordering::equal;
  }
  friend bool operator==(const Natural& a, const Natural& b) { return (a <=> b) == 0; }

  friend Natural operator+(const Natural& a, const Natural& b) {
    Natural sum;
    std::uint64_t carry = 0;
    const int size = a.size_ > b.size_ ? a.size_ : b.size_;
    for (int i = 0; i < size; ++i) {
      carry += std::uint64_t{a.limb(i)} + b.limb(i);
      sum.push(static_cast<std::uint32_t>(carry));
      carry >>= 32;
    }
    if (carry != 0) sum.push(static_cast<std::uint32_t>(carry));
    return sum;
  }

  /// a - b; requires a >= b.
  friend Natural operator-(const Natural& a, const Natural& b) {
    Natural difference;
    std::int64_t borrow = 0;
    for (int i = 0; i < a.size_; ++i) {
      std::int64_t digit = std::int64_t{a.limb(i)} - b.limb(i) - borrow;
      borrow = digit < 0 ? 1 : 0;
      if (digit < 0) digit += std::int64_t{1} << 32;
      difference.push(static_cast<std::uint32_t>(digit));
    }
    if (borrow != 0) throw std::overflow_error("negative difference of naturals");
    difference.trim();
    return difference;
  }

  friend Natural operator*(const Natural& a, const Natural& b) {
    Natural product;
    for (int i = 0; i < b.size_; ++i) {
      Natural row;
      for (int zero = 0; zero < i; ++zero) row.push(0);
      std::uint64_t carry = 0;
      for (int j = 0; j < a.size_; ++j) {
        carry += std::uint64_t{a.limb(j)} * b.limb(i);
        row.push(static_cast<std::uint32_t>(carry));
        carry >>= 32;
      }
      row.push(static_cast<std::uint32_t>(carry));
      row.trim();
      product = product + row;
    }
    return product;
  }

  friend Natural operator<<(const Natural& a, int count) {
    Natural shifted;
    if (a.is_zero()) return shifted;
    for (int i = 0; i < count / 32; ++i) shifted.push(0);
    std::uint64_t carry = 0;
    for (int i = 0; i < a.size_; ++i) {
      carry |= std::uint64_t{a.limb(i)} << (count % 32);
      shifted.push(static_cast<std::uint32_t>(carry));
      carry >>= 32;
    }
    if (carry != 0) shifted.push(static_cast<std::uint32_t>(carry));
    return shifted;
  }

 private:
  void copy_limbs(const Natural& other) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(size_); ++i) limbs_[i] = other.limbs_[i];
  }
  void push(std::uint32_t digit) {
    if (size_ == kLimbs) throw std::overflow_error("natural wider than 1024 bits");
    limbs_[static_cast<std::size_t>(size_++)] = digit;
  }
  void trim() {
    while (size_ > 0 && limb(size_ - 1) == 0) --size_;
  }

  static constexpr int kLimbs = 32;
  std::array<std::uint32_t, kLimbs> limbs_;  ///< least significant first, no leading zero
  int size_ = 0;
};

/// An exact number (sign * significand * 2^exponent), an infinity, or NaN. Zero keeps its sign.
struct Exact {
  enum class Kind { finite, infinite, nan };
  Kind kind = Kind::finite;
  bool negative = false;
  Natural significand{};
  int exponent = 0;

  bool is_nan() const { return kind == Kind::nan; }
  bool is_infinite() const { return kind == Kind::infinite; }
  bool is_zero() const { return kind == Kind::finite && significand.is_zero(); }
};

inline Exact exact_nan() { return {Exact::Kind::nan}; }
inline Exact exact_infinity(bool negative) { return {Exact::Kind::infinite, negative}; }
inline Exact exact_finite(bool negative, std::uint64_t significand, int exponent) {
  return {Exact::Kind::finite, negative, Natural(significand), exponent};
}

/// The value of an interchange format (IEEE 754-2019, 3.4) from its bits.
inline Exact exact_from_bits(std::uint64_t bits, int exponent_bits, int fraction_bits) {
  const bool negative = ((bits >> (exponent_bits + fraction_bits)) & 1) != 0;
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << fraction_bits) - 1);
  const int top = (1 << exponent_bits) - 1;
  const int field = static_cast<int>(bits >> fraction_bits) & top;
  const int emin = 2 - (1 << (exponent_bits - 1));
  if (field == top) return fraction != 0 ? exact_nan() : exact_infinity(negative);
  if (field == 0) return exact_finite(negative, fraction, emin - fraction_bits);
  return exact_finite(negative, fraction + (std::uint64_t{1} << fraction_bits),
                      emin - fraction_bits + field - 1);
}
inline Exact exact(float x) { return exact_from_bits(std::bit_cast<std::uint32_t>(x), 8, 23); }
inline Exact exact(double x) { return exact_from_bits(std::bit_cast<std::uint64_t>(x), 11, 52); }

/// |a| <=> |b| for finite numbers.
inline std::strong_ordering compare_magnitude(const Exact& a, const Exact& b) {
  if (a.is_zero() || b.is_zero()) return b.is_zero() <=> a.is_zero();
  const int a_top = a.significand.bit_length() + a.exponent;
  const int b_top = b.significand.bit_length() + b.exponent;
  if (a_top != b_top) return a_top <=> b_top;
  if (a.exponent == b.exponent) return a.significand <=> b.significand;
  const int low = a.exponent < b.exponent ? a.exponent : b.exponent;
  return (a.significand << (a.exponent - low)) <=> (b.significand << (b.exponent - low));
}

/// floor(log2 |x|) of a finite number that is not zero.
inline int top_exponent(const Exact& x) { return x.significand.bit_length() + x.exponent - 1; }

inline Exact negate(Exact a) {
  a.negative = !a.negative;
  return a;
}

/// a + b; Inf - Inf is NaN. A zero sum has the operands' common sign; where they differ it is +0,
/// or -0 with `cancels_to_minus`, for rounding down (IEEE 754-2019, 6.3).
inline Exact add(const Exact& a, const Exact& b, bool cancels_to_minus = false) {
  if (a.is_nan() || b.is_nan()) return exact_nan();
  if (a.is_infinite() && b.is_infinite()) return a.negative == b.negative ? a : exact_nan();
  if (a.is_infinite()) return a;
  if (b.is_infinite()) return b;
  Exact cancelled = exact_finite(cancels_to_minus, 0, 0);
  if (a.is_zero() && b.is_zero()) return a.negative == b.negative ? a : cancelled;
  if (a.is_zero()) return b;
  if (b.is_zero()) return a;
  const int low = a.exponent < b.exponent ? a.exponent : b.exponent;
  const Natural wide_a = a.significand << (a.exponent - low);
  const Natural wide_b = b.significand << (b.exponent - low);
  if (a.negative == b.negative) return {Exact::Kind::finite, a.negative, wide_a + wide_b, low};
  if (wide_a == wide_b) return cancelled;
  if (wide_a > wide_b) return {Exact::Kind::finite, a.negative, wide_a - wide_b, low};
  return {Exact::Kind::finite, b.negative, wide_b - wide_a, low};
}

/// a * b. 0 * Inf is NaN; the sign is the exclusive or of the signs.
inline Exact multiply(const Exact& a, const Exact& b) {
  if (a.is_nan() || b.is_nan()) return exact_nan();
  const bool negative = a.negative != b.negative;
  if (a.is_infinite() || b.is_infinite()) {
    return a.is_zero() || b.is_zero() ? exact_nan() : exact_infinity(negative);
  }
  return {Exact::Kind::finite, negative, a.significand * b.significand, a.exponent + b.exponent};
}

}  // namespace cpd::reference
