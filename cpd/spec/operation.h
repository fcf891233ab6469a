// SPDX-License-Identifier: Apache-2.0
//
// The elementwise operations that report exceptions, and the exceptions of IEEE 754-2019, clause 7.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cpd/export.h"

namespace cpd::soft {

enum class Operation : std::uint8_t { cast, add, mul, fma, div, sqrt };

/// Returns the number of operands of an operation.
constexpr int operands_of(Operation operation) {
  if (operation == Operation::fma) return 3;
  return operation == Operation::cast || operation == Operation::sqrt ? 1 : 2;
}

/// The exceptions, in the order of the flags of RISC-V and TestFloat.
constexpr std::uint8_t kInexact = 1;    ///< the result differs from the exact one
constexpr std::uint8_t kUnderflow = 2;  ///< the result is inexact and tiny
/// Overflow: the result, rounded without an upper bound on the exponent, exceeds the largest value.
constexpr std::uint8_t kOverflow = 4;
constexpr std::uint8_t kDivideByZero = 8;  ///< an exact infinity from finite operands
constexpr std::uint8_t kInvalid =
    16;  ///< NaN from numbers, or if the format has none; a signaling NaN

/// Determines when a nonzero result counts as tiny. `after`: if it is below 2^emin after rounding
/// to the format's precision with an unbounded exponent. `before`: if the exact result is below
/// 2^emin.
enum class Tininess : std::uint8_t { after, before };

/// ParseOperation and ParseTininess throw Error for an unknown name.
CPD_API Operation ParseOperation(std::string_view name);
CPD_API Tininess ParseTininess(std::string_view name);
CPD_API std::string ToString(Operation operation);

}  // namespace cpd::soft
