// SPDX-License-Identifier: Apache-2.0
//
// Computes a matrix unit with the aligned adder (cpd/spec/block_fma.h) as hardware does: shifts,
// cuts and adds integer significands. The results must equal the results of reference_gemm.h, which
// computes with exact numbers.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpd/oracle/flagged.h"
#include "cpd/oracle/recording.h"
#include "cpd/oracle/reference_block_fma.h"
#include "cpd/oracle/trace.h"
#include "cpd/spec/error.h"

namespace cpd::reference {

inline constexpr int kExponentBits = 12;
inline constexpr int kShiftBits = 12;
inline constexpr int kLeadingBits = 64;  // bits of n_sig where the addend is not aligned

/// The widths of a matrix unit's signals, in bits unless a field says otherwise.
struct UnitWidths {
  int terms = 16;        ///< terms of a block
  int fraction = 20;     ///< p_sig counts 2^(p_exp - fraction)
  int significand = 22;  ///< bits of p_sig
  int sum = 33;          ///< bits of `sum`, sign included
};

inline int bits_for(int values) { return std::bit_width(static_cast<unsigned>(values - 1)); }

inline UnitWidths widths_of(const BlockFma& unit) {
  UnitWidths w;
  w.terms = (unit.block + unit.dot - 1) / unit.dot;
  w.fraction = unit.a.man + unit.b.man;
  w.significand = unit.a.precision() + unit.b.precision();
  if (unit.dot > 1) {  // a term's exponent contains only the exponents of the scales
    w.fraction -= unit.a.emin() + unit.b.emin();
    w.significand = w.fraction + unit.a.emax() + unit.b.emax() + 2 + bits_for(unit.dot);
  }
  if (unit.scale) {
    w.fraction += 2 * unit.scale->man;
    w.significand += 2 * unit.scale->precision();
  }
  const int whole = std::max(w.significand - w.fraction, unit.aligns_addend ? 1 : 0);
  w.sum = whole + unit.fraction_bits + bits_for(w.terms + 1) + 1;
  return w;
}

inline void CheckTrace(const BlockFma& unit) {
  const UnitWidths w = widths_of(unit);
  if (w.significand > 64 || w.sum > 64) {
    throw Error("signals have at most 64 bits; this unit's products have " +
                std::to_string(w.significand) + ", its sums " + std::to_string(w.sum));
  }
}

inline int blocks_of(const BlockFma& unit, std::int64_t length) {
  const auto ordered =
      static_cast<std::int64_t>(unit_order(unit, static_cast<std::size_t>(length)).size());
  const std::int64_t stretch = unit.promote > 0 ? unit.promote : ordered;
  const auto blocks = [&](std::int64_t n) { return (n + unit.block - 1) / unit.block; };
  return static_cast<int>(ordered / stretch * blocks(stretch) + blocks(ordered % stretch));
}

inline std::vector<Signal> unit_signals(const Accumulator& accumulator, std::int64_t length) {
  const BlockFma& unit = accumulator.unit.value();
  const UnitWidths w = widths_of(unit);
  const int blocks = blocks_of(unit, length);
  const int terms = blocks * w.terms;
  std::vector<Signal> signals{{"special", 1, blocks},
                              {"p_sign", 1, terms},
                              {"p_exp", kExponentBits, terms, true},
                              {"p_sig", w.significand, terms},
                              {"p_shift", kShiftBits, terms},
                              {"p_cut", w.significand, terms},
                              {"c_sign", 1, blocks},
                              {"c_exp", kExponentBits, blocks, true},
                              {"c_sig", unit.sum.precision(), blocks}};
  if (unit.aligns_addend) {
    signals.push_back({"c_shift", kShiftBits, blocks});
    signals.push_back({"c_cut", unit.sum.precision(), blocks});
  }
  signals.push_back({"max_exp", kExponentBits, blocks, true});
  signals.push_back({"sum", w.sum, blocks, true});
  signals.push_back({"n_sign", 1, blocks});
  signals.push_back({"n_exp", kExponentBits, blocks, true});
  signals.push_back({"n_sig", unit.aligns_addend ? w.sum - 1 : kLeadingBits, blocks});
  if (!unit.aligns_addend) signals.push_back({"n_sticky", 1, blocks});
  signals.push_back({"block_sum", unit.sum.bits(), blocks});
  if (unit.promote > 0) {
    const std::int64_t stretches = (length + unit.promote - 1) / unit.promote;
    signals.push_back({"promoted", accumulator.format.bits(), static_cast<int>(stretches)});
  }
  return signals;
}

/// The signals of a matrix unit, in the order in which unit_signals lists and names the signals.
enum class Wire : std::uint8_t {
  special,
  p_sign,
  p_exp,
  p_sig,
  p_shift,
  p_cut,
  c_sign,
  c_exp,
  c_sig,
  c_shift,
  c_cut,
  max_exp,
  sum,
  n_sign,
  n_exp,
  n_sig,
  n_sticky,
  block_sum,
  promoted,
};
inline constexpr std::array<std::string_view, 19> kWires{
    "special", "p_sign", "p_exp",    "p_sig",     "p_shift", "p_cut", "c_sign",
    "c_exp",   "c_sig",  "c_shift",  "c_cut",     "max_exp", "sum",   "n_sign",
    "n_exp",   "n_sig",  "n_sticky", "block_sum", "promoted"};

/// The index of each signal in a line's array of signals, and the matrix unit's order of k. All
/// lines share one layout.
class UnitLayout {
 public:
  struct Place {
    std::size_t first = 0;
    std::uint64_t mask = 0;
  };

