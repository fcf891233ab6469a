// SPDX-License-Identifier: Apache-2.0
//
// Quantizes values to 2^bits bins of equal width, between a least and a greatest value (Øland and
// Raj 2015). Computes the bin of a value and the center of a bin. The bin of a value is the floor
// of the exact quotient; the greatest value is in the last bin. The center is the exact center,
// rounded once.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "cpd/numeric/round/exact.h"

namespace cpd {
inline namespace CPD_ISA {

/// An exact sum of integers times binary32 numbers. The sum is a two's complement integer of 320
/// bits, in units of 2^-149.
class WideSum {
 public:
  /// Adds times * x * 2^shift. x must be finite, |times| <= 2^31, and 0 <= shift <= 31.
  constexpr void Add(std::int64_t times, float x, int shift) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const int exponent = static_cast<int>(bits >> 23 & 0xFF);
    const std::int64_t fraction = (bits & 0x7FFFFF) | (exponent == 0 ? 0 : 0x800000);
    const std::int64_t value = (bits >> 31 != 0 ? -fraction : fraction) * times;
    const int at = (exponent == 0 ? 0 : exponent - 1) + shift;
    const int inside = at % 64;
    const std::uint64_t parts[3] = {
        static_cast<std::uint64_t>(value) << inside,
        static_cast<std::uint64_t>(inside == 0 ? value >> 63 : value >> (64 - inside)),
        static_cast<std::uint64_t>(value >> 63)};
    std::uint64_t carry = 0;
    for (int limb = at / 64, part = 0; limb < kLimbs; ++limb, ++part) {
      const std::uint64_t addend = parts[part < 2 ? part : 2];
      const std::uint64_t sum = limbs_[limb] + addend;
      const std::uint64_t total = sum + carry;
      carry = (sum < addend || total < carry) ? 1 : 0;
      limbs_[limb] = total;
    }
  }
  [[nodiscard]] constexpr bool is_negative() const { return limbs_[kLimbs - 1] >> 63 != 0; }
  /// Returns the sum * 2^-shift, rounded once to binary32, to nearest even.
  [[nodiscard]] float Rounded(int shift) const {
    const bool negative = is_negative();
    std::array<std::uint64_t, kLimbs> size = limbs_;
    if (negative) {
      std::uint64_t carry = 1;
      for (std::uint64_t& limb : size) {
        limb = ~limb + carry;
        carry = carry != 0 && limb == 0 ? 1 : 0;
      }
    }
    int top = kLimbs - 1;
    while (top > 0 && size[top] == 0) --top;
    // `odd` is the sum's magnitude, rounded to odd to 53 bits so that binary64 can hold it.
    const int above = std::countl_zero(size[top]);
    std::uint64_t upper = size[top] << (above & 63);
    std::uint64_t lower = 0;
    if (top > 0) {
      if (above > 0) upper |= size[top - 1] >> (64 - above);
      lower = size[top - 1] << above;
      for (int limb = 0; limb < top - 1; ++limb) lower |= size[limb];
    }
    lower |= upper & 0x7FF;
    const auto odd = static_cast<double>(upper >> 11 | (lower != 0 ? 1 : 0));
    const double value = std::ldexp(odd, 64 * top - above + 11 - 149 - shift);
    return static_cast<float>(negative ? -value : value);
  }

 private:
  static constexpr int kLimbs = 5;
  std::array<std::uint64_t, kLimbs> limbs_{};
};

/// Estimates the exact quotients 2^bits (x - least) / (greatest - least), in binary32 or binary64.
template <class T>
struct BinEstimate {
  BinEstimate(float least_value, float greatest, int bits)
      : least(least_value),
        scale(static_cast<T>(std::ldexp(1.0, bits) / (double{greatest} - double{least_value}))),
        top(static_cast<T>(std::ldexp(1.0, bits) - 0.5)),
        doubt(static_cast<T>(std::ldexp(8.0, bits - std::numeric_limits<T>::digits))) {}

