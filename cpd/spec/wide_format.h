// SPDX-License-Identifier: Apache-2.0
//
// Formats beyond binary32, up to binary64: exp up to 11 and man up to 52, with encoding ieee. Their
// values are stored in binary64 tensors. Only elementwise operations support these formats
// (ops/exact.h). This header provides, for every format, the properties that format.h provides for
// codes of 32 bits and binary32 values.
#pragma once

#include <bit>
#include <cstdint>

#include "cpd/spec/format.h"

namespace cpd {

constexpr int kWidestExp = 11;
constexpr int kWidestMan = 52;

constexpr bool is_wide(const Format& format) { return format.exp > 8 || format.man > 23; }

/// Throws Error unless the format is a wide format or a format that Check accepts.
CPD_API void CheckOfElements(const Format& format);

/// Returns the pattern of units * 2^exponent, which binary64 must hold if it is in range. Returns
/// the pattern of infinity if the number is above binary64's range.
constexpr std::uint64_t binary64_pattern(std::uint64_t units, int exponent) {
  if (units == 0) return 0;
  const int top = 63 - std::countl_zero(units);
  const int power = exponent + top;
  if (power > 1023) return 0x7FF0000000000000;
  if (power < -1022) return units << (exponent + 1074);
  const std::uint64_t significand = top <= 52 ? units << (52 - top) : units >> (top - 52);
  return (static_cast<std::uint64_t>(power + 1022) << 52) + significand;
}

/// Returns the magnitude code of the largest finite value.
constexpr std::uint64_t max_code_of(const Format& format) {
  if (format.encoding != Encoding::ieee) return format.max_code();
  return (((std::uint64_t{1} << format.exp) - 1) << format.man) - 1;
}

/// Returns the magnitude code of the most negative finite value; 0 for a format without signs.
constexpr std::uint64_t lowest_code_of(const Format& format) {
  if (!format.is_signed) return 0;
  return format.encoding == Encoding::int_full ? format.lowest_code() : max_code_of(format);
}

/// Returns the binary64 pattern of the value of a finite magnitude code.
constexpr std::uint64_t pattern_of(const Format& format, std::uint64_t code) {
  const auto field = static_cast<int>(code >> format.man);
  if (!format.has_zero()) return binary64_pattern(1, field - format.bias);
  if (field == 0 && !format.subnormals) return 0;
  const std::uint64_t normal = field == 0 ? 0 : std::uint64_t{1} << format.man;
  const std::uint64_t low = code & ((std::uint64_t{1} << format.man) - 1);
  return binary64_pattern(normal + low,
                          (field == 0 ? 0 : field - 1) + format.min_quantum_exponent());
}

constexpr double magnitude_of(const Format& format, std::uint64_t code) {
  return std::bit_cast<double>(pattern_of(format, code));
}

constexpr double max_of(const Format& format) { return magnitude_of(format, max_code_of(format)); }

/// Returns the least positive normal number; 0 if there are no normal numbers.
constexpr double min_normal_of(const Format& format) {
  const std::uint64_t code = format.has_zero() ? std::uint64_t{1} << format.man : 0;
  return code <= max_code_of(format) ? magnitude_of(format, code) : 0.0;
}

/// Returns the least positive value; 0 if the format has no positive value.
constexpr double min_subnormal_of(const Format& format) {
  if (!format.has_zero() || !format.subnormals) return min_normal_of(format);
  return max_code_of(format) >= 1 ? magnitude_of(format, 1) : 0.0;
}

/// Returns the number of distinct finite values. Zero counts once.
constexpr std::uint64_t num_values_of(const Format& format) {
  if (!is_wide(format)) return format.num_values();
  const std::uint64_t below_normal = (std::uint64_t{1} << format.man) - 1;
  const std::uint64_t codes = max_code_of(format);
  const std::uint64_t positive =
      format.subnormals ? codes : codes - (codes < below_normal ? codes : below_normal);
  return format.is_signed ? 2 * positive + 1 : positive + 1;
}

}  // namespace cpd
