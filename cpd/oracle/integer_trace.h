// SPDX-License-Identifier: Apache-2.0
//
// Computes sums in two's complement integers of up to 64 bits (cpd/spec/fixed_point.h) and records
// every term, in units of the last bit, and every sum.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cpd/oracle/recording.h"
#include "cpd/oracle/reference.h"
#include "cpd/oracle/trace.h"
#include "cpd/spec/error.h"

namespace cpd::reference {

inline void CheckInteger(const FixedPoint& fixed) {
  if (fixed.width <= 64) return;
  throw Error("signals have at most 64 bits; this integer has " + std::to_string(fixed.width));
}

inline std::vector<Signal> integer_signals(const FixedPoint& fixed, int terms) {
  return {{"term", fixed.width, terms, true}, {"sum", fixed.width, terms, true}};
}

class IntegerTrace {
 public:
  IntegerTrace(const Accumulator& accumulator, Record& record, const Options& options)
      : fixed_(accumulator.fixed.value()),
        saturates_(accumulator.rounding.overflow == Overflow::saturate),
        format_(spec_of(accumulator.format)),
        record_(record),
        options_(options) {}

  /// Stores the terms in `out`, and after the terms the sum after each term. If `is_rounded`,
  /// records the last sum rounded into the accumulator's format, or NaN if a term is not finite. An
  /// infinite term raises invalid; a NaN term raises invalid unless `is_rounded`.
  void run(std::span<const Exact> terms, std::uint64_t* out, bool is_rounded) {
    bool finite = true;
    for (std::size_t k = 0; k < terms.size(); ++k) {
      std::uint64_t units = 0;
      if (terms[k].kind == Exact::Kind::finite) {
        units = add(terms[k]);
      } else {
        finite = false;
        if (terms[k].is_infinite() || !is_rounded) record_.flags |= soft::kInvalid;
      }
      out[k] = units & mask();
      out[terms.size() + k] = static_cast<std::uint64_t>(sum_) & mask();
    }
    if (is_rounded) record_.round(format_, finite ? number(sum_) : exact_nan(), options_);
  }

  /// Returns the number that a two's complement integer of `width` bits stands for. The integer
  /// counts units of 2^-fraction.
  Exact number_of(std::uint64_t bits) const {
    return number(wrapped(static_cast<Wide>(bits & mask())));
  }

 private:
  __extension__ using Wide = __int128;

  Exact number(Wide units) const {
    const auto size = static_cast<std::uint64_t>(units < 0 ? -units : units);
    return exact_finite(units < 0, size, -fixed_.fraction);
  }
  std::uint64_t mask() const { return ~std::uint64_t{0} >> (64 - fixed_.width); }
  Wide most() const { return (Wide{1} << (fixed_.width - 1)) - 1; }

  /// A magnitude in units of 2^-fraction: the low 96 bits, and the number of bits of the whole
  /// magnitude.
  struct Units {
    Wide low = 0;
    int bits = 0;
  };
  Units in_units(const Exact& x) {
    if (x.is_zero()) return {};
    const int up = x.exponent + fixed_.fraction;
    if (up >= 0) {
      const int bits = x.significand.bit_length() + up;
      if (up >= 96) return {0, bits};
      const Natural low = x.significand << up;
      return {Wide{low.bits_from(64) & 0xFFFFFFFF} << 64 | low.bits_from(0), bits};
    }
    // If the lowest bit of x is below one unit (2^-fraction), x is rounded to whole units, as a
    // number of the format `grid`: 50 fraction bits, and subnormals that are multiples of one unit.
    // The number of n units, for n below 2^50, has the code n in this format. A product has at most
    // 48 significant bits, and its lowest bit is below one unit, so x is below 2^48 units.
    constexpr int kBits = 50;
    const Spec grid{8, kBits, 1 - kBits + fixed_.fraction};
    Options o;
    o.rounding = fixed_.rounding;
    const std::uint64_t units = round_magnitude(grid, x, o);
    if (compare_magnitude(grid_value(grid, units), x) != 0) record_.flags |= soft::kInexact;
    return {static_cast<Wide>(units), static_cast<int>(std::bit_width(units))};
  }

  /// Adds a finite term to the sum. Returns the term in units of 2^-fraction, modulo 2^64.
  std::uint64_t add(const Exact& x) {
    const Units units = in_units(x);
    const bool beyond = units.bits > fixed_.width + 1;
    const Wide exact = sum_ + (x.negative ? -units.low : units.low);
    if (beyond || exact > most() || exact < -most() - 1) {
      record_.flags |= soft::kOverflow | soft::kInexact;
      const bool negative = beyond ? x.negative : exact < 0;
      sum_ = saturates_ ? (negative ? -most() - 1 : most()) : wrapped(exact);
    } else {
      sum_ = exact;
    }
    return static_cast<std::uint64_t>(x.negative ? -units.low : units.low);
  }
  Wide wrapped(Wide x) const {
    const Wide size = Wide{1} << fixed_.width;
    const Wide low = x & (size - 1);
    return low > most() ? low - size : low;
  }

  FixedPoint fixed_;
  bool saturates_;
  Spec format_;
  Record& record_;
  Options options_;
  Wide sum_ = 0;
};

}  // namespace cpd::reference