  /// Returns the estimate, limited to the range of the bins; for NaN, the last bin. The estimate
  /// errs by less than half of `doubt` (four roundings, each at most half an ulp of 2^bits). So the
  /// estimate determines the bin unless an integer is closer than `doubt`.
  [[nodiscard]] T Of(float x) const {
    const T quotient = (T{x} - least) * scale;
    const T below = quotient < top ? quotient : top;
    return below > 0 ? below : 0;
  }
  /// Stores the bins of n values. Returns true if the estimates determine all bins and all values
  /// are finite. Otherwise some bins may be wrong.
  [[nodiscard]] bool AreKnown(std::int64_t n, const float* x, std::uint32_t* bins) const {
    const BinEstimate own = *this;  // a copy that the stores to bins cannot alias
    std::uint32_t doubts = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const T place = own.Of(x[i]);
      const auto upper = static_cast<std::int32_t>(place + own.doubt);
      const auto lower = static_cast<std::int32_t>(place - own.doubt);
      const bool finite = (std::bit_cast<std::uint32_t>(x[i]) & 0x7F800000) != 0x7F800000;
      bins[i] = static_cast<std::uint32_t>(upper);
      doubts |= static_cast<std::uint32_t>(upper ^ lower) | (finite ? 0U : 1U);
    }
    return doubts == 0;
  }

  T least, scale, top, doubt;
};

class UniformBins {
 public:
  /// Makes 2^bits bins between `least` and `greatest`, which must be finite with least <= greatest.
  /// `bits` is 0…30, and 0 if and only if least equals greatest.
  UniformBins(float least, float greatest, int bits)
      : least_(least),
        greatest_(greatest),
        bits_(bits),
        last_((std::uint32_t{1} << bits) - 1),
        half_(std::ldexp(0.5, -bits)),
        estimate_(least, greatest, bits) {
    const double range = double{greatest} - double{least};
    if (bits <= kShortBits && range > 0x1p-60 && range < 0x1p60) {
      short_estimate_.emplace(least, greatest, bits);
    }
  }

  [[nodiscard]] int bits() const { return bits_; }
  [[nodiscard]] std::uint32_t last() const { return last_; }

  /// Returns the bin of a value in least … greatest.
  [[nodiscard]] std::uint32_t BinOf(float x) const {
    const double place = estimate_.Of(x);
    const auto upper = static_cast<std::uint32_t>(place + estimate_.doubt);
    const auto lower = static_cast<std::uint32_t>(place - estimate_.doubt);
    return lower == upper ? upper : Exact(x, upper);
  }
  /// Stores the bins of n values. Values that are not finite get bin last() + 1. Returns whether
  /// any value is not finite.
  bool BinsOf(std::int64_t n, const float* x, std::uint32_t* bins) const {
    constexpr std::int64_t kRun = 64;
    bool any = false;
    for (std::int64_t i = 0; i < n; i += kRun) {
      const std::int64_t run = n - i < kRun ? n - i : kRun;
      if (short_estimate_ && short_estimate_->AreKnown(run, x + i, bins + i)) continue;
      if (estimate_.AreKnown(run, x + i, bins + i)) continue;
      for (std::int64_t j = i; j < i + run; ++j) {
        const bool finite = std::isfinite(x[j]);
        bins[j] = finite ? BinOf(x[j]) : last_ + 1;
        any |= !finite;
      }
    }
    return any;
  }
  /// Returns least + (greatest - least) (bin + 1/2) / 2^bits, rounded once.
  [[nodiscard]] float CentreOf(std::uint32_t bin) const {
    const std::int64_t twice = 2 * std::int64_t{bin} + 1;
    const std::int64_t all = std::int64_t{2} << bits_;
    if (bits_ > 28) {
      WideSum sum;
      sum.Add(all - twice, least_, 0);
      sum.Add(twice, greatest_, 0);
      return sum.Rounded(bits_ + 1);
    }
    // The products of least_ and greatest_ with their factors are exact in binary64: least_ and
    // greatest_ have 24 bits, the factors at most 29.
    return static_cast<float>(
        add_to_odd(double{least_} * (static_cast<double>(all - twice) * half_),
                   double{greatest_} * (static_cast<double>(twice) * half_)));
  }

 private:
  /// Returns the exact bin, which is `upper` or the bin before. The test is whether 2^bits (x -
  /// least) < upper (greatest - least).
  [[nodiscard]] std::uint32_t Exact(float x, std::uint32_t upper) const {
    WideSum rest;
    rest.Add(1, x, bits_);
    rest.Add(-1, least_, bits_);
    rest.Add(-std::int64_t{upper}, greatest_, 0);
    rest.Add(upper, least_, 0);
    return rest.is_negative() ? upper - 1 : upper;
  }

  /// The most bits for which binary32 estimates are tried. With more bits, binary32 seldom
  /// determines the bins of all values that are estimated together.
  static constexpr int kShortBits = 12;

  float least_, greatest_;
  int bits_;
  std::uint32_t last_;
  double half_;
  BinEstimate<double> estimate_;
  /// Estimates bins in binary32. Not set if the range or the number of bits does not allow this.
  std::optional<BinEstimate<float>> short_estimate_;
};

}  // namespace CPD_ISA
}  // namespace cpd
