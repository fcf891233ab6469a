// SPDX-License-Identifier: Apache-2.0
//
// The slow oracle of sums and products of sums in bulk: values, exception flags, and what happens
// inside: each rounding of an ordered sum; of a matrix unit each product's exponent, significand,
// shift and cut bits, the greatest exponent, and the sum before and after normalisation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpd/export.h"
#include "cpd/oracle/oracle.h"
#include "cpd/spec/accumulator.h"

namespace cpd {

/// One element of Gemm, or of Sum (`is_sum`: of the terms a alone, without b and c). With an
/// integer (FixedPoint) c is one of its numbers, and so is the result unless the accumulator has
/// another format than fp32: then it is rounded into that.
struct SumRule {
  Accumulator accumulator{};
  Format a{}, b{}, c{};
  std::int64_t length = 16;  ///< terms, or products
  bool is_sum = false;
  soft::Tininess tininess = soft::Tininess::after;
};

/// Signals of one name: `count` elements of so many bits, in two's complement where signed.
struct Signal {
  std::string name;
  int bits = 1;
  int count = 1;
  bool is_signed = false;

  bool operator==(const Signal&) const = default;
};

/// Whether lines have signals and flags: all but those of matrix units with another adder than the
/// aligned one.
CPD_API bool HasTrace(const SumRule& rule);

/// Whether the result is the integer itself: the last `sum`.
CPD_API bool HasIntegerResult(const SumRule& rule);

/// The signals of a line, in their order; none without a trace. Throws Error for numbers wider than
/// 64 bits, no terms, or stochastic rounding of a unit without a trace.
///
/// Of an ordered sum: each rounding's result, by name in program order: `start` (c, or the first
/// term), `product`, `sum`, and Kahan's `y`, `t`, `grown`, `compensation`, the chunks' `partial`,
/// the tree's `tree`.
///
/// Of an integer (FixedPoint): each `term` in its units, modulo 2^width, c's first, and the `sum`
/// after it, the last of which is the integer's result; a term that is not finite is 0.
///
/// Of a matrix unit, for each block (of T terms): `special` (a term is not finite; the block's
/// other signals are then 0), `p_sign`, `p_exp` (not normalised), `p_sig` (whole: of 2^(p_exp - f),
/// f the operands' fraction bits), `p_shift` (below max_exp), `p_cut` (the low bits of p_sig that
/// are dropped); `c_…` the same of the running sum; `max_exp`; `sum`, in units of 2^(max_exp - F);
/// `n_sign`, `n_exp`, `n_sig`, the total with its leading one on top of n_sig (0 of a zero);
/// `n_sticky`, where the addend is not aligned, of what lies below; `block_sum`, rounded; with
/// promotion `promoted`. A term that is zero has the unit's least exponent.
CPD_API std::vector<Signal> SignalsOf(const SumRule& rule);

/// The roundings of a line that take a random integer: of Gemm the first is c's. 0 where rounding
/// is not stochastic.
CPD_API std::int64_t DrawsOf(const SumRule& rule);

/// n lines; arrays are row-major, of codes but for `random`.
struct SumLines {
  std::int64_t n = 0;
  const std::uint32_t* a = nullptr;  ///< n × length
  const std::uint32_t* b = nullptr;
  const std::uint32_t* c = nullptr;         ///< n, unless an integer's
  const std::uint64_t* c_units = nullptr;   ///< n, an integer's, in two's complement of its width
  const std::uint32_t* a_scales = nullptr;  ///< n × ⌈length / unit.scale_block⌉
  const std::uint32_t* b_scales = nullptr;
  const std::uint32_t* random = nullptr;  ///< n × DrawsOf
  /// n; kNoCode where a rounding's NaN has no code, 0 where the result is the integer.
  std::uint32_t* codes = nullptr;
  std::uint8_t* flags = nullptr;     ///< 0 without a trace
  std::uint16_t* corners = nullptr;  ///< of any rounding: tie, carry, cancellation
  std::uint64_t* signals = nullptr;  ///< n × the elements of SignalsOf
};

/// Throws Error as above, and where a code or a random integer is out of range.
CPD_API void OracleSums(const SumRule& rule, const SumLines& lines);

}  // namespace cpd
