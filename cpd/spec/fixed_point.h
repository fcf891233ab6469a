// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "cpd/export.h"
#include "cpd/spec/format.h"
#include "cpd/spec/rounding.h"

namespace cpd {

constexpr int kMostFixedWidth = 1024;

/// A sum kept in a two's complement integer of `width` bits, in units of 2^-fraction: hardware's
/// int32, or Kulisch's accumulator. Every term, a product exact, is rounded once to whole units,
/// and integers are added; the sum is at last rounded once into the accumulator's format. Sums
/// wrap: they are right modulo 2^width, in whatever order. Where the accumulator's overflow is
/// `saturate`, a sum beyond the range is its nearest end, after each term.
struct FixedPoint {
  int width = 32;                             ///< bits, 2…1024
  int fraction = 0;                           ///< the unit is 2^-fraction; -1024…1024
  Rounding rounding = Rounding::toward_zero;  ///< of terms to units; down is two's complement's cut

  bool operator==(const FixedPoint&) const = default;
};

/// Throws Error if a field is out of range. The text gives the value and the allowed ones.
CPD_API void Check(const FixedPoint& point);

/// Returns whether a text's first word is an integer's short name: `fixed<40,12>` (width and
/// fraction), or `int26` and wider (fraction 0): narrower ones are formats.
CPD_API bool NamesFixed(std::string_view word);
/// Returns the accumulator that such a word names, wrapping and rounding toward zero.
CPD_API FixedPoint FixedNamed(std::string_view word);

/// The accumulator for sums of `terms` products of values of a and b that loses nothing: its unit
/// is the product of their least spacings, and no sum leaves its range (Kulisch). Throws Error
/// where it would be wider than kMostFixedWidth.
CPD_API FixedPoint Kulisch(const Format& a, const Format& b, std::int64_t terms);

}  // namespace cpd