  UnitLayout(const Accumulator& accumulator, std::int64_t length)
      : order(unit_order(accumulator.unit.value(), static_cast<std::size_t>(length))) {
    std::size_t first = 0;
    for (const Signal& signal : unit_signals(accumulator, length)) {
      const auto wire = std::ranges::find(kWires, signal.name) - kWires.begin();
      places_.at(static_cast<std::size_t>(wire)) = {first, ~std::uint64_t{0} >> (64 - signal.bits)};
      first += static_cast<std::size_t>(signal.count);
    }
  }

  [[nodiscard]] Place at(Wire wire) const { return places_[static_cast<std::size_t>(wire)]; }

  std::vector<std::int64_t> order;

 private:
  std::array<Place, kWires.size()> places_{};
};

/// Returns |x| / 2^quantum. The quotient must be an integer below 2^64.
inline std::uint64_t whole_number(const Exact& x, int quantum) {
  if (x.is_zero()) return 0;
  Exact whole = cut(x, quantum);
  if (whole.exponent > quantum) {
    whole.significand = whole.significand << (whole.exponent - quantum);
  }
  if (whole.significand.bit_length() > 64) throw std::logic_error("a signal beyond 64 bits");
  return whole.significand.bits_from(0);
}

/// Computes one sum of a matrix unit (one line of test vectors) and records its roundings. The code
/// of the last rounding is the result.
class UnitTrace {
 public:
  UnitTrace(const Accumulator& accumulator, const UnitLayout& layout, Record& record,
            const Options& options)
      : accumulator_(accumulator),
        unit_(accumulator.unit.value()),
        widths_(widths_of(unit_)),
        format_(spec_of(accumulator.format)),
        sum_(spec_of(unit_.sum)),
        record_(record),
        options_(options),
        layout_(layout) {
    into_unit_.rounding = unit_.rounding;
  }

  /// Computes a line. `x` has the elements of a and b and, for a unit with scales, their scales for
  /// each k. Stores the signals in `out`, in the order of unit_signals.
  void run(const BlockOperands& x, float c, std::uint64_t* out) {
    out_ = out;
    unit_sum(accumulator_, layout_.order, x, c, *this);
  }

