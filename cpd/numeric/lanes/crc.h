// SPDX-License-Identifier: Apache-2.0
//
// Computes CRC-32C (Castagnoli; RFC 3720, section 12.1 and appendix B.4) by arithmetic on
// remainders of polynomials over GF(2). The polynomials are reflected: bit 31 is the coefficient of
// x^0. Let R(s, m) be the remainder after message m, from the start value s. Then R(s, ab) = R(s,
// a) x^(8 |b|) + R(0, b).
#pragma once

#include <cstdint>

#include "cpd/numeric/lanes/lanes.h"

namespace cpd {
inline namespace CPD_ISA {

constexpr std::uint32_t kCrcPolynomial = 0x82F63B78;  // 0x1EDC6F41 reflected, without x^32

/// Returns a * b modulo the CRC-32C polynomial.
CPD_FN constexpr std::uint32_t crc_multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kCrcPolynomial : 0);  // times x
  }
  return product;
}

/// Returns x^(8 n) modulo the polynomial. To append n zero bytes to a message, multiply its
/// remainder by this power.
CPD_FN constexpr std::uint32_t crc_zeros(std::int64_t n) {
  std::uint32_t power = 1U << 31;
  std::uint32_t square = 1U << 23;  // x^8
  for (; n > 0; n >>= 1, square = crc_multiply(square, square)) {
    if ((n & 1) != 0) power = crc_multiply(power, square);
  }
  return power;
}

/// Returns R(0, byte): the remainder of a message of one byte, from the start value 0.
CPD_FN constexpr std::uint32_t crc_of_byte(std::uint32_t byte) {
  for (int bit = 0; bit < 8; ++bit) {
    byte = (byte >> 1) ^ ((byte & 1) != 0 ? kCrcPolynomial : 0);
  }
  return byte;
}

}  // namespace CPD_ISA
}  // namespace cpd
