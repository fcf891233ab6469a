// SPDX-License-Identifier: Apache-2.0
//
// The slow oracle of sums and of sums of products, for many lines at a time: values, exception
// flags and signals (intermediate results). An ordered sum has a signal for each rounding. A matrix
// unit has signals for each product (exponent, significand, shift and cut bits), for the greatest
// exponent, and for the sum before and after normalization.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpd/export.h"
#include "cpd/oracle/oracle.h"
#include "cpd/spec/accumulator.h"

namespace cpd {

/// The rule of one element of Gemm or, if `is_sum`, of Sum. Sum adds the terms a, and has no b and
/// c. If sums are integers (FixedPoint), c is an integer of the same kind. Then the result is an
/// integer too if the accumulator's format is fp32. With any other format, the result is the sum
/// rounded into that format.
struct SumRule {
  Accumulator accumulator{};
  Format a{}, b{}, c{};
  std::int64_t length = 16;  ///< number of terms, or products
  bool is_sum = false;
  soft::Tininess tininess = soft::Tininess::after;
};

/// The signals of one name in a line: `count` elements of `bits` bits each. Signed signals are in
/// two's complement.
struct Signal {
  std::string name;
  int bits = 1;
  int count = 1;
  bool is_signed = false;

  bool operator==(const Signal&) const = default;
};

/// Returns whether lines have signals and flags. All rules have them, except matrix units whose
/// adder is not Adder::aligned.
CPD_API bool HasTrace(const SumRule& rule);

/// Returns whether a line's result is an integer, not a code. This holds for sums in an integer
/// (FixedPoint) if the accumulator's format is fp32.
CPD_API bool HasIntegerResult(const SumRule& rule);

/// Returns the signals of a line, in their order; empty if the rule has no trace. Throws Error for
/// signals wider than 64 bits, for a sum without terms, or for stochastic rounding of a matrix unit
/// without a trace.
///
/// The signals of an ordered sum have the results of its roundings. Roundings of equal name form
/// one signal, in program order. Names are `start` (c, or the first term), `product` and `sum`; for
/// kahan also `y`, `t`, `grown` and `compensation`, for chunks `partial`, for pairwise `tree`.
///
/// A sum in an integer (FixedPoint) has two signals. `term` is each term in units of the last bit,
/// modulo 2^width, with c first; a term that is not finite is 0. `sum` is the sum after each term;
/// its last element is the result.
///
/// A matrix unit has the following signals for each block; T is the number of a block's terms.
/// - `special`: 1 if a term or the addend is not finite. Then all other signals of the block but
///   `block_sum` are 0.
/// - `p_sign`, `p_exp`, `p_sig`: the sign, exponent and integer significand of each of the T terms.
///   Terms are not normalized; `p_sig` counts units of 2^(p_exp - f), where f is the number of
///   fraction bits of a product. A zero has the unit's least exponent.
/// - `p_shift`, `p_cut`: how far p_exp is below max_exp, and the low bits of p_sig that are
///   dropped.
/// - `c_sign`, `c_exp`, `c_sig`, `c_shift`, `c_cut`: the running sum before the block, likewise.
///   `c_shift` and `c_cut` exist only if the unit aligns the addend.
/// - `max_exp`: the greatest exponent. `sum`: the sum, in units of 2^(max_exp - fraction_bits).
/// - `n_sign`, `n_exp`, `n_sig`: the normalized total. The top bit of n_sig is the leading one;
///   n_sig is 0 for a zero. `n_sticky` (only if the addend is not aligned): whether lower bits are
///   set.
/// - `block_sum`: the rounded sum. `promoted` (only with promotion): the outer sum after each
///   promotion.
CPD_API std::vector<Signal> SignalsOf(const SumRule& rule);

/// Returns the number of a line's roundings that take a random integer. For Gemm, the first of them
/// rounds c. Returns 0 if rounding is not stochastic.
CPD_API std::int64_t DrawsOf(const SumRule& rule);

/// The inputs and outputs of n lines. Arrays are row-major. They hold codes, except `random` and
/// `c_units`, which hold integers.
struct SumLines {
  std::int64_t n = 0;
  const std::uint32_t* a = nullptr;  ///< n × length
  const std::uint32_t* b = nullptr;
  const std::uint32_t* c = nullptr;         ///< n, unless sums are integers
  const std::uint64_t* c_units = nullptr;   ///< n, where sums are integers: two's complement
  const std::uint32_t* a_scales = nullptr;  ///< n × ⌈length / unit.scale_block⌉
  const std::uint32_t* b_scales = nullptr;
  const std::uint32_t* random = nullptr;  ///< n × DrawsOf
  /// n codes. A code is kNoCode if the result is a NaN that the format cannot encode, and 0 if the
  /// result is an integer.
  std::uint32_t* codes = nullptr;
  std::uint8_t* flags = nullptr;     ///< 0 without a trace
  std::uint16_t* corners = nullptr;  ///< tie, carry, cancellation of any rounding
  std::uint64_t* signals = nullptr;  ///< n × the elements of SignalsOf
};

/// Computes the outputs of the lines. Throws Error as SignalsOf does, and if a code or a random
/// integer is out of range.
CPD_API void OracleSums(const SumRule& rule, const SumLines& lines);

}  // namespace cpd