  // unit_sum calls the following steps. Each step stores its rounding in the record, and `block`
  // and `promoted` also store signals.
  Exact addend(const Exact& c) { return record_.round(format_, c, options_); }

  /// Rounds c into the format of the matrix unit's sum, in the matrix unit's rounding mode. Uses no
  /// random integer, even if the line has a random integer for c.
  Exact addend_in_unit(const Exact& c) {
    const Exact s = round_exact(sum_, c, into_unit_);
    record_.flags |= flags_of(sum_, c, s, into_unit_, record_.tininess);
    record_.codes.push_back(code_of(sum_, s).value_or(kNoCode));
    return s;
  }
  Exact block(const BlockOperands& x, const Exact& s) { return one_block(x, s, blocks_++); }
  Exact promoted(const Exact& sum, const Exact& s) {
    const Exact total = record_.made(add_for(options_, sum, s), sum.is_nan() || s.is_nan());
    const Exact result = record_.round(format_, total, options_);
    put(Wire::promoted, promotions_++, record_.codes.back());
    return result;
  }
  Exact result(const Exact& s) { return record_.round(format_, s, options_); }

 private:
  void put(Wire wire, std::size_t index, std::uint64_t value) {
    const UnitLayout::Place place = layout_.at(wire);
    out_[place.first + index] = value & place.mask;
  }
  void put_signed(Wire wire, std::size_t index, std::int64_t value) {
    put(wire, index, static_cast<std::uint64_t>(value));
  }

  Exact one_block(const BlockOperands& x, const Exact& addend, std::size_t block) {
    const std::vector<BlockTerm> terms =
        unit_.scale ? scaled_terms(unit_, x) : product_terms(unit_, x);
    const Exact result = block_sum(unit_, x, addend);
    bool special = addend.kind != Exact::Kind::finite;
    for (const BlockTerm& term : terms) {
      special = special || term.value.kind != Exact::Kind::finite;
    }
    put(Wire::special, block, special ? 1 : 0);
    put(Wire::block_sum, block, code_of(sum_, result).value_or(kNoCode));
    if (special) {
      record_special(x, addend, result);
      return result;
    }
    finite_block(terms, addend, result, block);
    return result;
  }

  /// Records the exceptions of a NaN result if no operand is NaN: invalid or, if the sum's format
  /// has no Inf, overflow and inexact.
  void record_special(const BlockOperands& x, const Exact& addend, const Exact& result) {
    bool any_nan = addend.is_nan();
    for (const auto values : {x.a, x.b, x.a_scales, x.b_scales}) {
      for (const float value : values) any_nan = any_nan || std::isnan(value);
    }
    if (!result.is_nan() || any_nan) return;
    record_.flags |= sum_.infinity_code() ? soft::kInvalid : soft::kOverflow | soft::kInexact;
  }

