// SPDX-License-Identifier: Apache-2.0
//
// Format: a set of numbers, and a code for each number. A format is a value type that MakeFormat
// validates once. All other properties follow from its six fields.
//
// A magnitude code c (the code without its sign bit) has the field f = c >> man and the value
//   f = 0:  c * 2^(emin - man)                                (zero and the subnormals)
//   f > 0:  (2^man + (c mod 2^man)) * 2^(f - 1 + emin - man)  (the normal numbers)
// with emin = 1 - bias. `e8m0` has no zero: code c has the value 2^(c - 127). So codes ascend with
// values, and "round to even" always means an even code (IEEE P3109). The whole code is the sign
// bit followed by the magnitude code. For a negative number of an integer format (`int`,
// `int_full`), the whole code is instead the two's complement of the magnitude code.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cpd/export.h"

namespace cpd {

/// The encoding of special values: Inf, NaN, -0.
enum class Encoding : std::uint8_t {
  ieee,      ///< top exponent field: mantissa 0 is Inf, the others NaN
  fn,        ///< no Inf; the code of all ones is NaN (OCP E4M3FN)
  fnuz,      ///< no Inf, no -0; the code of -0 is NaN
  p3109,     ///< signed: Inf on top, NaN at the code of -0; unsigned: NaN on top, Inf just below
  finite,    ///< neither Inf nor NaN (OCP MX elements)
  e8m0,      ///< unsigned powers of two, 0xFF is NaN (OCP MX scale)
  integer,   ///< two's complement integers times a power of two, without the least number (exp = 1)
  int_full,  ///< as integer, with the least number, -2^(bits - 1) steps (OCP MXINT8 allows both)
  p3109finite,  ///< as p3109, without Inf: overflow and Inf give the largest value
};

/// Returns whether the codes of this encoding are two's complement.
constexpr bool is_integer(Encoding encoding) {
  return encoding == Encoding::integer || encoding == Encoding::int_full;
}

/// A number format. Make a format with MakeFormat or ParseFormat, or call Check. Equality compares
/// all six fields.
struct Format {
  std::uint8_t exp = 8;   ///< exponent bits, 1…8
  std::uint8_t man = 23;  ///< mantissa bits, 0…23
  std::int16_t bias = 127;
  Encoding encoding = Encoding::ieee;
  bool is_signed = true;
  bool subnormals = true;

  constexpr bool operator==(const Format&) const = default;

  /// Returns the number of bits of a code with its sign bit: 1…32.
  [[nodiscard]] constexpr int bits() const { return magnitude_bits() + (is_signed ? 1 : 0); }
  [[nodiscard]] constexpr int magnitude_bits() const { return exp + man; }
  /// Returns the number of significant bits of a normal number.
  [[nodiscard]] constexpr int precision() const { return man + 1; }

  [[nodiscard]] constexpr bool has_zero() const { return encoding != Encoding::e8m0; }
  [[nodiscard]] constexpr bool has_inf() const {
    return encoding == Encoding::ieee || encoding == Encoding::p3109;
  }
  [[nodiscard]] constexpr bool has_nan() const {
    return encoding != Encoding::finite && !is_integer() &&
           !(encoding == Encoding::ieee && man == 0);
  }
  [[nodiscard]] constexpr bool is_integer() const { return cpd::is_integer(encoding); }
  [[nodiscard]] constexpr bool has_negative_zero() const {
    return is_signed && encoding != Encoding::fnuz && !is_p3109() && !is_integer();
  }
  /// Returns true for the formats of IEEE P3109, extended and finite.
  [[nodiscard]] constexpr bool is_p3109() const {
    return encoding == Encoding::p3109 || encoding == Encoding::p3109finite;
  }
  /// Returns whether overflows and infinite values give NaN under Overflow::ieee.
  [[nodiscard]] constexpr bool overflows_to_nan() const {
    return has_nan() && !has_inf() && encoding != Encoding::p3109finite;
  }

  /// Returns the exponent of the least normal power of two. For e8m0, returns the exponent of the
  /// least value.
  [[nodiscard]] constexpr int emin() const { return encoding == Encoding::e8m0 ? -bias : 1 - bias; }
  /// Returns log2 of the grid's spacing below 2^emin.
  [[nodiscard]] constexpr int min_quantum_exponent() const { return emin() - man; }

  /// Returns the magnitude code of the largest finite value.
  [[nodiscard]] constexpr std::uint32_t max_code() const {
    const auto all = static_cast<std::uint32_t>((std::uint64_t{1} << magnitude_bits()) - 1);
    switch (encoding) {
      case Encoding::ieee:
        return inf_code() - 1;
      case Encoding::fn:
        return all - 1;
      case Encoding::p3109:
        return is_signed ? all - 1 : all - 2;
      case Encoding::e8m0:
        return 254;
      case Encoding::p3109finite:
        return is_signed ? all : all - 1;
      case Encoding::fnuz:
      case Encoding::finite:
      case Encoding::integer:
      case Encoding::int_full:
        break;
    }
    return all;
  }
  /// Returns the magnitude code of the least finite value of a signed format: max_code(), or
  /// max_code() + 1 for int_full, which has one more negative value.
  [[nodiscard]] constexpr std::uint32_t lowest_code() const {
    return max_code() + (encoding == Encoding::int_full ? 1 : 0);
  }
  /// Returns the magnitude code of +Inf. Call only if has_inf().
  [[nodiscard]] constexpr std::uint32_t inf_code() const {
    const auto all = static_cast<std::uint32_t>((std::uint64_t{1} << magnitude_bits()) - 1);
    if (encoding == Encoding::ieee) return all - ((1U << man) - 1);
    return is_signed ? all : all - 1;
  }
  /// Returns the whole code (with the sign bit) of NaN. Call only if has_nan().
  [[nodiscard]] constexpr std::uint32_t nan_code() const {
    const auto all = static_cast<std::uint32_t>((std::uint64_t{1} << magnitude_bits()) - 1);
    if (encoding == Encoding::ieee) return inf_code() + (1U << (man - 1));
    if (is_signed && (encoding == Encoding::fnuz || is_p3109())) return all + 1;
    return all;
  }
  /// Returns the least magnitude code of a normal number. The result is above max_code() if there
  /// are no normal numbers.
  [[nodiscard]] constexpr std::uint32_t min_normal_code() const {
    return has_zero() ? 1U << man : 0U;
  }

