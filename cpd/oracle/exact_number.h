// SPDX-License-Identifier: Apache-2.0
//
// The oracle's exact numbers: sign * integer * 2^exponent. `Natural` is an integer wide enough for
// an exact binary32 fused multiply-add (554 bits). `ShortNatural` is a shorter and faster integer.
// Both throw on overflow.
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace cpd::reference {

__extension__ using Digits = unsigned __int128;

/// An unsigned integer with the bits of `Word` and the interface of Natural. Throws
/// std::overflow_error if a result is negative or needs more bits.
template <class Word>
class ShortNatural {
 public:
  ShortNatural() = default;
  explicit ShortNatural(Digits value) : word_(static_cast<Word>(value)) { check(word_ == value); }

  bool is_zero() const { return word_ == 0; }
  int bit_length() const {
    return high() != 0 ? 64 + std::bit_width(high()) : std::bit_width(low());
  }
  int trailing_zeros() const {
    return low() != 0 ? std::countr_zero(low()) : 64 + std::countr_zero(high());
  }
  std::uint64_t bits_from(int at) const {
    return at < kBits ? static_cast<std::uint64_t>(word_ >> at) : 0;
  }

  friend std::strong_ordering operator<=>(ShortNatural a, ShortNatural b) = default;

  friend ShortNatural operator+(ShortNatural a, ShortNatural b) {
    a.word_ += b.word_;
    check(a.word_ >= b.word_);
    return a;
  }
  friend ShortNatural operator-(ShortNatural a, ShortNatural b) {
    check(a.word_ >= b.word_);
    a.word_ -= b.word_;
    return a;
  }
  friend ShortNatural operator*(ShortNatural a, ShortNatural b) {
    check(!__builtin_mul_overflow(a.word_, b.word_, &a.word_));
    return a;
  }
  friend ShortNatural operator<<(ShortNatural a, int count) {
    if (a.is_zero()) return a;
    const Word before = a.word_;
    a.word_ = count < kBits ? before << count : 0;
    check(count < kBits && a.word_ >> count == before);
    return a;
  }

  static constexpr int kBits = 8 * sizeof(Word);

 private:
  static void check(bool holds) {
    if (!holds) throw std::overflow_error("a short natural below zero, or of too many bits");
  }
  std::uint64_t high() const { return static_cast<std::uint64_t>(Digits{word_} >> 64); }
  std::uint64_t low() const { return static_cast<std::uint64_t>(word_); }

  Word word_ = 0;
};

/// An unsigned integer of up to 1024 bits. Throws std::overflow_error if a result needs more bits.
class Natural {
 public:
  // The constructors set and copy only the limbs in use, because most numbers in an oracle are
  // small.
  Natural() {}  // NOLINT(modernize-use-equals-default, cppcoreguidelines-pro-type-member-init)
  explicit Natural(Digits value) : Natural() {
    for (; value != 0; value >>= 32) push(static_cast<std::uint32_t>(value));
  }
  Natural(const Natural& other) : size_(other.size_) { copy_limbs(other); }
  Natural& operator=(const Natural& other) {
    size_ = other.size_;
    copy_limbs(other);
    return *this;
  }

  bool is_zero() const { return size_ == 0; }

  /// Returns the number of binary digits; 0 for zero.
  int bit_length() const {
    if (size_ == 0) return 0;
    return 32 * size_ - std::countl_zero(limbs_[static_cast<std::size_t>(size_) - 1]);
  }

  /// Returns the number of zero bits below the lowest set bit. The number must not be zero.
  int trailing_zeros() const {
    int i = 0;
    while (limb(i) == 0) ++i;
    return 32 * i + std::countr_zero(limb(i));
  }

  /// Returns the 64 binary digits `at` … `at` + 63. Digit 0 is the lowest.
  std::uint64_t bits_from(int at) const {
    const int i = at / 32;
    const auto low = std::uint64_t{limb(i + 1)} << 32 | limb(i);
    const int cut = at % 32;
    return cut == 0 ? low : low >> cut | std::uint64_t{limb(i + 2)} << (64 - cut);
  }

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

  /// Returns a - b. Requires a >= b.
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
  /// Returns the 32 binary digits 32 i … 32 i + 31. Digit 0 is the lowest.
  std::uint32_t limb(int i) const { return i < size_ ? limbs_[static_cast<std::size_t>(i)] : 0; }
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

enum class Kind { finite, infinite, nan };

/// An exact number (sign * significand * 2^exponent), an infinity, or NaN. Zero keeps its sign.
template <class Integer>
struct Number {
  using Kind = reference::Kind;
  Kind kind = Kind::finite;
  bool negative = false;
  Integer significand{};
  int exponent = 0;

  bool is_nan() const { return kind == Kind::nan; }
  bool is_infinite() const { return kind == Kind::infinite; }
  bool is_zero() const { return kind == Kind::finite && significand.is_zero(); }
};
using Exact = Number<Natural>;

template <class Integer = Natural>
Number<Integer> exact_nan() {
  return {Kind::nan};
}
template <class Integer = Natural>
Number<Integer> exact_infinity(bool negative) {
  return {Kind::infinite, negative};
}
template <class Integer = Natural>
Number<Integer> exact_finite(bool negative, Digits significand, int exponent) {
  return {Kind::finite, negative, Integer(significand), exponent};
}

/// Returns the value of a number in an interchange format (IEEE 754-2019, 3.4), given its bits.
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

/// Scales |a| and |b| to the lesser of their two exponents and returns function(x, y) of the
/// resulting integers. Both numbers must be finite.
template <class Integer, class Function>
[[gnu::always_inline]] inline auto with_one_exponent(const Number<Integer>& a,
                                                     const Number<Integer>& b,
                                                     const Function& function) {
  if (a.exponent < b.exponent) {
    return function(a.significand, b.significand << (b.exponent - a.exponent));
  }
  return function(a.significand << (a.exponent - b.exponent), b.significand);
}

/// Compares |a| with |b|. Both numbers must be finite.
template <class Integer>
[[gnu::always_inline]] inline std::strong_ordering compare_magnitude(const Number<Integer>& a,
                                                                     const Number<Integer>& b) {
  if (a.significand.is_zero() || b.significand.is_zero()) return b.is_zero() <=> a.is_zero();
  const int a_top = a.significand.bit_length() + a.exponent;
  const int b_top = b.significand.bit_length() + b.exponent;
  if (a_top != b_top) return a_top <=> b_top;
  return with_one_exponent(a, b, [](const Integer& x, const Integer& y) { return x <=> y; });
}

/// Returns |a| - |b|. Both numbers must be finite, and |a| >= |b|.
template <class Integer>
[[gnu::always_inline]] inline Number<Integer> difference(const Number<Integer>& a,
                                                         const Number<Integer>& b) {
  if (b.significand.is_zero()) return {Kind::finite, false, a.significand, a.exponent};
  return {Kind::finite, false,
          with_one_exponent(a, b, [](const Integer& x, const Integer& y) { return x - y; }),
          a.exponent < b.exponent ? a.exponent : b.exponent};
}

/// Returns floor(log2 |x|). x must be finite and not zero.
template <class Integer>
int top_exponent(const Number<Integer>& x) {
  return x.significand.bit_length() + x.exponent - 1;
}

template <class Integer>
Number<Integer> negate(Number<Integer> a) {
  a.negative = !a.negative;
  return a;
}

/// Returns a + b. Inf - Inf is NaN. If both operands have the same sign, a zero sum has that sign.
/// Otherwise a zero sum is +0, or -0 if `cancels_to_minus` is set, as rounding down requires (IEEE
/// 754-2019, 6.3).
template <class Integer>
Number<Integer> add(const Number<Integer>& a, const Number<Integer>& b,
                    bool cancels_to_minus = false) {
  if (a.is_nan() || b.is_nan()) return exact_nan<Integer>();
  if (a.is_infinite() && b.is_infinite())
    return a.negative == b.negative ? a : exact_nan<Integer>();
  if (a.is_infinite()) return a;
  if (b.is_infinite()) return b;
  const Number<Integer> cancelled = exact_finite<Integer>(cancels_to_minus, 0, 0);
  if (a.is_zero() && b.is_zero()) return a.negative == b.negative ? a : cancelled;
  if (a.is_zero()) return b;
  if (b.is_zero()) return a;
  const int low = a.exponent < b.exponent ? a.exponent : b.exponent;
  const Integer wide_a = a.significand << (a.exponent - low);
  const Integer wide_b = b.significand << (b.exponent - low);
  if (a.negative == b.negative) return {Kind::finite, a.negative, wide_a + wide_b, low};
  if (wide_a == wide_b) return cancelled;
  if (wide_a > wide_b) return {Kind::finite, a.negative, wide_a - wide_b, low};
  return {Kind::finite, b.negative, wide_b - wide_a, low};
}

/// Returns a * b. The sign is the exclusive or of the operands' signs. 0 * Inf is NaN.
template <class Integer>
Number<Integer> multiply(const Number<Integer>& a, const Number<Integer>& b) {
  if (a.is_nan() || b.is_nan()) return exact_nan<Integer>();
  const bool negative = a.negative != b.negative;
  if (a.is_infinite() || b.is_infinite()) {
    return a.is_zero() || b.is_zero() ? exact_nan<Integer>() : exact_infinity<Integer>(negative);
  }
  return {Kind::finite, negative, a.significand * b.significand, a.exponent + b.exponent};
}

}  // namespace cpd::reference
