// SPDX-License-Identifier: Apache-2.0
#include "cpd/spec/fixed_point.h"

#include <algorithm>
#include <array>
#include <bit>

#include "cpd/spec/options.h"

namespace cpd {
namespace {

constexpr int kMostFraction = 1024;
constexpr std::string_view kFixed = "fixed<";
constexpr std::string_view kInt = "int";

void CheckBetween(const char* what, int low, int high, int given) {
  if (given >= low && given <= high) return;
  throw Error("fixed: " + std::string(what) + " must be " + std::to_string(low) + "…" +
              std::to_string(high) + ", got " + std::to_string(given));
}

/// Returns the width in a name such as `int40`; 0 if the word is not such a name.
int WidthNamed(std::string_view word) {
  const std::string lower = Lower(word);
  const std::string_view name = lower;
  if (!name.starts_with(kInt) || name.size() == kInt.size()) return 0;
  const std::string_view digits = name.substr(kInt.size());
  if (digits.find_first_not_of("0123456789") != std::string_view::npos) return 0;
  // Reads at most six digits, so that the number fits an int. A number with more digits exceeds
  // every valid width, and so does the number of its first six digits.
  return ParseInteger<int>("width", digits.substr(0, 6));
}

/// Returns log2 of the spacing of a format's greatest numbers.
int TopQuantum(const Format& format) { return std::max(format.emax(), format.emin()) - format.man; }

/// Returns a format's greatest value divided by the spacing of the format's greatest numbers: an
/// integer below 2^24.
std::uint64_t GreatestSignificand(const Format& format) {
  return static_cast<std::uint64_t>(format.max() * Format::power_of_two(-TopQuantum(format)));
}

}  // namespace

void Check(const FixedPoint& point) {
  CheckBetween("width", 2, kMostFixedWidth, point.width);
  CheckBetween("fraction", -kMostFraction, kMostFraction, point.fraction);
  Check(RoundingOptions{.mode = point.rounding});
  if (point.rounding == Rounding::stochastic) {
    throw Error("fixed: terms are rounded to units without random bits, got rounding stochastic");
  }
}

bool NamesFixed(std::string_view word) {
  return Lower(word).starts_with(kFixed) || WidthNamed(word) != 0;
}

FixedPoint FixedNamed(std::string_view word) {
  FixedPoint point;
  point.width = WidthNamed(word);
  if (point.width == 0) {
    const std::size_t comma = word.find(',');
    if (comma == std::string_view::npos || !word.ends_with('>')) {
      throw Error("an integer is fixed<width,fraction>, as in 'fixed<40,12>', got " + Quoted(word));
    }
    const std::size_t begin = kFixed.size();
    point.width = ParseInteger<int>("width", word.substr(begin, comma - begin));
    point.fraction = ParseInteger<int>("fraction", word.substr(comma + 1, word.size() - comma - 2));
  }
  Check(point);
  return point;
}

FixedPoint Kulisch(const Format& a, const Format& b, std::int64_t terms) {
  Check(a);
  Check(b);
  if (terms < 1) throw Error("terms must be at least 1, got " + std::to_string(terms));
  FixedPoint point;
  point.fraction = -(a.min_quantum_exponent() + b.min_quantum_exponent());
  const int bits = std::bit_width(GreatestSignificand(a) * GreatestSignificand(b)) +
                   std::bit_width(static_cast<std::uint64_t>(terms) - 1);
  point.width = std::max(2, bits + TopQuantum(a) + TopQuantum(b) + point.fraction + 1);
  Check(point);
  return point;
}

}  // namespace cpd