  /// Returns the value of a finite magnitude code. The value is exact in binary64.
  [[nodiscard]] constexpr double magnitude(std::uint32_t code) const {
    if (!has_zero()) return power_of_two(static_cast<int>(code) - bias);
    const std::uint32_t field = code >> man;
    const std::uint32_t low = code & ((1U << man) - 1);
    if (field == 0) return subnormals ? low * power_of_two(min_quantum_exponent()) : 0.0;
    return ((1U << man) + low) * power_of_two(static_cast<int>(field) - 1 + min_quantum_exponent());
  }

  [[nodiscard]] constexpr double max() const { return magnitude(max_code()); }
  /// Returns the least finite value. For signed formats, it is -max; for int_full, the next value
  /// below -max. For unsigned formats, it is 0 (e8m0: 2^-127).
  [[nodiscard]] constexpr double lowest() const {
    return is_signed ? -magnitude(lowest_code()) : magnitude(0);
  }
  [[nodiscard]] constexpr bool has_normals() const { return max_code() >= min_normal_code(); }
  /// Returns the least positive normal number; 0 if there are no normal numbers (exp = 1).
  [[nodiscard]] constexpr double min_normal() const {
    return has_normals() ? magnitude(min_normal_code()) : 0.0;
  }
  /// Returns the least positive value; 0 if the format has no positive value.
  [[nodiscard]] constexpr double min_subnormal() const {
    if (!has_zero() || !subnormals) return min_normal();
    return max_code() >= 1 ? magnitude(1) : 0.0;
  }
  /// Returns the distance from 1 to the next number at full precision, 2^-man.
  [[nodiscard]] constexpr double epsilon() const { return power_of_two(-man); }
  /// Returns the exponent of the largest power of two in the format; 0 if the format has no
  /// positive value.
  [[nodiscard]] constexpr int emax() const {
    const double top = max();
    return top > 0 ? static_cast<int>((std::bit_cast<std::uint64_t>(top) >> 52) & 0x7FF) - 1023 : 0;
  }
  /// Returns the number of distinct finite values. Zero counts once.
  [[nodiscard]] constexpr std::uint64_t num_values() const {
    std::uint64_t positive = max_code();
    if (!has_zero()) return positive + 1;
    if (!subnormals) positive = has_normals() ? positive - (min_normal_code() - 1) : 0;
    return is_signed ? positive + lowest_code() - max_code() + positive + 1 : positive + 1;
  }

  /// Returns 2^k exactly, for -1022 <= k <= 1023.
  static constexpr double power_of_two(int k) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(k + 1023) << 52);
  }
};

constexpr Format kFp32{};
/// OCP MX's scale.
constexpr Format kE8m0{
    .exp = 8, .man = 0, .bias = 127, .encoding = Encoding::e8m0, .is_signed = false};
/// OCP's elements.
constexpr Format kE4m3fn{.exp = 4, .man = 3, .bias = 7, .encoding = Encoding::fn};
constexpr Format kE2m1{.exp = 2, .man = 1, .bias = 1, .encoding = Encoding::finite};

/// Throws Error unless MakeFormat could have made the format. Every function that takes a Format
/// first calls Check, because callers can set the fields directly.
CPD_API void Check(const Format& format);

/// Returns whether every finite value of `inner` is also a value of `outer` (-0 counts as 0). If
/// `inner` has Inf, `outer` must have Inf too. Throws Error as Check does.
CPD_API bool Holds(const Format& outer, const Format& inner);

/// Makes and checks a format with exp 1…8 and man 0…23. The default bias is 2^(exp-1) - 1; for
/// fnuz, p3109 and p3109finite it is 2^(exp-1); for integers it is the bias with steps of 1. Throws
/// Error if a finite value is not a binary32 value; for unsigned fnuz; for e8m0 unless exp = 8, man
/// = 0, bias = 127 and unsigned; and for integers that are unsigned or have exp other than 1.
CPD_API Format MakeFormat(int exp, int man, Encoding encoding = Encoding::ieee,
                          std::optional<int> bias = std::nullopt, bool is_signed = true,
                          bool subnormals = true);

/// Parses a name: `e4m3`, `e4m3fn`, `e5m2fnuz`, `bf16`, `fp16`, `tf32`, `fp32`, `e8m0`,
/// `binary8p4se`, `int8` (int2 … int25: two's complement from -127 to 127; `int8:full` has -128
/// too), `sm8` (sm2 … sm25: sign and magnitude, with -0), or a name with options,
/// `e4m3fn:bias=11:nosub:unsigned`. e2m1, e2m3 and e3m2 are OCP's finite formats. Throws Error for
/// any other name.
CPD_API Format ParseFormat(std::string_view name);

/// Returns the canonical name. ParseFormat(ToString(f)) == f for every format.
CPD_API std::string ToString(const Format& format);
/// Returns the names of all enumerators of Encoding, in the order of their values.
CPD_API std::span<const std::string_view> NamesOf(Encoding encoding);

}  // namespace cpd