  void finite_block(const std::vector<BlockTerm>& terms, const Exact& addend, const Exact& result,
                    std::size_t block) {
    const int c_exponent =
        counts(addend) ? block_exponent(addend, sum_.emin()) : unit_.min_exponent;
    int greatest = unit_.min_exponent;
    for (const BlockTerm& term : terms) greatest = std::max(greatest, term.exponent);
    if (unit_.aligns_addend) greatest = std::max(greatest, c_exponent);

    __extension__ using Wide = __int128;
    Wide total = 0;
    bool cuts = false;
    const auto align = [&](const Exact& value, int exponent, int fraction, Wire shift_wire,
                           Wire cut_wire, std::size_t at) {
      const std::uint64_t significand = whole_number(value, exponent - fraction);
      const int shift = greatest - exponent;
      const int drop = shift + fraction - unit_.fraction_bits;
      std::uint64_t kept = drop < 64 ? significand >> std::max(drop, 0) : 0;
      const std::uint64_t dropped =
          drop >= 64 ? significand : significand & ((std::uint64_t{1} << std::max(drop, 0)) - 1);
      if (drop < 0) kept <<= -drop;
      put(shift_wire, at, static_cast<std::uint64_t>(shift));
      put(cut_wire, at, dropped);
      cuts = cuts || dropped != 0;
      total += value.negative ? -static_cast<Wide>(kept) : static_cast<Wide>(kept);
    };
    const std::size_t first = block * static_cast<std::size_t>(widths_.terms);
    for (std::size_t t = 0; t < static_cast<std::size_t>(widths_.terms); ++t) {
      const BlockTerm term =
          t < terms.size() ? terms[t] : BlockTerm{exact_finite(false, 0, 0), unit_.min_exponent};
      put(Wire::p_sign, first + t, term.value.negative ? 1 : 0);
      put_signed(Wire::p_exp, first + t, term.exponent);
      put(Wire::p_sig, first + t, whole_number(term.value, term.exponent - widths_.fraction));
      align(term.value, term.exponent, widths_.fraction, Wire::p_shift, Wire::p_cut, first + t);
    }
    put(Wire::c_sign, block, addend.negative ? 1 : 0);
    put_signed(Wire::c_exp, block, c_exponent);
    put(Wire::c_sig, block, whole_number(addend, c_exponent - unit_.sum.man));
    if (unit_.aligns_addend) {
      align(addend, c_exponent, unit_.sum.man, Wire::c_shift, Wire::c_cut, block);
    }
    put_signed(Wire::max_exp, block, greatest);
    put_signed(Wire::sum, block, static_cast<std::int64_t>(total));
    const auto magnitude = static_cast<std::uint64_t>(total < 0 ? -total : total);
    Exact exact_total = exact_finite(total < 0, magnitude, greatest - unit_.fraction_bits);
    if (!unit_.aligns_addend) exact_total = add(exact_total, addend);
    const bool far = exact_total.is_zero() ? greatest > unit_.min_exponent
                                           : top_exponent(exact_total) <= greatest - 2;
    if (far) record_.corners |= bit(Corner::cancellation);
    normalise(exact_total, block);
    end(exact_total, result, cuts);
  }

  void normalise(const Exact& total, std::size_t block) {
    put(Wire::n_sign, block, total.negative ? 1 : 0);
    if (total.is_zero()) {
      put(Wire::n_exp, block, 0);
      put(Wire::n_sig, block, 0);
      if (!unit_.aligns_addend) put(Wire::n_sticky, block, 0);
      return;
    }
    const int width = unit_.aligns_addend ? widths_.sum - 1 : kLeadingBits;
    const int top = top_exponent(total);
    put_signed(Wire::n_exp, block, top);
    put(Wire::n_sig, block, whole_number(total, top - width + 1));
    if (unit_.aligns_addend) return;
    const Exact below = add(total, negate(cut(total, top - width + 1)));
    put(Wire::n_sticky, block, below.is_zero() ? 0 : 1);
  }

  /// Records the flags and corners of a block's rounding. Throws std::logic_error unless `result`
  /// equals `total` rounded once.
  void end(const Exact& total, const Exact& result, bool cuts) {
    if (cuts) record_.flags |= soft::kInexact;
    record_.corners |= rounding_corners(sum_, total, result);
    record_.flags |= flags_of(sum_, total, result, into_unit_, record_.tininess);
    const Exact rounded = round_exact(sum_, total, into_unit_);
    const bool same = result.kind != Exact::Kind::finite ||
                      (rounded.kind == result.kind && compare_magnitude(rounded, result) == 0 &&
                       (rounded.negative == result.negative || rounded.is_zero()));
    if (!same) throw std::logic_error("a block's signals do not give its sum");
  }

  const Accumulator& accumulator_;
  const BlockFma& unit_;
  UnitWidths widths_;
  Spec format_, sum_;
  Record& record_;
  Options options_, into_unit_{};
  const UnitLayout& layout_;
  std::uint64_t* out_ = nullptr;
  std::size_t blocks_ = 0, promotions_ = 0;  ///< numbers so far
};

}  // namespace cpd::reference
