// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "cpd/export.h"
#include "cpd/spec/format.h"
#include "cpd/spec/rounding.h"

namespace cpd {

constexpr int kMostFixedWidth = 1024;

/// A sum in a two's complement integer of `width` bits, in units of 2^-fraction, such as hardware's
/// int32 or Kulisch's accumulator. Every term (if it is a product, the exact product) is rounded
/// once to whole units, and the integers are added. At the end, the sum is rounded once into the
/// accumulator's format. By default, sums wrap: the result is correct modulo 2^width, in any order
/// of the terms. If the accumulator's overflow is `saturate`, a sum beyond the range becomes the
/// nearest end of the range, after each term.
struct FixedPoint {
  int width = 32;    ///< the number of bits, 2…1024
  int fraction = 0;  ///< the unit is 2^-fraction; -1024…1024
  /// The rounding of terms to units. `down` cuts bits as in two's complement.
  Rounding rounding = Rounding::toward_zero;

  bool operator==(const FixedPoint&) const = default;
};

/// Throws Error if a field is out of range. The error's message has the value and the allowed
/// values.
CPD_API void Check(const FixedPoint& point);

/// Returns whether the first word of a text is the short name of an integer: `fixed<40,12>` (width
/// and fraction), or `int26` and wider (fraction 0). Narrower `int` names are formats.
CPD_API bool NamesFixed(std::string_view word);
/// Returns the integer accumulator whose short name is `word`, such as `int32` (see NamesFixed).
/// Its sums wrap, and its terms are rounded toward zero.
CPD_API FixedPoint FixedNamed(std::string_view word);

/// Returns the integer (Kulisch's accumulator) for sums of `terms` products of values of a and b
/// that loses nothing. Its unit is the product of the least spacings of a and b, and no sum leaves
/// its range. Throws Error if the integer would be wider than kMostFixedWidth.
CPD_API FixedPoint Kulisch(const Format& a, const Format& b, std::int64_t terms);

}  // namespace cpd
