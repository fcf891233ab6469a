// SPDX-License-Identifier: Apache-2.0
//
// The slow oracle of sums and sums of products in bulk: values, exception flags, and intermediate
// results (signals): for an ordered sum each rounding; for a matrix unit each product's exponent,
// significand, shift and cut bits, the greatest exponent, and the sum before and after
// normalization.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpd/export.h"
#include "cpd/oracle/oracle.h"
#include "cpd/spec/accumulator.h"

namespace cpd {

/// An element of Gemm, or of Sum (`is_sum`: of the terms a alone, without b and c). With a sum in
/// an integer (FixedPoint), c is such an integer, and so is the result unless the accumulator has
/// another format than fp32, into which it is then rounded.
struct SumRule {
  Accumulator accumulator{};
  Format a{}, b{}, c{};
  std::int64_t length = 16;  ///< number of terms, or products
  bool is_sum = false;
  soft::Tininess tininess = soft::Tininess::after;
};

/// The signals of one name: `count` elements of `bits` bits, in two's complement where signed.
struct Signal {
  std::string name;
  int bits = 1;
  int count = 1;
  bool is_signed = false;

  bool operator==(const Signal&) const = default;
};

/// Returns whether lines have signals and flags, as all have but those of matrix units with another
/// adder than aligned.
CPD_API bool HasTrace(const SumRule& rule);

/// Returns whether the result is the integer itself, the last `sum`.
CPD_API bool HasIntegerResult(const SumRule& rule);

/// The signals of a line, in their order; none without a trace. Throws Error for numbers wider than
/// 64 bits, no terms, or stochastic rounding of a unit without a trace.
///
/// Ordered sums: each rounding's result, by name in program order: `start` (c, or the first term),
/// `product`, `sum`, and Kahan's `y`, `t`, `grown`, `compensation`, the chunks' `partial`, the
/// tree's `tree`.
///
/// Sums in an integer (FixedPoint): each `term` in its units, modulo 2^width, c's first, and the
/// `sum` after it, the last of which is the integer's result; a term that is not finite is 0.
///
/// Matrix units, for each block (of T terms): `special` (a term is not finite; the block's other
/// signals are then 0), `p_sign`, `p_exp` (not normalized), `p_sig` (an integer, in units of
/// 2^(p_exp - f), f the operands' fraction bits), `p_shift` (below max_exp), `p_cut` (the low bits
/// of p_sig that are dropped); `c_…`, the running sum's; `max_exp`; `sum`, in units of
/// 2^(max_exp - F); `n_sign`, `n_exp`, `n_sig`, the total with its leading one on top of n_sig (0
/// for a zero); where the addend is not aligned `n_sticky`, whether bits below are set;
/// `block_sum`, rounded; with promotion `promoted`. A term that is zero has the unit's least
/// exponent.
CPD_API std::vector<Signal> SignalsOf(const SumRule& rule);

/// The number of a line's roundings that take a random integer, of which Gemm's first is c's. 0
/// where rounding is not stochastic.
CPD_API std::int64_t DrawsOf(const SumRule& rule);

/// n lines; arrays are row-major and, except `random` and those in units, of codes.
struct SumLines {
  std::int64_t n = 0;
  const std::uint32_t* a = nullptr;  ///< n × length
  const std::uint32_t* b = nullptr;
  const std::uint32_t* c = nullptr;         ///< n, unless sums are integers
  const std::uint64_t* c_units = nullptr;   ///< n, where sums are integers: two's complement
  const std::uint32_t* a_scales = nullptr;  ///< n × ⌈length / unit.scale_block⌉
  const std::uint32_t* b_scales = nullptr;
  const std::uint32_t* random = nullptr;  ///< n × DrawsOf
  /// n; kNoCode where a rounding's NaN has no code, 0 where the result is the integer.
  std::uint32_t* codes = nullptr;
  std::uint8_t* flags = nullptr;     ///< 0 without a trace
  std::uint16_t* corners = nullptr;  ///< tie, carry, cancellation of any rounding
  std::uint64_t* signals = nullptr;  ///< n × the elements of SignalsOf
};

/// Computes the lines' results. Throws Error as SignalsOf does, and where a code or a random
/// integer is out of range.
CPD_API void OracleSums(const SumRule& rule, const SumLines& lines);

}  // namespace cpd
