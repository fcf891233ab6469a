// SPDX-License-Identifier: Apache-2.0
//
// The slow, exact oracle (oracle/reference.h) of elementwise operations, for many lines of test
// vectors at a time. A line is one element-wise operation on codes; the oracle computes the
// result's code and exception flags. It shares no arithmetic with the kernels.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "cpd/export.h"
#include "cpd/spec/format.h"
#include "cpd/spec/operation.h"
#include "cpd/spec/rounding.h"

namespace cpd {

/// Classes of corner cases, as bits. A line may belong to several classes. Exceptions are reported
/// in the line's flags.
enum class Corner : std::uint16_t {
  exact = 1,
  tie = 2,
  carry = 4,         ///< rounding gives a greater exponent
  cancellation = 8,  ///< a sum is zero, or at least two binades below its greater term
  subnormal_in = 16,
  subnormal_out = 32,
  positive_zero = 64,  ///< the result
  negative_zero = 128,
  zero_in = 256,
  infinity_in = 512,
  infinity_out = 1024,
  nan_in = 2048,
  nan_out = 4096,
  largest = 8192,  ///< the result has the largest finite magnitude
};

struct ElementRule {
  soft::Operation operation = soft::Operation::mul;
  std::array<Format, 3> operands{};  ///< the formats of x, y and z
  Format result{};
  RoundingOptions rounding{};  ///< random integers are the caller's
  soft::Tininess tininess = soft::Tininess::after;
};

/// The code that the oracle gives for a NaN result if the result's format has no code for NaN.
constexpr std::uint32_t kNoCode = 0xFFFFFFFF;

/// The inputs and outputs of n lines, in the caller's memory. Codes include the sign bit.
struct ElementLines {
  std::int64_t n = 0;
  std::array<const std::uint32_t*, 3> operands{};  ///< as many as the operation takes
  const std::uint32_t* random = nullptr;           ///< for stochastic rounding
  std::uint32_t* codes = nullptr;
  std::uint8_t* flags = nullptr;     ///< NX 1, UF 2, OF 4, DZ 8, NV 16
  std::uint16_t* corners = nullptr;  ///< sums of Corner
};

/// Computes lines of one rule.
class CPD_API ElementOracle {
 public:
  virtual ~ElementOracle() = default;

  /// Computes the codes, flags and corners of the lines. A line's inputs are its operands' codes
  /// and its random integer. If these have at most 16 bits in all, and there are at least as many
  /// lines as possible inputs, computes the result of each possible input once, in a table. Throws
  /// Error if a code or a random integer is out of range.
  virtual void Compute(const ElementLines& lines) = 0;
};

/// Returns an oracle for `rule`. Throws Error if a format or the rounding is out of range.
CPD_API std::unique_ptr<ElementOracle> MakeElementOracle(const ElementRule& rule);

/// Computes `lines` with a new ElementOracle for `rule`. Throws Error as MakeElementOracle and
/// Compute do.
CPD_API void OracleElements(const ElementRule& rule, const ElementLines& lines);

}  // namespace cpd
